"""The push connection to one node of a cluster, for asyncio: see shards_threads.py, which this is the twin of."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Any

from lockfast.clock import now
from lockfast.drivers.hub_aio import Hub
from lockfast.drivers.line import seen
from lockfast.drivers.shards_threads import MAX_CHANNELS
from lockfast.drivers.wire import ReplyError, pack
from lockfast.errors import Misused, Unreachable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lockfast.drivers.hub_aio import Connect
    from lockfast.drivers.link import Link
    from lockfast.flows.effects import Push, ShardedEnv


class ShardHub(Hub):
    """Delivers the pushes of one node to waiting tickets."""

    def __init__(self, env: ShardedEnv, connect: Connect, numbers: Iterator[int]) -> None:
        super().__init__(env, "", connect)
        self._heard = env.heard
        self._numbers = numbers  # of all hubs of a client: no two subscriptions have the same
        self._on: dict[str, int] = {}  # what is subscribed here, the one that was wanted last at the end
        self._asked: deque[tuple[str, asyncio.Future[int]]] = deque()  # what the server has not answered yet
        self._waited: dict[str, str] = {}  # the channel by which a waiting ticket hears
        self._linking: asyncio.Task[Link] | None = None

    async def listen_to(self, channel: str, by: float) -> int:
        """Subscribe, unless it is subscribed here already. Raises Unreachable, or what the server answers."""
        number = self._on.pop(channel, 0)
        if number:
            self._on[channel] = self._heard[channel] = number
            return number
        if self._closed:
            raise Misused("this client is closed")
        link = await self._linked(channel, by)
        asked = next((future for waiting, future in self._asked if waiting == channel), None)
        if asked is None:
            asked = asyncio.get_running_loop().create_future()
            asked.add_done_callback(seen)
            link.say(b"".join(pack(("SUNSUBSCRIBE", idle)) for idle in self._idle()) + pack(("SSUBSCRIBE", channel)))
            self._asked.append((channel, asked))
        try:
            # Shielded: a cancelled waiter must not take the subscription away from the others.
            async with asyncio.timeout(max(by - now(), 0.0)):
                return await asyncio.shield(asked)
        except TimeoutError:
            link.close()
            raise Unreachable(f"{link.where} does not answer a subscription", sent=False) from None

    async def _linked(self, channel: str, by: float) -> Link:
        if self._link is not None and self._link.usable:
            return self._link
        if self._linking is None:
            self._linking = asyncio.create_task(self._make_link(channel, by), name="lockfast-subscribe")
            self._linking.add_done_callback(seen)
        linking = self._linking
        try:
            return await asyncio.shield(linking)
        except asyncio.CancelledError:
            if self._closed and linking.cancelled():
                raise Misused("this client was closed while an acquire was waiting") from None
            raise

    async def _make_link(self, channel: str, by: float) -> Link:
        try:
            link = await self._connect(by, self._lose, self._deliver)
            try:  # before anybody listens: whether this account's releases will be heard
                answer = await link.request(pack(("SPUBLISH", channel, "")), by)
                if type(answer) is ReplyError:
                    raise answer
                if self._closed or not link.usable:
                    raise Unreachable("the push connection was lost at once", sent=False)
            except BaseException:
                link.close()
                raise
            self._link = link
            return link
        finally:
            self._linking = None

    def _idle(self) -> list[str]:
        """Channels to give up: what nobody waits for, beyond the bound, those first that were wanted longest ago."""
        surplus = len(self._on) - MAX_CHANNELS
        waited = set(self._waited.values()) if surplus > 0 else set()
        found = [channel for channel in self._on if channel not in waited][: max(surplus, 0)]
        for channel in found:
            self._switch_off(channel)
        return found

    async def wait_on(self, channel: str, ticket: str, until: float) -> Push | None:
        """See effects.Wait. None also when the channel is not, or no longer, subscribed here."""
        if channel not in self._on:
            return self._mail.pop(ticket, None)
        self._waited[ticket] = channel
        try:
            return await self.wait(ticket, until)
        finally:
            self._waited.pop(ticket, None)

    def _deliver(self, message: Any) -> None:
        if type(message) is ReplyError:  # errors say not which channel they are about, but come in order
            if self._asked:
                _, future = self._asked.popleft()
                if not future.done():
                    future.set_exception(message)
        elif type(message) is not list:
            pass
        elif message[0] == b"ssubscribe":
            channel = message[1].decode()
            number = self._on[channel] = self._heard[channel] = next(self._numbers)
            if self._asked and self._asked[0][0] == channel:
                _, future = self._asked.popleft()
                if not future.done():
                    future.set_result(number)
        elif message[0] == b"sunsubscribe":
            channel = (message[1] or b"").decode()
            self._switch_off(channel)
            self._wake_those_on(channel)
        else:
            super()._deliver(message)

    def _switch_off(self, channel: str) -> None:
        number = self._on.pop(channel, 0)
        if number and self._heard.get(channel) == number:
            del self._heard[channel]

    def _wake_those_on(self, channel: str) -> None:
        for ticket, waited in self._waited.items():
            sleeper = self._sleepers.get(ticket) if waited == channel else None
            if sleeper is not None and not sleeper.done():
                sleeper.set_result(None)

    def _unhear(self) -> None:
        for channel in list(self._on):
            self._switch_off(channel)
        while self._asked:
            _, future = self._asked.popleft()
            if not future.done():
                future.set_exception(Unreachable("the push connection was lost", sent=False))

    def close(self) -> Link | None:
        if self._linking is not None:
            self._linking.cancel()
        return super().close()
