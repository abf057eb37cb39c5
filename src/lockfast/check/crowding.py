"""Too many at once: exclusion, permits, readers and writers, and the deadline that must come before a takeover.

All four are one sweep over spans in order of their start: whoever starts must fit beside those that have not ended.
Where spans overlap, somebody is to blame, unless a server lost its memory or its clock jumped after it last confirmed
the one hold and before it gave the other: then no lease could have held, and the overlap is excused.
"""

from __future__ import annotations

from heapq import heappop, heappush
from typing import TYPE_CHECKING, NamedTuple

from lockfast.check.reading import Span, read
from lockfast.check.verdicts import OK, excused, unknown, violated

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from lockfast.check.history import Event, History
    from lockfast.check.reading import Life, Named, Reading
    from lockfast.check.verdicts import Verdict

# What a span weighs, and how much may be together while it lasts.
Measure = tuple[int, int]


class Crowd(NamedTuple):
    """Spans that do not fit together, the newest last; `excuse` is what happened to the server in between."""

    spans: list[Span]
    weight: int
    limit: int
    excuse: Event | None

    def shown(self) -> tuple[Event, ...]:
        """What a reader needs to see: how each began, and the excuse; the newest few of a great many."""
        events = [span.event for span in self.spans[-8:]]
        return (*events, self.excuse) if self.excuse else tuple(events)


def exclusion(history: History | Reading) -> Verdict:
    """Whether at no moment two tickets believed to hold a name of limit 1."""
    return _judge(history, _of_locks, _alone, "a name of limit 1", _two_believe)


def permits(history: History | Reading) -> Verdict:
    """Whether the weights of believed holds never exceeded the limit: the smallest that any of them was given."""
    return _judge(history, _of_all, _own_measure, "any name", _too_heavy)


def readers_writers(history: History | Reading) -> Verdict:
    """Whether nobody believed to hold a name beside one that has the whole of a limit above 1."""
    return _judge(history, _of_shared, _whole_or_not, "a whole name of limit above 1", _writer_not_alone)


def deadline_before_takeover(history: History | Reading) -> Verdict:
    """Whether beliefs ended before the server made others holders in their place.

    Counts as there: whoever believes, and whoever the server has as a holder. Unknown where a server lost its memory
    or its clock jumped in between, and where a name has grants but no server-side events.
    """
    reading = read(history)
    doubt: Verdict | None = None
    for name, named in reading.names.items():
        if not named.tenures:
            if named.beliefs:
                doubt = doubt or unknown(f"{name}: no server-side events", named.beliefs[0].event)
            continue
        crowd = _crowd(reading, _presence(named), _own_measure)
        if crowd is None:
            continue
        if crowd.excuse is None:
            return violated(_not_over(name, crowd), *crowd.shown())
        doubt = doubt or unknown(f"{crowd.excuse.what} in between: {_not_over(name, crowd)}", *crowd.shown())
    if doubt is None and not any(named.beliefs for named in reading.names.values()):
        doubt = unknown("nobody was granted any name")
    return doubt or OK


def _judge(
    history: History | Reading,
    choose: Callable[[Named], list[Span]],
    measure: Callable[[Span], Measure],
    what: str,
    words: Callable[[str, Crowd], str],
) -> Verdict:
    reading = read(history)
    asked = False
    doubt: Verdict | None = None
    for name, named in reading.names.items():
        spans = choose(named)
        asked = asked or bool(spans)
        crowd = _crowd(reading, spans, measure)
        if crowd is None:
            continue
        if crowd.excuse is None:
            return violated(words(name, crowd), *crowd.shown())
        doubt = doubt or excused(f"{crowd.excuse.what} in between: {words(name, crowd)}", *crowd.shown())
    if not asked:
        return unknown(f"nobody was granted {what}")
    return doubt or OK


def _crowd(reading: Reading, spans: Iterable[Span], measure: Callable[[Span], Measure]) -> Crowd | None:
    """The first moment at which there are too many; one without an excuse if there is any."""
    first: Crowd | None = None
    active: list[tuple[float, int, Span, Measure]] = []  # a heap: whoever ends first is on top
    weight = limit = 0
    for span in spans:
        if span.end <= span.start:
            continue
        while active and active[0][0] <= span.start:
            weight -= heappop(active)[3][0]
        own = measure(span)
        if not active:
            limit = own[1]
        elif own[1] != limit:  # where it is equal, nobody inside has a smaller one
            limit = min(own[1], *(each[3][1] for each in active))
        weight += own[0]
        heappush(active, (span.end, span.pos, span, own))
        if weight <= limit:
            continue
        crowd = _excused(reading, span, own, active, limit)
        if crowd.excuse is None:
            return crowd
        first = first or crowd
    return first


def _excused(
    reading: Reading, span: Span, own: Measure, active: list[tuple[float, int, Span, Measure]], limit: int
) -> Crowd:
    """Those beside the newcomer whom it cannot share with; all of them when an upset of the server explains it."""
    others = [each for each in active if each[2] is not span]
    excuses = [_upset_between(reading, each[2], span) for each in others]
    rest = [each for each, excuse in zip(others, excuses, strict=True) if excuse is None]
    excuse = next(filter(None, excuses), None)
    if own[0] + sum(each[3][0] for each in rest) > min([own[1], *(each[3][1] for each in rest)]):
        excuse, others = None, rest
    others.sort(key=lambda each: each[1])
    weight = own[0] + sum(each[3][0] for each in others)
    return Crowd([*(each[2] for each in others), span], weight, limit, excuse)


def _upset_between(reading: Reading, one: Span, other: Span) -> Event | None:
    """What happened to the server between its last word on one hold and its gift of the other."""
    name = one.life.name
    gifts = [_tenure_of(one), _tenure_of(other)]
    if gifts[0] is None or gifts[1] is None:
        # Without server-side events each was given at some moment between being asked for and being known.
        return reading.upset_between(name, min(_asked(one), _asked(other)), max(one.pos, other.pos))
    older, newer = sorted((gifts[0], gifts[1]), key=lambda tenure: tenure.pos)
    last_word = max(pos for tenure in older.life.tenures for pos in tenure.sure if pos < newer.pos)
    return reading.upset_between(name, last_word, newer.pos)


def _asked(span: Span) -> int:
    return span.life.asked_pos if 0 <= span.life.asked_pos < span.pos else span.pos


def _tenure_of(span: Span) -> Span | None:
    """The tenure that a belief came from: the last that had begun. A tenure's is itself."""
    tenures = [tenure for tenure in span.life.tenures if tenure.pos <= span.pos]
    return tenures[-1] if tenures else None


def _presence(named: Named) -> list[Span]:
    """For every ticket the times in which it believed or was a holder at the server."""
    spans: list[Span] = []
    for life in named.lives:
        beliefs, tenures = life.beliefs, life.tenures
        if len(tenures) == 1 and (not beliefs or _inside(beliefs, tenures[0])):
            spans.append(tenures[0])
        elif tenures or beliefs:
            spans += _merged(life)
    spans.sort(key=lambda span: (span.start, span.pos))
    return spans


def _inside(beliefs: list[Span], tenure: Span) -> bool:
    return len(beliefs) == 1 and tenure.start <= beliefs[0].start and beliefs[0].end <= tenure.end


def _merged(life: Life) -> list[Span]:
    merged: list[Span] = []
    for span in sorted(life.beliefs + life.tenures, key=lambda span: span.pos):
        if merged and span.start <= merged[-1].end:
            merged[-1].end = max(merged[-1].end, span.end)
        elif span.end > span.start:
            copy = Span(life, span.event, span.pos)
            copy.end = span.end
            merged.append(copy)
    return merged


def _of_locks(named: Named) -> list[Span]:
    return [belief for belief in named.beliefs if belief.event.limit == 1]


def _of_all(named: Named) -> list[Span]:
    return named.beliefs


def _of_shared(named: Named) -> list[Span]:
    """Everybody on a name that somebody had the whole of, and that could have been shared."""
    whole = any(belief.event.weight >= belief.event.limit > 1 for belief in named.beliefs)
    return named.beliefs if whole else []


def _own_measure(span: Span) -> Measure:
    return span.event.weight, span.event.limit


def _alone(_: Span) -> Measure:
    return 1, 1


_MANY = 1 << 60


def _whole_or_not(span: Span) -> Measure:
    """However many have a part fit together; whoever has the whole fits with nobody."""
    return (_MANY if span.event.weight >= span.event.limit else 1), _MANY


def _two_believe(name: str, crowd: Crowd) -> str:
    one, other = crowd.spans[-2:]
    overlap_s = min(one.end, other.end) - other.start
    return (
        f"{name}: {_who(one)} and {_who(other)} both believed to hold it for {overlap_s:.6f} s from {other.start:.6f}"
    )


def _too_heavy(name: str, crowd: Crowd) -> str:
    who = ", ".join(map(_who, crowd.spans[-8:]))
    limits = sorted({span.event.limit for span in crowd.spans})
    differ = f" (they were given limits {', '.join(map(str, limits))})" if len(limits) > 1 else ""
    at = crowd.spans[-1].start
    return f"{name}: {crowd.weight} held of {crowd.limit}{differ} at {at:.6f}, by {len(crowd.spans)}: {who}"


def _writer_not_alone(name: str, crowd: Crowd) -> str:
    writer = next(span for span in crowd.spans if span.event.weight >= span.event.limit)
    other = next(span for span in reversed(crowd.spans) if span is not writer)
    return (
        f"{name}: {_who(writer)} had the whole of it, {_who(other)} too believed to hold at {crowd.spans[-1].start:.6f}"
    )


def _not_over(name: str, crowd: Crowd) -> str:
    newest = crowd.spans[-1]
    others = ", ".join(f"{_who(span)} until {span.end:.6f}" for span in crowd.spans[:-1][-8:])
    return f"{name}: {_who(newest)} was {newest.event.what} at {newest.start:.6f}, not over: {others}"


def _who(span: Span) -> str:
    life = span.life
    return f"{life.ticket} of {life.client}" if life.client else life.ticket
