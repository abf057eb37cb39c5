"""What was to be taken back at a server of a quorum and did not get there, kept until that is of no more use.

A server that is down while a hold is given back, or too busy to take it back, would keep a vote that nobody wants: who
is next would wait there for the rest of its lease. So a lost `leave` is brought again: by one who tries beside
everything else until it is confirmed, and before anything else when the server introduces itself on a new connection.
To bring it twice does no harm, as its ticket is never sent again.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from lockfast.clock import now
from lockfast.drivers.wire import ReplyError, eval_text, evalsha

if TYPE_CHECKING:
    from lockfast.flows.effects import Call
    from lockfast.flows.fleet import Fleet

MOST_KEPT = 256  # requests to one server; the oldest, whose lease ends first, is forgotten first
TRY_S = 1.0  # how long a later try may take, and how long a client that is closed waits for those under way

Key = tuple[object, ...]


class Undelivered:
    """The lost requests of one client, by server, and who is bringing them. Threads share it."""

    __slots__ = ("_bringing", "_changed", "_fleet", "_fresh", "_kept", "is_closed", "is_ending")

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._changed = threading.Condition()
        self._kept: list[dict[Key, tuple[float, Call]]] = [{} for _ in fleet.nodes]
        self._fresh: set[int] = set()  # servers for which something has not been tried yet
        self._bringing: set[int] = set()  # servers that somebody is bringing something to
        self.is_ending = False  # each is tried once, and no more
        self.is_closed = False  # nothing is brought any more

    def keep(self, place: int, call: Call) -> bool:
        """Something was lost. True: the caller has to see to it that somebody brings it; else somebody does."""
        # No lease is longer than that, whatever it was extended to.
        until = now() + self._fleet.max_lease_s
        with self._changed:
            if self.is_closed:
                return False
            kept = self._kept[place]
            kept[call.bound.name.keys[0], call.bound.args, call.args] = until, call
            if len(kept) > MOST_KEPT:
                del kept[next(iter(kept))]
            self._fresh.add(place)
            self._changed.notify_all()
            is_first = place not in self._bringing
            self._bringing.add(place)
            return is_first

    def take(self, place: int) -> list[Call]:
        """What is to be brought there; it stays until it is `heard`."""
        moment = now()
        with self._changed:
            kept = self._kept[place]
            for key in [key for key, (until, _) in kept.items() if until <= moment]:
                del kept[key]
            self._fresh.discard(place)
            return [call for _, call in kept.values()]

    def heard(self, place: int, calls: list[Call], replies: list[Any]) -> None:
        """What the server said to these. What it refused (it is busy, loads, cannot write) is to be brought again."""
        with self._changed:
            kept = self._kept[place]
            for call, reply in zip(calls, replies, strict=True):
                if not isinstance(reply, ReplyError):
                    kept.pop((call.bound.name.keys[0], call.bound.args, call.args), None)

    def is_done(self, place: int) -> bool:
        """Whether who brings things there may stop: from then on it is nobody's task."""
        with self._changed:
            if self._kept[place] and (place in self._fresh or not self.is_ending) and not self.is_closed:
                return False
            self._stop(place)
            return True

    def stop(self, place: int) -> None:
        """Who brings things there has to stop. What is left is brought with the next loss, or introduction."""
        with self._changed:
            self._stop(place)

    def _stop(self, place: int) -> None:
        self._bringing.discard(place)
        self._changed.notify_all()

    def is_urgent(self, place: int) -> bool:
        """Whether there is no time for a pause before the next try."""
        return self.is_ending or place in self._fresh

    def pause(self, place: int, seconds: float) -> None:
        """Block for so long, unless it is urgent."""
        with self._changed:
            self._changed.wait_for(lambda: self.is_urgent(place), seconds)

    def end(self) -> None:
        """The client is about to be closed: whoever pauses goes on now."""
        with self._changed:
            self.is_ending = True
            self._changed.notify_all()

    def close(self, patience_s: float) -> None:
        """Block until nobody brings anything any more, for so long at most; from then on nothing is kept."""
        with self._changed:
            self._changed.wait_for(lambda: not self._bringing, patience_s)
            self.is_closed = True


def packed(calls: list[Call]) -> bytes:
    """Requests to one server, with the text of each script once: those behind it find the script known."""
    known = set()
    parts = []
    for call in calls:
        script = call.bound.script
        parts.append((evalsha if script in known else eval_text)(call.bound, call.args))
        known.add(script)
    return b"".join(parts)
