"""Fences grow: every new exclusive grant of a name has a larger fence than any before, whatever befell the server.

The order is that of the server's `held` events. Without them it is known only for beliefs that do not overlap.
A fence is max(previous + 1, the highest that the client has seen + 1, server time in µs). So it may fail to grow only
if the server forgot the previous one *and* its clock went back behind the latest time that a fence was made from: that
is unknown here, not violated. A server forgets by losing its memory, or when its clock jumps ahead of the day for
which it remembers. For shared holds a fence only identifies: two grants never have the same one.
"""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING

from lockfast.check.history import HANDED_ON
from lockfast.check.reading import read
from lockfast.check.verdicts import OK, unknown, violated

if TYPE_CHECKING:
    from lockfast.check.history import Event, History
    from lockfast.check.reading import Reading, Span
    from lockfast.check.verdicts import Verdict

DAY_S = 86400.0
_FORGOT = "the server forgot, and its clock went back"


def fences_grow(history: History | Reading) -> Verdict:
    """Whether a guarded resource that refuses older fences than it has seen refuses every holder of the past."""
    reading = read(history)
    doubt: Verdict | None = None
    asked = False
    for name, named in reading.names.items():
        held = [tenure for tenure in named.tenures if tenure.event.what == "held"]
        grants = held or [belief for belief in named.beliefs if belief.event.what == "granted"]
        grants = [grant for grant in grants if grant.event.note != HANDED_ON]  # no new grant: it has the fence it had
        asked = asked or bool(grants)
        verdict = _judge(name, grants, bool(held), reading) if grants else OK
        if verdict.status == "violated":
            return verdict
        if verdict.status == "unknown":
            doubt = doubt or verdict
    if not asked:
        return unknown("nobody was granted any name")
    return doubt or OK


def _judge(name: str, grants: list[Span], in_order: bool, reading: Reading) -> Verdict:
    nameless = next((grant.event for grant in grants if not grant.event.fence), None)
    if nameless is not None:
        return unknown(f"{name}: a grant without a fence", nameless)
    doubt: Verdict | None = None
    by_fence: dict[int, Event] = {}
    for grant in grants:
        event = grant.event
        twin = by_fence.setdefault(event.fence, event)
        if twin is event:
            continue
        why = f"{name}: {twin.ticket} and then {event.ticket} got fence {event.fence}"
        if not _explained(name, twin, event, reading):
            return violated(why, twin, event)
        doubt = doubt or unknown(f"{_FORGOT}: {why}", twin, event)

    exclusive = [grant for grant in grants if grant.event.weight >= grant.event.limit]
    ends = exclusive if in_order else sorted(exclusive, key=lambda grant: grant.end)
    top: Event | None = None
    ended = 0
    for grant in exclusive:
        event = grant.event
        # `held` events are in order whether or not the tenures overlap: then all before this one count.
        while ends[ended] is not grant and (in_order or ends[ended].end <= grant.start):
            if top is None or ends[ended].event.fence > top.fence:
                top = ends[ended].event
            ended += 1
        if top is None or event.fence > top.fence:
            continue
        why = f"{name}: {event.ticket} got fence {event.fence} after {top.ticket} had {top.fence}"
        if not _explained(name, top, event, reading):
            return violated(why, top, event)
        doubt = doubt or unknown(f"{_FORGOT}: {why}", top, event)
        top = event  # the fences of the server's new life are compared with each other
    return doubt or OK


def _explained(name: str, older: Event, newer: Event, reading: Reading) -> bool:
    """Whether the server had forgotten and its clock was not past the times of earlier fences when it made `newer`."""
    forgot = False
    clock_ahead_s = 0.0  # of true time, since the history began
    latest_s = -inf  # the latest server time at which a fence of this name can have been made
    since = False  # `older` was passed
    for event in reading.events:
        if event is newer:
            break
        since = since or event is older
        if event.what in ("held", "granted") and event.name == name:
            latest_s = max(latest_s, event.at + clock_ahead_s)
        elif event.what == "server_lost_memory" and event.name in ("", name):
            forgot = forgot or since
        elif event.what == "server_clock_jumped":
            # By how much is not known: it may have been anything.
            clock_ahead_s += event.lease or -inf
            forgot = forgot or (since and event.lease >= DAY_S)
    return forgot and _made_at(newer, reading) + clock_ahead_s <= latest_s


def _made_at(event: Event, reading: Reading) -> float:
    """The earliest time at which the server can have made this fence."""
    if event.what == "held":
        return event.at
    lives = reading.names[event.name].lives
    asked = next((life.asked for life in lives if life.ticket == event.ticket), None)
    return asked.at if asked is not None else event.at
