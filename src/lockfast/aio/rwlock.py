"""Read/write locks, for asyncio."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, final

from lockfast import names
from lockfast.aio.lock import Grant, Lock
from lockfast.errors import Misused
from lockfast.flows import asks
from lockfast.flows.asks import READER
from lockfast.grants import HELD

if TYPE_CHECKING:
    from lockfast.drivers.aio import Asyncio
    from lockfast.grants import Hold
    from lockfast.locks import Options


@final
class RWLock:
    """A lock that many may hold to read, or one to write. Share it: it holds no state."""

    __slots__ = ("_driver", "_options", "_parts", "_prefix")

    def __init__(self, driver: Asyncio, prefix: str, parts: tuple[str | int, ...], options: Options) -> None:
        self._driver = driver
        self._prefix = prefix
        self._parts = parts
        self._options = options
        self.read()  # refuses what cannot work, here and now

    def __repr__(self) -> str:
        return f"<RWLock {self.name!r}>"

    @property
    def name(self) -> str:
        return names.make(self._prefix, self._parts).shown

    def read(self) -> ReadLock:
        """To be held together with other readers. Behind a waiting writer, a new reader waits."""
        return ReadLock(self._driver, self._prefix, self._parts, asks.read, self._options)

    def write(self) -> WriteLock:
        """To be held alone. Its grant has a fence that guards, and `downgrade()`."""
        return WriteLock(self._driver, self._prefix, self._parts, asks.write, self._options)


@final
class ReadLock(Lock):
    """The reading side of a read/write lock. It is used as a lock is."""

    __slots__ = ()

    def _grant(self, hold: Hold) -> Grant:
        hold.by = asyncio.current_task()
        return super()._grant(hold)


@final
class WriteLock(Lock):
    """The writing side of a read/write lock. It is used as a lock is."""

    __slots__ = ()
    MAY_WAIT_FOR_ITSELF = True

    def _refuse_waiting_for_itself(self) -> None:
        me, name = asyncio.current_task(), self._ask.name
        for hold in list(self._driver.keeper.ledger.holds.values()):
            if hold.by is me and hold.ask.name.keys == name.keys and hold.ask.weight == READER and hold.state is HELD:
                words = "a reader cannot become the writer, it would wait for itself: release the read first"
                raise Misused(f"{name.shown!r}: {words}")

    async def _acquire(self, wait_s: float | None) -> Grant:
        self._refuse_waiting_for_itself()
        return await super()._acquire(wait_s)
