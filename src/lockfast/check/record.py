"""Writes down what clients of a real server do, for the checkers: one recorder and one file for each process.

Times are CLOCK_MONOTONIC, which all processes of one host share, so that `io.load(*files)` can join the files. A line
is in the file when the call returns: a process that is killed leaves all that it told. What is recorded never claims
more than was: record `asked` before the acquire and `granted` after it, `leaving` before the release and `left` after
it. A hold that is kept for longer than its lease must tell `renewed` now and then, before its last `until` has passed;
otherwise its belief ends there.

    recorder = Recorder(path, client="worker-1")
    ticket = recorder.asked("orders", lease=8)
    with lf.lock("orders", lease=8) as grant:
        recorder.granted(ticket, grant)
        ...
        recorder.leaving(ticket)
    recorder.left(ticket)
"""

from __future__ import annotations

import itertools
import os
import threading
import time
from typing import TYPE_CHECKING, NamedTuple, Protocol, Self

from lockfast.check.history import Event
from lockfast.check.io import to_line

if TYPE_CHECKING:
    from collections.abc import Callable


class Sure(Protocol):
    """What is read of a grant: its fence, and the seconds for which it is sure. Lockfast's own grants are such."""

    @property
    def fence(self) -> int: ...
    @property
    def remaining(self) -> float: ...


class Claim(NamedTuple):
    """A grant of a lock that has no grants: the seconds for which its holder believes in it, and a fence if any."""

    remaining: float
    fence: int = 0


class _Ask(NamedTuple):
    name: str
    weight: int
    limit: int
    lease_s: float


class Recorder:
    """Appends events to a file. Share it among threads, not among processes: a forked child makes its own."""

    def __init__(self, path: str | os.PathLike[str], client: str, now: Callable[[], float] = time.monotonic) -> None:
        if not client:
            raise ValueError("client must be a text that no other recorder of this history has, got ''")
        self.client = client
        self._now = now
        self._asks: dict[str, _Ask] = {}
        self._numbers = itertools.count(1)
        self._mutex = threading.Lock()  # time is read and written in one step, so that it never goes back in a file
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)

    def asked(self, name: str, *, lease: float = 0.0, weight: int = 1, limit: int = 1) -> str:
        """An acquire starts. Returns what to call it from here on: a grant's own ticket is known too late for this."""
        ticket = f"{self.client}:{next(self._numbers)}"
        self._asks[ticket] = _Ask(name, weight, limit, float(lease))
        self._tell("asked", ticket)
        return ticket

    def granted(self, ticket: str, grant: Sure, note: str = "") -> None:
        """The acquire has returned `grant`."""
        self._tell("granted", ticket, grant, note)

    def renewed(self, ticket: str, grant: Sure, note: str = "") -> None:
        """`grant` is sure for as long as it says now."""
        self._tell("renewed", ticket, grant, note)

    def leaving(self, ticket: str) -> None:
        """A release begins."""
        self._tell("leaving", ticket)

    def left(self, ticket: str) -> None:
        """The release was confirmed."""
        self._tell("left", ticket)

    def lost(self, ticket: str, note: str = "") -> None:
        """The holder has learnt that it is no longer sure."""
        self._tell("lost", ticket, note=note)

    def failed(self, ticket: str, note: str = "") -> None:
        """The acquire ended without a hold."""
        self._tell("failed", ticket, note=note)

    def wrote(self, ticket: str, fence: int = 0, note: str = "") -> None:
        """What is guarded took a write of this holder."""
        self._tell("wrote", ticket, Claim(0.0, fence), note)

    def refused(self, ticket: str, fence: int = 0, note: str = "") -> None:
        """What is guarded turned a write of this holder away."""
        self._tell("refused", ticket, Claim(0.0, fence), note)

    def crashed(self, client: str, note: str = "") -> None:
        """Another client, named as its recorder was, has been killed: told by whoever has seen it dead."""
        self._world("crashed", client=client, note=note)

    def server_lost_memory(self, name: str = "", note: str = "") -> None:
        """The server has forgotten one name, or everything."""
        self._world("server_lost_memory", name=name, note=note)

    def server_clock_jumped(self, by_s: float, note: str = "") -> None:
        """The server's clock was set ahead by `by_s` seconds, or back if negative."""
        self._world("server_clock_jumped", lease=by_s, note=note)

    def quiet(self) -> None:
        """From here on nothing is disturbed, and everybody must be served."""
        self._world("quiet")

    def end(self) -> None:
        """The history was watched until here."""
        self._world("end")

    def _tell(self, what: str, ticket: str, grant: Sure | None = None, note: str = "") -> None:
        ask = self._asks[ticket]
        fence, until = (grant.fence, 0.0) if grant is not None else (0, 0.0)
        with self._mutex:
            at = self._now()
            if grant is not None and what in ("granted", "renewed"):
                until = at + grant.remaining  # the clock was read first: it can only look shorter than it is
            self._write(
                Event(at, what, ask.name, ticket, self.client, fence, ask.weight, ask.limit, until, ask.lease_s, note)
            )

    def _world(self, what: str, *, name: str = "", client: str = "", lease: float = 0.0, note: str = "") -> None:
        with self._mutex:
            self._write(Event(self._now(), what, name, "", client, lease=lease, note=note))

    def _write(self, event: Event) -> None:
        os.write(self._file, f"{to_line(event)}\n".encode())

    def close(self) -> None:
        """Close the file. Whatever is told afterwards is an error."""
        with self._mutex:
            if self._file >= 0:
                os.close(self._file)
            self._file = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
