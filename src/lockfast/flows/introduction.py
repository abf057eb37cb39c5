"""How a server of a quorum says who it is, since when it is up, and whether it has kept its votes.

A server that restarted counts at once if it has lost nothing that it had answered. Settings alone do not show that: an
append-only file may be a new one, as the disk was, and `appendfsync always` may be newer than the crash. So clients
leave a *mark* on a server whose writes last: the run that it was left in, and the server's time from which that run
counts. Three cases, for a server that is asked in a run of its own:
- its mark is of this run: somebody has judged this run before, and the mark says what came of it;
- its mark is of another run, and all it knows was read from an append-only file: it has kept what that run knew, and
  counts from when that one did;
- else it may have forgotten, and counts when it has been up for `max_lease`.
A server whose writes may get lost has its mark taken away: what follows the mark would not be in the file.
"""

from __future__ import annotations

from math import ceil
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
        short_s = self.max_lease_ms / 1000 + COARSE_S - self.uptime_s
        run_id, counts_us = read_mark(self.mark)
        if run_id and (run_id == self.run_id or self.is_whole):
            short_s = min(short_s, (counts_us - self.server_us) / 1e6)
        return max(0.0, short_s)

    @property
    def new_mark(self) -> str | None:
        """What to store as its mark before it is asked for votes; "": take it away; None: it is as it should be."""
        run_id, _ = read_mark(self.mark)
        if not self.lasts:
            return "" if run_id else None
        if run_id == self.run_id:
            return None
        short_s = self.short_s
        return f"{self.run_id} {self.server_us + ceil(short_s * 1e6) if short_s else 0}"


def read_mark(mark: str) -> tuple[str, int]:
    """The run that a mark was left in, and the server's time in µs from which that run counts. "": it says nothing."""
    run_id, _, counts_us = mark.partition(" ")
    return (run_id, int(counts_us)) if counts_us.isascii() and counts_us.isdigit() else ("", 0)


def mark_key(prefix: str) -> str:
    return f"{prefix}:quorum:run"


def greeting(prefix: str, offer_ms: int) -> list[Words]:
    """The commands that a server introduces itself by. offer_ms: the max_lease to store if it has none; 0: none."""
    key = f"{prefix}:quorum"
    return [
        ("INFO", "server"),
        ("INFO", "persistence"),
        ("CONFIG", "GET", "appendfsync"),
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
    # Who may not ask for the setting cannot know.
    is_lasting = lasts(facts, _texts(fsync)[-1] if refused(fsync) is None and fsync else "")
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


def lasts(facts: Mapping[str, str], appendfsync: str) -> bool:
    """Whether all that a server with this INFO and this setting answers is on its disk by then."""
    return (
        facts.get("aof_enabled") == "1"
        and facts.get("aof_last_write_status", "ok") == "ok"
        and appendfsync == "always"
    )  # fmt: skip


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
