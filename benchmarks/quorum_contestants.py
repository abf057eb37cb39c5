"""Who takes part in benchmarks/quorum.py, each in a process of its own.

Two of the libraries are packages of the same name, and one wants an older redis-py than Lockfast does. So each is
imported from a directory of its own (`pip install --target DIR/NAME NAME`), by a process that imports nothing else.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import multiprocessing
import os
import sys
import time
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from benchmarks.quorum_floor import Floor
from benchmarks.servers import die_with_parent

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

LEASE_S = 5
SECTION_S = 0.001
LEAST_PAIRS = 3  # even of a contestant that takes longer for them than its slice


class Steps(NamedTuple):
    """What a contestant does: take a name, and give back what was taken. Awaited where it is asyncio."""

    acquire: Callable[[], Any]
    release: Callable[[Any], Any]
    fleet: Any = None  # of Lockfast: what it knows of its servers


Opened = Iterator[Steps]
OpenedAsync = AsyncIterator[Steps]


@contextlib.contextmanager
def lockfast(urls: list[str], name: str) -> Opened:
    from lockfast.sync import Lockfast

    with Lockfast(urls if len(urls) > 1 else urls[0], **_settings(urls)) as lf:
        lock = lf.lock(name, lease=LEASE_S, wait=60)
        yield Steps(lock.acquire, lambda grant: grant.release(), getattr(lf._driver, "fleet", None))


@contextlib.asynccontextmanager
async def lockfast_asyncio(urls: list[str], name: str) -> OpenedAsync:
    from lockfast.aio import Lockfast

    async with Lockfast(urls if len(urls) > 1 else urls[0], **_settings(urls)) as lf:
        lock = lf.lock(name, lease=LEASE_S, wait=60)
        yield Steps(lock.acquire, lambda grant: grant.release(), getattr(lf._driver, "fleet", None))


def _settings(urls: list[str]) -> dict[str, Any]:
    return {"max_lease": LEASE_S} if len(urls) > 1 else {}


@contextlib.contextmanager
def redlock_ng(urls: list[str], name: str) -> Opened:
    client = import_module("redlock").Redlock(urls)
    yield Steps(lambda: _granted(client.acquire(name, LEASE_S * 1000, blocking=True)), client.release)


@contextlib.asynccontextmanager
async def redlock_ng_asyncio(urls: list[str], name: str) -> OpenedAsync:
    client = import_module("redlock").AsyncRedlock(urls)

    async def acquire() -> Any:
        return _granted(await client.acquire(name, LEASE_S * 1000, blocking=True))

    yield Steps(acquire, client.release)


@contextlib.contextmanager
def redlock_py(urls: list[str], name: str) -> Opened:
    client = import_module("redlock").Redlock(urls)

    def acquire() -> Any:
        while True:  # it gives up after three tries
            lock = client.lock(name, LEASE_S * 1000)
            if lock:
                return lock

    yield Steps(acquire, client.unlock)


@contextlib.contextmanager
def pottery(urls: list[str], name: str) -> Opened:
    from redis import Redis

    masters = {Redis.from_url(url) for url in urls}
    lock = import_module("pottery").Redlock(key=name, masters=masters, auto_release_time=LEASE_S)
    yield Steps(lambda: _granted(lock.acquire()), lambda _: lock.release())


@contextlib.asynccontextmanager
async def pottery_asyncio(urls: list[str], name: str) -> OpenedAsync:
    from redis.asyncio import Redis

    masters = {Redis.from_url(url) for url in urls}
    lock = import_module("pottery").AIORedlock(key=name, masters=masters, auto_release_time=LEASE_S)

    async def acquire() -> Any:
        return _granted(await lock.acquire())

    yield Steps(acquire, lambda _: lock.release())


@contextlib.asynccontextmanager
async def aioredlock(urls: list[str], name: str) -> OpenedAsync:
    library = import_module("aioredlock")
    client = library.Aioredlock(urls)

    async def acquire() -> Any:
        while True:  # it gives up after three tries
            try:
                return await client.lock(name, lock_timeout=LEASE_S)
            except library.LockError as error:
                if not isinstance(error, library.LockAcquiringError):
                    raise

    try:
        yield Steps(acquire, client.unlock)
    finally:
        await client.destroy()


@contextlib.contextmanager
def bare(urls: list[str], name: str) -> Opened:
    with contextlib.closing(Floor(urls, name, LEASE_S)) as floor:
        yield Steps(floor.acquire, floor.release)


def _granted(answer: Any) -> Any:
    if not answer:
        raise RuntimeError("it was not granted its lock")
    return answer


class Contestant(NamedTuple):
    """distribution: what pip calls it. opener: opens it, given URLs and the name to lock."""

    distribution: str
    opener: Callable[[list[str], str], Any]
    is_async: bool = False


CONTESTANTS = {
    "lockfast": Contestant("lockfast", lockfast),
    "redlock-ng": Contestant("redlock-ng", redlock_ng),
    "redlock-py": Contestant("redlock-py", redlock_py),
    "pottery": Contestant("pottery", pottery),
    "lockfast asyncio": Contestant("lockfast", lockfast_asyncio, True),
    "redlock-ng asyncio": Contestant("redlock-ng", redlock_ng_asyncio, True),
    "pottery asyncio": Contestant("pottery", pottery_asyncio, True),
    "aioredlock": Contestant("aioredlock", aioredlock, True),
    "floor: bare requests": Contestant("lockfast", bare),
}
OURS = ("lockfast", "lockfast asyncio")
FLOOR = "floor: bare requests"


class Failed(Exception):
    """A contestant raised an error."""


class Missing(Exception):
    """A contestant cannot be imported."""


class Capped(Exception):
    """A contestant was not done when its time was up. It goes on: `answer` tells when it is."""


class Worker:
    """One contestant's process."""

    def __init__(self, name: str, others: str) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        # No daemon: it has children of its own in a crowd. It dies with this process all the same.
        self._process = context.Process(target=_work, args=(theirs, name, others))
        self._process.start()
        theirs.close()

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    def ask(self, *order: Any, cap_s: float = 60.0) -> Any:
        """Have something done, and return what came of it. Raises Failed, Missing, or Capped after `cap_s`."""
        self.tell(*order)
        return self.answer(cap_s)

    def tell(self, *order: Any) -> None:
        self._pipe.send(order)

    def answer(self, cap_s: float = 60.0) -> Any:
        if not self._pipe.poll(cap_s):
            raise Capped
        try:
            answer = self._pipe.recv()
        except EOFError:
            raise Failed("its process ended") from None
        if isinstance(answer, Exception):
            raise answer
        return answer

    def close(self) -> None:
        self._process.kill()
        self._process.join()


def _work(orders: Connection, name: str, others: str) -> None:
    die_with_parent()
    logging.disable(logging.CRITICAL)  # some tell of every server that does not answer, at length
    contestant = CONTESTANTS[name]
    own = Path(others) / contestant.distribution
    if own.is_dir():
        sys.path.insert(0, str(own))
    side = (AsyncSide if contestant.is_async else Side)(contestant)
    with contextlib.suppress(EOFError, KeyboardInterrupt):
        while True:
            what, *args = orders.recv()
            try:
                orders.send(getattr(side, what)(*args))
            except ModuleNotFoundError as missing:
                orders.send(Missing(str(missing)))
            except Exception:
                orders.send(Failed(traceback.format_exc(limit=-3)))


class Side:
    """Carries out the orders of one process. What is opened under a key stays open."""

    def __init__(self, contestant: Contestant) -> None:
        self._contestant = contestant
        self._opened: dict[str, tuple[Any, Steps]] = {}

    def open(self, key: str, urls: list[str], name: str) -> None:
        manager = self._contestant.opener(urls, name)
        self._opened[key] = manager, self._enter(manager)
        for _ in range(20):  # connects, and loads scripts
            self.run(key, 0.0)

    def run(self, key: str, seconds: float) -> tuple[list[float], float]:
        """Microseconds of each pair, for so long; and what of them this process was busy, on average."""
        gc.collect()
        busy_s = time.process_time()
        took_us = self._pairs(self._opened[key][1], seconds)
        return took_us, (time.process_time() - busy_s) * 1e6 / len(took_us)

    def settle(self, key: str, seconds: float) -> int:
        """Let it find out that all servers are there again. How many it would ask now."""
        steps = self._opened[key][1]
        give_up = time.monotonic() + seconds
        if steps.fleet is None:
            return 0
        while True:
            self._pairs(steps, 0.0)
            ready = len(steps.fleet.ready(steps.fleet.nodes[0].env.now()))
            if ready == len(steps.fleet.nodes) or time.monotonic() > give_up:
                return ready
            time.sleep(0.01)

    def crowd(self, urls: list[str], name: str, count: int, seconds: float) -> list[Any]:
        """Sections of so many processes that all want one name: when each was entered and left, and what it asked."""
        context = multiprocessing.get_context("fork")
        pipes = []
        for number in range(count):
            ours, theirs = context.Pipe()
            context.Process(target=_contend, args=(self, theirs, urls, name, number, seconds), daemon=True).start()
            theirs.close()
            pipes.append(ours)
        for pipe in pipes:
            _heard(pipe)
        start_at = time.monotonic() + 0.1
        for pipe in pipes:
            pipe.send(start_at)
        return [_heard(pipe) for pipe in pipes]

    def contend(self, urls: list[str], name: str, number: int, seconds: float, pipe: Connection) -> Any:
        """The part of one of them. Opened before the start, with pairs on a name of its own."""
        with self._contestant.opener(urls, f"{name}:{number}") as steps:
            self._pairs(steps, 0.0)
        with self._contestant.opener(urls, name) as steps:
            pipe.send("ready")
            sections = []
            end_at = _await_start(pipe, seconds)
            while time.monotonic() < end_at:
                grant = steps.acquire()
                entered_at = time.monotonic()
                time.sleep(SECTION_S)
                left_at = time.monotonic()
                steps.release(grant)
                sections.append((entered_at, left_at))
            return sections, _counts(steps)

    def _enter(self, manager: Any) -> Steps:
        steps: Steps = manager.__enter__()
        return steps

    def _pairs(self, steps: Steps, seconds: float) -> list[float]:
        acquire, release, _ = steps
        clock = time.perf_counter
        took_us: list[float] = []
        started = clock()
        end_at = started + seconds
        while started < end_at or len(took_us) < LEAST_PAIRS:
            release(acquire())
            ended = clock()
            took_us.append((ended - started) * 1e6)
            started = ended
        return took_us


class AsyncSide(Side):
    """The same for asyncio, in a loop that stands still while the others run."""

    def __init__(self, contestant: Contestant) -> None:
        super().__init__(contestant)
        self._runner = asyncio.Runner()

    def contend(self, urls: list[str], name: str, number: int, seconds: float, pipe: Connection) -> Any:
        async def main() -> Any:
            async with self._contestant.opener(urls, name) as steps:
                pipe.send("ready")
                sections = []
                end_at = _await_start(pipe, seconds)
                while time.monotonic() < end_at:
                    grant = await steps.acquire()
                    entered_at = time.monotonic()
                    await asyncio.sleep(SECTION_S)
                    left_at = time.monotonic()
                    await steps.release(grant)
                    sections.append((entered_at, left_at))
                return sections, _counts(steps)

        return asyncio.run(main())

    def _enter(self, manager: Any) -> Steps:
        async def enter() -> Any:
            return await manager.__aenter__()

        steps: Steps = self._runner.run(enter())
        return steps

    def _pairs(self, steps: Steps, seconds: float) -> list[float]:
        return self._runner.run(_async_pairs(steps.acquire, steps.release, seconds))


async def _async_pairs(
    acquire: Callable[[], Awaitable[Any]], release: Callable[[Any], Awaitable[Any]], seconds: float
) -> list[float]:
    clock = time.perf_counter
    took_us: list[float] = []
    started = clock()
    end_at = started + seconds
    while started < end_at or len(took_us) < LEAST_PAIRS:
        await release(await acquire())
        ended = clock()
        took_us.append((ended - started) * 1e6)
        started = ended
    return took_us


def _contend(side: Side, pipe: Connection, urls: list[str], name: str, number: int, seconds: float) -> None:
    die_with_parent()
    try:
        pipe.send(side.contend(urls, name, number, seconds, pipe))
    except Exception:
        pipe.send(Failed(traceback.format_exc(limit=-3)))
    os._exit(0)


def _await_start(pipe: Connection, seconds: float) -> float:
    start_at: float = pipe.recv()
    time.sleep(max(0.0, start_at - time.monotonic()))
    return start_at + seconds


def _counts(steps: Steps) -> tuple[int, int]:
    """How often it asked for votes, and how often that came to a hold."""
    return (0, 0) if steps.fleet is None else (steps.fleet.rounds, steps.fleet.grants)


def _heard(pipe: Connection) -> Any:
    answer = pipe.recv()
    if isinstance(answer, Exception):
        raise answer
    return answer
