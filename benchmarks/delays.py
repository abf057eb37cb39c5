"""Servers that are further away: a process that hands on what it is sent, a while later.

The time is added once per trip, on the way to the server. Chunks are handed on by a timer each, so that what is sent
together or in a row overlaps, as it would on a long line.
"""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import selectors
from typing import TYPE_CHECKING

from benchmarks.servers import die_with_parent

if TYPE_CHECKING:
    from collections.abc import Iterator
    from multiprocessing.connection import Connection


@contextlib.contextmanager
def delayed(ports: list[int], delay_s: float) -> Iterator[list[int]]:
    """A port for each port, that is `delay_s` further away."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_main, args=(theirs, ports, delay_s), daemon=True)
    process.start()
    theirs.close()
    try:
        yield ours.recv()
    finally:
        process.kill()
        process.join()


class Half(asyncio.Protocol):
    """One side of a connection: what it reads goes to the other side after `delay_s`."""

    def __init__(self, delay_s: float) -> None:
        self._delay_s = delay_s
        self.other: asyncio.Future[asyncio.Transport] = asyncio.get_running_loop().create_future()
        self.made: asyncio.Future[asyncio.Transport] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.made.set_result(transport)

    def data_received(self, data: bytes) -> None:
        if not self.other.done():  # the server has not been reached yet
            self.other.add_done_callback(lambda _: self.data_received(data))
        elif self._delay_s:
            asyncio.get_running_loop().call_later(self._delay_s, self.other.result().write, data)
        else:
            self.other.result().write(data)

    def connection_lost(self, _: Exception | None) -> None:
        if self.other.done():
            asyncio.get_running_loop().call_later(self._delay_s, self.other.result().close)


def _main(ready: Connection, ports: list[int], delay_s: float) -> None:
    die_with_parent()
    # select() waits to the microsecond; epoll rounds up to the next millisecond.
    with asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(selectors.SelectSelector())) as runner:
        runner.run(_serve(ready, ports, delay_s))


async def _serve(ready: Connection, ports: list[int], delay_s: float) -> None:
    loop = asyncio.get_running_loop()
    reaching: set[asyncio.Task[None]] = set()

    async def reach(near: Half, port: int) -> None:
        transport, far = await loop.create_connection(lambda: Half(0.0), "127.0.0.1", port)
        far.other.set_result(await near.made)
        near.other.set_result(transport)

    def accept(port: int) -> Half:
        near = Half(delay_s)
        task = loop.create_task(reach(near, port))
        reaching.add(task)
        task.add_done_callback(reaching.discard)
        return near

    servers = [await loop.create_server(lambda port=port: accept(port), "127.0.0.1", 0) for port in ports]  # type: ignore[misc]
    ready.send([server.sockets[0].getsockname()[1] for server in servers])
    await loop.create_future()
