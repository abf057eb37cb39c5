"""The textbook algorithms for asyncio. The twin for threads, with the same names, is `lockfast.classic.Client`."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Self

from lockfast import specs
from lockfast.classic.recipes import check_servers, find_servers
from lockfast.drivers.plain_aio import PlainAsyncio
from lockfast.errors import LeaseLost, LockfastError, NotAcquired

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from lockfast.classic.recipes import Refreshes, Takes, Updates
    from lockfast.classic.taken import Taken, Updated
    from lockfast.flows.plain import Word


class Client:
    """Runs recipes on one server, or Redlock on several. Share it among tasks of one loop.

    server: as for `Lockfast`: a URL, a redis-py or valkey-py client whose settings are copied, or None for
        $LOCKFAST_URL or the embedded server. A list of URLs or clients for Redlock.
    timeout: seconds that one trip to a server may take before `Unreachable`.

    Nothing is connected before the first use, which also binds the client to the running event loop. What was taken
    stays taken when the client is closed: the textbook algorithms know of no client, only of what they were told to
    take and to give back.
    """

    def __init__(self, server: object = None, *, timeout: float = 2.0) -> None:
        self._driver = PlainAsyncio(find_servers(server), specs.timeout_seconds(timeout))

    def __repr__(self) -> str:
        return f"<classic.Client {', '.join(endpoint.where for endpoint in self._driver.endpoints)}>"

    async def acquire(self, recipe: Takes) -> Taken | None:
        """Take what the recipe describes; None when it was not to be had within the recipe's patience.

        Raises Unreachable when the server does not answer; if its `sent` is True, it may have been taken all the
        same. Raises Refused when the server answers with an error.
        """
        check_servers(recipe, self._driver.env)
        return await self._driver.run(recipe.acquire(self._driver.env))

    async def release(self, recipe: Takes, taken: Taken) -> bool:
        """Give back what `acquire` returned. False when it had gone before; each recipe says what it can tell.

        Raises as `acquire` does.
        """
        check_servers(recipe, self._driver.env)
        return await self._driver.run(recipe.release(taken, self._driver.env))

    async def refresh(self, recipe: Refreshes, taken: Taken) -> bool:
        """Keep a place of a refreshing semaphore. False when it had gone: stop, others may be in.

        Raises as `acquire` does.
        """
        check_servers(recipe, self._driver.env)
        return await self._driver.run(recipe.refresh(taken, self._driver.env))

    async def update(self, recipe: Updates, change: Callable[[bytes | None], Word | None]) -> Updated | None:
        """Set a value to `change(value)`; None when that was not possible in the recipe's time, or not wanted.

        `change` gets None when there is no value, may be called several times, and returns None to leave it as it
        is. Raises as `acquire` does, and what `change` raises.
        """
        check_servers(recipe, self._driver.env)
        return await self._driver.run(recipe.update(change, self._driver.env))

    @asynccontextmanager
    async def hold(self, recipe: Takes) -> AsyncIterator[Taken]:
        """Take, run the block, give back: `async with client.hold(SimpleLock("report")) as taken: ...`

        Raises NotAcquired when it was not to be had, and LeaseLost after the block when it was no longer ours by
        then (as far as the recipe can tell). Otherwise raises as `acquire` does.
        """
        taken = await self.acquire(recipe)
        if taken is None:
            raise NotAcquired(f"{recipe.name!r} is taken", name=recipe.name)
        try:
            yield taken
        except BaseException as error:
            try:
                await self.release(recipe, taken)
            except LockfastError as failure:
                error.add_note(f"lockfast: {failure}")  # the block's own error is the one to raise
            raise
        if not await self.release(recipe, taken):
            raise LeaseLost(f"{recipe.name!r} was no longer ours when the block ended", name=recipe.name)

    async def aclose(self) -> None:
        """Close every connection. Later calls raise Misused."""
        await self._driver.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()
