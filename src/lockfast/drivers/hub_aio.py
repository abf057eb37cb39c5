"""The push connection of a client, for asyncio: subscribed on first contention, one for all waiting tasks."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from lockfast.clock import now
from lockfast.drivers.hub_threads import MAX_MAIL
from lockfast.drivers.rights import LISTEN_REPLIES, listen_request, may_listen
from lockfast.drivers.wire import read_push
from lockfast.errors import Misused, Unreachable

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from lockfast.drivers.link import Link
    from lockfast.flows.effects import Env, Push

    Connect = Callable[[float, Callable[[Link], None], Callable[[Any], None]], Awaitable[Link]]


class Hub:
    """Delivers pushes to waiting tickets."""

    def __init__(self, env: Env, channel: str, connect: Connect) -> None:
        self._env = env
        self._channel = channel
        self._connect = connect
        self._link: Link | None = None
        self._subscribing: asyncio.Task[int] | None = None
        self._subscriptions = 0
        self._deaf = False
        self._closed = False
        self._mail: dict[str, Push] = {}
        self._sleepers: dict[str, asyncio.Future[None]] = {}

    async def listen(self, by: float) -> int:
        """See effects.Listen."""
        if self._env.listening or self._deaf:
            return self._env.listening
        if self._closed:
            raise Misused("this client is closed")
        if self._subscribing is None:
            self._subscribing = asyncio.create_task(self._subscribe(by), name="lockfast-subscribe")
            self._subscribing.add_done_callback(_seen)
        # Shielded: a cancelled waiter must not take the subscription away from the others.
        subscribing = self._subscribing
        try:
            return await asyncio.shield(subscribing)
        except asyncio.CancelledError:
            if self._closed and subscribing.cancelled():
                raise Misused("this client was closed while an acquire was waiting") from None
            raise
        finally:
            del subscribing  # it has the error whose traceback leads here: see Threads.acquire

    async def _subscribe(self, by: float) -> int:
        try:
            link = await self._connect(by, self._lose, self._deliver)
            try:
                replies = await link.request_many(listen_request(self._channel), LISTEN_REPLIES, by)
                self._deaf = not may_listen(replies, link.where)
            except Unreachable:
                link.close()
                raise
            if self._deaf:
                link.close()
                return 0
            if self._closed or not link.usable:
                link.close()
                raise Unreachable("the push connection was lost at once", sent=False)
            self._link = link
            self._subscriptions += 1
            self._env.listening = self._subscriptions
            return self._subscriptions
        finally:
            self._subscribing = None

    async def wait(self, ticket: str, until: float) -> Push | None:
        """See effects.Wait."""
        push = self._mail.pop(ticket, None)
        if push is not None:
            return push
        if self._closed:
            raise Misused("this client was closed while an acquire was waiting")
        if self._link is None:
            return None
        loop = asyncio.get_running_loop()
        woken: asyncio.Future[None] = loop.create_future()
        self._sleepers[ticket] = woken
        alarm = loop.call_later(max(until - now(), 0.0), _wake, woken)
        try:
            await woken
        finally:
            alarm.cancel()
            if self._sleepers.get(ticket) is woken:  # several may wait for what one hold is told
                del self._sleepers[ticket]
        if self._closed:
            raise Misused("this client was closed while an acquire was waiting")
        return self._mail.pop(ticket, None)

    def _deliver(self, message: Any) -> None:
        ticket, push = read_push(message)
        if push is not None:
            self._put(ticket, push)

    def _put(self, ticket: str, push: Push) -> None:
        while len(self._mail) >= MAX_MAIL + len(self._sleepers):  # what somebody waits for is not dropped
            self._mail.pop(next(iter(self._mail)))
        self._mail[ticket] = push
        sleeper = self._sleepers.get(ticket)
        if sleeper is not None:
            _wake(sleeper)

    def _lose(self, link: Link) -> None:
        if self._link is link:
            self._link = None
            self._unhear()
            for sleeper in self._sleepers.values():
                _wake(sleeper)

    def _unhear(self) -> None:
        self._env.listening = 0

    def close(self) -> Link | None:
        """Wake every waiter and close; returns the link that ends."""
        self._closed = True
        self._unhear()
        for sleeper in self._sleepers.values():
            _wake(sleeper)
        if self._subscribing is not None:
            self._subscribing.cancel()
        link, self._link = self._link, None
        if link is not None:
            link.close()
        return link


def _wake(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def _seen(task: asyncio.Task[int]) -> None:
    """Whoever waited has been told; if all of them were cancelled, nobody needs to be."""
    if not task.cancelled():
        task.exception()
