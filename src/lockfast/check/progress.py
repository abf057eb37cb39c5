"""Nobody is stuck: when faults have stopped, whoever asks is served, and no name lies free while somebody wants it.

This is a question about the time between `quiet` and `end`; a history must have both. The second half needs
server-side events, because only the server knows that a name is free: it is judged for the names that have them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lockfast.check.reading import read
from lockfast.check.verdicts import OK, unknown, violated

if TYPE_CHECKING:
    from lockfast.check.history import Event, History
    from lockfast.check.reading import Named, Reading
    from lockfast.check.verdicts import Verdict

# A dead place at the head of a queue is kept for 6 s, and after that the next in line asks within a heartbeat of 2 s.
GAP_S = 8.0


def not_stuck(history: History | Reading, gap_s: float = GAP_S) -> Verdict:
    """Whether everybody who asked was served, failed or crashed before `end`, and no name lay idle beyond `gap_s`."""
    reading = read(history)
    quiet, end = reading.quiet, reading.end
    if quiet is None or end is None or end.at < quiet.at:
        return unknown("the history has no `quiet` with an `end` after it")
    for name, named in reading.names.items():
        for life in named.lives:
            if life.asked is not None and life.served is None:
                wait_s = end.at - life.asked.at
                why = f"{name}: {life.ticket} still waits at the end, {wait_s:.6f} s after it asked"
                return violated(why, life.asked, end)
    for name, named in reading.names.items():
        if named.tenures:
            start, stop = _longest_gap(named, quiet.at, end.at)
            if stop - start > gap_s:
                why = f"{name}: free at the server for {stop - start:.6f} s from {start:.6f} with somebody waiting"
                return violated(why, *_waiting_at(named, stop))
    if not any(life.asked for named in reading.names.values() for life in named.lives):
        return unknown("nobody asked for any name")
    return OK


def _longest_gap(named: Named, after: float, before: float) -> tuple[float, float]:
    """The longest stretch of time in which somebody waits for the name and nobody holds it at the server.

    Everybody is served in the end: whoever is not has been found before.
    """
    changes: list[tuple[float, int, int]] = []  # when, holders more, waiters more
    for life in named.lives:
        if life.asked is not None and life.served is not None and life.served.at > after:
            changes.append((life.asked.at, 0, 1))
            changes.append((life.served.at, 0, -1))
    if not changes:
        return after, after
    for tenure in named.tenures:
        if tenure.end > after:
            changes.append((tenure.start, 1, 0))
            changes.append((tenure.end, -1, 0))
    changes.sort()
    longest = (after, after)
    holders = waiters = 0
    free_since: float | None = None
    now = after
    for at, more_holders, more_waiters in changes:
        at = min(at, before)
        if at > now:  # all changes of one moment are in: what they left is how it stayed until the next
            if holders or not waiters:
                free_since = None
            else:
                free_since = now if free_since is None else free_since
                if at - free_since > longest[1] - longest[0]:
                    longest = (free_since, at)
            now = at
        holders += more_holders
        waiters += more_waiters
    return longest


def _waiting_at(named: Named, at: float) -> list[Event]:
    """The `asked` of those who waited until just before `at`."""
    asked = (life.asked for life in named.lives if life.served is None or life.served.at >= at)
    return [event for event in asked if event is not None and event.at < at][:8]
