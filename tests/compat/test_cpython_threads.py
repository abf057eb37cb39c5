"""CPython's own tests of its locks (`test.lock_tests`), run on the objects of `lockfast.compat.threads`."""

from __future__ import annotations

import itertools
import threading
from typing import TYPE_CHECKING, Any, ClassVar

import pytest

from compat import excluded
from lockfast import Lockfast
from lockfast.compat import threads

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kit.servers import Server

lock_tests: Any = pytest.importorskip("test.lock_tests", reason="this interpreter ships no test.lock_tests")
_numbers = itertools.count(1)

# Many cases leave a lock held; that it is given back is logged, and is no failure.
pytestmark = pytest.mark.slow


class OnServer:
    """What every class below has: a client, and names that nobody has used."""

    lf: ClassVar[Lockfast]

    def fresh(self) -> str:
        return f"cpython-{next(_numbers)}"


@pytest.fixture(scope="module", autouse=True)
def _client(valkey_server: Server) -> Iterator[None]:
    """A client whose timer runs before CPython begins to count threads, and goes on while it does."""
    with Lockfast(valkey_server.url) as lf, lf.lock("keeps the timer running"):
        OnServer.lf = lf
        yield


def without_excluded(cases: Any) -> Any:
    """A class decorator: skips what is excluded, by name and with its reason."""
    excluded.apply(cases, excluded.THREADS)
    return cases


@without_excluded
class TestLock(OnServer, lock_tests.LockTests):  # type: ignore[misc]
    def locktype(self) -> threads.Lock:
        return threads.Lock(self.lf, self.fresh())


@without_excluded
class TestRLock(OnServer, lock_tests.RLockTests):  # type: ignore[misc]
    def locktype(self) -> threads.RLock:
        return threads.RLock(self.lf, self.fresh())


@without_excluded
class TestSemaphore(OnServer, lock_tests.SemaphoreTests):  # type: ignore[misc]
    def semtype(self, value: int = 1) -> threads.Semaphore:
        return threads.Semaphore(self.lf, self.fresh(), value)


@without_excluded
class TestBoundedSemaphore(OnServer, lock_tests.BoundedSemaphoreTests):  # type: ignore[misc]
    def semtype(self, value: int = 1) -> threads.BoundedSemaphore:
        return threads.BoundedSemaphore(self.lf, self.fresh(), value)


@without_excluded
class TestCondition(OnServer, lock_tests.ConditionTests):  # type: ignore[misc]
    """A local `threading.Condition` on one of our locks."""

    def condtype(self, lock: Any = None) -> threading.Condition:
        own: Any = threads.RLock(self.lf, self.fresh())
        return threading.Condition(lock or own)


@without_excluded
class TestBarrier(OnServer, lock_tests.BarrierTests):  # type: ignore[misc]
    def barriertype(self, parties: int, action: Any = None, timeout: float | None = None) -> threads.Barrier:
        return threads.Barrier(self.lf, self.fresh(), parties, action, timeout)
