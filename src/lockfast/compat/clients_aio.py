"""One Lockfast client for each redis-py client and event loop that locks are used in.

It is closed, in its loop, when the redis-py client is garbage-collected, and at the latest when the loop is shut down:
a loop then ends every async generator that it knows, so one is kept for this.
"""

from __future__ import annotations

import asyncio
import weakref
from typing import TYPE_CHECKING, Any

from lockfast.aio import Lockfast
from lockfast.compat import shape

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator


class Kept:
    """A client, and what closes it."""

    def __init__(self, redis: Any, loop: asyncio.AbstractEventLoop) -> None:
        self.lf = Lockfast(redis, timeout=shape.TIMEOUT_S, label="compat")
        self._loop = loop
        self._closing: asyncio.Task[None] | None = None
        self._until_shutdown = self._keep()
        self._no_longer_needed = weakref.finalize(redis, self._close_soon)
        self._no_longer_needed.atexit = False

    async def begin(self) -> None:
        """Make the loop know the generator. Does not wait."""
        await anext(self._until_shutdown)

    async def close(self) -> None:
        """Close the client, once; whoever calls waits until it is closed."""
        if self._closing is None:
            self._no_longer_needed.detach()
            self._closing = self._loop.create_task(self.lf.aclose(), name="lockfast-compat-close")
        await asyncio.wait([self._closing])
        driver = self.lf._driver
        if not driver.closed:  # the loop is being shut down, and has cancelled that task with all others
            driver.closing = False  # so that it begins anew
            await self.lf.aclose()

    async def _keep(self) -> AsyncGenerator[None, None]:
        try:
            yield
        finally:
            await self.close()

    def _close_soon(self) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(lambda: self._loop.create_task(self.close()))


_clients: weakref.WeakKeyDictionary[Any, dict[asyncio.AbstractEventLoop, Kept]] = weakref.WeakKeyDictionary()


async def of(redis: Any) -> Lockfast:
    """The client for locks made with `redis` in this loop. Raises TypeError for what is no client of one server."""
    loop = asyncio.get_running_loop()
    loops = _clients.setdefault(redis, {})
    if loop not in loops:
        for ended in [other for other in loops if other.is_closed()]:
            del loops[ended]
        kept = loops[loop] = Kept(redis, loop)
        await kept.begin()
    return loops[loop].lf


async def aclose(redis: Any) -> None:
    """Give back the locks without a timeout that were made with this redis-py client, and close their connections.

    Locks with a timeout stay until then or until they are released, as with redis-py. Without this it happens when
    the loop is shut down (`asyncio.run` does that) or the redis-py client is garbage-collected.
    """
    kept = _clients.get(redis, {}).pop(asyncio.get_running_loop(), None)
    if kept is not None:
        await kept.close()
