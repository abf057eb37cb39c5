"""The push connection of a client, as drivers/hub_threads.py and hub_aio.py have it.

Subscribed on first contention; pushes for tickets that nobody waits for yet are kept. With threads the waiters read
the socket themselves: as long as nobody waits, nobody sees that it has ended. A loop sees it at once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lockfast.drivers.hub_threads import MAX_MAIL
from lockfast.drivers.wire import ReplyError, read_push
from lockfast.errors import Unreachable
from lockfast.sim import telling
from lockfast.sim.net import OPEN
from lockfast.sim.tasks import Pending, until

if TYPE_CHECKING:
    from collections.abc import Callable

    from lockfast.flows.effects import Env, Push
    from lockfast.sim.client import Client
    from lockfast.sim.net import Connection
    from lockfast.sim.tasks import Steps


class Hub:
    """Delivers pushes to waiting tickets."""

    def __init__(self, client: Client, connect: Callable[[float], Steps[Connection]], env: Env) -> None:
        self._client = client
        self._env = env  # where it is kept whether pushes are heard
        self._connect = connect
        self._reads_always = client.style == "asyncio"
        self._connection: Connection | None = None
        self._subscriptions = 0
        self._subscribing = False
        self._deaf = False
        self._queueing: list[Pending] = []  # those who want the subscription that is being made
        self._unread: list[Any] = []  # arrived, and read by nobody yet; None: the end of the connection
        self._mail: dict[str, Push] = {}
        self._sleepers: dict[str, Pending] = {}

    def listen(self, by: float) -> Steps[int]:
        """See effects.Listen."""
        env = self._env
        while not env.listening and not self._deaf:
            if not self._subscribing:
                return (yield from self._subscribe(by))
            made = Pending()
            self._queueing.append(made)
            if not (yield from until(made, by)):
                raise Unreachable("another thread is still trying to subscribe", sent=False)
            if self._reads_always:
                made.result()  # tasks share the outcome; threads try again by themselves
        return env.listening

    def _subscribe(self, by: float) -> Steps[int]:
        self._subscribing = True
        failure: BaseException | None = None
        try:
            connection = yield from self._connect(by)
            connection.on_push = self._received
            connection.on_end = lambda: self._ended(connection)
            (answer,) = connection.send([(("SUBSCRIBE", self._client.env.me[0]), None)])
            if not (yield from until(answer, by, tick=True)) or answer.error is not None:
                connection.close()
                raise answer.error or Unreachable(f"{connection.where} does not answer")
            if isinstance(answer.value, ReplyError):
                connection.close()
                self._deaf = True
                return 0
            if connection.state is not OPEN:
                raise Unreachable("the push connection was lost at once", sent=False)
            self._connection = connection
            self._subscriptions += 1
            self._env.listening = self._subscriptions
            return self._subscriptions
        except GeneratorExit:
            raise
        except BaseException as struck:
            failure = struck
            raise
        finally:
            self._subscribing = False
            queueing, self._queueing = self._queueing, []
            for made in queueing:
                made.settle(None, failure if isinstance(failure, Unreachable) else None)

    def wait(self, ticket: str, wait_until: float) -> Steps[Push | None]:
        """See effects.Wait."""
        unread, self._unread = self._unread, []
        for message in unread:
            self._take(message)
        push = self._mail.pop(ticket, None)
        if push is not None or self._connection is None:
            return push
        sleeper = self._sleepers[ticket] = Pending()
        try:
            yield from until(sleeper, wait_until)
        finally:
            del self._sleepers[ticket]
        return self._mail.pop(ticket, None)

    def _received(self, message: Any) -> None:
        if self._reads_always or self._sleepers:
            self._take(message)
        else:
            self._unread.append(message)

    def _ended(self, connection: Connection) -> None:
        if self._connection is connection:
            self._received(None)

    def _take(self, message: Any) -> None:
        if message is None:
            self._connection = None
            self._env.listening = 0
            for sleeper in self._sleepers.values():
                sleeper.settle()
            return
        ticket, news = read_push(message)
        if news is None:
            return
        if len(self._mail) >= MAX_MAIL:
            self._mail.pop(next(iter(self._mail)))
        if self._client.world.tells:
            telling.push(self._client, ticket, news)
        self._mail[ticket] = news
        if ticket in self._sleepers:
            self._sleepers[ticket].settle()
