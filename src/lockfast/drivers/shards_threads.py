"""The push connection to one node of a cluster, for threads: sharded pub/sub, a channel for each contended name.

A channel is subscribed on first contention of its name and stays so while somebody waits for it, and for a while
after. What the server says of subscriptions comes in order on the push connection like everything else, and is read by
whoever reads: that a channel is on, that it is off because its slot has moved away, or why it was refused.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

from lockfast.clock import now
from lockfast.drivers.hub_threads import Hub
from lockfast.drivers.wire import ReplyError, pack, read_push
from lockfast.errors import Misused, Unreachable
from lockfast.flows.effects import Push

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from lockfast.drivers.connection import Connection
    from lockfast.flows.effects import ShardedEnv

MAX_CHANNELS = 500  # that are kept subscribed on one node though nobody waits for them


class ShardHub(Hub):
    """Delivers the pushes of one node to waiting tickets."""

    def __init__(self, env: ShardedEnv, connect: Callable[[float], Connection], numbers: Iterator[int]) -> None:
        super().__init__(env, "", connect)
        self._heard = env.heard
        self._numbers = numbers  # of all hubs of a client: no two subscriptions have the same
        self._on: dict[str, int] = {}  # what is subscribed here, the one that was wanted last at the end
        self._asked: deque[str] = deque()  # what the server has been asked to subscribe, and has not answered yet
        self._refusals: dict[str, ReplyError] = {}
        self._waited: dict[str, str] = {}  # the channel by which a waiting ticket hears

    def listen_to(self, channel: str, by: float) -> int:
        """Subscribe, unless it is subscribed here already. Raises Unreachable, or what the server answers."""
        with self._mutex:
            number = self._on.pop(channel, 0)
            if number:
                self._on[channel] = self._heard[channel] = number
                return number
        if not self._subscribing.acquire(timeout=max(by - now(), 0.0)):
            raise Unreachable("another thread is still trying to subscribe", sent=False)
        try:
            return self._subscribe(channel, by)
        finally:
            self._subscribing.release()

    def _subscribe(self, channel: str, by: float) -> int:
        connection = self._connected(channel, by)
        with self._mutex:
            if channel in self._on:
                return self._on[channel]
            is_asked = channel in self._asked  # by a thread that was interrupted
            if not is_asked:
                self._mail.pop(channel, None)
                self._asked.append(channel)
        if not is_asked:
            gone = b"".join(pack(("SUNSUBSCRIBE", idle)) for idle in self._idle())
            try:
                connection.send(gone + pack(("SSUBSCRIBE", channel)), 0)
            except Unreachable as failure:
                self._lose(connection)
                raise Unreachable(str(failure), sent=False) from failure
        answer = super().wait(channel, by)
        if answer is None:
            self._lose(connection)
            raise Unreachable(f"{connection.where} does not answer a subscription", sent=False)
        if not answer.number:
            raise self._refusals.pop(channel)
        return answer.number

    def _connected(self, channel: str, by: float) -> Connection:
        if self._connection is None:
            connection = self._connect(by)
            try:  # before anybody listens: whether this account's releases will be heard
                answer = connection.call(pack(("SPUBLISH", channel, "")), by)
                if type(answer) is ReplyError:
                    raise answer
            except BaseException:
                connection.close()
                raise
            connection.share()
            with self._mutex:
                if self._closed:
                    connection.close()
                    raise Misused("this client is closed")
                self._asked.clear()
                self._connection = connection
        connection = self._connection
        assert connection is not None
        return connection

    def _idle(self) -> list[str]:
        """Channels to give up: what nobody waits for, beyond the bound, those first that were wanted longest ago."""
        with self._mutex:
            surplus = len(self._on) - MAX_CHANNELS
            waited = set(self._waited.values()) if surplus > 0 else set()
            found = [channel for channel in self._on if channel not in waited][: max(surplus, 0)]
            for channel in found:
                self._switch_off(channel)
        return found

    def wait_on(self, channel: str, ticket: str, until: float) -> Push | None:
        """See effects.Wait. None also when the channel is not, or no longer, subscribed here."""
        with self._mutex:
            if channel not in self._on:
                return self._mail.pop(ticket, None)
            self._waited[ticket] = channel
        try:
            return self.wait(ticket, until)
        finally:
            with self._mutex:
                self._waited.pop(ticket, None)

    def _stands(self, ticket: str) -> bool:
        channel = self._waited.get(ticket)
        return channel is None or channel in self._on

    def _take_in(self, message: Any) -> tuple[str, Push | None]:
        if type(message) is ReplyError:  # errors say not which channel they are about, but come in order
            if not self._asked:
                return "", None
            channel = self._asked.popleft()
            self._refusals[channel] = message
            return channel, Push("off", 0)
        if type(message) is not list:
            return "", None
        if message[0] == b"ssubscribe":
            channel = message[1].decode()
            if channel in self._asked:
                self._asked.remove(channel)
            number = self._on[channel] = self._heard[channel] = next(self._numbers)
            return channel, Push("on", number)
        if message[0] == b"sunsubscribe":
            channel = (message[1] or b"").decode()
            self._switch_off(channel)
            self._wake(channel)
            return "", None
        return read_push(message)

    def _switch_off(self, channel: str) -> None:
        number = self._on.pop(channel, 0)
        if number and self._heard.get(channel) == number:
            del self._heard[channel]

    def _wake(self, channel: str) -> None:
        for ticket, waited in self._waited.items():
            if waited == channel and ticket in self._sleepers:
                self._sleepers[ticket].set()

    def _unhear(self) -> None:
        for channel in list(self._on):
            self._switch_off(channel)
        self._asked.clear()
