"""Connections: two ordered streams each, that break in all the ways of TCP.

- Messages of one direction arrive in order; different connections overtake each other.
- A message that is lost takes everything behind it along: in TCP nothing arrives after a gap. What is lost before
  the server read it never runs; what is lost on the way back has run. A *reset* is noticed by both ends, a
  *half-open* connection by nobody until somebody's time runs out.
- While a client is cut off in one direction, messages of that direction wait and are sent again when it heals; that
  is how bytes on a connection that was given up long ago still run.
- A client that closes has what it wrote run first; one that loses power leaves connections that the server takes
  for alive.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

from lockfast.errors import Unreachable
from lockfast.sim import telling
from lockfast.sim.faults import AFTER_REQUESTS, strike
from lockfast.sim.tasks import Pending

if TYPE_CHECKING:
    from collections.abc import Callable

    from lockfast.flows.effects import Call
    from lockfast.sim.client import Client
    from lockfast.sim.faults import Fault
    from lockfast.sim.node import Node
    from lockfast.sim.server import Session, Word

# One command, and the script call that it carries, if it does.
Request = tuple[tuple["Word", ...], "Call | None"]

KEEP_ALIVE_S = 25.0  # after this long without a sign of life the client's kernel gives a connection up
# ENDED: the other side has hung up. Writing to it works once more, as far as anybody can tell; nothing comes of it.
CONNECTING, OPEN, CLOSED, ENDED, BROKEN = "connecting", "open", "closed", "ended", "broken"


class Stream:
    """One direction of a connection: what was sent and has not arrived."""

    __slots__ = ("cut", "last_at", "messages", "stuck")

    def __init__(self) -> None:
        self.messages: deque[tuple[Callable[..., None], tuple[Any, ...]]] = deque()
        self.last_at = 0.0  # when the last of them arrives: nothing overtakes it
        self.stuck = 0  # how many would have arrived, but for a cut or a frozen server
        self.cut = False  # whatever is sent from now on is lost


class Connection:
    """A connection as its client sees it (`state`, `expected`) and as its server does (`session`)."""

    __slots__ = (
        "client",
        "down",
        "expected",
        "node",
        "number",
        "on_end",
        "on_push",
        "opened",
        "session",
        "state",
        "up",
    )

    def __init__(self, client: Client, node: Node) -> None:
        self.client = client
        self.node = node
        self.number = client.count_connection()
        self.state = CONNECTING
        self.session: Session | None = None
        self.expected: deque[Pending] = deque()  # replies that are owed, in order
        self.opened = Pending()
        self.on_push: Callable[[Any], None] | None = None
        self.on_end: Callable[[], None] | None = None
        self.up = Stream()
        self.down = Stream()
        client.connections[self] = None
        fault = client.faults.of_request() if client.faults is not None else None
        self._send_up(fault, self._accept)

    @property
    def where(self) -> str:
        return self.node.name

    @property
    def owed(self) -> int:
        return len(self.expected)

    # The client's end.

    def send(self, requests: list[Request]) -> list[Pending]:
        """Write some commands at once. Raises Unreachable when it is known here that the connection is gone."""
        answers = [Pending() for _ in requests]
        if self.state is ENDED:
            for answer in answers:
                answer.settle(error=Unreachable(f"{self.where} closed the connection"))
            return answers
        if self.state is not OPEN:
            raise Unreachable(f"connection to {self.where} lost")
        self.expected.extend(answers)
        client = self.client
        fault = client.faults.of_request() if client.faults is not None else None
        if client.world.tells:
            telling.requests(client, self, requests)
        self._send_up(fault, self._serve, requests, fault)
        return answers

    def close(self) -> None:
        """Hang up. What was written still runs, and then the server sees the end."""
        if self.state in (CLOSED, ENDED, BROKEN):
            return
        self.state = CLOSED
        self.expected.clear()
        self.client.connections.pop(self, None)
        self._send_up(None, self._hung_up)

    def break_off(self, why: str, politely: bool = False) -> None:
        """The client learns that the connection is gone. politely: the other side has hung up."""
        if self.state in (CLOSED, ENDED, BROKEN):
            return
        self.state = ENDED if politely else BROKEN
        self.client.connections.pop(self, None)
        expected, self.expected = self.expected, deque()
        self.opened.settle(error=Unreachable(f"cannot connect to {self.where}: {why}", sent=False))
        for answer in expected:
            answer.settle(error=Unreachable(f"connection to {self.where} lost: {why}"))
        if self.on_end is not None:
            self.on_end()

    def power_off(self) -> None:
        """The client's machine is gone, and with it what it had not got through a cut; nobody tells the server."""
        self.state = BROKEN
        self.up.cut = self.down.cut = True
        if self.client.is_cut("server", self.node):
            self.up.messages.clear()
            self.up.stuck = 0

    # Up, to the server.

    def _send_up(self, fault: Fault | None, action: Callable[..., None], *args: Any) -> None:
        extra_s = 0.0
        if fault is not None:
            if fault.kind == "slow":
                extra_s = fault.length_s
            elif fault.kind == "lost":
                self._go_silent(self.up)
            elif fault.kind == "reset":
                self.reset("reset by the network")
            elif fault.kind in AFTER_REQUESTS:
                self.client.world.at(self.client.world.now, strike, self.client.world, fault)
        self._fly(self.up, extra_s, self._arrive_up, action, args)

    def _arrive_up(self) -> None:
        if not self.up.messages:
            return  # lost with the power of the client
        is_cut = self.client.is_cut("server", self.node)
        if is_cut or self.node.frozen:
            self.up.stuck += 1
            (self.client.stuck if is_cut else self.node.stuck)[self] = None
            return
        action, args = self.up.messages.popleft()
        action(*args)

    def _accept(self) -> None:
        node = self.node
        if node.up:
            self.session = node.server.open(self._push)
            node.connections[self] = None
            self._send_down(0.0, self._let_in)
        elif node.silent:
            self._go_silent(self.down)
        else:
            self._send_down(0.0, self.break_off, "refused")

    def _serve(self, requests: list[Request], fault: Fault | None) -> None:
        node = self.node
        if self.session is None:
            if not node.up and node.silent:
                self._go_silent(self.down)
            else:
                self.reset("the server does not know it")
            return
        replies = [node.execute(self.session, args, call) for args, call in requests]
        if node.on_executed is not None:
            node.on_executed(self.client)
        extra_s = 0.0
        if fault is not None:
            if fault.kind == "answer slow":
                extra_s = fault.length_s
            elif fault.kind == "answer lost":
                self._go_silent(self.down)
            elif fault.kind == "answer reset":
                self.reset("reset by the network")
        self._send_down(extra_s, self._answered, requests, replies)

    def _hung_up(self) -> None:
        self.node.drop(self)

    # Down, to the client.

    def _send_down(self, extra_s: float, action: Callable[..., None], *args: Any) -> None:
        self._fly(self.down, extra_s, self._arrive_down, action, args)

    def _push(self, message: Any) -> None:
        client = self.client
        fault = client.faults.of_push() if client.faults is not None and not client.dead else None
        extra_s = 0.0
        if fault is not None:
            if fault.kind == "push slow":
                extra_s = fault.length_s
            elif fault.kind == "push lost":
                self._go_silent(self.down)
            elif fault.kind == "push reset":
                self.reset("reset by the network")
        self._send_down(extra_s, self._pushed, message)

    def _arrive_down(self) -> None:
        if self.client.is_cut("client", self.node):
            self.down.stuck += 1
            self.client.stuck[self] = None
            return
        self.client.deliver(self, self._take_down)

    def _take_down(self) -> None:
        action, args = self.down.messages.popleft()
        if self.state in (OPEN, CONNECTING):
            action(*args)

    def _let_in(self) -> None:
        self.state = OPEN
        self.opened.settle()

    def _answered(self, requests: list[Request], replies: list[Any]) -> None:
        if self.client.world.tells:
            telling.replies(self.client, self, requests, replies)
        for reply in replies:
            self.expected.popleft().settle(reply)

    def _pushed(self, message: Any) -> None:
        if self.on_push is not None:
            self.on_push(message)

    # Both.

    def _fly(
        self,
        stream: Stream,
        extra_s: float,
        arrive: Callable[[], None],
        action: Callable[..., None],
        args: tuple[Any, ...],
    ) -> None:
        if stream.cut:
            return
        world = self.client.world
        moment = world.now + world.delay() + extra_s
        if moment < stream.last_at:
            moment = stream.last_at
        stream.last_at = moment
        stream.messages.append((action, args))
        world.at(moment, arrive)

    def go_on(self) -> None:
        """A cut has healed, or the server runs again: what got stuck arrives now, and is late."""
        world = self.client.world
        for stream, arrive in ((self.up, self._arrive_up), (self.down, self._arrive_down)):
            stuck, stream.stuck = stream.stuck, 0
            for _ in range(stuck):
                stream.last_at = max(stream.last_at, world.now + world.delay())
                world.at(stream.last_at, arrive)

    def _go_silent(self, stream: Stream) -> None:
        """Lose whatever is sent in this direction from now on. The client finds out when its kernel misses life."""
        if stream.cut:
            return
        stream.cut = True
        world = self.client.world
        world.after(KEEP_ALIVE_S, self.client.deliver, self, self.break_off, "no sign of life")

    def reset(self, why: str, politely: bool = False) -> None:
        """Both ends learn that it is gone; what is under way is lost."""
        world = self.client.world
        self.up.cut = self.down.cut = True
        world.after(world.delay(), self.client.deliver, self, self.break_off, why, politely)
        world.after(world.delay(), self._hung_up)
