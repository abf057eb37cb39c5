"""Acquire and release of a free lock: what a lock costs when nobody else wants it.

    python -m benchmarks.uncontended [--quick] [--json FILE]

All contestants take turns in one run against one server, by TCP on the loopback. First with client and server
pinned to one CPU: then every instruction of either side is waited for, and the figure is the cost. Then
unpinned, where the time is mostly the wake-up of the other CPU, which is luck and the same for all. Each lock
has a lease of 30 s.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import statistics
import sys
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Protocol

from benchmarks.rounds import (
    Goal,
    Report,
    Samples,
    chosen,
    interleave,
    median_ratio,
    parser,
    percentile,
    print_table,
    ratios,
)
from benchmarks.servers import RawSocket, Server, pack, pin, running

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Sequence

LEASE_S = 30
TASKS = 100
DELETE_IF_MINE = "if redis.call('get',KEYS[1])==ARGV[1] then return redis.call('del',KEYS[1]) end return 0"


class Pairs(Protocol):
    """Runs so many pairs and returns the seconds they took."""

    def __call__(self, pairs: int, /) -> float: ...


Pair = Callable[[int], Awaitable[None]]
"""One pair on the name of the task with this number."""


@contextlib.contextmanager
def floor(server: Server) -> Iterator[Pairs]:
    """The least a lock with an owner can do: SET NX PX, and a script that deletes the key if still ours."""
    with RawSocket(server.port) as raw:
        send, receive = raw.send, raw.receive
        digest = raw.ask(pack("SCRIPT", "LOAD", DELETE_IF_MINE)).decode()
        take = pack("SET", "bench:floor", "0123456789abcdef", "NX", "PX", LEASE_S * 1000)
        give = pack("EVALSHA", digest, 1, "bench:floor", "0123456789abcdef")

        def run(pairs: int) -> float:
            started = time.perf_counter()
            for _ in range(pairs):
                send(take)
                if receive(64) != b"+OK\r\n":
                    raise RuntimeError("the floor was not granted its lock")
                send(give)
                if receive(64) != b":1\r\n":
                    raise RuntimeError("the floor lost its lock")
            return time.perf_counter() - started

        yield run


@contextlib.contextmanager
def redis_py(server: Server) -> Iterator[Pairs]:
    import redis

    with redis.Redis(port=server.port) as client:
        lock = client.lock("bench:redis-py", timeout=LEASE_S)

        def run(pairs: int) -> float:
            started = time.perf_counter()
            for _ in range(pairs):
                lock.acquire()
                lock.release()
            return time.perf_counter() - started

        yield run


@contextlib.contextmanager
def lockfast_reused(server: Server) -> Iterator[Pairs]:
    from lockfast.sync import Lockfast

    with Lockfast(server.url) as lf:
        lock = lf.lock("bench:lockfast", lease=LEASE_S)

        def run(pairs: int) -> float:
            started = time.perf_counter()
            for _ in range(pairs):
                lock.acquire().release()
            return time.perf_counter() - started

        yield run


@contextlib.contextmanager
def lockfast_fresh(server: Server) -> Iterator[Pairs]:
    from lockfast.sync import Lockfast

    with Lockfast(server.url) as lf:

        def run(pairs: int) -> float:
            started = time.perf_counter()
            for _ in range(pairs):
                with lf.lock("bench:lockfast-with", lease=LEASE_S):
                    pass
            return time.perf_counter() - started

        yield run


@contextlib.asynccontextmanager
async def redis_py_pairs(server: Server, tasks: int) -> AsyncIterator[Pair]:
    from redis import asyncio as redis_asyncio

    # Its default pool: at 100 tasks faster than a blocking pool of 5, 10, 20, 50 or 100 connections.
    async with redis_asyncio.Redis(port=server.port) as client:
        locks = [client.lock(f"bench:redis-py:{task}", timeout=LEASE_S) for task in range(tasks)]

        async def pair(task: int) -> None:
            lock = locks[task]
            await lock.acquire()
            await lock.release()

        yield pair


@contextlib.asynccontextmanager
async def lockfast_pairs(server: Server, tasks: int) -> AsyncIterator[Pair]:
    from lockfast.aio import Lockfast

    async with Lockfast(server.url) as lf:
        locks = [lf.lock("bench:lockfast", task, lease=LEASE_S) for task in range(tasks)]

        async def pair(task: int) -> None:
            grant = await locks[task].acquire()
            await grant.release()

        yield pair


def in_tasks(
    pairs_of: Callable[[Server, int], contextlib.AbstractAsyncContextManager[Pair]],
    tasks: int,
    loop: str,
) -> Callable[[Server], contextlib.AbstractContextManager[Pairs]]:
    """A contestant of its own event loop, which stands still while the others run."""

    @contextlib.contextmanager
    def contestant(server: Server) -> Iterator[Pairs]:
        factory: Callable[[], asyncio.AbstractEventLoop] = asyncio.new_event_loop
        if loop == "uvloop":
            import uvloop

            factory = uvloop.new_event_loop
        with asyncio.Runner(loop_factory=factory) as runner:
            manager = pairs_of(server, tasks)
            pair = runner.run(_enter(manager))

            async def one_task(task: int, pairs: int) -> None:
                for _ in range(pairs):
                    await pair(task)

            async def all_tasks(pairs: int) -> float:
                started = time.perf_counter()
                if tasks == 1:
                    await one_task(0, pairs)
                else:
                    await asyncio.gather(*(one_task(task, pairs // tasks) for task in range(tasks)))
                return time.perf_counter() - started

            try:
                yield lambda pairs: runner.run(all_tasks(pairs))
            finally:
                runner.run(_leave(manager))

    return contestant


async def _enter(manager: contextlib.AbstractAsyncContextManager[Pair]) -> Pair:
    return await manager.__aenter__()


async def _leave(manager: contextlib.AbstractAsyncContextManager[Pair]) -> None:
    await manager.__aexit__(None, None, None)


CONTESTANTS: dict[str, Callable[[Server], contextlib.AbstractContextManager[Pairs]]] = {
    "floor: raw socket": floor,
    "redis-py Lock": redis_py,
    "lockfast, reused object": lockfast_reused,
    "lockfast, fresh object in with": lockfast_fresh,
    **{
        f"{library} asyncio, {tasks} task{'s' if tasks > 1 else ''}, {loop}": in_tasks(pairs_of, tasks, loop)
        for tasks in (1, TASKS)
        for loop in ("stock loop", "uvloop")
        for library, pairs_of in (("redis-py", redis_py_pairs), ("lockfast", lockfast_pairs))
    },
}
# Lockfast's contestant, whom it is compared with, how many times as fast it has to be.
TARGETS = [
    ("lockfast, reused object", "redis-py Lock", 3.0),
    ("lockfast, reused object", "floor: raw socket", 0.6),
    ("lockfast asyncio, 1 task, stock loop", "redis-py asyncio, 1 task, stock loop", 1.7),
    ("lockfast asyncio, 1 task, uvloop", "redis-py asyncio, 1 task, uvloop", 3.0),
    (f"lockfast asyncio, {TASKS} tasks, stock loop", f"redis-py asyncio, {TASKS} tasks, stock loop", 8.0),
]


def calibrate(run: Pairs, slice_s: float) -> int:
    """How many pairs fill a slice; a multiple of the tasks, which share them."""
    pairs = 2 * TASKS
    run(pairs)  # Connects and loads scripts.
    took_s = run(pairs)
    return max(2, round(slice_s / took_s * 2)) * TASKS


def measure(runs: dict[str, Pairs], server: Server, mode: str, rounds: int, slice_s: float, seed: int) -> Samples:
    """Microseconds per pair, of every contestant in every round."""
    allowed = os.sched_getaffinity(0)
    cpus = {max(allowed)} if mode == "pinned" else allowed
    pin(server.process.pid, cpus)
    pin(os.getpid(), cpus)
    try:
        pairs = {name: calibrate(run, slice_s) for name, run in runs.items()}
        samples: Samples = {name: {} for name in runs}
        for number, name in interleave(list(runs), rounds, seed, mode):
            gc.collect()  # One contestant's garbage is not collected in the next one's time.
            samples[name][number] = runs[name](pairs[name]) / pairs[name] * 1e6
    finally:
        pin(server.process.pid, allowed)
        pin(os.getpid(), allowed)
    return samples


def print_samples(samples: Samples) -> None:
    rows = []
    for name, by_round in samples.items():
        values = list(by_round.values())
        middle = statistics.median(values)
        peer = name.replace("lockfast", "redis-py") if "asyncio" in name else "redis-py Lock"
        rows.append([
            name,
            f"{middle:.1f}",
            f"{percentile(values, 25):.1f} to {percentile(values, 75):.1f}",
            f"{1e6 / middle:,.0f}",
            median_ratio(samples, peer, name),
            median_ratio(samples, "floor: raw socket", name),
        ])  # fmt: skip
    print_table(["contestant", "µs/pair", "quartiles", "pairs/s", "× its redis-py", "of the floor"], rows)


def goals(samples: Samples) -> list[Goal]:
    return [Goal(f"{ours} / {theirs}", ratios(samples, theirs, ours), ">=", bound) for ours, theirs, bound in TARGETS]


def main(arguments: Sequence[str] | None = None) -> int:
    command = parser("Acquire and release of a free lock.", rounds=15)
    command.add_argument("--slice", type=float, default=0.15, help="seconds per contestant and round")
    options = command.parse_args(arguments)
    rounds, slice_s = (3, 0.03) if options.quick else (options.rounds, options.slice)
    with running(options.server) as server, contextlib.ExitStack() as opened:
        report = Report("uncontended", server.version)
        runs: dict[str, Pairs] = {}
        for name in chosen(list(CONTESTANTS), options):
            try:
                runs[name] = opened.enter_context(CONTESTANTS[name](server))
            except ModuleNotFoundError as missing:
                report.left_out[name] = str(missing)
        print(f"{report.title}, {rounds} rounds\n")
        for mode in ("pinned", "unpinned"):
            samples = measure(runs, server, mode, rounds, slice_s, options.seed)
            report.samples[mode] = samples
            where = "client and server on one CPU" if mode == "pinned" else "any CPU"
            print(f"{mode}: {where}\n")
            print_samples(samples)
            if mode == "pinned":
                report.goals = goals(samples)
        report.print_goals()
    return report.finish(options)


if __name__ == "__main__":
    sys.exit(main())
