"""Histories in, verdicts out: was the lock a lock? For simulated histories and for those of real servers alike.

    verdict = check.exclusion(history)         # a list of Event, in the order of true time: see check/history.py
    verdict.status                             # "ok", "violated" or "unknown"
    verdict.why, verdict.events                # in words, and the events that show it
    for name, verdict in check.all(history).items(): ...

*violated* means that the history shows a breach. *unknown* means that it lacks what the question needs (`why` says
what): server-side events, fences, a `quiet` and an `end`, or anybody who was granted such a name at all; so a recorder
that records nothing never passes for a lock that works.

Where no lease can hold, because a server lost its memory or its clock jumped ahead, overlaps are told apart:
- exclusion, permits and readers_writers say *violated* with `excused=True`, and `why` starts "documented limit:".
  Only overlaps whose one hold was last confirmed before that event and whose other was given after it are excused;
  if any other overlap is in the history, that one is reported instead, not excused.
- deadline_before_takeover, no_resumption, no_orphan and fences_grow say *unknown*.
`verdict.bad` is what to fail on: violated and not excused. Nothing else is ever excused.

A checker raises BadHistory when the history is malformed. To run several on one history, read it once:
`reading = check.read(history)`, and give them that. check/io.py keeps histories in files, check/record.py makes them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lockfast.check import io
from lockfast.check.crowding import deadline_before_takeover, exclusion, permits, readers_writers
from lockfast.check.endings import SLACK_S, no_orphan, no_resumption
from lockfast.check.fences import fences_grow
from lockfast.check.fifo import fifo
from lockfast.check.history import BadHistory, Event, History, server_clock_jumped, server_lost_memory, validate
from lockfast.check.progress import GAP_S, not_stuck
from lockfast.check.reading import Reading, read
from lockfast.check.record import Claim, Recorder
from lockfast.check.verdicts import Verdict

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = [
    "CHECKERS",
    "BadHistory",
    "Claim",
    "Event",
    "History",
    "Reading",
    "Recorder",
    "Verdict",
    "all",
    "deadline_before_takeover",
    "exclusion",
    "fences_grow",
    "fifo",
    "io",
    "no_orphan",
    "no_resumption",
    "not_stuck",
    "permits",
    "read",
    "readers_writers",
    "server_clock_jumped",
    "server_lost_memory",
    "validate",
]

CHECKERS: dict[str, Callable[[History | Reading], Verdict]] = {
    "exclusion": exclusion,
    "permits": permits,
    "readers_writers": readers_writers,
    "fences_grow": fences_grow,
    "fifo": fifo,
    "not_stuck": not_stuck,
    "deadline_before_takeover": deadline_before_takeover,
    "no_resumption": no_resumption,
    "no_orphan": no_orphan,
}


def all(  # noqa: A001 - it reads `check.all(history)`
    history: History | Reading, *, gap_s: float = GAP_S, slack_s: float = SLACK_S
) -> dict[str, Verdict]:
    """Every checker's verdict, by its name. gap_s: see not_stuck. slack_s: see no_orphan."""
    reading = read(history)
    verdicts = {name: checker(reading) for name, checker in CHECKERS.items() if name not in ("not_stuck", "no_orphan")}
    verdicts["not_stuck"] = not_stuck(reading, gap_s)
    verdicts["no_orphan"] = no_orphan(reading, slack_s)
    return verdicts
