"""The blocking connections to one server: those that are free, and how to make another."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from lockfast.clock import now
from lockfast.drivers.connection import connect, deliver
from lockfast.drivers.door import Door
from lockfast.drivers.wire import ReplyError
from lockfast.errors import Misused, Unreachable

if TYPE_CHECKING:
    from collections.abc import Callable

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

    def undo(
        self, request: bytes, by: float, unanswered: list[Connection], let_go: Callable[[Connection], None]
    ) -> None:
        """Send a `leave` behind every request that it may have to undo; over another connection too if none answers.

        Those may be dead while the server is well, and has been asked over others since. Twice does no harm.
        """
        if not unanswered and self.free:
            unanswered.append(self.take(by))  # nothing to go behind, and it may have been closed meanwhile
        read_by = (now() + by) / 2
        written = False
        while unanswered:
            connection = unanswered.pop()
            try:
                connection.send(request, 1)
                if not written:
                    if isinstance(connection.read(read_by), ReplyError):
                        let_go(connection)  # a server that is no master any more, say: it has undone nothing
                        continue
                    self.give_back(connection)
                    return  # answered, and with it all that was sent before
            except TimeoutError:
                pass  # it will run when the server gets to it
            except Unreachable:
                let_go(connection)
                continue
            except BaseException:
                let_go(connection)
                raise
            written = True
            let_go(connection)
        connection = self._deliver(request, by)
        try:
            connection.read(by)
        except TimeoutError:
            pass
        finally:
            let_go(connection)

    def _deliver(self, request: bytes, by: float) -> Connection:
        """A connection on which a request is on its way."""
        while True:
            try:
                connection = self.free.pop()
            except IndexError:
                return deliver(self.endpoint, self.door.path(), by, request)
            try:
                connection.send(request, 1)
            except Unreachable:
                connection.close()
            except BaseException:
                connection.close()
                raise
            else:
                return connection

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
