"""Connections as drivers/threads.py uses them: a pool, and whoever takes one out of it is alone with it.

One that was not answered is never used again, except for the `leave` that undoes what was sent on it; then it lingers,
so that what was written still runs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lockfast.drivers import wire
from lockfast.drivers.pool import LINGER_S, MAX_LINGERING
from lockfast.errors import Unreachable
from lockfast.sim.lines import Lines, by_sha, by_text
from lockfast.sim.net import OPEN
from lockfast.sim.tasks import until

if TYPE_CHECKING:
    from lockfast.flows.effects import Call
    from lockfast.sim.client import Client
    from lockfast.sim.driving import Frame
    from lockfast.sim.net import Connection, Request
    from lockfast.sim.node import Node
    from lockfast.sim.tasks import Pending, Steps


class Pooled(Lines):
    """The pool of one client for one server."""

    ready = True

    def __init__(self, client: Client, node: Node) -> None:
        super().__init__(client, node)
        self._free: list[Connection] = []
        self._lingering: list[tuple[float, Connection]] = []

    def call(self, call: Call, frame: Frame) -> Steps[Any]:
        """Run a script. If that fails on a connection, it is kept with the flow: what was sent may still run."""
        lane = yield from self._take(call.by)
        try:
            (answer,) = yield from self.ask_on(lane, [by_sha(call)], call.by)
            if wire.is_noscript(answer):
                (answer,) = yield from self.ask_on(lane, [by_text(call)], call.by)
            if isinstance(answer, wire.ReplyError):
                raise wire.failure(answer, self.node.name)
        except GeneratorExit:
            raise
        except BaseException:
            frame.unanswered.append(lane)
            self.close_free()  # the others go to the same server and most likely failed with it
            raise
        self._free.append(lane)
        return answer

    def undo(self, call: Call, frame: Frame) -> Steps[None]:
        """Send a `leave` behind every request that it may have to undo; over another connection if all are broken."""
        request = [by_text(call)]
        unanswered = frame.unanswered
        written = False
        while unanswered:
            connection = unanswered.pop()
            try:
                if written:
                    connection.send(request)
                else:
                    yield from self.ask_on(connection, request, call.by)
                    self._free.append(connection)
                    return  # answered, and with it all that was sent before
            except TimeoutError:
                pass  # it will run when the server gets to it
            except Unreachable:
                self.let_go(connection)
                continue
            except GeneratorExit:
                raise
            except BaseException:
                self.let_go(connection)
                raise
            written = True
            self.let_go(connection)
        if not written:
            yield from self._deliver(request, call.by)

    def _deliver(self, request: list[Request], by: float) -> Steps[None]:
        connection = self._free.pop() if self._free else None
        answers: list[Pending] = []
        try:
            if connection is not None:
                answers = connection.send(request)
        except Unreachable:
            connection = None
        if connection is None:
            connection = yield from self.connect(by)
            answers = connection.send(request)
        try:
            if (yield from until(answers[-1], by, tick=True)):
                answers[-1].result()
        finally:
            if not self.client.dead:
                self.let_go(connection)

    def trip(self, requests: list[Request], by: float) -> Steps[list[Any]]:
        """See Lines."""
        connection = yield from self._take(by)
        try:
            replies = yield from self.ask_on(connection, requests, by)
        except GeneratorExit:
            raise
        except BaseException:
            self.let_go(connection)
            raise
        self._free.append(connection)
        return replies

    def _take(self, by: float) -> Steps[Connection]:
        if self._free:
            return self._free.pop()
        return (yield from self.connect(by))

    def take_alive(self, by: float) -> Steps[Connection]:
        """A connection that the server is not known to have closed."""
        while self._free:
            connection = self._free.pop()
            if connection.state is OPEN:
                return connection
        return (yield from self.connect(by))

    def give_back(self, connection: Connection) -> None:
        """Others may use it from now on."""
        self._free.append(connection)

    def let_go(self, connection: Connection) -> None:
        """Drop a connection. One that is owed replies stays open for a while: what was written on it must still run."""
        if not connection.owed:
            connection.close()
            return
        moment = self.client.shown()
        lingering = self._lingering
        lingering.append((moment, connection))
        while lingering and (len(lingering) > MAX_LINGERING or lingering[0][0] < moment - LINGER_S):
            lingering.pop(0)[1].close()

    def close_free(self) -> None:
        """Trust none of them any more."""
        while self._free:
            self._free.pop().close()
