"""Runs plain flows in asyncio tasks: the textbook algorithms on real servers.

All flows share one link to each server for what needs no connection of its own: the commands of one Pipeline are
written in one piece, so nobody else's come between MULTI and EXEC. Private ones (WATCH) get a link for themselves,
which is kept for the next flow only when it watches nothing and is in no transaction. A link on which a reply is
overdue is retired: nothing new goes there, what was written still runs.
"""

from __future__ import annotations

import asyncio
import random
import time
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from lockfast.clock import now
from lockfast.drivers import forks, wire
from lockfast.drivers.dialling import dial
from lockfast.drivers.door import Door
from lockfast.drivers.link import Link, connect, reach
from lockfast.drivers.plain_threads import new_token
from lockfast.errors import LockfastError, Misused, Unreachable
from lockfast.flows.effects import Sleep
from lockfast.flows.plain import Do, Env, Everywhere, Pipeline, gone, is_clean

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from lockfast.endpoints import Endpoint
    from lockfast.flows.plain import Effect, Flow

R = TypeVar("R")
MAX_FREE = 32  # links to one server that are kept for flows to come


class Runs(Protocol):
    """What runs the flow of a transaction."""

    env: Env

    async def run(self, flow: Flow[R]) -> R: ...


class PlainAsyncio:
    """The driver of one client of one or several servers, in one event loop."""

    def __init__(self, endpoints: list[Endpoint], timeout_s: float) -> None:
        self.env = Env(now, time.time, new_token, random.random, len(endpoints), timeout_s)
        self.closed = False
        self.endpoints = endpoints
        self._lines = [Lines(endpoint) for endpoint in endpoints]
        self._loop: asyncio.AbstractEventLoop | None = None
        self._forked = False
        forks.tell(self)

    def enter(self) -> None:
        """Check that the client is used where it belongs: its own loop, its own process."""
        if self._forked:
            raise Misused("this client belongs to the process that this one was forked from: make one here")
        loop = asyncio.get_running_loop()
        if self._loop is None:
            self._loop = loop
        elif self._loop is not loop:
            state = "closed" if self._loop.is_closed() else "another"
            raise Misused(f"this client belongs to a {state} event loop: make one in each loop")

    def of(self, keys: tuple[str | bytes, ...]) -> Runs:
        """What runs a flow about these keys."""
        return self

    async def run(self, flow: Flow[R]) -> R:
        """Run a flow to its end. A cancelled task has its CancelledError thrown into the flow."""
        return await self._run(flow, {})

    async def _run(self, flow: Flow[R], private: dict[int, Link]) -> R:
        """private: what the flow keeps to itself, by server; empty yet."""
        self.enter()
        try:
            return await self._go_on(flow, private)
        finally:
            for link in private.values():
                link.close()  # only those that are not clean are left

    async def _go_on(self, flow: Flow[R], private: dict[int, Link]) -> R:
        answer: Any = None
        error: BaseException | None = None
        while True:
            try:
                effect = flow.send(answer) if error is None else flow.throw(error)
            except StopIteration as stop:
                result: R = stop.value
                return result
            answer = error = None
            try:
                answer = await self._perform(effect, private)
            except BaseException as struck:  # noqa: BLE001 - whatever it is, the flow decides, and raises it again
                error = struck

    async def _perform(self, effect: Effect, private: dict[int, Link]) -> Any:
        if type(effect) is Sleep:
            return await asyncio.sleep(effect.delay_s)
        if type(effect) is Do:
            return await effect.call(partial(self._go_on, private=private))
        if self.closed:
            raise Misused("this client is closed")
        if type(effect) is Everywhere:
            return await self._everywhere(effect)
        assert type(effect) is Pipeline
        try:
            return await self._pipeline(effect, private)
        except Unreachable as failure:
            if self.closed:  # the link was closed under it: that is why, and not the server
                raise Misused("this client was closed meanwhile") from failure
            raise

    async def _pipeline(self, effect: Pipeline, private: dict[int, Link]) -> list[Any]:
        lines = await self._lines_of(effect, private)
        link = private.pop(effect.server, None) if effect.private else None
        if link is not None and not effect.same:
            link.close()
            link = None
        if effect.same and link is None:
            raise gone(lines.where)
        was_clean = link is None
        request = b"".join(map(wire.pack, effect.commands))
        try:
            async with asyncio.timeout(max(effect.by - now(), 0.0)):
                if link is None:
                    link = await (lines.take(effect.by) if effect.private else lines.shared(self.env.timeout_s))
                replies: list[Any] = await link.request_many(request, len(effect.commands), effect.by)
            if link.address is not None:
                wire.check_moved(replies, link.where)
        except TimeoutError:
            if link is None:
                raise Unreachable(f"cannot connect to {lines.where} in time", sent=False) from None
            link.retire()
            raise Unreachable(f"{lines.where} does not answer") from None
        except BaseException:
            if link is not None and (effect.private or link.address is not None):
                link.retire()  # it may be owed replies; it closes when it has them
            raise
        clean = is_clean(effect.commands, replies, was_clean)
        if not effect.private:
            if not clean:
                link.retire()  # what others send on it would only be queued
        elif clean:
            lines.give_back(link)
        else:
            private[effect.server] = link
        return replies

    async def _lines_of(self, effect: Pipeline, private: dict[int, Link]) -> Lines:
        return self._lines[effect.server]

    async def _everywhere(self, effect: Everywhere) -> list[Any]:
        request = wire.pack(effect.command)
        # No await in between: all servers that a link stands to are written to in this turn of the loop.
        asked = [lines.ask(request, effect.by) for lines in self._lines]
        try:
            await asyncio.wait([one for one, _ in asked], timeout=max(effect.by - now(), 0.0))
        finally:
            answers = [_answer(*one, lines.where) for one, lines in zip(asked, self._lines, strict=True)]
        dials = [one for one, link in asked if link is None]
        if dials:
            await asyncio.wait(dials)  # those that were late close what they have opened
        for answer in answers:
            if isinstance(answer, BaseException) and not isinstance(answer, (LockfastError, wire.ReplyError)):
                raise answer
        return answers

    def stop(self) -> None:
        """Send nothing more. What is on its way is still answered."""
        self.closed = True

    async def close(self) -> None:
        """Close every connection. What was taken stays taken."""
        self.closed = True
        ended = [link.ended for lines in self._lines for link in lines.links]
        for lines in self._lines:
            lines.close()
        if ended:
            await asyncio.wait(ended, timeout=1.0)
        for lines in self._lines:
            lines.door.close()

    def forget(self) -> None:
        """In a forked child: the loop does not run here, so neither does the client."""
        self._forked = True


class Lines:
    """The links to one server: the one that flows share, and those that a flow had for itself and are free again."""

    def __init__(self, endpoint: Endpoint) -> None:
        self.door = Door(endpoint)
        self.where = endpoint.where
        self.links: set[Link] = set()  # all that are open, retired ones too
        self._shared: Link | None = None
        self._sharing: asyncio.Task[Link] | None = None
        self._free: list[Link] = []
        self._closed = False

    def ask(self, request: bytes, by: float) -> tuple[asyncio.Future[Any], Link | None]:
        """Send one request. The future gets the reply; the link is where it went, None if one is being made for it."""
        link = self._shared
        if link is not None and link.usable:
            return link.request(request, by), link
        return asyncio.get_running_loop().create_task(self._deliver(request, by), name="lockfast-dial"), None

    async def shared(self, timeout_s: float) -> Link:
        """The link that all flows may use.

        It is made in a time of its own, not in that of whoever asks first; nor may a cancelled task take it away.
        """
        if self._shared is not None and self._shared.usable:
            return self._shared
        if self._sharing is None:
            self._sharing = asyncio.get_running_loop().create_task(
                self._share(now() + timeout_s), name="lockfast-connect"
            )
            self._sharing.add_done_callback(_seen)
        sharing = self._sharing
        try:
            return await asyncio.shield(sharing)
        except asyncio.CancelledError:
            if self._closed and sharing.cancelled():
                raise Misused("this client was closed meanwhile") from None
            raise

    async def _share(self, by: float) -> Link:
        try:
            self._shared = await self._open(partial(self._connect, by), by)
            return self._shared
        finally:
            self._sharing = None

    async def take(self, by: float) -> Link:
        """A link for one flow."""
        while self._free:
            link = self._free.pop()
            if link.usable:
                return link
        return await self._open(partial(self._connect, by), by)

    def give_back(self, link: Link) -> None:
        """Keep a link for the next flow that wants one for itself; not as many as there ever were at once."""
        if self._closed or len(self._free) >= MAX_FREE:
            link.close()
        else:
            self._free.append(link)

    async def _deliver(self, request: bytes, by: float) -> Any:
        """The reply to a request that follows the greeting of a new link at once: a hung server has it, too."""
        endpoint = self.door.endpoint
        greeting = endpoint.greeting()
        if endpoint.lets_anybody_in:
            link = await self._open(partial(self._reach, by), by)
        else:  # a greeting that is refused would leave the request to run as somebody else, or elsewhere
            link = await self._open(partial(self._connect, by), by)
            greeting = []
        try:
            data = wire.greet(greeting) + request
            *greeted, reply = await link.request_many(data, len(greeting) + 1, by)
            wire.check_greeting(greeting, greeted, self.where)
        except BaseException:
            link.retire()  # it stays open until it is owed nothing more: what was written still runs
            raise
        if self._shared is None or not self._shared.usable:
            self._shared = link
        else:
            link.close()  # somebody else was quicker, and one is enough
        return reply

    async def _open(self, connecting: Callable[[str], Awaitable[Link]], by: float) -> Link:
        """Dial, and keep account of the link."""
        link = await dial(self.door, by, connecting)
        if self._closed:
            link.close()
            raise Misused("this client was closed meanwhile")
        self.links.add(link)
        link.ended.add_done_callback(lambda _: self.links.discard(link))
        return link

    async def _connect(self, by: float, path: str) -> Link:
        """A link that is let in."""
        return await connect(self.door.endpoint, path, by, _ignore)

    async def _reach(self, by: float, path: str) -> Link:
        """A link that has not said anything yet."""
        try:
            return await reach(self.door.endpoint, path, by, _ignore)
        except OSError as error:
            raise wire.not_connected(error, self.where) from error

    def close(self) -> None:
        self._closed = True
        if self._sharing is not None:
            self._sharing.cancel()
        for link in list(self.links):
            link.close()


def _answer(one: asyncio.Future[Any], link: Link | None, where: str) -> Any:
    """What a server has said by now, or what went wrong. Who is late is not waited for, nor asked again that way."""
    if not one.done():
        one.cancel()
        if link is not None:
            link.retire()
        return Unreachable(f"{where} does not answer")
    return one.exception() or one.result()


def _ignore(_: Link) -> None:
    """A link has ended: whoever wants to use it next looks by itself."""


def _seen(task: asyncio.Task[Any]) -> None:
    """Whoever waited has been told; if all of them were cancelled, nobody needs to be."""
    if not task.cancelled():
        task.exception()
