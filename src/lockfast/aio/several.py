"""Several locks at once, all or none, for asyncio."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, final

from lockfast import specs
from lockfast.aio.lock import Block, Grant, Lock
from lockfast.drivers.aio import Asyncio
from lockfast.errors import LockfastError, Misused, NotAcquired
from lockfast.locks import UNSET, Unset
from lockfast.together import Giving, GrantsView, LocksBase, Taking

if TYPE_CHECKING:
    from lockfast.flows.group import Asks
    from lockfast.grants import Hold


@final
class Locks(LocksBase[Asyncio, Lock]):
    """Several locks, of any kind, to be held together or not at all. Share it, use it again."""

    __slots__ = ()

    async def acquire(self, *, wait: float | Unset | None = UNSET) -> Grants:
        """Hold all of them, waiting up to `wait` seconds in all. One trip to the server when all are free.

        Raises as `Lock.acquire` does, and then none of them is held.
        """
        return await self._acquire(self._wait_s if isinstance(wait, Unset) else specs.wait_seconds(wait))

    async def try_acquire(self) -> Grants | None:
        """Hold all of them if all are free at this moment; None otherwise."""
        try:
            return await self._acquire(0.0)
        except NotAcquired:
            return None

    async def _acquire(self, wait_s: float | None) -> Grants:
        driver = self._driver
        driver.enter()
        taking = Taking(driver, self._asks, self._keeping, wait_s)
        driver.acquiring.add(taking.stem)
        try:
            if driver.closing:
                raise Misused("this client is closed")
            for lock in self._wary:
                lock._refuse_waiting_for_itself()
            holds = await driver.open(taking)
            made = None
            if not self._asks.simple:  # some kinds of lock make other grants; none of those is held whole
                made = tuple([lock._grant(hold) for lock, hold in zip(self._locks, holds, strict=True)])
            grants = Grants(made, holds, taking.stem if taking.is_at_once else "", driver, self._asks)
            if driver.closing:
                await grants.release()
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

    async def __aenter__(self) -> Grants:
        grants = await self._acquire(self._wait_s)
        task = asyncio.current_task()
        assert task is not None, "an async with block runs in a task"
        block = grants._block = Block(task)
        for lock, hold in zip(self._locks, grants._holds, strict=True):
            if lock._cancel_on_loss:
                hold.when_lost(lambda: self._driver.soon(block.cancel))
                self._driver.keeper.watch(hold)
        self._entered.append((task, grants))
        return grants

    async def __aexit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        grants = self._left_by(asyncio.current_task())
        was_cancelled_by_us = grants._block is not None and grants._block.leave()
        if was_cancelled_by_us and isinstance(error, asyncio.CancelledError):
            error = None  # the cancellation was ours, and the caller must hear why
        try:
            await grants.release()
        except LockfastError as failure:
            if grants._conclude(self._driver.keeper, error, failure):
                raise


@final
class Grants(GrantsView[Asyncio, Grant]):
    """Holds that were taken together, in the order they were named. Each is a `Grant`, and can be looked at as one."""

    __slots__ = ("_block",)

    def __init__(
        self, grants: tuple[Grant, ...] | None, holds: list[Hold], stem: str, driver: Asyncio, asks: Asks
    ) -> None:
        super().__init__(grants, holds, stem, driver, asks)
        self._block: Block | None = None

    def _make(self, hold: Hold) -> Grant:
        return Grant(hold, self._driver)

    async def release(self) -> None:
        """Give back, in one trip, all that were not given back one by one.

        Raises LeaseLost when one had gone before (do not commit), Unreachable when the server did not confirm; the
        client goes on trying in the background then.
        """
        self._driver.enter()
        await self._driver.open(Giving(self))
