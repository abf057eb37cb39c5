"""Text as pictures need it: without controls, with times as people read them, and measured.

What a font makes of a text is not known here, so widths are those of a wide one (Verdana, DejaVu Sans): what
fits by them fits in all.
"""

from __future__ import annotations

import textwrap
import unicodedata

_NARROW = frozenset("ijlI|.,:;'!`()[]{}/\\ ftr-")
_WIDE = frozenset("mwMWQOGDHNU@%&=+<>~#✕◆■✓")


def clean(text: str) -> str:
    """One line without control characters and lone surrogates, which neither XML nor a terminal takes well."""
    text = " ".join(text.split())
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() else "\N{REPLACEMENT CHARACTER}" for one in text)


def seconds(at: float) -> str:
    """1.204 s, 10 s: to the millisecond, without needless zeros."""
    text = f"{at:.3f}".rstrip("0").rstrip(".")
    return f"{'0' if text == '-0' else text} s"


def width_px(text: str, size_px: float) -> float:
    """How wide a text may become at most, roughly, in a proportional font."""
    return sum(map(_em, text)) * size_px


def shorten_px(text: str, size_px: float, room_px: float) -> str:
    """The text, or as much of it as fits, with … at the end; "" when not even two letters fit."""
    if width_px(text, size_px) <= room_px:
        return text
    while text and width_px(text, size_px) + _em("…") * size_px > room_px:
        text = text[:-1]
    text = text.rstrip()
    return f"{text}…" if len(text) > 1 else ""


def columns(text: str) -> int:
    """How many columns of a terminal a text takes."""
    return sum(_columns(one) for one in text)


def shorten(text: str, room: int) -> str:
    """The text in at most `room` columns, with … at the end when there was more."""
    if columns(text) <= room:
        return text
    while text and columns(text) > room - 1:
        text = text[:-1]
    return f"{text.rstrip()}…" if room > 0 else ""


def pad(text: str, room: int) -> str:
    """The text in exactly `room` columns."""
    text = shorten(text, room)
    return text + " " * (room - columns(text))


def wrap(text: str, room: int) -> list[str]:
    """Lines of at most `room` characters, broken at spaces where there are any."""
    return textwrap.wrap(text, max(room, 8), break_on_hyphens=False) or [""]


def _em(one: str) -> float:
    if one in _NARROW:
        return 0.44
    if one in _WIDE:
        return 0.99
    if unicodedata.east_asian_width(one) in "WF":
        return 1.05
    return 0.74 if one.isupper() else 0.66


def _columns(one: str) -> int:
    if unicodedata.combining(one):
        return 0
    return 2 if unicodedata.east_asian_width(one) in "WF" else 1
