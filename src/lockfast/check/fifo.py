"""First come, first served: nobody becomes a holder before somebody who took a place earlier and kept it.

A place counts while its owner is there: from `queued` until it leaves, fails, crashes, or its place is dropped or
forgotten. A ticket that becomes a holder without a place came last. The queue itself is the server's own, so this
needs server-side events.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

from lockfast.check.history import HANDED_ON
from lockfast.check.reading import read
from lockfast.check.verdicts import OK, unknown, violated

if TYPE_CHECKING:
    from lockfast.check.history import Event, History
    from lockfast.check.reading import Reading
    from lockfast.check.verdicts import Verdict


class _Queue:
    """The places of one name. Of the absent we only remember when they came, for the server may still let them in."""

    __slots__ = ("absent", "arrivals", "present")

    def __init__(self) -> None:
        self.present: OrderedDict[str, tuple[int, Event]] = OrderedDict()
        self.absent: dict[str, tuple[int, Event]] = {}
        self.arrivals = 0

    def arrive(self, event: Event) -> None:
        if event.ticket not in self.present:
            self.arrivals += 1
            self.absent.pop(event.ticket, None)
            self.present[event.ticket] = (self.arrivals, event)

    def desert(self, ticket: str) -> None:
        place = self.present.pop(ticket, None)
        if place is not None:
            self.absent[ticket] = place

    def drop(self, ticket: str) -> tuple[int, Event] | None:
        return self.present.pop(ticket, None) or self.absent.pop(ticket, None)


def fifo(history: History | Reading) -> Verdict:
    """Whether places were served in their order, as far as their owners were there all the time."""
    reading = read(history)
    queues: dict[str, _Queue] = {}
    for event in reading.events:
        what = event.what
        if what == "queued":
            queue = queues.get(event.name)
            if queue is None:
                queue = queues[event.name] = _Queue()
            queue.arrive(event)
        elif what == "crashed":
            for name, queue in queues.items():
                for ticket in list(queue.present):
                    if reading.life(name, ticket).client == event.client:
                        queue.desert(ticket)
        elif what == "server_lost_memory":
            for name in [event.name] if event.name else list(queues):
                queues.pop(name, None)
        elif event.name in queues:
            queue = queues[event.name]
            if what == "held" and event.note != HANDED_ON:
                place = queue.drop(event.ticket)
                first = next(iter(queue.present.values()), None)
                if first is not None and (place is None or first[0] < place[0]):
                    return violated(_overtaken(event, first[1], place), first[1], place and place[1], event)
            elif what in ("place_ended", "unqueued"):
                queue.drop(event.ticket)
            elif what in ("failed", "leaving", "left"):
                queue.desert(event.ticket)
    return _enough(reading)


def _overtaken(event: Event, first: Event, place: tuple[int, Event] | None) -> str:
    came = f"queued at {place[1].at:.6f}" if place else "without a place"
    return f"{event.name}: {event.ticket}, {came}, was held before {first.ticket}, queued at {first.at:.6f}"


def _enough(reading: Reading) -> Verdict:
    for name, named in reading.names.items():
        if named.beliefs and not named.tenures:
            return unknown(f"{name}: no server-side events", named.beliefs[0].event)
    if not any(named.tenures for named in reading.names.values()):
        return unknown("no server-side events")
    return OK
