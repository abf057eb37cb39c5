"""What the command says and how it ends: exit codes, lines on stderr, times and durations in words.

stdout is data and belongs to `ls`, `show` and the command that `run` starts; everything said to people is
on stderr.
"""

from __future__ import annotations

import sys
import time

# From sysexits.h where it has a fitting word; 76 is EX_PROTOCOL there.
USAGE = 64
UNREACHABLE = 69
IO_ERROR = 74
BUSY = 75
LOST = 76
REFUSED = 77
NOT_EXECUTABLE = 126
NOT_FOUND = 127
BY_SIGNAL = 128  # plus the number of the signal


class Failure(Exception):
    """Ends the command with an exit code, a line that says what happened, and a hint what to do about it."""

    def __init__(self, code: int, message: str, hint: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.hint = hint


def say(message: str) -> None:
    """One line on stderr. A closed or broken stderr is no reason to stop guarding a command."""
    try:
        sys.stderr.write(f"lockfast: {clean(message)}\n")
        sys.stderr.flush()
    except (OSError, ValueError, AttributeError):
        pass


def hint(message: str) -> None:
    """What to do next, as the last line of an error."""
    try:
        sys.stderr.write(f"hint: {clean(message)}\n")
        sys.stderr.flush()
    except (OSError, ValueError, AttributeError):
        pass


def on_terminal() -> bool:
    """Whether a person is likely to read stderr as it is written."""
    try:
        return sys.stderr.isatty()
    except (ValueError, AttributeError):
        return False


def clean(text: str) -> str:
    """Text of other people's labels and names without line breaks and terminal controls."""
    if text.isprintable():
        return text
    return "".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in text)


def shorten(text: str, length: int) -> str:
    """At most `length` characters, the end replaced by … when there were more."""
    return text if len(text) <= length else text[: length - 1] + "…"


def duration(span_s: float) -> str:
    """Seconds as people read them: 350ms, 4.2s, 27s, 2m10s, 3h05m, 2d04h."""
    if span_s < 0.9995:
        return f"{max(span_s, 0) * 1000:.0f}ms"
    if span_s < 9.95:
        return f"{span_s:.1f}s"
    whole = round(span_s)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02d}s"
    if whole < 86400:
        return f"{whole // 3600}h{whole % 3600 // 60:02d}m"
    return f"{whole // 86400}d{whole % 86400 // 3600:02d}h"


def moment(since_s: float) -> str:
    """A point in time by the wall clock, with the day only when it is not today."""
    then, today = time.localtime(since_s), time.localtime()
    if then[:3] == today[:3]:
        return time.strftime("%H:%M:%S", then)
    return time.strftime("%Y-%m-%d %H:%M:%S", then)


def table(rows: list[tuple[str, ...]], indent: str = "") -> str:
    """Rows of text in aligned columns, two spaces apart, nothing trailing."""
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
    return "".join(f"{indent}{line.rstrip()}\n" for line in lines)
