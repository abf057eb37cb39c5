"""One story as a timeline picture.

A lane per client, server and guarded resource; time runs to the right. What a client believes is an outlined bar,
what a server holds a full one, both in the client's colour; where a belief is wrong the bar is dashed. Pauses are
hatched, lost messages end in a cross, the fatal moment is a line through all lanes. Labels are flags over their
lane (`layout.Flags`), so that no text covers another; what does not fit is still there as a tooltip.

The same story gives the same bytes. Colours are plain values in a style sheet, dark ones for readers who prefer
dark, so the picture also works as a file of its own.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING

from lockfast.lab import palette, shapes
from lockfast.lab.layout import Flag, Flags, Scale, horizon, moments, rows
from lockfast.lab.model import BARS, MARKS, VERDICTS
from lockfast.lab.shapes import BAR_H, TEXT
from lockfast.lab.text import clean, seconds, shorten_px, width_px, wrap

if TYPE_CHECKING:
    from lockfast.lab.model import Arrow, Bar, Lane, Mark, Story

WIDTH = 960
LEFT, RIGHT = 132, WIDTH - 38  # The plot between lane names and the edge.
FLAG_H, MARK_H, BAR_GAP = 16, 18, 4
LANE_PAD = 9
LABEL_MOST, ALARM_MOST = 270, 560
OVERLAYS = ("paused", "down")


def timeline(story: Story) -> str:
    """The picture as a file of its own."""
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{_Picture(story, alone=True).draw()}'


def figure(story: Story) -> str:
    """The picture inside a page that has `style()` and shows the title itself."""
    return _Picture(story, alone=False).draw()


@dataclass(slots=True)
class _Label:
    """A text on its flag. `deep`: the pole goes down through the lane, to where a message leaves it."""

    flag: Flag
    text: str
    deep: bool


@dataclass(slots=True)
class _Band:
    """A lane and what is in it; `y` is its upper edge, `top` and `bottom` are those of its bars."""

    lane: Lane
    bars: list[tuple[Bar, int]]
    overlays: list[Bar]
    marks: list[Mark]
    flags: Flags
    labels: list[_Label]
    rows: int
    y: float = 0.0

    @property
    def top(self) -> float:
        return self.y + LANE_PAD + self.flags.height * FLAG_H

    @property
    def bars_top(self) -> float:
        return self.top + (MARK_H if self.marks else 0)

    @property
    def bottom(self) -> float:
        least = 0 if self.marks else 1
        return self.bars_top + max(self.rows, least) * (BAR_H + BAR_GAP)

    @property
    def end(self) -> float:
        return max(self.bottom + LANE_PAD, self.y + 46)


class _Picture:
    """Shapes in the order they cover each other, and all texts on top of them."""

    def __init__(self, story: Story, *, alone: bool) -> None:
        self.story, self.alone = story, alone
        self.out: list[str] = []
        self.texts: list[str] = []
        # Several pictures share a page, and a pattern inside a hidden one paints nothing: each has its own.
        self.id = "lf" + hashlib.sha256(f"{story.key}#{story.seed}".encode()).hexdigest()[:10]
        self.times = moments(story)
        self.x = Scale([*self.times, *horizon(story, self.times)], LEFT, RIGHT, least=22)
        self.bands = {lane.name: self._band(lane) for lane in story.lanes}
        self.alarm_y = self.lanes_end = 0.0

    def draw(self) -> str:
        story = self.story
        y = self._head() if self.alone else 10.0
        y = self._alarms(y)
        for band in self.bands.values():
            band.y = y
            y = band.end + 6
        self.lanes_end = y - 6
        for band in self.bands.values():
            self._lane(band)
        y = self._axis()
        for arrow in story.arrows:
            self._arrow(arrow)
        for band in self.bands.values():
            self._bars(band)
        self._fatal_lines()
        for band in self.bands.values():
            self._marks(band)
        height = math.ceil(self._legend(y) + 12)
        return self._wrapped(height)

    def _wrapped(self, height: int) -> str:
        story, key = self.story, self.id
        title = escape(clean(story.title))
        lanes = ", ".join(f"{clean(lane.name)} ({lane.kind})" for lane in story.lanes)
        desc = escape(f"{clean(story.what_happened)} Lanes: {lanes}.")
        names = ' xmlns="http://www.w3.org/2000/svg"' if self.alone else ""
        size = f' width="{WIDTH}" height="{height}"' if self.alone else ""
        sheet = f"<style>{shapes.style()}</style>" if self.alone else ""
        paper = f'<rect class="paper" width="{WIDTH}" height="{height}" rx="8"/>' if self.alone else ""
        box = f'viewBox="0 0 {WIDTH} {height}"{size}'
        hatch = 'width="7" height="7" patternUnits="userSpaceOnUse" patternTransform="rotate(45)"'
        return (
            f'<svg{names} class="lfp" {box} role="img" aria-labelledby="{key}t {key}d">\n'
            f'<title id="{key}t">{title}</title>\n<desc id="{key}d">{desc}</desc>\n{sheet}'
            f'<defs><pattern id="{key}h" {hatch}><path class="hatch" d="M1 0V7"/></pattern></defs>\n{paper}'
            + "\n".join(self.out + self.texts)
            + "\n</svg>\n"
        )

    def _band(self, lane: Lane) -> _Band:
        story = self.story
        mine = [bar for bar in story.bars if bar.lane == lane.name]
        overlays = [bar for bar in mine if bar.kind in OVERLAYS]
        using = [bar for bar in mine if bar.kind == "section"]
        having = [bar for bar in mine if bar.kind not in OVERLAYS and bar.kind != "section"]
        upper, lower = rows([(bar.start, bar.end) for bar in having]), rows([(bar.start, bar.end) for bar in using])
        below = max(upper, default=-1) + 1
        placed = list(zip(having, upper, strict=True)) + [
            (bar, row + below) for bar, row in zip(using, lower, strict=True)
        ]
        marks = [mark for mark in story.marks if mark.lane == lane.name]
        wanted = [(mark.at, mark.label, False) for mark in marks if mark.kind != "fatal"]
        order = [one.name for one in story.lanes]
        wanted += [
            (arrow.sent_at, arrow.label, order.index(arrow.to_lane) > order.index(lane.name))
            for arrow in story.arrows
            if arrow.from_lane == lane.name
        ]
        wanted += [(bar.start, bar.label or BARS[bar.kind], False) for bar in overlays]
        wanted += [(bar.start, bar.label, False) for bar, _ in placed if self._label_x(bar) is None]
        flags, labels = self._flags(wanted, 7, TEXT, LABEL_MOST)
        return _Band(lane, placed, overlays, marks, flags, labels, max((row for _, row in placed), default=-1) + 1)

    def _flags(
        self, wanted: list[tuple[float, str, bool]], most_rows: int, size: float, most: float
    ) -> tuple[Flags, list[_Label]]:
        """Texts on flags; those for which there is no room are left out."""
        flags = Flags(LEFT, RIGHT, gap=5, most_rows=most_rows)
        labels = []
        for at, label, deep in wanted:
            if text := shorten_px(clean(label), size, most):
                labels.append(_Label(Flag(self.x(at), width_px(text, size)), text, deep))
        flags.place(label.flag for label in labels)
        return flags, [label for label in labels if label.flag.row >= 0]

    def _span(self, bar: Bar) -> tuple[float, float]:
        start = self.x(bar.start)
        end = RIGHT if math.isinf(bar.end) else self.x(bar.end)
        return start, max(end, start + 3)

    def _label_x(self, bar: Bar) -> float | None:
        """Where the label stands inside its bar: where nothing else is drawn over it, if possible. None: no room."""
        start, end = self._span(bar)
        room = width_px(clean(bar.label), TEXT) + 12
        if room > end - start:
            return None
        over = [self._span(one) for one in self.story.bars if one.lane == bar.lane and one.kind in OVERLAYS]
        over += [(self.x(mark.at) - 1, self.x(mark.at) + 1) for mark in self.story.marks if mark.kind == "fatal"]
        for place in sorted([start, *(over_end for _, over_end in over)]):
            free = all(place + room <= over_start or over_end <= place for over_start, over_end in over)
            if free and start <= place and place + room <= end:
                return place + 7
        return start + 7

    def _colour(self, bar: Bar) -> str:
        who = bar.who or bar.lane
        clients = self.story.clients
        return f"c{clients.index(who) % (palette.CLIENTS - 1)}" if who in clients else f"c{palette.CLIENTS - 1}"

    def _text(self, x: float, y: float, text: str, css: str = "", anchor: str = "") -> None:
        anchored = f' text-anchor="{anchor}"' if anchor else ""
        styled = f' class="{css}"' if css else ""
        self.texts.append(f'<text x="{x:.1f}" y="{y:.1f}"{styled}{anchored}>{escape(text)}</text>')

    def _head(self) -> float:
        story, y = self.story, 16.0
        for line in wrap(clean(story.title), 84):
            y += 18
            self._text(20, y, line, "title")
        y += 20
        says = f"{story.algorithm} × {story.fault}, seed {story.seed}: {VERDICTS[story.verdict].short}"
        self._text(20, y, shorten_px(says, TEXT, WIDTH - 40), "soft")
        return y + 16

    def _alarms(self, y: float) -> float:
        """Labels of the fatal moments, above all lanes."""
        wanted = [(mark.at, mark.label or MARKS["fatal"], False) for mark in self.story.marks if mark.kind == "fatal"]
        if not wanted:
            self.alarm_y = y
            return y
        flags, labels = self._flags(wanted, 9, 14.5, ALARM_MOST)
        self.alarm_y = y + flags.height * 18 + 8
        for label in labels:
            base = self.alarm_y - label.flag.row * 18 - 12
            self.out.append(f'<path class="fatal" d="M{label.flag.x:.1f} {base - 12:.1f}V{self.alarm_y:.1f}"/>')
            self._flag_text(label, base, "alarm")
        return self.alarm_y

    def _flag_text(self, label: _Label, y: float, css: str) -> None:
        if label.flag.flipped:
            self._text(label.flag.x - 5, y, label.text, css, "end")
        else:
            self._text(label.flag.start, y, label.text, css)

    def _lane(self, band: _Band) -> None:
        name = clean(band.lane.name)
        self.out.append(
            f'<rect class="band" x="8" y="{band.y:.1f}" width="{WIDTH - 16}" height="{band.end - band.y:.1f}" rx="6"/>'
        )
        middle = (band.top + band.bottom) / 2 if band.flags.height else (band.y + band.end) / 2
        if band.lane.kind == "client":
            colour = f"c{self.story.clients.index(band.lane.name) % (palette.CLIENTS - 1)}"
            self.out.append(f'<circle class="dot {colour}" cx="22" cy="{middle - 5:.1f}" r="5"/>')
        self._text(34, middle, shorten_px(name, 14, LEFT - 44), "name")
        if name != band.lane.kind:
            self._text(34, middle + 14, band.lane.kind, "kind soft")

    def _axis(self) -> float:
        y = self.lanes_end + 18
        for at in self.x.ticks(self.times, lambda at: width_px(seconds(at), 11) + 8):
            x = self.x(at)
            self.out.append(f'<path class="grid" d="M{x:.1f} {self.alarm_y:.1f}V{y - 12:.1f}"/>')
            self._text(x, y, seconds(at), "tick soft")
        return y

    def _arrow(self, arrow: Arrow) -> None:
        source, target = self.bands[arrow.from_lane], self.bands[arrow.to_lane]
        down = source.y < target.y
        x1, y1 = self.x(arrow.sent_at), source.bottom if down else source.bars_top
        y2 = target.bars_top if down else target.bottom
        tip = f"<title>{escape(clean(arrow.label))}</title>" if arrow.label else ""
        if arrow.arrives_at is None:
            x2, y2 = x1 + 14, y1 + (y2 - y1) * 0.55
            self.out.append(f'<path class="arrow gone" d="M{x1:.1f} {y1:.1f}L{x2:.1f} {y2:.1f}">{tip}</path>')
            self.out.append(f'<path class="cross" d="M{x2 - 5:.1f} {y2 - 5:.1f}l10 10m0 -10l-10 10"/>')
            return
        x2 = self.x(arrow.arrives_at)
        angle = math.degrees(math.atan2(y2 - y1, x2 - x1))
        self.out.append(f'<path class="arrow" d="M{x1:.1f} {y1:.1f}L{x2:.1f} {y2:.1f}">{tip}</path>')
        self.out.append(
            f'<path class="head" d="M0 0L-8 -3.5V3.5Z" transform="translate({x2:.1f} {y2:.1f}) rotate({angle:.1f})"/>'
        )

    def _bars(self, band: _Band) -> None:
        for bar, row in band.bars:
            start, end = self._span(bar)
            y = band.bars_top + row * (BAR_H + BAR_GAP) + BAR_GAP / 2
            colour = self._colour(bar)
            self.out.append(shapes.bar(bar.kind, colour, start, y, end - start, shapes.tip_of(bar)))
            if math.isinf(bar.end):
                self.out.append(
                    f'<path class="head" d="M{RIGHT + 4} {y + 4:.1f}l8 {BAR_H / 2 - 4:.1f}l-8 {BAR_H / 2 - 4:.1f}z"/>'
                )
            place = self._label_x(bar)
            if bar.label and place is not None:
                css = "onfull" if bar.kind in ("holds", "section") else "halo inside " + colour
                self._text(place, y + BAR_H / 2 + 4, clean(bar.label), css)
        for bar in band.overlays:
            start, end = self._span(bar)
            box = shapes.rectangle(start, band.top - 2, end - start, band.bottom - band.top + 4)
            fill = f' fill="url(#{self.id}h)" fill-opacity=".6"' if bar.kind == "paused" else ' class="down"'
            self.out.append(f'<rect {box} rx="3"{fill}>{shapes.tip_of(bar)}</rect>')

    def _fatal_lines(self) -> None:
        for mark in self.story.marks:
            if mark.kind == "fatal":
                x = self.x(mark.at)
                self.out.append(f'<path class="fatal" d="M{x:.1f} {self.alarm_y:.1f}V{self.lanes_end + 4:.1f}"/>')

    def _marks(self, band: _Band) -> None:
        for label in band.labels:
            base = band.top - label.flag.row * FLAG_H - 5
            ground = band.bottom if label.deep else band.top + 2
            self.out.append(f'<path class="pole" d="M{label.flag.x:.1f} {base - 10:.1f}V{ground:.1f}"/>')
            self._flag_text(label, base, "halo onband")
        for mark in band.marks:
            tip = f"<title>{escape(clean(mark.label or MARKS[mark.kind]))} at {seconds(mark.at)}</title>"
            place = f"translate({self.x(mark.at):.1f} {band.top + MARK_H / 2:.1f})"
            self.out.append(f'<g transform="{place}">{shapes.GLYPHS[mark.kind]}{tip}</g>')

    def _legend(self, y: float) -> float:
        kinds = {bar.kind for bar in self.story.bars}
        signs = {mark.kind for mark in self.story.marks}
        if any(arrow.arrives_at is None for arrow in self.story.arrows):
            signs.add("lost")
        items = [(self._sample(kind), says, 14) for kind, says in BARS.items() if kind in kinds]
        items += [
            (shapes.GLYPHS[kind], says, 10 if kind == "fatal" else 7)
            for kind, says in MARKS.items()
            if kind in signs and says
        ]
        y += 26
        x = 20.0
        for sample, says, half in items:
            room = 2 * half + 7
            wide = room + width_px(says, TEXT)
            if x + wide > WIDTH - 16:
                x, y = 20.0, y + 20
            self.out.append(f'<g transform="translate({x + half:.1f} {y - 4:.1f})">{sample}</g>')
            self._text(x + room, y, says, "soft")
            x += wide + 8
        self._text(20, y + 20, "Time runs to the right. Short gaps are drawn wider than they are.", "soft")
        return y + 20

    def _sample(self, kind: str) -> str:
        if kind == "paused":
            return f'<rect x="-14" y="-7" width="28" height="14" rx="3" fill="url(#{self.id}h)" fill-opacity=".6"/>'
        if kind == "down":
            return '<rect class="down" x="-14" y="-7" width="28" height="14" rx="3"/>'
        return shapes.bar(kind, "c0", -14, -7, 28, "", height=14)
