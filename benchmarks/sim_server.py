"""How many script executions a second the simulated server does on one core: what the simulator lives on.

    python -m benchmarks.sim_server [--quick]

Three mixes of the shipped scripts, through `Server.execute` with EVALSHA: a free lock taken and given back, a lock with
a queue of ten that is handed on with a push, and a semaphore of four with eight clients. The goal is
for the mix of all three.
"""

from __future__ import annotations

import argparse
import itertools
import time
from collections import deque
from typing import TYPE_CHECKING, Any

from lockfast import names
from lockfast.flows import scripts
from lockfast.sim.server import Server

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

GOAL_PER_S = 20_000
LEASE_MS = 30_000
PLACE_MS = 6_000


class Client:
    """A session and a listener on a server whose clock goes on by 100 µs with every command."""

    def __init__(self) -> None:
        ticks = itertools.count(1_700_000_000_000_000, 100)
        self.server = Server(ticks.__next__)
        self.pushed: list[Any] = []
        self.session = self.server.open(self.pushed.append)
        listener = self.server.open(self.pushed.append)
        self.server.execute(listener, ("SUBSCRIBE", "channel"))
        for script in (scripts.ADMIT, scripts.LEAVE):
            self.server.execute(self.session, ("SCRIPT", "LOAD", script.text))

    def admit(self, keys: tuple[str, ...], kind: str, limit: int, ticket: str) -> Any:
        return self.server.execute(
            self.session,
            (
                "EVALSHA",
                scripts.ADMIT.sha,
                5,
                *keys,
                kind,
                limit,
                1,
                LEASE_MS,
                "channel",
                "host 1",
                PLACE_MS,
                0,
                ticket,
            ),
        )

    def leave(self, keys: tuple[str, ...], ticket: str) -> Any:
        return self.server.execute(self.session, ("EVALSHA", scripts.LEAVE.sha, 5, *keys, LEASE_MS, "0", "", ticket))


def free(client: Client) -> Iterator[None]:
    keys = names.make("lockfast", ("free",)).keys
    for i in itertools.count():
        client.admit(keys, "lock", 1, f"t{i}")
        yield
        client.leave(keys, f"t{i}")
        yield


def crowd(kind: str, limit: int, clients: int) -> Callable[[Client], Iterator[None]]:
    """Everyone who has left asks again at once, so that the queue never runs dry."""

    def run(client: Client) -> Iterator[None]:
        keys = names.make("lockfast", (kind,)).keys
        order = deque(f"t{i}" for i in range(clients))
        for ticket in order:
            client.admit(keys, kind, limit, ticket)
            yield
        for i in itertools.count(clients):
            assert client.leave(keys, order.popleft()) == 1
            yield
            order.append(f"t{i}")
            client.admit(keys, kind, limit, order[-1])
            yield
            client.pushed.clear()

    return run


MIXES = {"free lock": free, "queue of ten": crowd("lock", 1, 10), "semaphore of four": crowd("semaphore", 4, 8)}


def per_second(mix: Callable[[Client], Iterator[None]], seconds: float) -> float:
    work = mix(Client())
    for _ in itertools.islice(work, 200):
        pass
    count, started = 0, time.thread_time()  # other work on this machine does not count
    while (spent_s := time.thread_time() - started) < seconds:
        for _ in itertools.islice(work, 500):
            count += 1
    return count / spent_s


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--quick", action="store_true", help="a tenth of the time")
    seconds = 0.2 if options.parse_args().quick else 2.0
    each_us = 0.0
    for name, mix in MIXES.items():
        rate = per_second(mix, seconds)
        each_us += 1e6 / rate / len(MIXES)
        print(f"{name:<20}{rate:>10,.0f} scripts/s")
    rate = 1e6 / each_us
    print(
        f"{'all three, mixed':<20}{rate:>10,.0f} scripts/s   {'goal reached' if rate >= GOAL_PER_S else 'GOAL MISSED'}"
    )


if __name__ == "__main__":
    main()
