"""How far long work is, on stderr: a bar on a terminal, else a line now and then."""

from __future__ import annotations

import os
import sys
import time

from lockfast.cli.talk import on_terminal, say

LINE_EVERY_S = 10.0
BAR = 30


class Progress:
    """Counts up to `total` of something: "seeds", "cells"."""

    def __init__(self, total: int, what: str) -> None:
        self._total = total
        self._what = what
        self._bar = on_terminal() and os.environ.get("TERM") != "dumb"
        self._started = self._told_at = time.monotonic()
        self._drawn = False

    def show(self, done: int, note: str = "") -> None:
        """So many are done."""
        now = time.monotonic()
        rate = done / max(now - self._started, 1e-9)
        left_s = (self._total - done) / max(rate, 1e-9)
        words = f"{done} of {self._total} {self._what}, {left_s:.0f} s to go" + (f", {note}" if note else "")
        if self._bar:
            full = BAR * done // self._total
            sys.stderr.write(f"\r\x1b[K[{'#' * full}{' ' * (BAR - full)}] {words}")
            sys.stderr.flush()
            self._drawn = True
        elif now - self._told_at >= LINE_EVERY_S:
            self._told_at = now
            say(words)

    def end(self) -> None:
        """Take the bar away: what follows says it all."""
        if self._drawn:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()
