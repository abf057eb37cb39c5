"""What has ended stays ended: a hold is never resumed, and nothing is held for long that nobody is behind."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

from lockfast.check.reading import read
from lockfast.check.verdicts import OK, unknown, violated

if TYPE_CHECKING:
    from lockfast.check.history import History
    from lockfast.check.reading import Life, Reading
    from lockfast.check.verdicts import Verdict

TICK_S = 0.001  # the server counts in whole ms: an end that is off by less is no evidence
PLACE_S = 6.0  # how long the server keeps a place of somebody who is silent
SLACK_S = 1.0  # how much later than its sender's death a message may be carried out


def no_resumption(history: History | Reading) -> Verdict:
    """Whether what was lost or had expired stayed so.

    For clients: a ticket whose belief ended by `lost`, a crash or its deadline is not granted or renewed again. For
    servers: a hold that has ended is not prolonged under its fence. Not judged across a memory loss or a clock jump.
    """
    reading = read(history)
    for named in reading.names.values():
        for life in named.lives:
            if len(life.beliefs) < 2:
                continue
            for before, after in pairwise(life.beliefs):
                if before.ended_by in ("lost", "expired", "crashed"):
                    why = f"{life.name}: {life.ticket} ended at {before.end:.6f} ({before.ended_by})"
                    why += f", and was believed again at {after.start:.6f}"
                    return violated(why, before.event, after.event)
    doubt: Verdict | None = None
    for tenure, event in reading.revived:
        if event.at <= tenure.end + TICK_S and tenure.ended_by in ("", "expired"):
            continue
        if event.fence not in (0, tenure.event.fence):
            continue
        why = f"{event.name}: {event.ticket} had ended at {tenure.end:.6f}, and was prolonged at {event.at:.6f}"
        upset = reading.upset_between(event.name, tenure.pos, _position(reading, tenure.life, event), back_too=True)
        if upset is None:
            return violated(why, tenure.event, event)
        doubt = doubt or unknown(f"{upset.what} in between: {why}", tenure.event, upset, event)
    if doubt is None and not any(named.beliefs or named.tenures for named in reading.names.values()):
        doubt = unknown("nobody was granted any name")
    return doubt or OK


def _position(reading: Reading, life: Life, event: object) -> int:
    return next(tenure.pos for tenure in life.tenures if tenure.event is event)


def no_orphan(history: History | Reading, slack_s: float = SLACK_S) -> Verdict:
    """Whether the server forgot in time whoever failed, left or crashed.

    It may hold such a ticket for one lease and the time of a place, and `slack_s` for messages that were under way.
    A release that was confirmed is final: the ticket is not made a holder afterwards at all.
    Not judged after a memory loss or a clock jump since it asked; needs server-side events.
    """
    reading = read(history)
    doubt: Verdict | None = None
    last_at = reading.events[-1].at if reading.events else 0.0
    for name, named in reading.names.items():
        if not named.tenures:
            if named.beliefs:
                doubt = doubt or unknown(f"{name}: no server-side events", named.beliefs[0].event)
            continue
        for life in named.lives:
            if life.gone is None or not life.tenures:
                continue
            verdict = _orphaned(life, reading, last_at, slack_s)
            if verdict.status == "violated":
                return verdict
            if verdict.status == "unknown":
                doubt = doubt or verdict
    if doubt is None and not any(named.tenures for named in reading.names.values()):
        doubt = unknown("no server-side events")
    return doubt or OK


def _orphaned(life: Life, reading: Reading, last_at: float, slack_s: float) -> Verdict:
    gone = life.gone
    assert gone is not None
    for tenure in life.tenures:
        end = min(tenure.end, last_at)  # nobody has seen what came after
        why = f"{life.name}: {life.ticket} {gone.what} at {gone.at:.6f}, the server"
        if gone.what == "left" and tenure.pos > life.gone_pos:
            why = f"{why} made it a holder at {tenure.start:.6f}"
        else:
            lease_s = _lease_s(life)
            if end <= gone.at + lease_s + PLACE_S + slack_s:
                continue
            why = f"{why} held it until {end:.6f}, with a lease of {lease_s:g} s"
        upset = reading.upset_between(life.name, life.asked_pos, len(reading.events), back_too=True)
        if upset is not None:
            return unknown(f"{upset.what}: {why}", gone, upset, tenure.event)
        return violated(why, gone, tenure.event)
    return OK


def _lease_s(life: Life) -> float:
    """The lease that was asked for, or the longest that the server gave at once."""
    told = [life.asked.lease] if life.asked is not None else []
    told += [tenure.event.lease for tenure in life.tenures]
    return max(told) or max(tenure.event.until - tenure.start for tenure in life.tenures)
