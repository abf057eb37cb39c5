"""Connections as drivers/aio.py uses them: one link that all tasks of the client share, replies matched in order.

A link on which a request was not answered in time is retired: nothing new goes there, except the `leave` that undoes
what was sent. It stays open for a while, so that what was written still runs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lockfast.drivers import wire
from lockfast.drivers.link import LINGER_S
from lockfast.errors import LockfastError, Unreachable
from lockfast.sim.lines import Lines, NoAnswer, by_sha, by_text
from lockfast.sim.net import OPEN
from lockfast.sim.tasks import Pending, Task, until

if TYPE_CHECKING:
    from lockfast.flows.effects import Call
    from lockfast.sim.client import Client
    from lockfast.sim.driving import Frame
    from lockfast.sim.net import Connection, Request
    from lockfast.sim.node import Node
    from lockfast.sim.tasks import Steps


class Shared(Lines):
    """The link of one client to one server."""

    def __init__(self, client: Client, node: Node) -> None:
        super().__init__(client, node)
        self._link: Connection | None = None
        self._linking = False
        self._waiting: list[Pending] = []  # for the link that is being made

    @property
    def ready(self) -> bool:
        """Whether there is a link that a first request can be sent on at once."""
        return self._link is not None and self._link.state is OPEN

    def call(self, call: Call, frame: Frame) -> Steps[Any]:
        """Run a script on the link."""
        link = frame.lane = yield from self._linked(call.by)
        (answer,) = yield from self._request(link, [by_sha(call)], call.by)
        if wire.is_noscript(answer):
            (answer,) = yield from self._request(link, [by_text(call)], call.by)
        if isinstance(answer, wire.ReplyError):
            raise wire.failure(answer, self.node.name)
        return answer

    def undo(self, call: Call, frame: Frame) -> Steps[None]:
        """Send a `leave` behind the request that it undoes; its place in the line makes it safe to go on."""
        by = self.client.shown() + self.client.env.timeout_s
        answer: Pending | None = None
        if frame.lane is not None:
            try:
                (answer,) = frame.lane.send([by_text(call)])
            except Unreachable:
                pass  # the line is broken: over a new one
        undoing = Task(self.client, self._confirm(answer, call, by), "undo")
        if not frame.cancelled:  # who gave up by themselves can wait a moment until they have left
            yield from until(undoing.ended, call.by, tick=True)

    def _confirm(self, answer: Pending | None, call: Call, by: float) -> Steps[None]:
        if answer is not None and (yield from until(answer, by, tick=True)) and answer.error is None:
            return
        try:
            by = self.client.shown() + self.client.env.timeout_s
            link = yield from self._linked(by)
            yield from self._request(link, [by_text(call)], by)
        except LockfastError:
            pass  # the place ends by itself in seconds, a hold with its lease

    def trip(self, requests: list[Request], by: float) -> Steps[list[Any]]:
        """See Lines."""
        link = yield from self._linked(by)
        return (yield from self._request(link, requests, by))

    def _request(self, link: Connection, requests: list[Request], by: float) -> Steps[list[Any]]:
        try:
            return (yield from self.ask_on(link, requests, by))
        except NoAnswer:
            self.let_go(link)
            raise

    def _linked(self, by: float) -> Steps[Connection]:
        """The link that is in use, or a new one. A cancelled task does not take it away from the others."""
        if self._link is not None:
            if self._link.state is OPEN:
                return self._link
            self._link = None
        if not self._linking:
            self._linking = True
            Task(self.client, self._make_link(by), "connect")
        made = Pending()
        self._waiting.append(made)
        yield from until(made)
        link: Connection = made.result()
        return link

    def _make_link(self, by: float) -> Steps[None]:
        link: Connection | None = None
        failure: LockfastError | None = None
        try:
            link = self._link = yield from self.connect(by)
        except LockfastError as struck:
            failure = struck
        self._linking = False
        waiting, self._waiting = self._waiting, []
        for made in waiting:
            made.settle(link, failure)

    def let_go(self, connection: Connection) -> None:
        """Use it for nothing new, except to undo what was sent here. It stays open so that what was written runs."""
        if self._link is connection:
            self._link = None
            self.client.alarm(self.client.shown() + LINGER_S, False, connection.close)
