"""The one connection to one server that all tasks of a client share: made on first need, and again when it was lost."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from lockfast.drivers.dialling import dial
from lockfast.drivers.door import Door
from lockfast.drivers.link import connect
from lockfast.errors import Misused

if TYPE_CHECKING:
    from collections.abc import Callable

    from lockfast.drivers.link import Link
    from lockfast.endpoints import Endpoint
    from lockfast.flows.effects import Env


class Line:
    """What is known of the connection to one server."""

    __slots__ = ("_env", "_linking", "closed", "door", "endpoint", "free", "link", "links")

    def __init__(self, endpoint: Endpoint, env: Env) -> None:
        self.endpoint = endpoint
        self.door = Door(endpoint)
        self.link: Link | None = None  # the one in use
        self.links: set[Link] = set()  # all that are open, retired ones too
        self.free: list[Link] = []  # of those that a flow has for itself
        self.closed = False
        self._env = env
        self._linking: asyncio.Task[Link] | None = None

    async def linked(self, by: float) -> Link:
        """The link that is in use, or a new one. Shared: a cancelled task must not take it away from the others."""
        if self.link is not None and self.link.usable:
            return self.link
        if self.closed:
            raise Misused("this client is closed")
        if self._linking is None:
            self._linking = asyncio.create_task(self._make_link(by), name="lockfast-connect")
            self._linking.add_done_callback(seen)
        linking = self._linking
        try:
            return await asyncio.shield(linking)
        except asyncio.CancelledError:
            if self.closed and linking.cancelled():
                raise Misused("this client was closed while an acquire was waiting") from None
            raise
        finally:
            del linking  # it has the error whose traceback leads here: see Threads.acquire

    async def _make_link(self, by: float) -> Link:
        try:
            link = await self.connect(by, self._ended, None)
            self.link = link
            self._env.connected = True
            return link
        finally:
            self._linking = None

    async def alone(self, by: float) -> Link:
        """A link for one flow: while a server waits for its replicas, it reads nothing more from that connection."""
        while self.free:
            link = self.free.pop()
            if link.usable:
                return link
        if self.closed:
            raise Misused("this client is closed")
        link = await self.connect(by, _ignore, None)
        self._env.connected = True
        return link

    async def connect(self, by: float, on_end: Callable[[Link], None], on_push: Callable[[Any], None] | None) -> Link:
        """A link of its own."""
        link = await dial(self.door, by, lambda path: connect(self.endpoint, path, by, on_end, on_push))
        self.links.add(link)
        link.ended.add_done_callback(lambda _: self.links.discard(link))
        return link

    def _ended(self, link: Link) -> None:
        if self.link is link:
            self.link = None

    def tasks(self) -> list[asyncio.Task[Any]]:
        """What is being made."""
        return [self._linking] if self._linking is not None else []


def seen(task: asyncio.Future[Any]) -> None:
    """Whoever waited has been told; if all of them were cancelled, nobody needs to be."""
    if not task.cancelled():
        task.exception()


def _ignore(_: Link) -> None:
    """A link has ended: whoever wants to use it next looks by itself."""
