"""What one server says of itself, and what was measured from here. Asks only; findings.py judges.

Every command may be refused or stay unanswered: the fact is then not known, and `not_told` says why.
"""

from __future__ import annotations

import re
import statistics
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from lockfast import names
from lockfast.clock import now
from lockfast.doctor import rights
from lockfast.doctor.asking import Asker, NotTold, lines, pairs, text
from lockfast.drivers import diagnosis
from lockfast.errors import LockfastError, Refused
from lockfast.flows import denials
from lockfast.flows.introduction import mark_key

if TYPE_CHECKING:
    from lockfast.doctor.rights import Rights
    from lockfast.endpoints import Endpoint

SETTINGS = (
    "appendonly",
    "appendfsync",
    "no-appendfsync-on-rewrite",
    "save",
    "maxmemory",
    "maxmemory-policy",
    "min-replicas-to-write",
    "timeout",
    "tcp-keepalive",
    "client-output-buffer-limit",
    "lua-time-limit",
    "maxclients",
    "cluster-require-full-coverage",
)
TRIPS = 20
TRIES_IN_CLUSTER = 8
TRIPS_S = 1.0  # on a slow way fewer are made
FORMAT = "1"  # of the states that lua/state.lua writes
MOST_SCANS = 20  # of 500 keys each: a look at a large database, not a walk through it
_STATE = re.compile(r"(\d+) [a-z]+ \d+ (\d+) (\d+) (\d+) \d+ (\S+) (\d+) \d+ ")


@dataclass(frozen=True)
class Names:
    """Keys in the database: our names, those in use, what is under our prefix and not ours, and all others."""

    known: int = 0
    in_use: int = 0
    strange: tuple[str, ...] = ()
    others: int = 0
    newest_fence: int = 0
    partial: bool = False


@dataclass(frozen=True)
class Facts:
    """One server that let us in."""

    where: str
    transport: str  # unix, tcp or tls
    host: str = ""
    directory: str = ""  # of the embedded server; "" for any other
    prefix: str = "lockfast"
    has_password: bool = False
    user: str = ""
    info: dict[str, str] = field(default_factory=dict)
    config: dict[str, str] = field(default_factory=dict)
    rights: Rights | None = None
    trips_ms: tuple[float, ...] = ()
    offset_s: float | None = None  # the server's clock less this host's
    offset_error_s: float = 0.0
    time_s: float = 0.0  # the server's
    names: Names | None = None
    max_lease: str | None = None  # as a quorum stored it
    mark: str = ""  # that a quorum left; see flows/introduction.py
    not_told: tuple[NotTold, ...] = ()
    silences: tuple[str, ...] = ()

    @property
    def product(self) -> str:
        if "valkey_version" in self.info:
            return "valkey"
        return self.info.get("server_name") or ("redis" if "redis_version" in self.info else "")

    @property
    def version(self) -> str:
        return self.info.get("valkey_version") or self.info.get("redis_version", "")

    @property
    def role(self) -> str:
        """primary, replica or sentinel; "" when not known."""
        if self.mode == "sentinel":
            return "sentinel"
        return {"master": "primary", "slave": "replica", "replica": "replica"}.get(self.info.get("role", ""), "")

    @property
    def mode(self) -> str:
        """standalone, sentinel or cluster; newer Valkeys call it by another name."""
        return self.info.get("redis_mode") or self.info.get("server_mode", "")

    @property
    def in_cluster(self) -> bool:
        return self.info.get("cluster_enabled") == "1" or self.mode == "cluster"

    def number(self, name: str) -> int | None:
        """A whole number of INFO or CONFIG; None when it is not known."""
        value = self.info.get(name, self.config.get(name, ""))
        return int(value) if value.isascii() and value.isdigit() else None

    @property
    def median_ms(self) -> float | None:
        return statistics.median(self.trips_ms) if self.trips_ms else None


@dataclass(frozen=True)
class Unreached:
    """One server that did not let us in. code: "" when it did not answer, else the first word of its refusal.

    flaw: of a certificate; see diagnosis.flaw_of.
    """

    where: str
    words: str
    code: str = ""
    flaw: str = ""


def examine(endpoint: Endpoint, *, prefix: str, clustered: bool, timeout_s: float, by: float) -> Facts | Unreached:
    """Ask one server everything. clustered: as a node of a cluster. by: when to stop, on clock.now()."""
    try:
        with Asker(endpoint, timeout_s, by) as asker:
            return _ask(asker, prefix, clustered)
    except LockfastError as error:
        return unreached(endpoint.where, error)


def unreached(where: str, error: LockfastError) -> Unreached:
    """What it means that nobody was let in."""
    if not isinstance(error, Refused):
        return Unreached(where, str(error))
    flaw = diagnosis.flaw_of(error) if error.code == "CERTIFICATE" else ""
    return Unreached(where, str(error), error.code or "REFUSED", flaw)


def _ask(asker: Asker, prefix: str, clustered: bool) -> Facts:
    endpoint = asker.endpoint
    not_told: list[NotTold] = []

    def told(*words: str | int) -> object:
        reply = asker.ask(*words)
        if isinstance(reply, NotTold):
            not_told.append(reply)
            return None
        return reply

    info = lines(told("INFO"))
    if not info and (hello := pairs(asker.ask("HELLO"))):
        info = {"redis_version": hello.get("version", ""), "server_name": hello.get("server", "")}
        info |= {"role": hello.get("role", ""), "redis_mode": hello.get("mode", "")}
    alone = Facts(endpoint.where, _transport(endpoint), endpoint.host, info=info, silences=tuple(asker.silences))
    if alone.role == "sentinel":
        return alone
    config = _settings(asker, not_told)
    whoami = asker.ask("ACL", "WHOAMI")
    if isinstance(whoami, NotTold):
        not_told.append(whoami)
    user = text(whoami) or user_of(endpoint, whoami.words if isinstance(whoami, NotTold) else "")
    trips_ms, offset_s, error_s, time_s = _measure(asker)
    tried = rights.trial(asker, prefix, user, clustered=clustered)
    for _ in range(TRIES_IN_CLUSTER):  # a name of this node's own tells more than one that it sends elsewhere
        if tried is None or "MOVED" not in tried.states:
            break
        tried = rights.trial(asker, prefix, user, clustered=clustered)
    found = _look(asker, prefix, time_s)
    stored, mark = asker.ask("GET", quorum_key(prefix)), asker.ask("GET", mark_key(prefix))
    return Facts(
        where=endpoint.where,
        transport=_transport(endpoint),
        host=endpoint.host,
        directory=_directory() if endpoint.embedded else "",
        prefix=prefix,
        has_password=endpoint.password is not None,
        user=user,
        info=info,
        config=config,
        rights=tried,
        trips_ms=trips_ms,
        offset_s=offset_s,
        offset_error_s=error_s,
        time_s=time_s,
        names=found,
        max_lease=text(stored) if isinstance(stored, bytes) else None,
        mark=text(mark) if isinstance(mark, bytes) else "",
        not_told=tuple(not_told),
        silences=tuple(asker.silences),
    )


def user_of(endpoint: Endpoint, words: str = "") -> str:
    """The account that is connected, where it may not be asked for: as a refusal names it, or else the URL."""
    return denials.user_of(words) or endpoint.username or "default"


def quorum_key(prefix: str) -> str:
    """Where the nodes of a quorum keep their longest lease in ms, as decimal text."""
    return f"{prefix}:quorum"


def _directory() -> str:
    from lockfast._rendezvous import find_place

    place = find_place(create=False)
    return place.directory if place else ""


def _transport(endpoint: Endpoint) -> str:
    if endpoint.embedded or endpoint.path:
        return "unix"
    return "tcp" if endpoint.tls is None else "tls"


def _settings(asker: Asker, not_told: list[NotTold]) -> dict[str, str]:
    """One at a time and not in one CONFIG GET: Redis 6.2 takes only one; but all in one trip."""
    found: dict[str, str] = {}
    for reply in asker.ask_all([("CONFIG", "GET", setting) for setting in SETTINGS]):
        if isinstance(reply, NotTold):
            not_told.append(reply)
            break
        found |= pairs(reply)
    return found


def _measure(asker: Asker) -> tuple[tuple[float, ...], float | None, float, float]:
    """Trips in ms; the server's clock less ours, and how far that may be wrong, by the quickest trip; its time."""
    trips: list[float] = []
    best: tuple[float, float, float] | None = None  # half a trip, offset, the server's time
    question = "TIME"
    end = now() + TRIPS_S
    while len(trips) < TRIPS and (len(trips) < 3 or now() < end):
        wall_s, began = time.time(), now()
        reply = asker.ask(question)
        trip_s = now() - began
        if isinstance(reply, NotTold):
            if reply.silent or question == "PING":
                break
            question = "PING"  # an account without TIME still has a way whose length can be measured
            continue
        trips.append(trip_s * 1000)
        server_s = _seconds(reply)
        if server_s is not None and (best is None or trip_s / 2 < best[0]):
            best = trip_s / 2, server_s - (wall_s + trip_s / 2), server_s
    if best is None:
        return tuple(trips), None, 0.0, 0.0
    return tuple(trips), best[1], best[0], best[2]


def _seconds(reply: Any) -> float | None:
    """What TIME told; None for anything else."""
    if not isinstance(reply, list):
        return None
    try:
        whole, micros = reply
        return int(whole) + int(micros) / 1e6
    except (TypeError, ValueError, OverflowError):
        return None


def _look(asker: Asker, prefix: str, time_s: float) -> Names | None:
    """Count keys by what they are."""
    known = in_use = others = newest = untold = 0
    strange: list[str] = []
    cursor = "0"
    for _ in range(MOST_SCANS):
        reply = asker.ask("SCAN", cursor, "COUNT", 500)
        if not isinstance(reply, list) or len(reply) != 2 or not isinstance(reply[1], list):
            return None
        cursor, keys = text(reply[0]), [text(key) for key in reply[1]]
        states = [key for key in keys if names.parts_of_key(prefix, key) is not None]
        others += sum(not key.startswith(f"{prefix}:") for key in keys)
        values = asker.ask_all([("GET", key) for key in states]) if states else []
        for key, value in zip(states, values, strict=True):
            if value is None or (key == quorum_key(prefix) and text(value).isdigit()):
                continue  # gone meanwhile; or the longest lease of a quorum
            if isinstance(value, NotTold) and value.code != "WRONGTYPE":
                untold += 1  # it may not be read, or its slot is being moved: whose it is stays open
                continue
            match = _STATE.match(text(value))
            if match is None or match[1] != FORMAT:
                strange.append(key)
                continue
            known += 1
            newest = max(newest, int(match[2]))
            is_held = match[3] != "0" if match[5] == "-" else int(match[6]) > time_s * 1000
            in_use += is_held or match[4] != "0"
        if cursor == "0":
            break
    return Names(known, in_use, tuple(strange), others, newest, partial=cursor != "0" or untold > 0)
