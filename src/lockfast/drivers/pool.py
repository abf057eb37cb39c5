"""The blocking connections to one server: those that are free, and how to make another."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from lockfast.clock import now
from lockfast.drivers.connection import connect
from lockfast.drivers.door import Door
from lockfast.errors import Misused, Unreachable

if TYPE_CHECKING:
    from lockfast.drivers.connection import Connection
    from lockfast.endpoints import Endpoint
    from lockfast.flows.effects import Env

MAX_LINGERING = 32
LINGER_S = 60.0


class Pool:
    """Connections that any thread may take; who takes one is alone with it."""

    __slots__ = ("_env", "_tick_s", "closed", "door", "endpoint", "free")

    def __init__(self, endpoint: Endpoint, env: Env, tick_s: float) -> None:
        self.endpoint = endpoint
        self.door = Door(endpoint)
        self.free: deque[Connection] = deque()
        self.closed = False
        self._env = env
        self._tick_s = tick_s

    def connect(self, by: float) -> Connection:
        """A new connection. The embedded server is started, or started again, when it is not there."""
        door = self.door
        try:
            connection = connect(self.endpoint, door.path(), by, self._tick_s)
        except Unreachable as failure:
            door.revive(failure, by)
            connection = connect(self.endpoint, door.path(), by, self._tick_s)
        self._env.connected = True
        return connection

    def dial(self, by: float) -> Connection:
        """A new connection, unless the client is closed."""
        if self.closed:
            raise Misused("this client is closed")
        return self.connect(by)

    def take(self, by: float) -> Connection:
        """A free connection, or a new one."""
        try:
            return self.free.pop()
        except IndexError:
            pass
        return self.dial(by)

    def give_back(self, connection: Connection) -> None:
        """For whoever asks next."""
        self.free.append(connection)
        if self.closed:  # closed meanwhile: whoever closed may have missed this one
            self.close_free()

    def close_free(self) -> None:
        """Close what nobody uses at the moment."""
        while True:
            try:
                self.free.pop().close()
            except IndexError:
                return

    def close(self) -> None:
        """Close what is free, and make no more."""
        self.closed = True
        self.close_free()
        self.door.close()

    def forget(self) -> None:
        """In a forked child: the sockets are the parent's, and are closed here only."""
        self.close_free()
        self.door.forget()


class Lingering:
    """Connections that nobody uses any more."""

    __slots__ = ("_held",)

    def __init__(self) -> None:
        self._held: list[tuple[float, Connection]] = []

    def let_go(self, connection: Connection) -> None:
        """Drop a connection. One that is owed replies stays open for a while: what was written on it must still run.

        Closed at once, it would answer a late reply with RST; and a server that only pauses its clients forgets
        what it has read from one that hangs up.
        """
        if not connection.owed:
            connection.close()
            return
        moment = now()
        held = self._held
        held.append((moment, connection))
        while held and (len(held) > MAX_LINGERING or held[0][0] < moment - LINGER_S):
            held.pop(0)[1].close()

    def close(self) -> None:
        """Wait for nothing any more."""
        while self._held:
            self._held.pop()[1].close()
