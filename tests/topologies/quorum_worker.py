"""One process of a crowd or a storm over a quorum: sections on some names, each told to a recorder.

Prints, at its end, a line of JSON: how many sections, rounds of asking and grants there were.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
import threading
import time
from typing import Any

from lockfast.aio import Lockfast as AsyncioLockfast
from lockfast.check.record import Recorder
from lockfast.errors import LeaseLost, LockfastError
from lockfast.sync import Lockfast

WAIT_S = 20.0
HOLD_S = 0.002


def begin(recorder: Recorder, name: str, lease_s: float) -> str:
    return recorder.asked(name, lease=lease_s)


def work_in_thread(lf: Lockfast, recorder: Recorder, names: list[str], lease_s: float, todo: Todo) -> None:
    rng = random.Random(todo.number())
    while todo.more():
        name = rng.choice(names)
        ticket = begin(recorder, name, lease_s)
        try:
            grant = lf.lock(name, lease=lease_s, wait=WAIT_S).acquire()
        except LockfastError as failure:
            recorder.failed(ticket, repr(failure))
            todo.failed(failure)
            continue
        recorder.granted(ticket, grant)
        time.sleep(HOLD_S)
        if grant.held:
            recorder.renewed(ticket, grant)
        recorder.leaving(ticket)
        try:
            grant.release()
            recorder.left(ticket)
        except LeaseLost:
            recorder.lost(ticket)
        except LockfastError as failure:
            todo.failed(failure)


async def work_in_task(lf: AsyncioLockfast, recorder: Recorder, names: list[str], lease_s: float, todo: Todo) -> None:
    rng = random.Random(todo.number())
    while todo.more():
        name = rng.choice(names)
        ticket = begin(recorder, name, lease_s)
        try:
            grant = await lf.lock(name, lease=lease_s, wait=WAIT_S).acquire()
        except LockfastError as failure:
            recorder.failed(ticket, repr(failure))
            todo.failed(failure)
            continue
        recorder.granted(ticket, grant)
        await asyncio.sleep(HOLD_S)
        if grant.held:
            recorder.renewed(ticket, grant)
        recorder.leaving(ticket)
        try:
            await grant.release()
            recorder.left(ticket)
        except LeaseLost:
            recorder.lost(ticket)
        except LockfastError as failure:
            todo.failed(failure)


class Todo:
    """How long the workers go on: for so many sections, or until the standard input ends."""

    def __init__(self, sections: int) -> None:
        self.done = 0
        self.failures: list[str] = []
        self._sections = sections
        self._numbers = 0
        self._over = threading.Event()
        if not sections:
            threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        sys.stdin.read()
        self._over.set()

    def number(self) -> int:
        self._numbers += 1
        return self._numbers

    def more(self) -> bool:
        self.done += 1
        return self.done <= self._sections if self._sections else not self._over.is_set()

    def failed(self, failure: LockfastError) -> None:
        self.failures.append(repr(failure)[:300])


def main() -> None:
    side, urls, path, client, lease, sections, workers, options, *names = sys.argv[1:]
    todo, lease_s = Todo(int(sections)), float(lease)
    settings: dict[str, Any] = json.loads(options)
    with Recorder(path, client) as recorder:
        if side == "threads":
            with Lockfast(urls, **settings) as lf:
                threads = [
                    threading.Thread(target=work_in_thread, args=(lf, recorder, names, lease_s, todo))
                    for _ in range(int(workers))
                ]
                for thread in threads:
                    thread.start()
                for thread in threads:
                    thread.join()
                fleet = lf._driver.fleet  # type: ignore[attr-defined]
        else:

            async def crowd() -> Any:
                async with AsyncioLockfast(urls, **settings) as lf:
                    await asyncio.gather(
                        *[work_in_task(lf, recorder, names, lease_s, todo) for _ in range(int(workers))]
                    )
                    return lf._driver.fleet  # type: ignore[attr-defined]

            fleet = asyncio.run(crowd())
    print(json.dumps({"rounds": fleet.rounds, "grants": fleet.grants, "failures": todo.failures}), flush=True)


if __name__ == "__main__":
    main()
