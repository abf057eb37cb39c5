"""Several locks at once, all or none, for threads."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, final

from lockfast import specs
from lockfast.errors import LockfastError, Misused, NotAcquired
from lockfast.flows import ending, several
from lockfast.grants import Hold
from lockfast.locks import UNSET, Unset
from lockfast.sync.rlock import RLock

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lockfast.drivers.threads import Threads
    from lockfast.flows.admission import Held
    from lockfast.flows.asks import Ask
    from lockfast.sync.lock import Grant, Lock


@final
class Locks:
    """Several locks, of any kind, to be held together or not at all. Share it, use it again."""

    __slots__ = ("_driver", "_entered", "_locks", "_wait_s")

    def __init__(self, driver: Threads, locks: tuple[Lock, ...], wait: float | None) -> None:
        if not locks:
            raise ValueError("name at least one lock")
        names = [lock.name for lock in locks]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"{name!r} is named twice: it would wait for itself")
        for lock in locks:
            if isinstance(lock, RLock):
                raise ValueError(f"{lock!r} cannot be one of several: it may be held already")
            if lock._ask.kind == "election":
                raise ValueError(f"{lock!r} cannot be one of several: a leader has something to say first")
            if lock._driver is not driver:
                raise ValueError(f"{lock!r} belongs to another client")
        self._driver = driver
        self._locks = locks
        self._wait_s = specs.wait_seconds(wait)
        self._entered: list[tuple[object, Grants]] = []

    def __repr__(self) -> str:
        return f"<Locks {', '.join(repr(lock.name) for lock in self._locks)}>"

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
        asks = [lock._ask for lock in self._locks]
        mark = driver.new_ticket()
        driver.acquiring.add(mark)
        try:
            if driver.closing:
                raise Misused("this client is closed")
            holder = _Holder(self._locks, driver)
            holds = driver.run(several.acquire(asks, wait_s, driver.env, holder))
            try:
                grants = Grants(tuple(lock._grant(hold) for lock, hold in zip(self._locks, holds, strict=True)), driver)
                if driver.closing:
                    grants.release()
                    raise Misused("this client was closed while an acquire was waiting")
                for lock, hold in zip(self._locks, holds, strict=True):
                    lock._tell_when_lost(hold)
                return grants
            except BaseException:  # interrupted: what is renewed and in nobody's hands would never end
                for hold in holds:
                    holder.give_back(hold)
                raise
        finally:
            driver.acquiring.discard(mark)

    def __enter__(self) -> Grants:
        grants = self._acquire(self._wait_s)
        self._entered.append((threading.get_ident(), grants))
        return grants

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        grants = self._left_by(threading.get_ident())
        try:
            grants.release()
        except LockfastError as failure:
            if grants._conclude(error, failure):
                raise

    def _left_by(self, me: object) -> Grants:
        for place in range(len(self._entered) - 1, -1, -1):
            if self._entered[place][0] == me:
                return self._entered.pop(place)[1]
        raise Misused(f"{self!r}: no `with` block was entered here")


@final
class Grants:
    """Holds that were taken together, in the order they were named. Each is a `Grant`, and can be looked at as one."""

    __slots__ = ("_driver", "_grants")

    def __init__(self, grants: tuple[Grant, ...], driver: Threads) -> None:
        self._grants = grants
        self._driver = driver

    def __repr__(self) -> str:
        return f"<Grants {', '.join(repr(grant.name) for grant in self._grants)}>"

    def __iter__(self) -> Iterator[Grant]:
        return iter(self._grants)

    def __len__(self) -> int:
        return len(self._grants)

    def __getitem__(self, place: int) -> Grant:
        return self._grants[place]

    @property
    def held(self) -> bool:
        """Whether all of them are sure at this moment."""
        return all(grant.held for grant in self._grants)

    @property
    def lost(self) -> bool:
        """Whether any of them is no longer sure."""
        return any(grant.lost for grant in self._grants)

    def check(self) -> None:
        """Raise LeaseLost if any of them is no longer sure, NotHeld if it was released."""
        for grant in self._grants:
            grant.check()

    def release(self) -> None:
        """Give back, in one trip, all that were not given back one by one.

        Raises LeaseLost when one had gone before (do not commit), Unreachable when the server did not confirm; the
        client goes on trying in the background then.
        """
        holds = [grant._hold for grant in self._grants if not grant._is_released]
        self._driver.run(several.release(holds, self._driver.keeper, self._driver.env))

    def _conclude(self, error: BaseException | None, failure: Exception) -> bool:
        """What a block does about a release that failed: see ending.conclude."""
        return ending.conclude(self._grants[0]._hold, self._driver.keeper, error, failure)


class _Holder:
    """Makes holds of what a flow was granted, and gives them back if it fails."""

    def __init__(self, locks: tuple[Lock, ...], driver: Threads) -> None:
        self._renews = {id(lock._ask): lock._renew for lock in locks}
        self._driver = driver

    def new_ticket(self) -> str:
        return self._driver.new_ticket()

    def keep(self, ask: Ask, ticket: str, held: Held) -> Hold:
        hold = Hold(ask, ticket, held, self._driver.era, self._renews[id(ask)])
        try:
            self._driver.keeper.watch(hold)
        except BaseException:  # interrupted: what is renewed and in nobody's hands would never end
            self.give_back(hold)
            raise
        return hold

    def give_back(self, hold: Hold) -> None:
        try:
            if ending.begin(hold, self._driver.keeper):
                self._driver.keeper.finish(hold)
        except LockfastError:
            pass  # it has ended by itself
