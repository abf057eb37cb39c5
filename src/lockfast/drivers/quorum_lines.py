"""The connections of one thread to all servers of a quorum: all are written to before any is read.

A line that is owed replies is used on: requests go behind, and what comes late is told to whoever asked for it. So a
server that hangs costs nobody anything, as long as enough others answer.
"""

from __future__ import annotations

import select
from collections import deque
from math import ceil
from typing import TYPE_CHECKING, Any

from lockfast.clock import now
from lockfast.drivers import wire
from lockfast.drivers.connection import SHORT
from lockfast.drivers.wire import ProtocolError, ReplyError, evalsha
from lockfast.errors import Unreachable

if TYPE_CHECKING:
    from collections.abc import Callable

    from lockfast.drivers.connection import Connection
    from lockfast.flows.effects import Call, Scatter
    from lockfast.flows.fleet import Node

MOST_OWED = 256  # replies: a server that owes more is hung, and nothing is written to it


class Trip:
    """The requests of one Scatter: who hears the replies, and how many are missing."""

    __slots__ = ("hear", "missing")

    def __init__(self, hear: Callable[[int, Any], None]) -> None:
        self.hear = hear
        self.missing = 0


class Line:
    """One connection, and what is owed on it, in order."""

    __slots__ = ("_pending", "_receive", "connection", "node", "owed", "place")

    def __init__(self, place: int, node: Node, connection: Connection) -> None:
        self.place = place
        self.node = node
        self.connection = connection
        self.owed: deque[tuple[Trip, int, Call]] = deque()
        self._receive = connection.sock.recv
        self._pending: Callable[[], int] | None = getattr(connection.sock, "pending", None)  # TLS has it

    def read(self) -> None:
        """Tell what has come. Raises Unreachable when the connection is over."""
        connection, owed, pending, node = self.connection, self.owed, self._pending, self.node
        try:
            while True:
                data = self._receive(SHORT)
                if not data:
                    raise Unreachable(f"{connection.where} closed the connection")
                connection.feed(data)
                reply = connection.next_reply()
                while reply is not False:
                    item = owed.popleft()
                    node.answered()
                    if type(reply) is not ReplyError:
                        trip, index, _ = item
                        trip.missing -= 1
                        trip.hear(index, reply)
                    else:
                        self._refused(item, reply)
                    reply = connection.next_reply()
                # If there is more, poll() tells. But TLS may have decoded more than one recv() gave.
                if pending is None or not pending():
                    return
        except (BlockingIOError, TimeoutError):
            return
        except OSError as error:
            if isinstance(error, Unreachable):
                raise
            raise Unreachable(f"connection to {connection.where} lost: {error}") from error
        except ProtocolError as error:
            raise Unreachable(f"{connection.where} does not speak the Redis protocol: {error}") from error

    def _refused(self, item: tuple[Trip, int, Call], reply: Any) -> None:
        trip, index, call = item
        if wire.is_noscript(reply):
            self.owed.append(item)
            self.connection.sock.sendall(wire.eval_text(call.bound, call.args))
            return
        trip.missing -= 1
        trip.hear(index, wire.failure(reply, self.connection.where, call.bound))


class Lane:
    """The lines of whoever has it, one for each server; alone with them until it gives the lane back."""

    def __init__(self, count: int) -> None:
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
        self.lines[line.place] = None
        for fd, other in list(self._by_fd.items()):
            if other is line:
                del self._by_fd[fd]
                self._poll.unregister(fd)
        line.connection.close()
        line.node.fell_silent(why)
        while line.owed:
            trip, index, _ = line.owed.popleft()
            trip.missing -= 1
            trip.hear(index, Unreachable(why))

    def write(self, effect: Scatter, moment: float) -> Trip:
        """Send all requests of an effect."""
        trip = Trip(effect.hear)
        lines = self.lines
        batches: list[tuple[Line, list[tuple[Trip, int, Call]], list[bytes]]] = []
        packed: dict[Call, bytes] = {}  # most often all servers are asked the same
        last: Line | None = None  # what goes to one server stands together
        for index, (place, call) in enumerate(effect.make(lines)):
            line = lines[place]
            if line is None or len(line.owed) >= MOST_OWED:
                where = "there is no connection to it" if line is None else "it owes too many answers"
                effect.hear(index, Unreachable(where, sent=False))
                continue
            request = packed.get(call)
            if request is None:
                request = packed[call] = evalsha(call.bound, call.args)
            if line is last:
                batches[-1][1].append((trip, index, call))
                batches[-1][2].append(request)
            else:
                batches.append((line, [(trip, index, call)], [request]))
                last = line
        for line, items, requests in batches:
            try:
                # Expected before they are written, and no line is left that expects what was not: after an interrupt
                # the replies to later requests would be taken for these.
                line.owed.extend(items)
                trip.missing += len(items)
                line.node.asked(moment)
                line.connection.sock.sendall(b"".join(requests))
            except OSError as error:
                self.drop(line, f"connection to {line.connection.where} lost: {error}")
            except BaseException:
                self.drop(line, "interrupted while a request was being sent")
                raise
        return trip

    def gather(self, trip: Trip, enough: Callable[[], bool], by: float) -> None:
        """Read until it is enough, or all is there, or the time is up."""
        poll, by_fd = self._poll.poll, self._by_fd
        while trip.missing and not enough():
            left_s = by - now()
            if left_s <= 0:
                return
            for fd, _ in poll(ceil(left_s * 1000)):
                line = by_fd.get(fd)
                if line is not None:
                    self.read(line)

    def catch_up(self, since: float) -> None:
        """Hear what has come since. A majority was enough at the time, and nobody has read on: a server whose reply
        lies here unread must not pass for one that hangs.

        since: who was asked later than that passes for nothing yet, and is heard with the next replies.
        """
        if any(line is not None and line.owed and line.node.asked_at <= since for line in self.lines):
            for fd, _ in self._poll.poll(0):
                self.read(self._by_fd[fd])

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
