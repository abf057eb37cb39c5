"""Locks that their holder may take again, for asyncio."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, final

from lockfast.aio.lock import Grant, Lock
from lockfast.errors import Misused, NotHeld

if TYPE_CHECKING:
    from lockfast.drivers.aio import Asyncio
    from lockfast.grants import Hold


class Entries:
    """One hold, and how many grants of it were handed out and not given back yet."""

    __slots__ = ("count", "hold", "key")

    def __init__(self, hold: Hold, key: tuple[str, object]) -> None:
        self.hold = hold
        self.key = key
        self.count = 0


@final
class RLock(Lock):
    """A lock that the task which holds it may acquire again. It is used as a lock is."""

    __slots__ = ()
    WHY_NOT_ONE_OF_SEVERAL = "it may be held already"

    async def _acquire(self, wait_s: float | None) -> Grant:
        driver = self._driver
        entries: Entries | None = driver.entries.get((self._ask.name.keys[0], asyncio.current_task()))
        if entries is None:
            return await super()._acquire(wait_s)
        entries.hold.check()  # lost: whoever enters again must hear of it
        return ReGrant(driver, entries)

    def _grant(self, hold: Hold) -> Grant:
        entries = Entries(hold, (self._ask.name.keys[0], asyncio.current_task()))
        self._driver.entries[entries.key] = entries
        return ReGrant(self._driver, entries)


@final
class ReGrant(Grant):
    """One entry into a lock. All entries of one task share the hold and its fence; the last gives it back."""

    __slots__ = ("_entries",)

    def __init__(self, driver: Asyncio, entries: Entries) -> None:
        super().__init__(entries.hold, driver)
        entries.count += 1
        self._entries: Entries | None = entries

    @property
    def _is_released(self) -> bool:
        return self._entries is None

    def __del__(self) -> None:
        # Nobody can give this entry back any more; with the last one the hold itself is orphaned.
        if self._entries is not None and self._leave():
            super().__del__()

    async def export(self) -> str:
        """Refused with Misused: a re-entrant hold belongs to its thread or task. Use `lock` to hand a hold on."""
        raise Misused(f"{self.name!r}: a re-entrant hold cannot be handed on: acquire it with lock()")

    async def release(self) -> None:
        """Leave once. With the last entry the hold is given back, and then this raises what `Grant.release` does."""
        if self._entries is None:
            raise NotHeld(f"{self.name!r} was released before")
        if self._leave():
            await super().release()

    def _leave(self) -> bool:
        """One entry less. True when it was the last."""
        entries = self._entries
        assert entries is not None, "left once only"
        self._entries = None
        entries.count -= 1
        if entries.count:
            return False
        key = entries.key
        if self._driver.entries.get(key) is entries:
            del self._driver.entries[key]
        return True
