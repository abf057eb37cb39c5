"""Whose turn it is at the keyboard.

A terminal sends Ctrl-C and Ctrl-Z to its foreground process group and lets only that group read. The
command has a group of its own, so while it runs the terminal is handed to it, and taken back when it stops
or ends. Only when stdin is the terminal and this process is in its foreground: in a pipeline whose first
part reads the keyboard, or after `&`, the terminal is not ours to give.
"""

from __future__ import annotations

import os
import signal


class Terminal:
    """The terminal on stdin, if there is one."""

    def __init__(self, pgid: int) -> None:
        self._pgid = pgid
        self._given = False
        try:
            self._there = os.isatty(0)
        except OSError:
            self._there = False
        if self._there:
            # Taking the terminal back is done from the background, which would stop us.
            signal.signal(signal.SIGTTOU, signal.SIG_IGN)

    def give(self) -> None:
        """Hand the terminal to the command's group, if it is ours now. Also called after any pause."""
        if self._there:
            foreground = _foreground()
            if foreground == os.getpgrp():
                self._given = _set_foreground(self._pgid)
            elif foreground != self._pgid:
                self._given = False  # A shell took it while we were stopped, and we go on in the background.

    def take(self) -> None:
        """Take back what was given."""
        if self._given:
            _set_foreground(os.getpgrp())
        self._given = False

    def stop_with_it(self) -> None:
        """The command was stopped from the keyboard: stop too, so that the shell comes back.

        Returns when continued. Where nobody could do that (no shell with job control above), the kernel
        ignores the signal and this returns at once.
        """
        self.take()
        before = signal.signal(signal.SIGTSTP, signal.SIG_DFL)
        try:
            os.killpg(os.getpgrp(), signal.SIGTSTP)  # The whole pipeline around us, as Ctrl-Z would.
        finally:
            signal.signal(signal.SIGTSTP, before)


def _foreground() -> int:
    try:
        return os.tcgetpgrp(0)
    except OSError:  # Not our controlling terminal, or hung up.
        return -1


def _set_foreground(pgid: int) -> bool:
    try:
        os.tcsetpgrp(0, pgid)
    except OSError:  # Hung up, or the group has ended.
        return False
    return True
