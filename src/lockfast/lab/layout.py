"""Where things go: times along a line, bars in rows, labels where none covers another.

The same for pixels and for characters: a unit is whatever the caller counts in.

Time is drawn stretched. A message takes a millisecond and a lease thirty seconds, so on a true scale a story
would be one thick line and a void. Here moments keep their order and each gap gets a fixed least width plus its
share of the rest; the axis is labelled at the moments themselves, so no reader has to measure.
"""

from __future__ import annotations

import bisect
import itertools
import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from lockfast.lab.model import Story

# Of the whole width, what the least widths of all gaps may take together.
_STRETCHED = 0.6


class Scale:
    """Seconds to positions between `left` and `right`; times outside are drawn at the edge."""

    def __init__(self, times: Iterable[float], left: float, right: float, least: float) -> None:
        self.times = sorted({round(at, 6) for at in times if math.isfinite(at)}) or [0.0]
        gaps = len(self.times) - 1
        span = self.times[-1] - self.times[0]
        each = min(least, _STRETCHED * (right - left) / gaps) if gaps else 0.0
        rest = right - left - each * gaps
        self.places = [left]
        for before, after in itertools.pairwise(self.times):
            self.places.append(self.places[-1] + each + rest * (after - before) / span)
        self.places[-1] = min(self.places[-1], right)

    def __call__(self, at: float) -> float:
        if at <= self.times[0]:
            return self.places[0]
        if at >= self.times[-1]:
            return self.places[-1]
        after = bisect.bisect_right(self.times, at)
        start, end = self.times[after - 1], self.times[after]
        return self.places[after - 1] + (self.places[after] - self.places[after - 1]) * (at - start) / (end - start)

    def ticks(self, wanted: Iterable[float], label_width: Callable[[float], float]) -> list[float]:
        """Those of `wanted`, the more important first, whose labels do not touch; in the order of time."""
        taken: list[tuple[float, float]] = []
        chosen: list[float] = []
        for at in wanted:
            half = label_width(at) / 2
            start, end = self(at) - half, self(at) + half
            if all(end <= other_start or start >= other_end for other_start, other_end in taken):
                taken.append((start, end))
                chosen.append(at)
        return sorted(chosen)


def moments(story: Story) -> list[float]:
    """Every time at which something is drawn, the more important first: what the axis should name."""
    rank = {"fatal": 0, "fault": 2, "write": 3, "refused": 3}
    ranked = [(rank.get(mark.kind, 5), mark.at) for mark in story.marks]
    for bar in story.bars:
        ranked += [(4, at) for at in (bar.start, bar.end) if math.isfinite(at)]
    for arrow in story.arrows:
        ranked += [(6, at) for at in (arrow.sent_at, arrow.arrives_at) if at is not None]
    if not ranked:
        ranked = [(1, step[0]) for step in story.steps] or [(1, 0.0)]
    first, end = min(at for _, at in ranked), max(at for _, at in ranked)
    ranked += [(1, min(first, 0.0)), (1, end)]
    return list(dict.fromkeys(at for _, at in sorted(ranked)))


def horizon(story: Story, times: Sequence[float]) -> list[float]:
    """A time after all others if something does not end, to show that it goes on."""
    if not any(math.isinf(bar.end) for bar in story.bars):
        return []
    return [max(times) + max((max(times) - min(times)) * 0.08, 0.001)]


def rows(spans: Sequence[tuple[float, float]]) -> list[int]:
    """For each span the first row where it covers no earlier one. Spans that only touch share a row."""
    ends: list[float] = []
    placed = [0] * len(spans)
    for index in sorted(range(len(spans)), key=lambda one: spans[one]):
        start, end = spans[index]
        row = next((number for number, taken in enumerate(ends) if taken <= start), len(ends))
        ends[row : row + 1] = [end]
        placed[index] = row
    return placed


@dataclass(slots=True)
class Flag:
    """A label beside its pole at `x`. `row` 0 is nearest to the ground; `start` is where the text begins."""

    x: float
    width: float
    row: int = -1
    start: float = 0.0

    @property
    def flipped(self) -> bool:
        """Whether the text is to the left of its pole."""
        return self.start < self.x


@dataclass(slots=True)
class Flags:
    """Labels over a line: no text covers another text, nor another label's pole if that can be helped.

    Texts stand to the right of their poles, placed from right to left: a label that has to go higher has its pole
    to the left of all below it. Near the right edge texts stand to the left of their poles.
    """

    left: float
    right: float
    gap: float
    most_rows: int
    placed: list[Flag] = field(default_factory=list)

    @property
    def height(self) -> int:
        """Rows in use."""
        return max((flag.row for flag in self.placed), default=-1) + 1

    def place(self, flags: Iterable[Flag]) -> None:
        """Find a row for each, in which it fits; one that fits nowhere keeps row -1."""
        flags = list(flags)
        upright = [flag for flag in flags if flag.x + self.gap + flag.width <= self.right]
        others = [flag for flag in flags if flag.x + self.gap + flag.width > self.right]
        for flag in sorted(upright, key=lambda one: -one.x) + sorted(others, key=lambda one: one.x):
            # A pole behind a text is better than no text.
            if not self._put(flag, clear=True):
                self._put(flag, clear=False)

    def _put(self, flag: Flag, *, clear: bool) -> bool:
        starts = [flag.x + self.gap, flag.x - self.gap - flag.width]
        for row, start in itertools.product(range(self.most_rows), starts):
            if self.left <= start and start + flag.width <= self.right and self._free(flag, row, start, clear):
                flag.row, flag.start = row, start
                self.placed.append(flag)
                return True
        return False

    def _free(self, flag: Flag, row: int, start: float, clear: bool) -> bool:
        end = start + flag.width
        for other in self.placed:
            other_end = other.start + other.width
            if other.row == row and start < other_end + self.gap and other.start < end + self.gap:
                return False
            if clear and other.row > row and start - 1 < other.x < end + 1:
                return False
            if clear and other.row < row and other.start - 1 < flag.x < other_end + 1:
                return False
        return True
