"""The shapes that timeline pictures are made of, and their style sheet."""

from __future__ import annotations

import math
from html import escape
from typing import TYPE_CHECKING

from lockfast.lab import palette
from lockfast.lab.model import BARS
from lockfast.lab.text import clean, seconds

if TYPE_CHECKING:
    from lockfast.lab.model import Bar

TEXT = 12
BAR_H = 20

_FONT = "ui-sans-serif,system-ui,-apple-system,'Segoe UI',Roboto,'Helvetica Neue',Arial,sans-serif"
_SHAPES = f"""\
.lfp{{font-family:{_FONT};font-size:{TEXT}px}}
.lfp .title{{font-size:17px;font-weight:650}}
.lfp .name{{font-size:13px;font-weight:650}}
.lfp .kind,.lfp .tick{{font-size:11px}}
.lfp .tick{{text-anchor:middle;font-variant-numeric:tabular-nums}}
.lfp .alarm{{font-size:13px;font-weight:650}}
.lfp .halo{{paint-order:stroke;stroke-width:4px;stroke-linejoin:round}}
.lfp .grid{{stroke-width:1}}
.lfp .pole{{stroke-width:1;opacity:.55}}
.lfp .arrow{{fill:none;stroke-width:1.25}}
.lfp .gone{{stroke-dasharray:4 3}}
.lfp .cross{{fill:none;stroke-width:2}}
.lfp .fatal{{stroke-width:2}}
.lfp .ring{{fill:none;stroke-width:2.5}}
.lfp .believes{{stroke-width:2}}
.lfp .mistaken{{stroke-width:2;stroke-dasharray:5 3}}
.lfp .waits{{fill:none;stroke-width:3;stroke-dasharray:1.5 5;stroke-linecap:round}}
.lfp .hatch{{stroke-width:2}}
.lfp .down{{fill-opacity:.22}}
"""


def _colours() -> list[tuple[str, str, str]]:
    """Which part has which colour: (selector, property, colour)."""
    rules = [
        (".paper", "fill", "paper"), (".band", "fill", "ground"), ("text", "fill", "ink"), (".soft", "fill", "soft"),
        (".halo", "stroke", "paper"), (".onband", "stroke", "ground"), (".onfull", "fill", "on-full"),
        (".grid", "stroke", "line"), (".pole", "stroke", "soft"), (".arrow", "stroke", "soft"),
        (".head", "fill", "soft"), (".cross", "stroke", "fatal"), (".glyph", "fill", "ink"),
        (".open", "fill", "paper"), (".open", "stroke", "ink"), (".fault", "fill", "fault"), (".bang", "fill", "paper"),
        (".fatal", "stroke", "fatal"), (".alarm", "fill", "fatal"), (".ring", "stroke", "fatal"),
        (".mistaken", "stroke", "fatal"), (".hatch", "stroke", "soft"), (".down", "fill", "ink"),
    ]  # fmt: skip
    for number in range(palette.CLIENTS):
        full, tint, mine = f"c{number}-full", f"c{number}-tint", f".c{number}"
        rules += [
            (f"{mine}.holds,.lfp {mine}.section,.lfp {mine}.dot", "fill", full),
            (f"{mine}.believes", "stroke", full),
            (f"{mine}.believes,.lfp {mine}.mistaken", "fill", tint),
            (f"{mine}.waits", "stroke", full),
            (f"{mine}.inside", "stroke", tint),
        ]
    return [(f".lfp {selector}", name, colour) for selector, name, colour in rules]


def style() -> str:
    """The style sheet of all pictures: a page needs it once."""
    return _SHAPES + palette.styled(_colours())


def bar(kind: str, colour: str, x: float, y: float, width: float, tip: str, height: float = BAR_H) -> str:
    """A bar of any kind but `paused` and `down`, which lie over others."""
    if kind == "waits":
        return f'<path class="waits {colour}" d="M{x + 2:.1f} {y + height / 2:.1f}H{x + width - 2:.1f}">{tip}</path>'
    inset = 1 if kind in ("believes", "mistaken") else 0  # Half of the outline.
    box = rectangle(x + inset, y + inset, max(width - 2 * inset, 1), height - 2 * inset)
    return f'<rect class="{kind} {colour}" {box} rx="{height / 2 if kind == "section" else 3:g}">{tip}</rect>'


def rectangle(x: float, y: float, width: float, height: float) -> str:
    """The place of a rectangle, as attributes."""
    return f'x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}"'


def tip_of(one: Bar) -> str:
    """What a bar says when pointed at."""
    end = "and does not end" if math.isinf(one.end) else f"to {seconds(one.end)}"
    return f"<title>{escape(clean(one.label or BARS[one.kind]))}: from {seconds(one.start)} {end}</title>"


GLYPHS = {
    "send": '<circle class="glyph" r="3"/>',
    "reply": '<circle class="open" r="3.5" stroke-width="1.5"/>',
    "note": '<circle class="glyph" r="2"/>',
    "lost": '<path class="cross" d="M-5 -5L5 5M5 -5L-5 5"/>',
    "write": '<path class="glyph" d="M-6 -6H6L0 6Z"/>',
    "refused": '<path class="open" stroke-width="1.5" d="M-6 -6H6L0 6Z"/><path class="cross" d="M-7 -1H7"/>',
    "fault": '<path class="fault" d="M0 -8L8 7H-8Z"/><path class="bang" d="M-1 -3H1L.6 2H-.6ZM-1 3.2H1V5H-1Z"/>',
    "fatal": '<circle class="ring" r="10"/>',
}
