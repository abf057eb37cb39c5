"""One pass over a history: who believed, who held at the server, who waited, and when. All checkers start from it.

A *belief* runs from `granted` until the earliest of `leaving`, `lost`, `crashed` of its client and the latest `until`.
A *tenure* is the same at the server: from `held` until `let_go`, `expired`, a memory loss, or the end of its lease,
whichever comes first (a server may notice the end of a lease late; nobody holds by it meanwhile).
Both are spans, closed at the start and open at the end: what ends at t does not overlap what starts at t.
"In between" is judged by position in the history, which is exact where times are equal.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import TYPE_CHECKING

from lockfast.check.history import BadHistory, validate

if TYPE_CHECKING:
    from collections.abc import Callable

    from lockfast.check.history import Event, History


class Span:
    """A belief or a tenure. `end` moves while it is open; `ended_by` is "" until an event has ended it."""

    __slots__ = ("end", "ended_by", "event", "life", "pos", "start", "sure")

    def __init__(self, life: Life, event: Event, pos: int) -> None:
        self.life = life
        self.event = event  # the `granted` or `held` (or the `prolonged` that revived it) that began it
        self.pos = pos
        self.start = event.at
        self.end = max(event.at, event.until)
        self.ended_by = ""
        self.sure = [pos]  # where it was given or lengthened

    def close(self, at: float, why: str) -> None:
        # Past its own end it had ended by itself, whatever is said about it later.
        if at < self.end:
            self.end = at
            self.ended_by = why
        else:
            self.ended_by = "expired"


class Life:
    """One ticket on one name."""

    __slots__ = (
        "asked", "asked_pos", "belief", "beliefs", "client", "gone", "gone_pos", "name", "served", "tenure", "tenures",
        "ticket", "went",
    )  # fmt: skip

    def __init__(self, name: str, ticket: str) -> None:
        self.name = name
        self.ticket = ticket
        self.client = ""
        self.asked: Event | None = None
        self.asked_pos = -1
        self.served: Event | None = None  # what ended its wait, for good or ill
        self.gone: Event | None = None  # the first of failed, left, crashed: nobody is behind it any more
        self.gone_pos = -1
        self.went = False  # a release has begun: no renewal is believed any more
        self.beliefs: list[Span] = []
        self.tenures: list[Span] = []
        self.belief: Span | None = None  # the one that is open
        self.tenure: Span | None = None


class Named:
    """All that happened to one name; every list is in the order of the history."""

    __slots__ = ("beliefs", "lives", "tenures")

    def __init__(self) -> None:
        self.lives: list[Life] = []
        self.beliefs: list[Span] = []
        self.tenures: list[Span] = []


class Reading:
    """A history, sorted by name and ticket. Give it to several checkers to have it read once."""

    __slots__ = ("_by_client", "_by_key", "_upset_at", "end", "events", "names", "quiet", "revived", "upsets")

    def __init__(self, history: History) -> None:
        self.events = history
        self.names: dict[str, Named] = {}
        self.quiet: Event | None = None
        self.end: Event | None = None
        self.upsets: list[Event] = []  # memory losses and clock jumps
        self.revived: list[tuple[Span, Event]] = []  # a tenure that had ended, and the `prolonged` that came after
        self._upset_at: list[int] = []
        self._by_client: dict[str, list[Life]] = {}
        self._by_key: dict[tuple[str, str], Life] = {}
        self._read()

    def life(self, name: str, ticket: str) -> Life:
        return self._by_key[name, ticket]

    def upset_between(self, name: str, after: int, before: int, *, back_too: bool = False) -> Event | None:
        """The first event between two positions by which the server may forget a hold of `name` too early.

        A clock that is known to have stepped back makes leases longer; it counts only if `back_too`.
        """
        for number in range(bisect_right(self._upset_at, after), bisect_left(self._upset_at, before)):
            upset = self.upsets[number]
            if upset.name in ("", name) and (back_too or upset.what == "server_lost_memory" or upset.lease >= 0):
                return upset
        return None

    def _read(self) -> None:
        validate(self.events)
        by_key = self._by_key
        for pos, event in enumerate(self.events):
            if not event.ticket:
                self._world(event, pos)
                continue
            key = (event.name, event.ticket)
            life = by_key.get(key)
            if life is None:
                life = by_key[key] = Life(*key)
                named = self.names.get(event.name)
                if named is None:
                    named = self.names[event.name] = Named()
                named.lives.append(life)
            if event.client and not life.client:
                life.client = event.client
                self._by_client.setdefault(event.client, []).append(life)
            step = _STEPS.get(event.what)
            if step is not None:
                step(self, life, event, pos)

    def _world(self, event: Event, pos: int) -> None:
        if event.what == "quiet":
            self.quiet = event
        elif event.what == "end":
            self.end = event
        elif event.what == "crashed":
            for life in self._by_client.get(event.client, ()):
                _end_belief(life, event)
                _go(life, event, pos)
        else:
            self.upsets.append(event)
            self._upset_at.append(pos)
            if event.what == "server_lost_memory":
                for life in self._by_key.values():
                    if life.tenure is not None and event.name in ("", life.name):
                        _end_tenure(self, life, event, pos)


def read(history: History | Reading) -> Reading:
    """Read a history once for several checkers. Raises BadHistory when it is malformed."""
    return history if isinstance(history, Reading) else Reading(history)


def _asked(_: Reading, life: Life, event: Event, pos: int) -> None:
    if life.asked is None:
        life.asked = event
        life.asked_pos = pos


def _granted(reading: Reading, life: Life, event: Event, pos: int) -> None:
    life.served = life.served or event
    belief = life.belief
    if belief is not None:
        if event.at <= belief.end and event.fence == belief.event.fence:
            belief.end = max(belief.end, event.until)  # told again what it knew
            return
        belief.close(event.at, "granted")
    life.went = False
    life.belief = Span(life, event, pos)
    life.beliefs.append(life.belief)
    reading.names[life.name].beliefs.append(life.belief)


def _renewed(reading: Reading, life: Life, event: Event, pos: int) -> None:
    if not life.beliefs:
        raise BadHistory(f"event {pos}: renewed, but never granted: {event!r}")
    belief = life.belief
    if belief is not None and event.at <= belief.end:
        belief.end = max(belief.end, event.until)
    elif not life.went:
        _granted(reading, life, event, pos)  # it believes again: the other checkers must see that


def _end_belief(life: Life, event: Event) -> None:
    if life.belief is not None:
        life.belief.close(event.at, event.what)
        life.belief = None


def _leaving(_: Reading, life: Life, event: Event, pos: int) -> None:
    _end_belief(life, event)
    life.served = life.served or event
    life.went = True


def _lost(_: Reading, life: Life, event: Event, pos: int) -> None:
    _end_belief(life, event)


def _left(reading: Reading, life: Life, event: Event, pos: int) -> None:
    _leaving(reading, life, event, pos)
    _go(life, event, pos)


def _failed(_: Reading, life: Life, event: Event, pos: int) -> None:
    _go(life, event, pos)


def _go(life: Life, event: Event, pos: int) -> None:
    life.served = life.served or event
    if life.gone is None:
        life.gone = event
        life.gone_pos = pos


def _held(reading: Reading, life: Life, event: Event, pos: int) -> None:
    if life.tenure is not None:
        life.tenure.close(event.at, "held")
    life.tenure = Span(life, event, pos)
    life.tenures.append(life.tenure)
    reading.names[life.name].tenures.append(life.tenure)


def _prolonged(reading: Reading, life: Life, event: Event, pos: int) -> None:
    tenure = life.tenure
    if tenure is not None and event.at <= tenure.end:
        tenure.end = max(tenure.end, event.until)
        tenure.sure.append(pos)
        return
    if life.tenures:
        reading.revived.append((life.tenures[-1], event))
    _held(reading, life, event, pos)


def _end_tenure(_: Reading, life: Life, event: Event, pos: int) -> None:
    if life.tenure is not None:
        life.tenure.close(event.at, event.what)
        life.tenure = None


_STEPS: dict[str, Callable[[Reading, Life, Event, int], None]] = {
    "asked": _asked,
    "granted": _granted,
    "renewed": _renewed,
    "leaving": _leaving,
    "left": _left,
    "lost": _lost,
    "failed": _failed,
    "held": _held,
    "prolonged": _prolonged,
    "let_go": _end_tenure,
    "expired": _end_tenure,
}
