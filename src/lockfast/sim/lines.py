"""What both ways of using connections have in common: making one, and asking on it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

from lockfast.errors import Unreachable
from lockfast.sim.net import Connection
from lockfast.sim.tasks import until

if TYPE_CHECKING:
    from lockfast.flows.effects import Call
    from lockfast.sim.client import Client
    from lockfast.sim.driving import Frame
    from lockfast.sim.net import Request
    from lockfast.sim.node import Node
    from lockfast.sim.tasks import Steps


class NoAnswer(Unreachable, TimeoutError):
    """Unreachable because time ran out, with the connection still standing as far as anybody here knows."""


class Lines(ABC):
    """The connections of one client to one server."""

    def __init__(self, client: Client, node: Node) -> None:
        self.client = client
        self.node = node

    @property
    @abstractmethod
    def ready(self) -> bool:
        """Whether a first request can be sent before a flow is started."""

    @abstractmethod
    def call(self, call: Call, frame: Frame) -> Steps[Any]:
        """Run a script, and answer its reply. Raises Unreachable or Refused."""

    @abstractmethod
    def undo(self, call: Call, frame: Frame) -> Steps[None]:
        """Send a `leave` behind the requests of the same flow that were not answered."""

    @abstractmethod
    def trip(self, requests: list[Request], by: float) -> Steps[list[Any]]:
        """Send in one write on any connection, and read all replies."""

    @abstractmethod
    def let_go(self, connection: Connection) -> None:
        """Use it for nothing new. What was written on it must still run."""

    def connect(self, by: float) -> Steps[Connection]:
        """A new connection. Raises Unreachable(sent=False)."""
        connection = Connection(self.client, self.node)
        try:
            if not (yield from until(connection.opened, by, tick=True)):
                raise Unreachable(f"cannot connect to {self.node.name}: no answer in time", sent=False)
            connection.opened.result()
        except GeneratorExit:
            raise
        except BaseException:
            connection.close()
            raise
        self.client.env.connected = True
        return connection

    def ask_on(self, connection: Connection, requests: list[Request], by: float) -> Steps[list[Any]]:
        """Send in one write, and read all replies."""
        answers = connection.send(requests)
        if not (yield from until(answers[-1], by, tick=True)):
            raise NoAnswer(f"{self.node.name} does not answer")
        return [answer.result() for answer in answers]


def by_sha(call: Call) -> Request:
    """The request for a script that the server is expected to know."""
    bound = call.bound
    keys = bound.name.keys
    return ("EVALSHA", bound.script.sha, len(keys), *keys, *bound.args, *call.args), call


def by_text(call: Call) -> Request:
    """The request that brings the script along."""
    bound = call.bound
    keys = bound.name.keys
    return ("EVAL", bound.script.text, len(keys), *keys, *bound.args, *call.args), call
