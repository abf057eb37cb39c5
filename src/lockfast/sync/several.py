"""Several locks at once, all or none, for threads."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, final

from lockfast import specs
from lockfast.drivers.threads import Threads
from lockfast.errors import LockfastError, Misused, NotAcquired
from lockfast.locks import UNSET, Unset
from lockfast.sync.lock import Grant, Lock
from lockfast.together import Giving, GrantsView, LocksBase, Taking

if TYPE_CHECKING:
    from lockfast.grants import Hold


@final
class Locks(LocksBase[Threads, Lock]):
    """Several locks, of any kind, to be held together or not at all. Share it, use it again."""

    __slots__ = ()

    def acquire(self, *, wait: float | Unset | None = UNSET) -> Grants:
        """Hold all of them, waiting up to `wait` seconds in all. One trip to the server when all are free.

        Raises as `Lock.acquire` does, and then none of them is held.
        """
        return self._acquire(self._wait_s if isinstance(wait, Unset) else specs.wait_seconds(wait))

    def try_acquire(self) -> Grants | None:
        """Hold all of them if all are free at this moment; None otherwise."""
        try:
            return self._acquire(0.0)
        except NotAcquired:
            return None

    def _acquire(self, wait_s: float | None) -> Grants:
        driver = self._driver
        taking = Taking(driver, self._asks, self._keeping, wait_s)
        driver.acquiring.add(taking.stem)
        try:
            if driver.closing:
                raise Misused("this client is closed")
            for lock in self._wary:
                lock._refuse_waiting_for_itself()
            holds = driver.open(taking)
            made = None
            if not self._asks.simple:  # some kinds of lock make other grants; none of those is held whole
                made = tuple([lock._grant(hold) for lock, hold in zip(self._locks, holds, strict=True)])
            grants = Grants(made, holds, taking.stem if taking.is_at_once else "", driver, self._asks)
            if driver.closing:
                grants.release()
                raise Misused("this client was closed while an acquire was waiting")
            for place, lock in self._special:
                if lock._max_hold_s is not None:
                    holds[place].end_after(lock._max_hold_s)
                lock._tell_when_lost(holds[place])
            return grants
        except BaseException:
            taking.abandon()
            raise
        finally:
            driver.acquiring.discard(taking.stem)

    def __enter__(self) -> Grants:
        grants = self._acquire(self._wait_s)
        self._entered.append((threading.get_ident(), grants))
        return grants

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        grants = self._left_by(threading.get_ident())
        try:
            grants.release()
        except LockfastError as failure:
            if grants._conclude(self._driver.keeper, error, failure):
                raise


@final
class Grants(GrantsView[Threads, Grant]):
    """Holds that were taken together, in the order they were named. Each is a `Grant`, and can be looked at as one."""

    __slots__ = ()

    def _make(self, hold: Hold) -> Grant:
        return Grant(hold, self._driver)

    def release(self) -> None:
        """Give back, in one trip, all that were not given back one by one.

        Raises LeaseLost when one had gone before (do not commit), Unreachable when the server did not confirm; the
        client goes on trying in the background then.
        """
        self._driver.open(Giving(self))
