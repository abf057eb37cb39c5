"""How a server of a quorum says who it is, since when it is up, and whether it has kept its votes.

A server that restarted counts at once if it has lost nothing that it had answered. Settings alone do not show that: an
append-only file may be a new one, as the disk was, and `appendfsync always` may be newer than the crash. So clients
leave a *mark* on a server whose writes last: the run that it was left in, and the server's time since when it has kept
all that it voted. When that is `max_lease` ago, it counts; the mark does not say so itself, as `max_lease` may have
been wrong when it was left. Three cases, for a server that is asked in a run of its own:
- its mark is of this run: somebody has judged this run before, and it has kept all since the time in the mark;
- its mark is of another run, and all it knows was read from an append-only file: it has kept what that run knew;
- else it may have forgotten, and has kept all since it was started.
A server whose writes may get lost has its mark taken away: what follows the mark would not be in the file.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from lockfast.errors import LockfastError, Refused
from lockfast.flows.scripts import ADMIT, LEAVE, VOTE

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

COARSE_S = 1.0  # an uptime is the difference of two whole seconds: it may say that much too much

Words = tuple[str | int, ...]


class Introduction(NamedTuple):
    """What a server says of itself."""

    run_id: str
    uptime_s: int
    lasts: bool  # whether a restart from now on would lose nothing that it answers
    is_whole: bool  # whether that was so since its start
    server_us: int
    max_lease_ms: int  # 0: none is stored
    key: str
    mark: str

    @property
    def short_s(self) -> float:
        """How long its votes do not count yet, from when this was heard."""
        return max(0.0, self.max_lease_ms / 1000 - (self.server_us - self.since_us) / 1e6)

    @property
    def since_us(self) -> int:
        """The server's time since when it has kept all that it voted. What it had before that may be forgotten."""
        since_us = self.server_us - int((self.uptime_s - COARSE_S) * 1e6)
        run_id, marked_us = read_mark(self.mark)
        return min(since_us, marked_us) if run_id and (run_id == self.run_id or self.is_whole) else since_us

    @property
    def new_mark(self) -> str | None:
        """What to store as its mark before it is asked for votes; "": take it away; None: it is as it should be."""
        run_id, _ = read_mark(self.mark)
        if not self.lasts:
            return "" if run_id else None
        if run_id == self.run_id:
            return None
        return f"{self.run_id} {max(self.since_us, 0)}"


def read_mark(mark: str) -> tuple[str, int]:
    """The run that a mark was left in, and the server's time in µs since when all is kept. "": it says nothing."""
    run_id, _, since_us = mark.partition(" ")
    return (run_id, int(since_us)) if since_us.isascii() and since_us.isdigit() else ("", 0)


def mark_key(prefix: str) -> str:
    return f"{prefix}:quorum:run"


def greeting(prefix: str, offer_ms: int) -> list[Words]:
    """The commands that a server introduces itself by. offer_ms: the max_lease to store if it has none; 0: none."""
    key = f"{prefix}:quorum"
    return [
        ("INFO", "server"),
        ("INFO", "persistence"),
        ("CONFIG", "GET", "*appendfsync*"),
        ("SET", key, offer_ms, "NX") if offer_ms else ("EXISTS", key),
        ("GET", key),
        ("GET", mark_key(prefix)),
        ("TIME",),
        # A server that knows the scripts runs a request whoever reads its reply: a `leave` that nobody waits for, too.
        *[("SCRIPT", "LOAD", script.text) for script in (VOTE, LEAVE, ADMIT)],
    ]


def marking(prefix: str, mark: str) -> Words:
    """The command that stores a mark."""
    return "SET", mark_key(prefix), mark


def read_greeting(prefix: str, replies: list[Any], refused: Callable[[Any], LockfastError | None]) -> Introduction:
    """What the replies to `greeting` say. Raises the refusal of what cannot be done without.

    refused: the error that an error reply means; None for any other reply.
    """
    server, persistence, fsync, stored, kept, mark, time = replies[:7]  # scripts can be sent with a request as well
    about = {} if refused(server) else _facts(server)
    mode = about.get("redis_mode", about.get("server_mode", "standalone"))  # Redis, Valkey
    if mode == "sentinel":
        raise Refused("it is a sentinel, and keeps no keys: name independent servers", code="SENTINEL")
    if mode != "standalone":
        raise Refused("it is part of a cluster: a quorum is of independent servers", code="CLUSTER")
    for reply in (server, persistence, stored, kept, mark, time):
        failure = refused(reply)
        if failure is not None:
            raise failure
    facts = _facts(server) | _facts(persistence)
    settings = _texts(fsync) if refused(fsync) is None else []  # who may not ask for them cannot know
    is_lasting = lasts(facts, dict(zip(settings[::2], settings[1::2], strict=False)))
    try:
        return Introduction(
            facts["run_id"],
            int(facts["uptime_in_seconds"]),
            is_lasting,
            is_lasting and not began_later(facts),
            int(time[0]) * 1_000_000 + int(time[1]),
            int(kept or 0),
            f"{prefix}:quorum",
            _texts([mark or ""])[0],
        )
    except (KeyError, ValueError, TypeError) as error:
        raise Refused(f"it does not say what a quorum needs to know: {error!r}", code="INFO") from error


def lasts(facts: Mapping[str, str], settings: Mapping[str, str]) -> bool:
    """Whether all that a server with this INFO and these settings answers is on its disk by then."""
    return (
        facts.get("aof_enabled") == "1"
        and facts.get("aof_last_write_status", "ok") == "ok"
        and settings.get("appendfsync") == "always"
        and settings.get("no-appendfsync-on-rewrite") == "no"  # else it is not, while a child writes something
    )


def began_later(facts: Mapping[str, str]) -> bool:
    """Whether the append-only file may have been switched on since the start: that always writes it anew.

    Then it says nothing of what the server had known before it restarted. A file that has grown is written anew as
    well; that cannot be told apart, and only matters to a server that has just been started.
    """
    return (
        facts.get("aof_last_rewrite_time_sec", "-1") != "-1"
        or facts.get("aof_rewrite_in_progress", "0") != "0"
        or facts.get("aof_rewrite_scheduled", "0") != "0"
    )


def _facts(info: Any) -> dict[str, str]:
    lines = (info.decode() if isinstance(info, bytes) else str(info)).splitlines()
    return dict(line.split(":", 1) for line in lines if ":" in line)


def _texts(reply: Any) -> list[str]:
    return [word.decode(errors="replace") if isinstance(word, bytes) else str(word) for word in reply or []]
