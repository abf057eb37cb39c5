"""The verdict on a run, by what the resource saw: which writes it took, from whom, and in what order.

A section lasts from its first accepted write to its last. If more sections than allowed last at the same moment, the
lock has failed, whatever anybody believed. A write that was refused by its fence shows that holds overlapped and that
the resource came to no harm.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from lockfast.lab.contender import Shape
    from lockfast.lab.stage import Write


class Played(Protocol):
    """What a run must have seen to be judged. The simulated stage has it, and the real one."""

    shape: Shape
    writes: list[Write]
    lost_updates: int

    @property
    def unserved(self) -> list[str]: ...


class Span(NamedTuple):
    """One section, as the resource saw it."""

    start: float
    end: float
    who: str
    section: int


class Outcome(NamedTuple):
    """verdict: as in model.VERDICTS. fatal_at: the moment of the first write that should not have been there."""

    verdict: str
    detail: str
    fatal_at: float | None = None
    fatal_who: str = ""
    together: int = 0  # how many sections lasted at the same moment, where that was too many


def judge(stage: Played) -> Outcome:
    """What became of this run."""
    limit = stage.shape.limit
    if stage.lost_updates:
        return Outcome("violated", f"{stage.lost_updates} updates were lost")
    spans = spans_of(stage.writes)
    together, fatal = most_at_once(spans, limit)
    if fatal is not None:
        write = _first_write_after(stage.writes, fatal)
        detail = f"{together} at once, {limit} allowed"
        if limit == 1:
            other = write.who if write.who != fatal.who else "another"
            detail = f"{fatal.who} wrote between two writes of {other}"
        return Outcome("violated", detail, write.at, write.who, together)
    if stage.unserved:
        return Outcome("stuck", f"{_names(stage.unserved)} waited in vain")
    refused = [write for write in stage.writes if not write.accepted]
    if refused:
        detail = "a write was refused" if len(refused) == 1 else f"{len(refused)} writes were refused"
        return Outcome("fenced", detail, refused[0].at, refused[0].who)
    return Outcome("safe", "")


def spans_of(writes: list[Write]) -> list[Span]:
    """The sections that wrote at all, in the order of their first writes."""
    first: dict[int, Write] = {}
    last: dict[int, Write] = {}
    for write in writes:
        if write.accepted:
            first.setdefault(write.section, write)
            last[write.section] = write
    return sorted(Span(first[number].at, last[number].at, first[number].who, number) for number in first)


def most_at_once(spans: list[Span], limit: int) -> tuple[int, Span | None]:
    """How many sections lasted at the same moment at most, and the first that came on top of `limit` others."""
    most, culprit = 0, None
    for span in spans:
        # Touching is not overlapping: one may write in the very moment in which the other has ended.
        others = [
            other for other in spans
            if other.section != span.section and other.start <= span.start < other.end
            and (other.start, other.section) < (span.start, span.section)
        ]  # fmt: skip
        if len(others) >= limit and culprit is None:
            culprit = span
        most = max(most, len(others) + 1)
    return most, culprit


def _first_write_after(writes: list[Write], span: Span) -> Write:
    """The write that shows it: the first by another section that was under way when `span` began; else its own."""
    begun = {write.section for write in writes if write.accepted and write.at <= span.start} - {span.section}
    for write in writes:
        if write.accepted and write.at > span.start and write.section in begun:
            return write
    return next(write for write in writes if write.section == span.section)


def _names(names: list[str]) -> str:
    return names[0] if len(names) == 1 else ", ".join(names[:-1]) + " and " + names[-1]
