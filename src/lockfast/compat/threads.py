"""Lockfast's locks with the call shapes of `threading`: for code that is handed a lock and knows nothing of leases.

Made of a client and a name: `Lock(lf, "orders")`. They are renewed while they are held. What `threading` cannot say
is said as Lockfast says it: `acquire` raises Unreachable or Refused, `release` and the end of a `with` block raise
LeaseLost. A release that the server does not confirm is not raised: the keeper goes on trying until the lease ends it.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from lockfast import errors, specs
from lockfast.compat.holding import Holding, check_client, permits
from lockfast.errors import LockfastError, NotAcquired
from lockfast.flows import ending
from lockfast.sync import Lockfast

if TYPE_CHECKING:
    from collections.abc import Callable

    from lockfast.sync import Grant
    from lockfast.sync import Lock as Native

_errors: Any = errors
__all__ = ["Barrier", "BoundedSemaphore", "Lock", "RLock", "Semaphore"]


def _lock_wait_s(blocking: bool, timeout: float) -> float | None:
    """How long to queue, by the arguments of a lock's `acquire`, refused as `threading` refuses them."""
    if not blocking:
        if timeout != -1:
            raise ValueError("can't specify a timeout for a non-blocking call")
        return 0.0
    if timeout == -1:
        return None
    if timeout < 0:
        raise ValueError("timeout value must be a non-negative number")
    if timeout > threading.TIMEOUT_MAX:
        raise OverflowError("timeout value is too large")
    return None if timeout > specs.MAX_WAIT_S else specs.wait_seconds(timeout)


def _give_back(grants: list[Grant], error: BaseException | None = None) -> None:
    """Release each of them; then raise what one of them said, unless a body that ended with `error` comes first."""
    failures = []
    for grant in grants:
        try:
            grant.release()
        except LockfastError as failure:
            if ending.conclude(grant._hold, grant._driver.keeper, error, failure):
                failures.append(failure)
    if failures:
        raise failures[0]


class Lock:
    """`threading.Lock` across processes: not re-entrant, and any thread may release it.

    lease: seconds the server keeps it if this process dies; on_lost: called with the grant when it is no longer sure.
    """

    def __init__(
        self, lf: Lockfast, name: str, *, lease: float = 30.0, on_lost: Callable[[Grant], object] | None = None
    ) -> None:
        check_client(lf, Lockfast, self, "tasks")
        self._lf = lf
        self._native: Native = lf.lock(name, lease=lease, on_lost=on_lost)
        self._holding: Holding[Grant] = Holding()

    def __repr__(self) -> str:
        state = "locked" if self._holding else "unlocked"
        return f"<{state} {type(self).__module__}.{type(self).__name__} object {self._native.name!r} at {id(self):#x}>"

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        """Hold the lock, waiting up to `timeout` seconds (-1: as long as it takes). False when it was busy."""
        try:
            grant = self._native.acquire(wait=_lock_wait_s(blocking, timeout))
        except NotAcquired:
            return False
        self._holding.put(threading.get_ident(), grant)
        return True

    def release(self) -> None:
        """Give back what a thread acquired by this object. RuntimeError when there is nothing."""
        self._release(None)

    def locked(self) -> bool:
        """Whether anybody holds it, here or elsewhere: asks the server."""
        return bool(self._lf.inspect(self._native.name).holders)

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        self._release(error)

    def _release(self, error: BaseException | None) -> None:
        grants = self._holding.take(threading.get_ident())
        if not grants:
            raise RuntimeError("release unlocked lock")
        _give_back(grants, error)


class RLock:
    """`threading.RLock` across processes: the thread that holds it may acquire it again, and only it may release.

    All objects of one client and name count together. lease, on_lost: as for `Lock`.
    """

    def __init__(
        self, lf: Lockfast, name: str, *, lease: float = 30.0, on_lost: Callable[[Grant], object] | None = None
    ) -> None:
        check_client(lf, Lockfast, self, "tasks")
        self._lf = lf
        self._native: Native = lf.rlock(name, lease=lease, on_lost=on_lost)
        self._mine = threading.local()  # each thread's entries; a thread that ends while it holds gives them back
        self._count = 0  # of all threads, for repr

    def __repr__(self) -> str:
        state = "locked" if self._count else "unlocked"
        where = f"{type(self).__module__}.{type(self).__name__} object {self._native.name!r} count={self._count}"
        return f"<{state} {where} at {id(self):#x}>"

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        """Hold the lock, or hold it once more. False when another had it for `timeout` seconds (-1: no end)."""
        try:
            grant = self._native.acquire(wait=_lock_wait_s(blocking, timeout))
        except NotAcquired:
            return False
        self._entries().append(grant)
        self._count += 1
        return True

    def release(self) -> None:
        """Leave once. RuntimeError when this thread does not hold it."""
        self._release(None)

    def locked(self) -> bool:
        """Whether anybody holds it, here or elsewhere: asks the server."""
        return bool(self._lf.inspect(self._native.name).holders)

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        self._release(error)

    def _entries(self) -> list[Grant]:
        entries: list[Grant] = self._mine.__dict__.setdefault("entries", [])
        return entries

    def _release(self, error: BaseException | None) -> None:
        entries = self._entries()
        if not entries:
            raise RuntimeError("cannot release un-acquired lock")
        self._count -= 1
        _give_back([entries.pop()], error)

    # What threading.Condition asks of the lock that it is given.

    def _is_owned(self) -> bool:
        return bool(self._entries())

    def _recursion_count(self) -> int:
        return len(self._entries())

    def _release_save(self) -> int:
        count = len(self._entries())
        if not count:
            raise RuntimeError("cannot release un-acquired lock")
        for _ in range(count):
            self.release()
        return count

    def _acquire_restore(self, count: int) -> None:
        for _ in range(count):
            self.acquire()


class Semaphore:
    """`threading.Semaphore` across processes: `value` permits for all users of the name, who all must name as many.

    Any thread may release what any thread acquired by this object. More than that cannot be released (ValueError):
    the number of permits is fixed. lease, on_lost: as for `Lock`.
    """

    def __init__(
        self,
        lf: Lockfast,
        name: str,
        value: int = 1,
        *,
        lease: float = 30.0,
        on_lost: Callable[[Grant], object] | None = None,
    ) -> None:
        check_client(lf, Lockfast, self, "tasks")
        self._value = permits(value)
        self._native: Native = lf.semaphore(name, limit=self._value, lease=lease, on_lost=on_lost)
        self._holding: Holding[Grant] = Holding()

    def __repr__(self) -> str:
        return f"<{_where(self)}: value={self._value - len(self._holding)}>"

    def acquire(self, blocking: bool = True, timeout: float | None = None) -> bool:
        """Hold one permit, waiting up to `timeout` seconds (None: as long as it takes). False when none was free."""
        if not blocking and timeout is not None:
            raise ValueError("can't specify timeout for non-blocking acquire")
        wait_s = 0.0 if not blocking else None if timeout is None else min(max(timeout, 0.0), specs.MAX_WAIT_S)
        try:
            grant = self._native.acquire(wait=wait_s)
        except NotAcquired:
            return False
        self._holding.put(threading.get_ident(), grant)
        return True

    __enter__ = acquire

    def release(self, n: int = 1) -> None:
        """Give back `n` permits that were acquired by this object. ValueError, and none given back, for more."""
        if n < 1:
            raise ValueError("n must be one or more")
        self._release(n, None)

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        self._release(1, error)

    def _release(self, n: int, error: BaseException | None) -> None:
        grants = self._holding.take(threading.get_ident(), n)
        if not grants:
            raise ValueError("Semaphore released too many times")
        _give_back(grants, error)


class BoundedSemaphore(Semaphore):
    """`threading.BoundedSemaphore` across processes. Every Lockfast semaphore is bounded; this one says so."""

    def __repr__(self) -> str:
        return f"<{_where(self)}: value={self._value - len(self._holding)}/{self._value}>"


class Barrier:
    """`threading.Barrier` across processes: `parties` threads wait until all of them do.

    action: run by one of them before any goes on; if it raises, the barrier breaks. timeout: seconds that `wait` takes
    unless told otherwise. lease: seconds after which a party that died while it waited breaks the barrier. One that was
    killed in the action is not missed by a lease: the others need a timeout for that.
    """

    def __init__(
        self,
        lf: Lockfast,
        name: str,
        parties: int,
        action: Callable[[], object] | None = None,
        timeout: float | None = None,
        *,
        lease: float = 30.0,
    ) -> None:
        check_client(lf, Lockfast, self, "tasks")
        if isinstance(parties, int) and parties < 1:
            raise ValueError("parties must be > 0")
        client: Any = lf
        self._native = client.barrier(name, parties=parties, lease=lease)
        # Whoever runs the action has the others wait once more.
        self._acted = client.barrier(name, "action", parties=parties, lease=lease) if action is not None else None
        self._action = action
        self._parties = parties
        self._timeout_s = timeout

    def __repr__(self) -> str:
        return (
            f"<{_where(self)}: broken>" if self.broken else f"<{_where(self)}: waiters={self.n_waiting}/{self.parties}>"
        )

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the others; every one of them gets another index from 0 to parties - 1.

        Raises threading.BrokenBarrierError when the time is over (for all), or it was reset or aborted meanwhile.
        """
        wait_s = self._timeout_s if timeout is None else timeout
        try:
            index: int = self._native.wait(wait=wait_s)  # in the order of arrival
            if self._action is not None and self._acted is not None:
                if index == 0:
                    self._act(self._action)
                self._acted.wait(wait=wait_s)
        except (_errors.BrokenBarrier, NotAcquired) as failure:
            raise threading.BrokenBarrierError(str(failure)) from failure
        return index

    def _act(self, action: Callable[[], object]) -> None:
        try:
            action()
        except BaseException:
            self.abort()
            raise

    def reset(self) -> None:
        """Empty again; threads that wait have a BrokenBarrierError."""
        for barrier in self._both():
            barrier.reset()

    def abort(self) -> None:
        """Break it: whoever waits, now or later, has a BrokenBarrierError until somebody resets it."""
        for barrier in self._both():
            barrier.abort()

    @property
    def parties(self) -> int:
        """How many are needed."""
        return self._parties

    @property
    def n_waiting(self) -> int:
        """How many wait at this moment: asks the server."""
        count: int = self._native.n_waiting()
        return count

    @property
    def broken(self) -> bool:
        """Whether it is broken: asks the server."""
        return any(barrier.is_broken() for barrier in self._both())

    def _both(self) -> list[Any]:
        return [self._native] if self._acted is None else [self._acted, self._native]


def _where(thing: object) -> str:
    return f"{type(thing).__module__.rpartition('.')[2]}.{type(thing).__name__} at {id(thing):#x}"
