"""A way to one server that fails when told to: requests held up, a reply lost, nothing getting through.

It stands between players and one server and forwards bytes. It knows the greeting that every connection of ours
begins with, and otherwise only looks for a word in a request: a player sends one at a time and waits for its reply.
"""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING

from lockfast.drivers.wire import greet
from lockfast.endpoints import Endpoint

if TYPE_CHECKING:
    from pathlib import Path

GREETING = greet(Endpoint().greeting())
CHUNK = 1 << 16


class Proxy:
    """A socket of its own in front of a server's. delay_s: how long each request takes on its way, up to."""

    def __init__(self, path: Path, server_path: str, delay_s: float = 0.0) -> None:
        self.path = str(path)
        self._server_path = server_path
        self._delay_s = delay_s
        self._listener: asyncio.Server | None = None
        self._passing = asyncio.Event()  # unset while the connection is cut
        self._passing.set()
        self._losing: bytes | None = None
        self.lost = asyncio.Event()
        self._holding: bytes | None = None
        self.held_up = asyncio.Event()
        self._let_go = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()

    async def open(self) -> None:
        self._listener = await asyncio.start_unix_server(self._serve, self.path)

    async def close(self) -> None:
        if self._listener is not None:
            self._listener.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def lose_reply(self, word: bytes = b"") -> None:
        """Lose the reply to the first request with this word in it, and all that follows on that connection.

        Once it is sure that the request was carried out, `lost` is set.
        """
        self._losing = word

    def hold_up(self, word: bytes) -> None:
        """Hold up the first request with this word in it until `let_go`. Meanwhile, `held_up` is set."""
        self._holding = word

    def let_go(self) -> None:
        self._let_go.set()

    def cut(self) -> None:
        """Let nothing through, in neither direction. What is sent waits."""
        self._passing.clear()

    def heal(self) -> None:
        self._passing.set()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._note(asyncio.current_task())
        to_server: asyncio.StreamWriter | None = None
        halves: list[asyncio.Task[None]] = []
        try:
            await self._passing.wait()
            from_server, to_server = await asyncio.open_unix_connection(self._server_path)
            link = _Link()
            halves += [
                asyncio.create_task(self._up(reader, to_server, link)),
                asyncio.create_task(self._down(from_server, writer, link)),
            ]
            for half in halves:
                self._note(half)
            # When the server hangs up, so do we. When the client does, what it had sent has been forwarded.
            await asyncio.wait(halves, return_when=asyncio.FIRST_COMPLETED)
        except OSError:
            pass  # nobody serves there
        except asyncio.CancelledError:
            pass  # closed from outside; ending normally keeps the listener from telling of an error
        finally:
            for half in halves:
                half.cancel()
            writer.close()
            if to_server is not None:
                to_server.close()

    def _note(self, task: asyncio.Task[None] | None) -> None:
        """Remember a task, for `close`."""
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _up(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, link: _Link) -> None:
        while True:
            try:
                data = await reader.read(CHUNK)
            except ConnectionError:
                return
            if self._delay_s:
                await asyncio.sleep(self._delay_s * random.random())
            await self._passing.wait()
            request = data.removeprefix(GREETING)
            if self._holding is not None and self._holding in request:
                self._holding = None
                self.held_up.set()
                await self._let_go.wait()
            if self._losing is not None and request and self._losing in request:
                link.loses = True
            if not data:
                return
            writer.write(data)

    async def _down(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, link: _Link) -> None:
        while True:
            try:
                data = await reader.read(CHUNK)
            except ConnectionError:
                return
            await self._passing.wait()
            if not data:
                return
            # A script that the server does not know yet was not run: the request that matters comes next.
            if link.loses and not data.startswith(b"-NOSCRIPT"):
                self._losing = None
                self.lost.set()
                continue
            writer.write(data)


class _Link:
    """One connection. loses: nothing more is heard on it."""

    def __init__(self) -> None:
        self.loses = False
