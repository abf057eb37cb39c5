"""Connecting from asyncio through a door, whose methods block: they are called in a thread."""

from __future__ import annotations

import asyncio
import threading
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from lockfast.errors import Unreachable

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from lockfast.drivers.door import Door
    from lockfast.drivers.link import Link

R = TypeVar("R")


async def dial(door: Door, by: float, connect: Callable[[str], Awaitable[Link]]) -> Link:
    """Connect to what is behind the door; an embedded server that is not there is started, or started again."""
    if not door.endpoint.embedded:
        return await connect(door.endpoint.path)
    try:
        return await connect(await in_thread(door.path))
    except Unreachable as failure:
        await in_thread(partial(door.revive, failure, by))
        return await connect(await in_thread(door.path))


async def in_thread(function: Callable[[], R]) -> R:
    """Run what blocks for a moment in a thread that ends with it; the loop's own pool would stay."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[R] = loop.create_future()

    def tell(result: R | None, error: BaseException | None) -> None:
        if future.done():
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(result)  # type: ignore[arg-type]  # R may itself be None

    def call() -> None:
        result: R | None = None
        error: BaseException | None = None
        try:
            result = function()
        except BaseException as raised:  # noqa: BLE001 - told to whoever waits
            error = raised
        try:
            loop.call_soon_threadsafe(tell, result, error)
        except RuntimeError:
            pass  # the loop has ended meanwhile, so nobody waits

    thread = threading.Thread(target=call, name="lockfast-dial", daemon=True)
    thread.start()
    try:
        return await future
    finally:
        if future.done() and not future.cancelled():
            thread.join()  # it has said its last word; if nobody waits any more, it ends by itself
