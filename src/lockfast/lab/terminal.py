"""The matrix and a story for the terminal: plain text that fits the width, with colour where it is wanted.

Nothing depends on colour. The matrix is in letters that every terminal has; the drawing of a story has a plain set
of characters for those that know no others (`unicode=False`). Who calls decides about NO_COLOR and the width.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from lockfast.lab.layout import Scale, horizon, moments, rows
from lockfast.lab.model import BARS, MARKS, VERDICTS
from lockfast.lab.text import clean, columns, pad, seconds, shorten, wrap

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from lockfast.lab.model import Bar, Cell, Lane, Story, Topic

LEAST_WIDTH = 40
MOST_WIDTH = 120  # Longer lines of prose are hard to read.
_COLOURS = {"violated": "1;31", "stuck": "1;35", "fenced": "33", "unknown": "36", "safe": "32", "n/a": "2"}
_CLIENT_COLOURS = ("34", "32", "35", "33", "36")
_BARS = {"waits": "·", "believes": "─", "mistaken": "╌", "holds": "█", "section": "▓", "paused": "/", "down": "x"}
_MARKS = {"fatal": "X", "fault": "!", "write": "▼", "refused": "▽", "lost": "×", "send": "•", "reply": "◦", "note": "•"}
_PLAIN_BARS = {"waits": ".", "believes": "-", "mistaken": "~", "holds": "#", "section": "=", "paused": "/", "down": "x"}
_PLAIN_MARKS = {
    "fatal": "X",
    "fault": "!",
    "write": "w",
    "refused": "r",
    "lost": "*",
    "send": "o",
    "reply": "o",
    "note": "o",
}


def matrix(cells: Iterable[Cell], algorithms: Sequence[Topic], faults: Sequence[Topic], width: int, color: bool) -> str:
    """Rows of algorithms, numbered columns of faults, what the numbers and letters mean, and all counts."""
    width = max(width, LEAST_WIDTH)
    by_key = {(cell.algorithm, cell.fault): cell for cell in cells}
    names = max((columns(topic.key) for topic in algorithms), default=0)
    wide = max(3, min(9, (width - names) // max(len(faults), 1)))
    fit = max(1, (width - names) // wide)
    lines: list[str] = []
    for first in range(0, len(faults), fit):
        block = faults[first : first + fit]
        lines.append(" " * names + "".join(f"{first + number:>{wide}}" for number in range(1, len(block) + 1)))
        for row in algorithms:
            found = [by_key.get((row.key, fault.key)) for fault in block]
            lines.append(pad(row.key, names) + "".join(_letters(cell, wide, color) for cell in found))
        lines.append("")
    lines += _in_columns([f"{number:>2} {fault.key}" for number, fault in enumerate(faults, 1)], width)
    lines.append("")
    seen = {cell.verdict for cell in by_key.values()}
    lines += [
        f"{_painted(f'{meaning.letters:>2}', _COLOURS[verdict], color)} {line}"
        for verdict, meaning in VERDICTS.items()
        if verdict in seen
        for line in [
            f"{meaning.short}: {meaning.says}" if columns(meaning.short + meaning.says) + 5 <= width else meaning.short
        ]
    ]
    return "\n".join(lines + _counts(by_key, algorithms, faults, names, width, color)) + "\n"


def _letters(cell: Cell | None, wide: int, color: bool) -> str:
    if cell is None:
        return " " * wide
    text = VERDICTS[cell.verdict].letters
    count = f"{text} {cell.bad}/{cell.seeds}"
    if cell.bad and len(count) < wide:
        text = count
    return " " * (wide - len(text)) + _painted(text, _COLOURS[cell.verdict], color)


def _counts(
    by_key: dict[tuple[str, str], Cell],
    algorithms: Sequence[Topic],
    faults: Sequence[Topic],
    names: int,
    width: int,
    color: bool,
) -> list[str]:
    """For each algorithm the columns that went wrong: in how many seeds, and one that shows it."""
    lines: list[str] = []
    for row in algorithms:
        entries = [
            (f"{number} {VERDICTS[cell.verdict].letters} {cell.bad}/{cell.seeds}", cell)
            for number, fault in enumerate(faults, 1)
            if (cell := by_key.get((row.key, fault.key))) and cell.bad
        ]
        line = pad(row.key, names) + " "
        used = names + 1
        for index, (text, cell) in enumerate(entries):
            text += "" if cell.seed is None else f" #{cell.seed}"
            text += "" if index == len(entries) - 1 else ","
            if used + 1 + len(text) > width and used > names + 1:
                lines.append(line)
                line, used = " " * (names + 1), names + 1
            line += " " + _painted(text, _COLOURS[cell.verdict], color)
            used += 1 + len(text)
        if entries:
            lines.append(line)
    head = wrap("Column, verdict, in how many seeds, and a seed that shows it:", width)
    return ["", *head, *lines] if lines else []


def _in_columns(texts: list[str], width: int) -> list[str]:
    """Texts down the columns, as many side by side as fit."""
    each = max((columns(text) for text in texts), default=0) + 2
    across = max(1, (width + 2) // each)
    deep = -(-len(texts) // across)
    return ["".join(pad(text, each) for text in texts[line::deep]).rstrip() for line in range(deep)]


def story(story: Story, width: int, color: bool, *, unicode: bool = True) -> str:
    """One story: what happened, step by step, drawn, and what to learn from it."""
    width = max(min(width, MOST_WIDTH), LEAST_WIDTH)
    colours = {name: _CLIENT_COLOURS[number % len(_CLIENT_COLOURS)] for number, name in enumerate(story.clients)}
    verdict = _painted(VERDICTS[story.verdict].short, _COLOURS[story.verdict], color)
    lines = [_painted(line, "1", color) for line in wrap(clean(story.title), width)]
    lines += [f"{story.algorithm} x {story.fault}, seed {story.seed}: {verdict}", ""]
    if story.what_happened:
        lines += [*wrap(clean(story.what_happened), width), ""]
    who_width = min(max((columns(clean(step[1])) for step in story.steps), default=0), 16)
    for at, who, sentence in story.steps:
        fatal = story.is_fatal(at, sentence)
        head = f"{'X' if fatal else ' '}{seconds(at):>10}  {pad(clean(who), who_width)}  "
        for index, line in enumerate(wrap(clean(sentence), width - columns(head))):
            if index:
                lines.append(" " * columns(head) + line)
            elif fatal:
                lines.append(_painted(head + line, "1;31", color))
            else:
                lines.append(head[:13] + _painted(head[13:], colours.get(who, "1"), color) + line)
    lines += ["", *_Drawing(story, width, color, colours, unicode).lines(), ""]
    for head, text in (
        ("What the text says", story.what_the_text_says),
        ("What Lockfast does", story.what_lockfast_does),
    ):
        if text:
            lines += [_painted(head, "1", color), *("  " + line for line in wrap(clean(text), width - 2)), ""]
    lines += [_painted("Replay it", "1", color), f"  lockfast lab {story.algorithm} {story.fault} --seed {story.seed}"]
    return "\n".join(line.rstrip() for line in lines) + "\n"


class _Drawing:
    """The timeline in characters: each lane has a line for its marks, if any, and one for each row of bars."""

    def __init__(self, story: Story, width: int, color: bool, colours: dict[str, str], unicode: bool) -> None:
        self.story, self.width, self.color, self.colours = story, width, color, colours
        self.bars, self.marks = (_BARS, _MARKS) if unicode else (_PLAIN_BARS, _PLAIN_MARKS)
        self.names = min(max(columns(clean(lane.name)) for lane in story.lanes), 14) + 1
        self.times = moments(story)
        self.last = width - self.names - 1
        self.x = Scale([*self.times, *horizon(story, self.times)], 0, self.last, least=2)
        self.fatal = {self._column(mark.at) for mark in story.marks if mark.kind == "fatal"}

    def lines(self) -> list[str]:
        made = [self._line("", self._alarm())] if self.fatal else []
        for lane in self.story.lanes:
            made += self._lane(lane)
        return [*made, self._axis(), "", *self._legend()]

    def _column(self, at: float) -> int:
        return round(self.x(at))

    def _blank(self) -> list[tuple[str, str]]:
        """A line of (character, colour), with the fatal moment running through."""
        return [("|", "1;31") if column in self.fatal else (" ", "") for column in range(self.last + 1)]

    def _alarm(self) -> list[tuple[str, str]]:
        """The line above all lanes: what the fatal moment is, beside it. Of several, what there is room for."""
        line = self._blank()
        for mark in self.story.marks:
            text = clean(mark.label or MARKS["fatal"])
            if mark.kind != "fatal" or columns(text) != len(text):
                continue
            at = self._column(mark.at)
            for start in (at + 2, at - 1 - len(text)):
                place = slice(start, start + len(text))
                if start >= 0 and len(line[place]) == len(text) and all(one == " " for one, _ in line[place]):
                    line[place] = [(one, "1;31") for one in text]
                    break
        return line

    def _line(self, name: str, marks: list[tuple[str, str]]) -> str:
        colour = self.colours.get(name, "1")
        drawn = "".join(_painted(one, paint, self.color) for one, paint in marks)
        return _painted(pad(clean(name), self.names), colour, self.color) + drawn

    def _lane(self, lane: Lane) -> list[str]:
        bars = [bar for bar in self.story.bars if bar.lane == lane.name]
        over = [bar for bar in bars if bar.kind in ("paused", "down")]
        using = [bar for bar in bars if bar.kind == "section"]
        having = [bar for bar in bars if bar not in over and bar not in using]
        drawn: list[list[tuple[str, str]]] = []
        lines_of: list[tuple[Bar, int]] = []
        for group in (having, using):
            placed = rows([(bar.start, bar.end) for bar in group])
            lines_of += [(bar, len(drawn) + row) for bar, row in zip(group, placed, strict=True)]
            drawn += [self._blank() for _ in range(max(placed, default=-1) + 1)]
        drawn = drawn or [self._blank()]
        for bar, row in lines_of:
            self._draw(drawn[row], bar)
        for bar in over:
            start, end = self._span(bar)
            # What is believed during a pause shows through.
            for column in range(start, end + 1, 1 if bar.kind == "down" else 2):
                drawn[0][column] = (self.bars[bar.kind], "2")
        for line in drawn:
            for column in self.fatal:
                line[column] = ("|", "1;31")
        for bar, row in lines_of:
            self._write(drawn[row], bar)
        marks = [mark for mark in self.story.marks if mark.lane == lane.name]
        if marks:
            line = self._blank()
            for mark in sorted(marks, key=lambda one: list(MARKS).index(one.kind), reverse=True):
                line[self._column(mark.at)] = (
                    self.marks[mark.kind],
                    "1;31" if mark.kind in ("fatal", "fault") else "1",
                )
            drawn.insert(0, line)
        return [self._line(lane.name if index == 0 else "", line) for index, line in enumerate(drawn)]

    def _span(self, bar: Bar) -> tuple[int, int]:
        start = self._column(bar.start)
        return start, max(start, self.last if math.isinf(bar.end) else self._column(bar.end) - 1)

    def _paint(self, bar: Bar) -> str:
        return "1;31" if bar.kind == "mistaken" else self.colours.get(bar.who or bar.lane, "")

    def _draw(self, line: list[tuple[str, str]], bar: Bar) -> None:
        start, end = self._span(bar)
        line[start : end + 1] = [(self.bars[bar.kind], self._paint(bar))] * (end + 1 - start)
        if math.isinf(bar.end):
            line[self.last] = (">", self._paint(bar))

    def _write(self, line: list[tuple[str, str]], bar: Bar) -> None:
        """The label, inside its bar where there is room beside the fatal moment."""
        start, end = self._span(bar)
        label = f" {clean(bar.label)} "
        if not bar.label or columns(label) != len(label):
            return
        for place in [start + 1, *(column + 1 for column in sorted(self.fatal) if start < column)]:
            stop = place + len(label)
            if stop <= end and not any(place <= column < stop for column in self.fatal):
                line[place:stop] = [(one, self._paint(bar)) for one in label]
                return

    def _axis(self) -> str:
        line = [" "] * (self.width + 1)
        for at in self.x.ticks(self.times, lambda at: len(seconds(at)) + 2):
            text = seconds(at)
            start = min(max(0, self.names + self._column(at) - len(text) // 2), self.width - len(text))
            line[start : start + len(text)] = text
        return "".join(line)

    def _legend(self) -> list[str]:
        bars, marks = {bar.kind for bar in self.story.bars}, {mark.kind for mark in self.story.marks}
        texts = [f"{self.bars[kind] * 2} {says}" for kind, says in BARS.items() if kind in bars]
        texts += [f" {self.marks[kind]} {says}" for kind, says in MARKS.items() if kind in marks and says]
        return _in_columns([shorten(text, self.width) for text in texts], self.width)


def _painted(text: str, colour: str, color: bool) -> str:
    return f"\x1b[{colour}m{text}\x1b[0m" if color and colour and text.strip() else text
