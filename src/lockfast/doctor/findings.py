"""What the facts of one server mean for locks. Pure: facts in, findings out; why and how to mend is in catalogue.py."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from lockfast.doctor import access
from lockfast.doctor.catalogue import Finding, counted, found, redis_cli

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lockfast.doctor.facts import Facts, Unreached

OLDEST = (6, 2)
WITH_FLAGS = (7, 0)
NEAR = 0.9  # of maxmemory
CLIENTS_NEAR = 0.8  # of maxclients
LAG_S = 10
CLOCK_OFF_S, CLOCK_FAR_S = 1.0, 120.0
TRIP_HIGH_MS, TRIP_TOO_HIGH_MS, TRIP_UNEVEN_MS = 20.0, 250.0, 250.0
PUSH_BUFFER = 1 << 20
CERTIFICATES = {
    "authority": "certificate",
    "name": "certificate-name",
    "expired": "certificate-expired",
    "client": "certificate-client",
}
LOOPBACK = ("localhost", "::1")


def judge_unreached(one: Unreached) -> Finding:
    """Why a server did not let us in."""
    key = {"": "unreachable", "DENIED": "protected", "SETTINGS": "tls-settings"}.get(one.code, "refused")
    if one.code == "CERTIFICATE":
        key = CERTIFICATES[one.flaw]
    elif one.code in ("NOAUTH", "WRONGPASS"):
        key = "not-let-in"
    elif not one.code and "answers 'BUSY" in one.words:
        key = "role-busy"
    elif not one.code and "answers 'LOADING" in one.words:
        key = "role-loading"
    elif not one.code and "max number of clients" in one.words:
        key = "clients-at-limit"
    # A protected server takes what mends it from its own host only.
    at = re.sub(r"//.*:", "//127.0.0.1:", one.where) if key == "protected" else one.where
    return found(key, one.where, one.words, at=at, attempt=_attempt(one.where))


def judge(facts: Facts, shape: str = "") -> list[Finding]:
    """All findings about one server. shape: "quorum", "sentinel" or "cluster" when it is part of one."""
    if facts.silences:
        seen = f"no answer to {', '.join(facts.silences)}"
        silence = [found("no-answer", facts.where, seen)]
    else:
        silence = []
    if facts.role == "sentinel":
        return [*silence, found("role-sentinel", facts.where, "this is a Sentinel", address=_address(facts.where))]
    parts = [_version(facts), _role(facts, shape), access.judge(facts, shape), _memory(facts), _replicas(facts, shape)]
    if shape != "quorum":  # there, memory that is lost is the quorum's business: see quorum.py
        parts.append(_persistence(facts))
    parts += [_disk(facts), _clock(facts), _latency(facts), _connections(facts), _neighbours(facts)]
    parts.append(_scope(facts, shape))
    return silence + [finding for part in parts for finding in part]


def version_of(facts: Facts) -> tuple[int, ...]:
    """Numbers to compare, as Redis counts them: Valkey tells the Redis that it is compatible with as well."""
    words = facts.info.get("redis_version", "").split(".")
    return tuple(int(word) for word in words if word.isdigit())


def _version(facts: Facts) -> Iterator[Finding]:
    version, shown = version_of(facts), f"{facts.product} {facts.version}"
    knows = facts.rights.knows_flags if facts.rights else None
    if version and version < OLDEST:
        yield found("version-too-old", facts.where, shown)
    elif knows is False or (version and version < WITH_FLAGS and knows is None):
        yield found("script-flags-unknown", facts.where, shown)
    elif version:
        yield found("version-ok", facts.where, shown)


def _role(facts: Facts, shape: str) -> Iterator[Finding]:
    states = facts.rights.states if facts.rights else {}
    if facts.info.get("loading") == "1" or "LOADING" in states:
        yield found("role-loading", facts.where, "it is reading its data from disk")
    if "BUSY" in states:
        yield found("role-busy", facts.where, states["BUSY"])
    if facts.role == "replica" or "READONLY" in states:
        host, port = facts.info.get("master_host", ""), facts.info.get("master_port", "")
        primary = f"redis://{host}:{port}" if host else "which INFO replication tells"
        yield found("role-replica", facts.where, "this is a replica", primary=primary)
    elif facts.in_cluster and shape != "cluster":
        yield found("role-cluster-node", facts.where, "this is a node of a cluster", address=_address(facts.where))
    elif facts.role == "primary":
        yield found("role-primary", facts.where, "primary")


def _persistence(facts: Facts) -> Iterator[Finding]:
    aof, fsync, save = facts.info.get("aof_enabled"), facts.config.get("appendfsync"), facts.config.get("save")
    if aof is None:
        return
    if aof == "1":
        if facts.directory:
            yield found("persistence-embedded", facts.where, "append-only file, written before each answer")
        elif fsync is None:
            yield found("persistence-unsure", facts.where, "append-only file; appendfsync is not known")
        else:
            key = {"always": "persistence-always", "everysec": "persistence-everysec"}.get(
                fsync, "persistence-no-fsync"
            )
            yield found(key, facts.where, f"append-only file, appendfsync {fsync}")
    elif save == "":
        yield found("persistence-none", facts.where, "appendonly no, no snapshots")
    else:
        what = "snapshots only" if save else "no append-only file; whether snapshots are made is not known"
        yield found("persistence-snapshots", facts.where, f"{what}, save {save!r}" if save else what)


def _disk(facts: Facts) -> Iterator[Finding]:
    states = facts.rights.states if facts.rights else {}
    failing = [
        name
        for name in ("aof_last_write_status", "aof_last_bgrewrite_status", "rdb_last_bgsave_status")
        if facts.info.get(name, "ok") != "ok"
    ]
    if "MISCONF" in states:
        yield found("disk-refuses", facts.where, f"it answers {states['MISCONF']!r}")
    elif failing:
        yield found("disk-failing", facts.where, f"{', '.join(failing)}: err")


def _memory(facts: Facts) -> Iterator[Finding]:
    policy = facts.info.get("maxmemory_policy") or facts.config.get("maxmemory-policy")
    limit = facts.number("maxmemory")
    used = facts.number("used_memory") or 0
    shown = f"maxmemory {limit or 0:,} bytes" if limit else "no maxmemory"
    if policy is not None and policy != "noeviction":
        # Without the limit being known, the worse is taken to be true.
        key = "eviction-waiting" if limit == 0 else "eviction-on"
        yield found(key, facts.where, f"maxmemory-policy {policy}, {shown}")
    elif policy is not None:
        yield found("eviction-none", facts.where, f"maxmemory-policy noeviction, {shown}")
    if (facts.rights and "OOM" in facts.rights.states) or (limit and used >= limit):
        yield found("memory-full", facts.where, f"{used:,} bytes used, {shown}")
    elif limit and used >= limit * NEAR:
        yield found("memory-near", facts.where, f"{used:,} bytes used, {shown}")


def _replicas(facts: Facts, shape: str) -> Iterator[Finding]:
    states = facts.rights.states if facts.rights else {}
    count, wanted = facts.number("connected_slaves") or 0, facts.number("min-replicas-to-write")
    if "NOREPLICAS" in states:
        good = facts.number("min_slaves_good_slaves") or 0
        seen = f"min-replicas-to-write {wanted or '?'}, {good} in touch"
        yield found("replicas-missing", facts.where, seen, good=good)
    if facts.role != "primary" or not count:
        return
    shown = counted(count, "replica")
    if wanted == 0:
        yield found("replicas-unguarded", facts.where, f"{shown}, min-replicas-to-write 0")
    if facts.info.get("aof_enabled") == "0" and facts.config.get("save") == "":
        yield found("replicas-emptied", facts.where, f"{shown}, nothing on disk")
    yield found("replicas-unwaited" if shape in access.WITHOUT_COPIES else "replicas-async", facts.where, shown)
    late = []
    for number in range(count):
        fields = dict(part.split("=", 1) for part in facts.info.get(f"slave{number}", "").split(",") if "=" in part)
        lag = fields.get("lag", "0")
        if fields and (fields.get("state") != "online" or not lag.isdigit() or int(lag) > LAG_S):
            late.append(f"{fields.get('ip')}:{fields.get('port')} {fields.get('state')}, {lag} s behind")
    if late:
        yield found("replicas-lag", facts.where, "; ".join(late))


def _clock(facts: Facts) -> Iterator[Finding]:
    if facts.offset_s is None:
        return
    sure_s = max(abs(facts.offset_s) - facts.offset_error_s, 0.0)
    side = "ahead of" if facts.offset_s > 0 else "behind"
    seen = f"{abs(facts.offset_s):.3f} s {side} this host, measured to ±{facts.offset_error_s * 1000:.1f} ms"
    key = "clock-far" if sure_s > CLOCK_FAR_S else "clock-off" if sure_s > CLOCK_OFF_S else "clock-ok"
    yield found(key, facts.where, seen)
    saved_s = facts.number("rdb_last_save_time") or 0  # set at the start as well
    fence_s = facts.names.newest_fence / 1e6 if facts.names else 0.0
    back_s = max(saved_s, fence_s) - facts.time_s
    if back_s > CLOCK_OFF_S:
        what = "the last save or start" if saved_s >= fence_s else "the newest fence"
        yield found("clock-went-back", facts.where, f"{what} is {back_s:.0f} s ahead of its clock")


def _latency(facts: Facts) -> Iterator[Finding]:
    median_ms = facts.median_ms
    if median_ms is None:
        return
    slowest_ms = max(facts.trips_ms)
    seen = f"median {median_ms:.2f} ms, worst {slowest_ms:.2f} ms of {len(facts.trips_ms)}"
    if median_ms > TRIP_TOO_HIGH_MS:
        yield found("latency-too-high", facts.where, seen)
    elif slowest_ms > TRIP_UNEVEN_MS:
        yield found("latency-uneven", facts.where, seen)
    else:
        yield found("latency-high" if median_ms > TRIP_HIGH_MS else "latency-ok", facts.where, seen)


def _connections(facts: Facts) -> Iterator[Finding]:
    idle_s, keepalive_s = facts.number("timeout"), facts.number("tcp-keepalive")
    if idle_s:
        yield found("idle-timeout", facts.where, f"timeout {idle_s}")
    if keepalive_s == 0 and facts.transport != "unix":
        yield found("keepalive-off", facts.where, "tcp-keepalive 0")
    clients, most = facts.number("connected_clients"), facts.number("maxclients")
    if clients and most and clients >= most * CLIENTS_NEAR:
        yield found("clients-near-limit", facts.where, f"{clients} of {most} connections in use")
    words = facts.config.get("client-output-buffer-limit", "").split()
    hard = words[words.index("pubsub") + 1] if "pubsub" in words else "0"
    if hard.isdigit() and 0 < int(hard) < PUSH_BUFFER:
        yield found("push-buffer-small", facts.where, f"client-output-buffer-limit pubsub {hard} bytes")
    if facts.number("lua-time-limit") == 0:
        yield found("script-limit-off", facts.where, "lua-time-limit 0")


def _neighbours(facts: Facts) -> Iterator[Finding]:
    names = facts.names
    if names is None:
        return
    least = "at least " if names.partial else ""
    if names.strange:
        shown = ", ".join(names.strange[:3]) + (" …" if len(names.strange) > 3 else "")
        yield found("keys-not-ours", facts.where, f"{len(names.strange)}: {shown}")
    if names.others:
        yield found("shared-database", facts.where, f"{least}{counted(names.others, 'key')} of others in this database")
    yield found("names-in-use", facts.where, f"{least}{names.in_use} in use, {names.known} remembered")


def _scope(facts: Facts, shape: str) -> Iterator[Finding]:
    host = facts.host.lower()
    if facts.directory:
        yield found("scope-embedded", facts.where, f"embedded: this user on this host only, in {facts.directory}")
    elif facts.transport == "unix":
        yield found("scope-host", facts.where, "a unix socket")
    elif host in LOOPBACK or host.startswith("127."):
        yield found("scope-host", facts.where, f"{facts.host} is this host")
    elif not facts.has_password:
        rules = access.all_rules(facts.prefix, shape)
        yield found("scope-open", facts.where, "no password is asked for", rules=rules)


def _attempt(where: str) -> list[str]:
    """A command that tries to reach a server."""
    return [*redis_cli(where), "PING"] if "://" in where else ["lockfast", "server", "status"]


def _address(where: str) -> str:
    """host:port of a URL."""
    return where.partition("://")[2].partition("/")[0]
