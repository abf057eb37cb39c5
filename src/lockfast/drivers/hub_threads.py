"""The push connection of a client, for threads: subscribed on first contention, read by the waiters themselves.

There is no reader thread. One of the threads that wait reads the socket for all of them, so that a grant for that
thread costs no second wake-up; when it has what it wants, it makes another waiter the reader.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from lockfast.clock import now
from lockfast.drivers.rights import LISTEN_REPLIES, listen_request, may_listen
from lockfast.drivers.wire import read_push
from lockfast.errors import Misused, Unreachable

if TYPE_CHECKING:
    from collections.abc import Callable

    from lockfast.drivers.connection import Connection
    from lockfast.flows.effects import Env, Push

MAX_MAIL = 1000  # pushes kept for tickets that nobody waits for (yet); what is dropped heals with the next heartbeat


class Hub:
    """Delivers pushes to waiting tickets."""

    def __init__(self, env: Env, channel: str, connect: Callable[[float], Connection]) -> None:
        self._env = env
        self._channel = channel
        self._connect = connect
        self._connection: Connection | None = None
        self._subscribing = threading.Lock()
        self._subscriptions = 0
        self._deaf = False
        self._closed = False
        self._mutex = threading.Lock()  # guards what follows; never held during I/O
        self._reading = False
        self._mail: dict[str, Push] = {}
        self._sleepers: dict[str, threading.Event] = {}

    def listen(self, by: float) -> int:
        """See effects.Listen."""
        if self._env.listening or self._deaf:
            return self._env.listening
        if not self._subscribing.acquire(timeout=max(by - now(), 0.0)):
            raise Unreachable("another thread is still trying to subscribe", sent=False)
        try:
            if self._env.listening or self._deaf:
                return self._env.listening
            connection = self._connect(by)
            try:
                connection.send(listen_request(self._channel), LISTEN_REPLIES)
                self._deaf = not may_listen(connection.read_each(by), connection.where)
            except BaseException:
                connection.close()
                raise
            if self._deaf:
                connection.close()
                return 0
            with self._mutex:
                if self._closed:
                    connection.close()
                    raise Misused("this client is closed")
                self._connection = connection
                self._subscriptions += 1
                self._env.listening = self._subscriptions
            return self._subscriptions
        finally:
            self._subscribing.release()

    def wait(self, ticket: str, until: float) -> Push | None:
        """See effects.Wait."""
        while True:
            with self._mutex:
                push = self._mail.pop(ticket, None)
                if push is not None:
                    return push
                if self._closed:
                    raise Misused("this client was closed while an acquire was waiting")
                connection = self._connection
                if connection is None or not self._stands(ticket):
                    return None
                reads = not self._reading
                if reads:
                    self._reading = True
                else:
                    event = self._sleepers[ticket] = threading.Event()
            if reads:
                push = self._read(connection, ticket, until)
                if push is not None:
                    return push
            else:
                self._sleep(event, ticket, until)
            if now() >= until:
                with self._mutex:
                    return self._mail.pop(ticket, None)

    def _read(self, connection: Connection, ticket: str, until: float) -> Push | None:
        """Read for everybody, until something comes. Returns what came for `ticket`."""
        own: Push | None = None
        messages: list[Any] = []
        try:
            messages = connection.pushes(until)
        except (Unreachable, OSError):
            self._lose(connection)
        finally:
            with self._mutex:
                self._reading = False
                if self._sleepers:
                    self._call_reader()
                for message in messages:
                    to, push = self._take_in(message)
                    if to == ticket:
                        own = push
                    elif push is not None:
                        self._deliver(to, push)
        return own

    def _take_in(self, message: Any) -> tuple[str, Push | None]:
        """What has come, and for whom. Called with the mutex."""
        return read_push(message)

    def _stands(self, ticket: str) -> bool:
        """Whether what this ticket waits for can still come. Called with the mutex."""
        return True

    def _sleep(self, event: threading.Event, ticket: str, until: float) -> None:
        """Let another thread read, until it has something for `ticket`, or is done."""
        try:
            event.wait(max(until - now(), 0.0))
        finally:
            with self._mutex:
                self._sleepers.pop(ticket, None)
                if not self._reading:
                    self._call_reader()

    def _call_reader(self) -> None:
        """Wake one that will be the reader. Any waiter will do: one that has its push passes the role on again."""
        for sleeper in self._sleepers.values():
            sleeper.set()
            return

    def _deliver(self, ticket: str, push: Push) -> None:
        while len(self._mail) >= MAX_MAIL + len(self._sleepers):  # what somebody waits for is not dropped
            self._mail.pop(next(iter(self._mail)))
        self._mail[ticket] = push
        sleeper = self._sleepers.get(ticket)
        if sleeper is not None:
            sleeper.set()

    def _lose(self, connection: Connection) -> None:
        with self._mutex:
            if self._connection is connection:
                self._connection = None
                self._unhear()
                for sleeper in self._sleepers.values():
                    sleeper.set()
        connection.close()

    def _unhear(self) -> None:
        self._env.listening = 0

    def forget(self) -> None:
        """In a forked child: the socket is the parent's, and is closed here only."""
        if self._connection is not None:
            self._connection.close()

    def close(self) -> None:
        """Wake every waiter; those that read the socket see it end."""
        with self._mutex:
            self._closed = True
            self._unhear()
            connection, self._connection = self._connection, None
            for sleeper in self._sleepers.values():
                sleeper.set()
        if connection is not None:
            connection.wake()
            connection.close()
