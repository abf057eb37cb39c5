"""CPython's own tests of asyncio's locks (`test.test_asyncio.test_locks`), run on those of `lockfast.compat.tasks`.

They name `asyncio.Lock` in their bodies, so a copy of the module gets an `asyncio` of its own. There, `sleep(0)` waits
until the server owes nothing: with it the tests let other tasks run until they have to wait, and ours get there by
round trips.
"""

from __future__ import annotations

import asyncio
import importlib.util
import itertools
from typing import TYPE_CHECKING, Any, ClassVar

import pytest

from compat import excluded
from lockfast.aio import Lockfast
from lockfast.compat import tasks

if TYPE_CHECKING:
    from kit.servers import Server

pytestmark = pytest.mark.slow
QUIET_LOOKS = 3  # in a row, as a push may be on its way
_numbers = itertools.count(1)


class Shim:
    """`asyncio`, with our locks in it."""

    lf: ClassVar[Lockfast]

    class Lock(tasks.Lock):
        def __init__(self) -> None:
            super().__init__(Shim.lf, fresh())

    class Semaphore(tasks.Semaphore):
        def __init__(self, value: int = 1) -> None:
            super().__init__(Shim.lf, fresh(), value)

    class BoundedSemaphore(tasks.BoundedSemaphore):
        def __init__(self, value: int = 1) -> None:
            super().__init__(Shim.lf, fresh(), value)

    class Barrier(tasks.Barrier):
        def __init__(self, parties: int) -> None:
            super().__init__(Shim.lf, fresh(), parties)

    @staticmethod
    async def sleep(delay_s: float) -> None:
        if delay_s:
            await asyncio.sleep(delay_s)
            return
        quiet = 0
        while quiet < QUIET_LOOKS:
            await asyncio.sleep(0.005)
            driver = Shim.lf._driver
            quiet = 0 if driver._line.tasks() or any(link._owed for link in driver._line.links) else quiet + 1

    def __getattr__(self, name: str) -> Any:
        return getattr(asyncio, name)


def fresh() -> str:
    return f"cpython-asyncio-{next(_numbers)}"


def copy_of_the_tests() -> Any:
    spec = importlib.util.find_spec("test.test_asyncio") and importlib.util.find_spec("test.test_asyncio.test_locks")
    if spec is None or spec.loader is None:
        pytest.skip("this interpreter ships no test.test_asyncio.test_locks", allow_module_level=True)
    module: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.asyncio = Shim()
    return module


test_locks: Any = copy_of_the_tests()


class OnServer:
    """What every class below has: a client in the loop of each test."""

    @pytest.fixture(autouse=True)
    def _server(self, valkey_server: Server) -> None:
        Shim.lf = Lockfast(valkey_server.url)

    async def asyncTearDown(self) -> None:
        await Shim.lf.aclose()


def without_excluded(cases: Any) -> Any:
    """A class decorator: skips what is excluded, by name and with its reason."""
    excluded.apply(cases, excluded.ASYNCIO)
    return cases


@without_excluded
class TestLock(OnServer, test_locks.LockTests):  # type: ignore[misc]
    pass


@without_excluded
class TestSemaphore(OnServer, test_locks.SemaphoreTests):  # type: ignore[misc]
    pass


@without_excluded
class TestBarrier(OnServer, test_locks.BarrierTests):  # type: ignore[misc]
    pass
