"""The part of the third driver that asks several servers at once, as drivers/quorum_threads.py and quorum_aio.py do.

A lane is one connection to each server. With threads whoever runs a flow is alone with a lane, and replies that come
when nobody reads it are heard when it is used next; tasks of a loop share one lane, and hear at once. New connections
are greeted before they are used, side by side. A server that does not answer is looked at again in the background; a
connection that was silent while another one was answered is let go, but stays open so that what was written still runs.
A `leave` for which there is no connection is the first that is written to the next one.
"""

from __future__ import annotations

from collections import deque
from math import inf
from typing import TYPE_CHECKING, Any

from lockfast.drivers import wire
from lockfast.errors import LockfastError, Unreachable
from lockfast.flows.effects import Env
from lockfast.flows.fleet import PROBE_S, Fleet
from lockfast.flows.fleet import Node as Member
from lockfast.flows.introduction import greeting, marking, read_greeting
from lockfast.flows.scripts import LEAVE
from lockfast.sim.hub import Hub
from lockfast.sim.lines import by_sha, by_text
from lockfast.sim.net import ENDED, OPEN, Connection
from lockfast.sim.tasks import Cancelled, Pending, Task, until
from lockfast.specs import PLACE_S

if TYPE_CHECKING:
    from collections.abc import Callable

    from lockfast.flows.effects import Call, Scatter
    from lockfast.flows.introduction import Words
    from lockfast.sim.client import Client
    from lockfast.sim.driving import Frame
    from lockfast.sim.tasks import Steps

LINGER_S = 60.0


def make_fleet(client: Client, node_timeout_s: float, max_lease_s: float) -> Fleet:
    """What a client knows of its servers, when it knows nothing yet."""
    members = []
    for place, node in enumerate(client.servers):
        env = Env(client.now, client.rng.random, client.env.timeout_s)
        env.introduce(*client.env.me)
        env.place = place
        members.append(Member(node.name, env))
    return Fleet(members, node_timeout_s, max_lease_s)


class Line:
    """A connection that has been greeted."""

    __slots__ = ("connection", "sent")

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.sent: deque[float] = deque()  # when the requests were sent that are not answered

    def was_silent(self, since: float) -> bool:
        """Whether it owes a reply to something that was asked before `since`."""
        return bool(self.sent) and self.sent[0] < since


class Lane:
    """One connection to each server, as far as there are any."""

    def __init__(self, count: int, reads_always: bool) -> None:
        self.lines: list[Line | None] = [None] * count
        self.opening = [False] * count
        self.leaves: list[list[tuple[float, Call]]] = [[] for _ in range(count)]  # for want of a connection
        self._reads_always = reads_always
        self._readers: dict[Pending, None] = {}
        self._unread: list[Callable[[], None]] = []

    def arrived(self, hear: Callable[[], None]) -> None:
        """A reply is there."""
        if self._reads_always or self._readers:
            hear()
            self.wake()
        else:
            self._unread.append(hear)

    def read(self) -> None:
        """Hear what came while nobody was there to read."""
        unread, self._unread = self._unread, []
        for hear in unread:
            hear()

    def news(self, by: float) -> Steps[bool]:
        """Wait until something happens here."""
        reader = Pending()
        self._readers[reader] = None
        try:
            return (yield from until(reader, by, tick=True))
        finally:
            self._readers.pop(reader, None)

    def wake(self) -> None:
        """Let those who wait here look again."""
        for reader in list(self._readers):
            reader.settle()


class Quorum:
    """Scatters of one client, and what they need: lanes, push connections and a look at whoever is silent."""

    def __init__(self, client: Client, fleet: Fleet, prefix: str) -> None:
        self._client = client
        self._fleet = fleet
        self._prefix = prefix
        self._is_shared = client.style == "asyncio"
        self._free: list[Lane] = []
        self._lanes: list[Lane] = []
        self._greeted_at = [-inf] * len(fleet.nodes)  # when a connection to it was last greeted
        self._is_looking = False
        self.known: list[set[str]] = [set() for _ in fleet.nodes]  # scripts that each server has
        self.hubs = [
            Hub(client, lambda by, place=place: self._connect(place, by), node.env)  # type: ignore[misc]
            for place, node in enumerate(fleet.nodes)
        ]

    # Lanes.

    def _lane(self, frame: Frame) -> Lane:
        if frame.lane is None:
            if self._is_shared and self._lanes:
                frame.lane = self._lanes[0]
            elif self._free:
                frame.lane = self._free.pop()
            else:
                frame.lane = Lane(len(self._fleet.nodes), self._is_shared)
                self._lanes.append(frame.lane)
        lane: Lane = frame.lane
        return lane

    def end(self, frame: Frame) -> None:
        """The flow has ended: its lane is for others."""
        if frame.lane is not None and not self._is_shared:
            self._free.append(frame.lane)
        frame.lane = None

    # Connections.

    def _connect(self, place: int, by: float) -> Steps[Connection]:
        client = self._client
        connection = Connection(client, client.servers[place])
        try:
            if not (yield from until(connection.opened, by, tick=True)):
                raise Unreachable(f"cannot connect to {connection.where}: no answer in time", sent=False)
            connection.opened.result()
        except GeneratorExit:
            raise
        except BaseException:
            connection.close()
            raise
        return connection

    def _greeted(self, place: int) -> Steps[Connection]:
        """A new connection to a server that has introduced itself on it. Raises LockfastError."""
        client, fleet = self._client, self._fleet
        by = client.shown() + max(client.env.attempt_s, fleet.node_timeout_s)
        connection = yield from self._connect(place, by)
        sent = client.now()
        replies = yield from self._answers(connection, greeting(self._prefix, fleet.max_lease_ms), by)
        told = read_greeting(self._prefix, replies, lambda reply: _refusal(reply, connection.where))
        heard = client.now()
        if told.new_mark is not None:
            yield from self._answers(connection, [marking(self._prefix, told.new_mark)], by)
        if told.run_id != fleet.nodes[place].run_id:
            self.known[place].clear()
        fleet.introduce(place, told, sent, heard)
        client.env.connected = True
        self._greeted_at[place] = heard
        return connection

    def _answers(self, connection: Connection, commands: list[Words], by: float) -> Steps[list[Any]]:
        answers = connection.send([(words, None) for words in commands])
        if not (yield from until(answers[-1], by, tick=True)):
            connection.close()
            raise Unreachable(f"{connection.where} does not answer")
        return [answer.result() for answer in answers]

    def _open(self, lane: Lane, place: int) -> Steps[None]:
        try:
            self._begin(lane, place, (yield from self._greeted(place)))
        except LockfastError as failure:
            self._fleet.nodes[place].fell_silent(str(failure))
        lane.opening[place] = False
        lane.wake()

    def _begin(self, lane: Lane, place: int, connection: Connection) -> None:
        """A connection can be used. What could not be taken back for want of one is taken back first."""
        lane.lines[place] = Line(connection)
        leaves, lane.leaves[place] = lane.leaves[place], []
        latest = self._client.shown() - self._fleet.max_lease_s - PLACE_S
        _Asked(self, lane, lambda _number, _reply: None).write(
            [(place, call) for since, call in leaves if since > latest]
        )

    def _tidy(self, lane: Lane, place: int) -> None:
        """Let go of what is of no use any more; see to it that there is a connection soon."""
        line = lane.lines[place]
        if line is not None:
            state = line.connection.state
            # A thread does not see that the other side has hung up before it writes.
            usable = state is OPEN or (state is ENDED and not self._is_shared)
            if not usable or line.was_silent(self._greeted_at[place] - self._fleet.node_timeout_s):
                self._client.alarm(self._client.shown() + LINGER_S, False, line.connection.close)
                lane.lines[place] = None
        if lane.lines[place] is None and not lane.opening[place]:
            lane.opening[place] = True
            Task(self._client, self._open(lane, place), f"connect to {self._client.servers[place].name}")

    # Scatters.

    def scatter(self, effect: Scatter, frame: Frame) -> Steps[None]:
        """See effects.Scatter."""
        lane = self._lane(frame)
        lane.read()
        self._look()
        places = effect.places
        for place in places:
            self._tidy(lane, place)
        struck: BaseException | None = None
        try:
            yield from self._wait_connected(lane, effect, frame)
        except Cancelled as cancelled:
            if not effect.behind:
                raise
            struck = cancelled
        asked = _Asked(self, lane, effect.hear)
        asked.write(effect.make(lane.lines))
        if struck is not None:
            raise struck
        try:
            while not effect.enough() and not (effect.behind and frame.cancelled):
                if not (yield from lane.news(effect.by)):
                    break
        finally:
            asked.is_over = True

    def _wait_connected(self, lane: Lane, effect: Scatter, frame: Frame) -> Steps[None]:
        """Until a majority is connected, or all that are asked; who is late is left out this time."""
        places = effect.places
        least = min(self._fleet.majority, len(places))
        while not effect.enough() and not (effect.behind and frame.cancelled):
            connected = sum(lane.lines[place] is not None for place in places)
            if connected >= least or not any(lane.opening[place] for place in places):
                return
            if not (yield from lane.news(effect.by)):
                return

    def heard(self, place: int, reply: Any) -> Any:
        """What a reply means to a flow; what it says of the server is noted."""
        member = self._fleet.nodes[place]
        if isinstance(reply, Unreachable):
            member.fell_silent(str(reply))
            return reply
        member.answered()
        return wire.failure(reply, member.where) if isinstance(reply, wire.ReplyError) else reply

    def asks(self, place: int) -> None:
        """A request is about to be written."""
        self._fleet.nodes[place].asked(self._client.now())

    def moment(self) -> float:
        return self._client.shown()

    # Looking at those that are silent.

    def _look(self) -> None:
        if not self._is_looking:
            self._is_looking = True
            self._client.alarm(self._client.shown() + PROBE_S, False, self._look_again)

    def _look_again(self) -> None:
        for lane in self._free:
            lane.read()
        moment = self._client.shown()
        for place in self._fleet.to_probe(moment):
            member = self._fleet.nodes[place]
            member.probing, member.looked_at = True, moment
            Task(self._client, self._probe(place), f"look at {member.where}")
        self._client.alarm(moment + PROBE_S, False, self._look_again)

    def _probe(self, place: int) -> Steps[None]:
        member = self._fleet.nodes[place]
        try:
            connection = yield from self._greeted(place)
            lane = self._lanes[0] if self._is_shared and self._lanes else None
            if lane is not None and lane.lines[place] is None and not lane.opening[place]:
                self._begin(lane, place, connection)
                lane.wake()
            else:
                connection.close()
        except LockfastError as failure:
            member.fell_silent(str(failure))
        member.probing = False


class _Asked:
    """The requests of one scatter."""

    def __init__(self, quorum: Quorum, lane: Lane, hear: Callable[[int, Any], None]) -> None:
        self._quorum = quorum
        self._lane = lane
        self._hear = hear
        self.is_over = False

    def write(self, requests: list[tuple[int, Call]]) -> None:
        """Write all of them, those to one server at once."""
        by_place: dict[int, list[tuple[int, Call]]] = {}
        for number, (place, call) in enumerate(requests):
            by_place.setdefault(place, []).append((number, call))
        for place, calls in by_place.items():
            self._write(place, calls)

    def _write(self, place: int, calls: list[tuple[int, Call]]) -> None:
        line = self._lane.lines[place]
        answers: list[Pending] = []
        known = self._quorum.known[place]
        if line is not None:
            self._quorum.asks(place)
            try:
                # With its text at first: nobody may be there to hear that a `leave` was not understood.
                requests = [by_sha(call) if call.bound.script.name in known else by_text(call) for _, call in calls]
                answers = line.connection.send(requests)
            except Unreachable:
                self._lane.lines[place] = line = None
        if line is None:
            for number, call in calls:
                is_leave = call.bound.script is LEAVE
                if is_leave:
                    self._lane.leaves[place].append((self._quorum.moment(), call))
                self._hear(number, Unreachable("not connected", sent=is_leave))
            return
        for (number, call), answer in zip(calls, answers, strict=True):
            line.sent.append(self._quorum.moment())
            self._expect(place, line, number, call, answer)

    def _expect(self, place: int, line: Line, number: int, call: Call, answer: Pending) -> None:
        def hear() -> None:
            if line.sent:
                line.sent.popleft()
            reply = answer.error if answer.error is not None else answer.value
            if answer.error is not None and self._lane.lines[place] is line:
                self._lane.lines[place] = None
            told = self._quorum.heard(place, reply)
            if wire.is_noscript(reply):
                self._quorum.known[place].discard(call.bound.script.name)
                # What was asked for may have been taken back meanwhile, by a `leave` that this would go behind.
                is_last = not self.is_over or call.bound.script is LEAVE
                if is_last and self._lane.lines[place] is line:
                    self._write(place, [(number, call)])
                    return
                told = Unreachable(f"{line.connection.where} did not know the script", sent=False)
            elif answer.error is None:
                self._quorum.known[place].add(call.bound.script.name)
            self._hear(number, told)

        if answer.done:
            hear()
        else:
            answer.then = lambda: self._lane.arrived(hear)


def _refusal(reply: Any, where: str) -> LockfastError | None:
    return wire.failure(reply, where) if isinstance(reply, wire.ReplyError) else None
