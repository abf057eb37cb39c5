"""The connections of one thread to all servers of a quorum: all are written to before any is read.

A line that is owed replies is used on: requests go behind, and what comes late is told to whoever asked for it. So a
server that hangs costs nobody anything, as long as enough others answer.
"""

from __future__ import annotations

import select
from collections import deque
from functools import partial
from math import ceil, inf
from typing import TYPE_CHECKING, Any

from lockfast.clock import now
from lockfast.drivers import wire
from lockfast.drivers.connection import SEND_S, SHORT
from lockfast.drivers.dialect import knows_no_flags, plainly
from lockfast.drivers.wire import ProtocolError, ReplyError, evalsha
from lockfast.errors import Unreachable
from lockfast.flows.scripts import LEAVE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from socket import socket

    from lockfast.drivers.connection import Connection
    from lockfast.endpoints import Endpoint
    from lockfast.errors import LockfastError
    from lockfast.flows.effects import Call, Scatter
    from lockfast.flows.fleet import Node

EARLY_S = 0.001  # a wait for a server may end this much before its time is up, by the clock that is read here
DRAIN_S = 0.25  # how long a client that is closed waits for the last replies
GRACE_S = 0.01  # how long a first request waits for the connections beyond a majority
LOOKS_S = 0.01  # how often to look for servers that do not answer, at most
# How long to wait for the rest of what TLS has sent as one: poll() tells of its first byte, and none of it can be read
# before the last has come. One server's rest must not hold up the replies of the others.
PART_S = 0.001
MOST_OWED = 256  # replies: a server that owes more is hung, and nothing is written to it


class Trip:
    """The requests of one Scatter: who hears the replies, and how many are missing.

    bring: called with the place and the request of what was lost or refused, if that must get there.
    """

    __slots__ = ("bring", "hear", "missing")

    def __init__(self, hear: Callable[[int, Any], None], bring: Callable[[int, Call], None] | None) -> None:
        self.hear = hear
        self.bring = bring
        self.missing = 0

    def lose(self, place: int, index: int, call: Call, why: LockfastError) -> None:
        """A request came to nothing."""
        self.hear(index, why)
        if self.bring is not None:
            self.bring(place, call)


Owed = tuple[Trip, int, "Call"]  # whose request it is, which one of theirs, and what it was


def is_taken_back(call: Call, behind: Iterable[Call]) -> bool:
    """Whether one of the requests that were sent behind this one takes back what it asks for.

    Then it must not be sent again: it would run behind the `leave`, which relies on its place on the connection, and
    the server would hold the name for nobody.
    """
    name, ticket = call.bound.name, call.args[-1]
    return any(
        later.bound.script is LEAVE and later.args[-1] == ticket and later.bound.name.keys == name.keys
        for later in behind
    )


def too_late(where: str) -> Unreachable:
    """What whoever asked for something hears then."""
    return Unreachable(f"{where} did not know the script, and meanwhile the request was taken back", sent=False)


class Line:
    """One connection, and what is owed on it, in order."""

    __slots__ = (
        "_feed", "_next", "_pending", "_receive",
        "connection", "endpoint", "is_torn", "node", "owed", "place", "send", "silent_since",
    )  # fmt: skip
    send: Callable[[bytes], None]

    def __init__(self, place: int, node: Node, connection: Connection) -> None:
        self.place = place
        self.node = node
        self.connection = connection
        self.owed: deque[Owed] = deque()
        # Set while what is owed and what was written or read may differ: whoever is interrupted then leaves a line on
        # which replies would go to the wrong requests.
        self.is_torn = False
        self.silent_since = inf  # how long it has been silent, while it owes something
        self.endpoint: Endpoint = connection.endpoint
        self.send, self._receive = connection.sock.sendall, connection.sock.recv
        self._feed, self._next = connection.feed, connection.next_reply
        self._pending: Callable[[], int] | None = getattr(connection.sock, "pending", None)  # TLS has it
        if self._pending is not None:
            connection.sock.settimeout(PART_S)
            self.send = partial(_send_secured, connection.sock)

    def read(self) -> None:
        """Tell what has come. Raises Unreachable when the connection is over."""
        owed, next_reply, node = self.owed, self._next, self.node
        self.is_torn = True
        try:
            while True:
                data = self._receive(SHORT)
                if not data:
                    raise Unreachable(f"{self.connection.where} closed the connection")
                self._feed(data)
                reply = next_reply()
                while reply is not False:
                    item = owed.popleft()
                    if node.why_down or node.asked_at != inf:
                        node.answered()
                    if type(reply) is not ReplyError:
                        trip, index, _ = item
                        trip.missing -= 1
                        trip.hear(index, reply)
                    else:
                        self._refused(item, reply)
                    reply = next_reply()
                if owed:
                    self.silent_since = now()
                # If there is more, poll() tells. But TLS may have decoded more than one recv() gave.
                if self._pending is None or not self._pending():
                    break
        except (BlockingIOError, TimeoutError):
            pass
        except IndexError:
            raise Unreachable(f"{self.connection.where} answers what it was not asked") from None
        except OSError as error:
            if isinstance(error, Unreachable):
                raise
            raise Unreachable(f"connection to {self.connection.where} lost: {error}") from error
        except ProtocolError as error:
            raise Unreachable(f"{self.connection.where} does not speak the Redis protocol: {error}") from error
        self.is_torn = False

    def _refused(self, item: Owed, reply: Any) -> None:
        trip, index, call = item
        is_old = knows_no_flags(reply)  # see dialect.py
        if is_old:
            self.endpoint.plain = True
        if is_old or wire.is_noscript(reply):
            if trip.bring is None and is_taken_back(call, [later for _, _, later in self.owed]):
                trip.missing -= 1
                trip.hear(index, too_late(self.connection.where))
                return
            self.owed.append(item)
            data = wire.eval_text(call.bound, call.args)
            try:
                self.send(plainly(data) if self.endpoint.plain else data)
            except OSError as error:  # also when time was up: a part of it may have been written
                raise Unreachable(f"connection to {self.connection.where} lost: {error}") from error
            return
        trip.missing -= 1
        trip.lose(self.place, index, call, wire.failure(reply, self.connection.where, call.bound))


def _send_secured(sock: socket, data: bytes) -> None:
    """Write to a socket whose time-out is that of its reader. One that reads nothing is hung."""
    sock.settimeout(SEND_S)
    try:
        sock.sendall(data)
    finally:
        sock.settimeout(PART_S)


class Lane:
    """The lines of whoever has it, one for each server; alone with them until it gives the lane back."""

    def __init__(self, count: int, node_timeout_s: float) -> None:
        self._node_timeout_s = node_timeout_s
        self.is_suspect = False  # a line may be torn: set while any is used, and left so by an interrupt
        self._looks_at = -inf  # before that, none that owes something has been silent for half of a node's time-out
        self.lines: list[Line | None] = [None] * count
        self.dialling = [False] * count
        self._poll = select.poll()
        self._by_fd: dict[int, Line] = {}

    def add(self, line: Line) -> None:
        """Have a line where there was none."""
        fd = line.connection.sock.fileno()
        self.lines[line.place] = line
        self._by_fd[fd] = line
        self._poll.register(fd, select.POLLIN)

    def drop(self, line: Line, why: str) -> None:
        """It is broken: whoever is owed something on it hears so."""
        line.node.fell_silent(why)
        self.remove(line, why)
        line.connection.close()

    def remove(self, line: Line, why: str) -> None:
        """Use it no more."""
        self.lines[line.place] = None
        for fd, other in list(self._by_fd.items()):
            if other is line:
                del self._by_fd[fd]
                self._poll.unregister(fd)
        while line.owed:
            trip, index, call = line.owed.popleft()
            trip.missing -= 1
            trip.lose(line.place, index, call, Unreachable(why))

    def write(self, effect: Scatter, moment: float, bring: Callable[[int, Call], None]) -> Trip:
        """Send all requests of an effect."""
        trip = Trip(effect.hear, bring if effect.behind else None)
        lines = self.lines
        requests = effect.make(lines)
        packed: dict[Call, bytes] = {}  # most often all servers are asked the same
        is_one_each = len(requests) <= len(effect.places)
        together: dict[Line, tuple[list[bytes], list[Owed]]] = {}
        for index, (place, call) in enumerate(requests):
            line = lines[place]
            if line is None or len(line.owed) >= MOST_OWED:
                where = "there is no connection to it" if line is None else "it owes too many answers"
                trip.lose(place, index, call, Unreachable(where, sent=False))
                continue
            data = packed.get(call)
            if data is None:
                data = packed[call] = evalsha(call.bound, call.args)
            if is_one_each:
                self._post(line, data, [(trip, index, call)], moment)
            else:
                batch = together.setdefault(line, ([], []))
                batch[0].append(data)
                batch[1].append((trip, index, call))
        for line, (all_data, items) in together.items():
            self._post(line, b"".join(all_data), items, moment)
        return trip

    def _post(self, line: Line, data: bytes, items: list[Owed], moment: float) -> None:
        """Write requests; what they are is owed from here on."""
        line.is_torn = True
        if not line.owed:
            line.silent_since = moment
        line.owed.extend(items)
        items[0][0].missing += len(items)
        try:
            line.send(plainly(data) if line.endpoint.plain else data)
        except OSError as error:
            self.drop(line, f"connection to {line.connection.where} lost: {error}")
        line.is_torn = False

    def mend(self) -> None:
        """Drop what an interrupt has left torn."""
        for line in self.lines:
            if line is not None and line.is_torn:
                self.drop(line, "interrupted while a request was being sent")
        self.is_suspect = False

    def gather(self, trip: Trip, enough: Callable[[], bool], by: float) -> None:
        """Read until it is enough, or all is there, or the time is up."""
        poll, by_fd = self._poll.poll, self._by_fd
        while trip.missing and not enough():
            left_s = by - now()
            if left_s <= 0:
                for silent in self.hanging():
                    silent.node.asked(silent.silent_since - EARLY_S)
                return
            for fd, _ in poll(ceil(left_s * 1000)):
                if fd in by_fd:
                    self.read(by_fd[fd])

    def is_due(self, moment: float) -> bool:
        """Whether `mend` or `catch_up` may find something."""
        return self.is_suspect or moment >= self._looks_at

    def catch_up(self, everything: bool) -> list[Line]:
        """Hear what has come since: a majority was enough at the time, and nobody has read on. Returns what hangs.

        Unless it is to be everything, who was asked just now is heard with the next replies, which costs less.
        """
        moment = now()
        if moment < self._looks_at and not everything:
            return []
        since = min([line.silent_since for line in self.lines if line is not None and line.owed], default=inf)
        self._looks_at = min(since, moment) + self._node_timeout_s / 2
        if since == inf or (moment < self._looks_at and not everything):
            return []
        self.is_suspect = True
        for fd, _ in self._poll.poll(0):
            self.read(self._by_fd[fd])
        self.is_suspect = False
        return self.hanging()

    def hanging(self) -> list[Line]:
        """The lines that have been silent for too long. To be asked only when all that has come was read."""
        latest = now() - self._node_timeout_s + EARLY_S
        return [line for line in self.lines if line is not None and line.owed and line.silent_since <= latest]

    def read(self, line: Line) -> None:
        try:
            line.read()
        except Unreachable as failure:
            self.drop(line, str(failure))
        except BaseException:
            # Something of the stream may be lost now: what comes next could be taken for the reply to another request.
            self.drop(line, "interrupted while a reply was being read")
            raise

    def drain(self, by: float) -> None:
        """Wait a moment for what is owed, so that what was written is read before the connections end."""
        while any(line is not None and line.owed and not line.node.why_down for line in self.lines) and now() < by:
            for fd, _ in self._poll.poll(max(ceil((by - now()) * 1000), 0)):
                self.read(self._by_fd[fd])

    def close(self) -> None:
        for line in self.lines:
            if line is not None:
                line.connection.close()
