"""One Lockfast client for each redis-py client and event loop that locks are used in.

An async generator keeps it: the loop itself ends such a generator when the loop is shut down, or when the generator
is garbage-collected together with the redis-py client. Both close the client, in the loop.
"""

from __future__ import annotations

import asyncio
import weakref
from typing import TYPE_CHECKING, Any

from lockfast.aio import Lockfast

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    Kept = tuple[Lockfast, AsyncGenerator[None, None]]

_clients: weakref.WeakKeyDictionary[Any, dict[asyncio.AbstractEventLoop, Kept]] = weakref.WeakKeyDictionary()


async def of(redis: Any) -> Lockfast:
    """The client for locks made with `redis` in this loop. Raises TypeError for what is no client of one server."""
    loop = asyncio.get_running_loop()
    loops = _clients.setdefault(redis, {})
    if loop not in loops:
        for ended in [other for other in loops if other.is_closed()]:
            del loops[ended]
        lf = Lockfast(redis, label="compat")
        keeping = _keeping(lf)
        loops[loop] = lf, keeping
        await anext(keeping)  # does not wait: runs up to its yield, which makes the loop know it
    return loops[loop][0]


async def aclose(redis: Any) -> None:
    """Give back the locks without a timeout that were made with this redis-py client, and close their connections.

    Locks with a timeout stay until then or until they are released, as with redis-py. Without this it happens when
    the loop is shut down (`asyncio.run` does that) or the redis-py client is garbage-collected.
    """
    lf, keeping = _clients.get(redis, {}).pop(asyncio.get_running_loop(), (None, None))
    if lf is not None and keeping is not None:
        await keeping.aclose()


async def _keeping(lf: Lockfast) -> AsyncGenerator[None, None]:
    try:
        yield
    finally:
        await lf.aclose()
