"""The process that starts, stops and ends all others of a run on real servers, so that none of them outlives it.

It is told what to do in lines of JSON on stdin and answers each on stdout. When stdin ends, for whatever reason (done,
Ctrl-C, or whoever asked was killed), it kills every process that it started and removes the directory of the run. Being
their parent, it knows that a pid is still theirs: nobody else can have it before it has waited for it.

Players are forked from here, where everything is imported already; servers are programs.
"""

from __future__ import annotations

import gc
import json
import os
import shutil
import signal
import sys
import tempfile
from typing import Any

from lockfast.lab import real_player

PREFIX = "lockfast-lab-"


class Stagehand:
    """Whom it started, by group: the players and servers of one run of one cell."""

    def __init__(self) -> None:
        self._groups: dict[str, set[int]] = {}

    def do(self, order: dict[str, Any]) -> dict[str, Any]:
        """Carry out one order."""
        what = order["do"]
        if what == "player":
            return {"pid": self._joined(order, _fork(order["part"]))}
        if what == "server":
            return {"pid": self._joined(order, _spawn(order["argv"], order["env"]))}
        if what == "end":
            self.end(order["group"])
            shutil.rmtree(order["directory"], ignore_errors=True)
        else:
            assert what == "signal", what
            self._signal(order["group"], order["pid"], signal.Signals[order["signal"]])
        return {}

    def _joined(self, order: dict[str, Any], pid: int) -> int:
        self._groups.setdefault(order["group"], set()).add(pid)
        return pid

    def _signal(self, group: str, pid: int, number: signal.Signals) -> None:
        """Send a signal, and return when it has done its work."""
        if pid not in self._groups.get(group, ()):
            return  # it has ended, and its number may be another's by now
        os.kill(pid, number)
        if number == signal.SIGCONT:
            return
        _, status = os.waitpid(pid, os.WUNTRACED)
        if not os.WIFSTOPPED(status):
            self._groups[group].discard(pid)

    def end(self, group: str) -> None:
        """Kill whoever is left of a group."""
        pids = self._groups.pop(group, set())
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        for pid in pids:
            os.waitpid(pid, 0)

    def end_all(self) -> None:
        for group in list(self._groups):
            self.end(group)


def _fork(part: dict[str, Any]) -> int:
    pid = os.fork()
    if pid:
        return pid
    try:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        nowhere = os.open(os.devnull, os.O_RDWR)
        os.dup2(nowhere, 0)  # the orders are not for a player
        os.dup2(nowhere, 1)
        real_player.main(part)
    finally:
        os._exit(0)  # whatever happened: a player must never get to the end of the stagehand's own work


def _spawn(argv: list[str], env: dict[str, str]) -> int:
    nowhere = [(os.POSIX_SPAWN_OPEN, fd, os.devnull, os.O_RDWR, 0) for fd in (0, 1, 2)]
    return os.posix_spawn(argv[0], argv, env, file_actions=nowhere)


def main() -> None:
    """Do what is asked until stdin ends."""
    hand = Stagehand()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    gc.freeze()  # what is imported stays shared with the players, which a collection would copy
    directory = tempfile.mkdtemp(prefix=PREFIX)
    try:
        _say({"directory": directory})
        for line in sys.stdin.buffer:
            _say(hand.do(json.loads(line)))
    except BrokenPipeError:
        pass  # nobody listens any more: the same as the end of stdin
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        hand.end_all()
        shutil.rmtree(directory, ignore_errors=True)


def _say(answer: dict[str, Any]) -> None:
    sys.stdout.buffer.write(json.dumps(answer).encode() + b"\n")
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
