"""One process of the storm: sections on three names, each written down as name, fence, start, end, held at the end."""

from __future__ import annotations

import asyncio
import random
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lockfast.aio import Lockfast as AsyncioLockfast
from lockfast.sync import Lockfast

if TYPE_CHECKING:
    from lockfast.grants import GrantView

LEASE_S = 8.0
WAIT_S = 30.0
TIMEOUT_S = 0.3  # a lost message is noticed after half of it


def note(out: list[str], name: str, grant: GrantView[Any], start: float) -> None:
    """Called inside the section, at its end; `start` was read at its beginning."""
    held = grant.held
    # A list, because text files are not made for several threads, and sections of different names run side by side.
    out.append(f"{name} {grant.fence} {start!r} {time.monotonic()!r} {held}\n")


def run_threads(url: str, names: list[str], sections: int, workers: int, out: list[str]) -> None:
    failures: list[BaseException] = []

    def work(number: int) -> None:
        rng = random.Random(number)
        try:
            for _ in range(sections // workers):
                with lf.lock(name := rng.choice(names), lease=LEASE_S, wait=WAIT_S) as grant:
                    note(out, name, grant, time.monotonic())
        except BaseException as failure:
            failures.append(failure)

    with Lockfast(url, timeout=TIMEOUT_S) as lf:
        threads = [threading.Thread(target=work, args=(number,)) for number in range(workers)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    if failures:
        raise failures[0]


async def run_asyncio(url: str, names: list[str], sections: int, workers: int, out: list[str]) -> None:
    async def work(number: int) -> None:
        rng = random.Random(number)
        for _ in range(sections // workers):
            async with lf.lock(name := rng.choice(names), lease=LEASE_S, wait=WAIT_S) as grant:
                note(out, name, grant, time.monotonic())

    async with AsyncioLockfast(url, timeout=TIMEOUT_S) as lf, asyncio.TaskGroup() as group:
        for number in range(workers):
            group.create_task(work(number))


def main() -> None:
    side, url, path, sections, workers, *names = sys.argv[1:]
    out: list[str] = []
    if side == "threads":
        run_threads(url, names, int(sections), int(workers), out)
    else:
        asyncio.run(run_asyncio(url, names, int(sections), int(workers), out))
    Path(path).write_text("".join(out))


if __name__ == "__main__":
    main()
