"""`lockfast run` on a lock that needs no server and fails in the way a file says.

Run as a program: `python fake_lock.py MOODFILE run NAME … -- CMD…`. At each renewal the mood is read: "well" raises
the deadline, "silent" is a server that does not answer, "hung" one that never does, "gone" a hold that was taken
away; with "slow" the lock is not to be had at all. Every deadline is noted beside the mood file, so that a test can
tell what was promised, and so is the release.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any, Self

from lockfast.cli import main, run
from lockfast.clock import now
from lockfast.errors import LeaseLost, Unreachable

# As unique as a real one: the guard kills whatever has it in its environment.
TICKET = f"fake-{os.urandom(12).hex()}"


class FakeGrant:
    """The part of Grant that the command line uses."""

    ticket = TICKET
    fence = 7

    def __init__(self, mood: Path, lease_s: float) -> None:
        self._mood = mood
        self._lease_s = lease_s
        self._promise(now())

    def extend(self) -> None:
        asked = now()
        mood = self._mood.read_text()
        if mood == "hung":
            time.sleep(self._lease_s * 3)
        if mood == "silent":
            raise Unreachable("no answer from the fake")
        if mood == "gone" or asked >= self.deadline:
            raise LeaseLost("the fake took it away")
        self._promise(asked)

    def release(self) -> None:
        self._note("released")
        if self._mood.read_text() == "gone" or now() >= self.deadline:
            raise LeaseLost("the fake took it away")

    @property
    def remaining(self) -> float:
        return max(self.deadline - now(), 0)

    def _promise(self, asked: float) -> None:
        self.deadline = asked + self._lease_s * 0.99 - 0.002
        self._note(repr(self.deadline))

    def _note(self, text: str) -> None:
        with self._mood.with_suffix(".notes").open("a") as notes:
            notes.write(text + "\n")


class FakeClient:
    """The part of Lockfast that `run` uses."""

    def __init__(self, mood: Path) -> None:
        self._mood = mood

    def lock(self, *_parts: str, lease: float, wait: float | None, renew: bool) -> Self:
        assert not renew, "the command line renews by itself"
        self._lease_s = lease
        return self

    def acquire(self) -> FakeGrant:
        if self._mood.read_text() == "slow":
            time.sleep(3600)
        return FakeGrant(self._mood, self._lease_s)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass


def fake_main() -> int:
    mood = Path(sys.argv[1])
    module: Any = run
    module.connect = lambda *_, **__: FakeClient(mood)
    return main.main(sys.argv[2:])


if __name__ == "__main__":
    sys.exit(fake_main())
