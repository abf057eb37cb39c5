"""Connecting from asyncio: to a host's addresses, and through a door, whose methods block: a thread calls them."""

from __future__ import annotations

import asyncio
import socket
import threading
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from lockfast.clock import now
from lockfast.drivers.connection import LEAST_S
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


async def reach(host: str, port: int, by: float) -> socket.socket:
    """The twin of connection.reach. The loop's own way would wait for the first address as long as the system does."""
    loop = asyncio.get_running_loop()
    try:  # what is an address already needs no thread to be looked up in
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
    except socket.gaierror:
        found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    failure: OSError | None = None
    for place, (family, kind, protocol, _, address) in enumerate(found):
        sock = socket.socket(family, kind, protocol)
        try:
            sock.setblocking(False)
            async with asyncio.timeout(max((by - now()) / (len(found) - place), LEAST_S)):
                await loop.sock_connect(sock, address)
        except OSError as error:
            sock.close()
            failure = error
        except BaseException:
            sock.close()
            raise
        else:
            return sock
    raise failure or OSError(f"{host} has no address")


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
