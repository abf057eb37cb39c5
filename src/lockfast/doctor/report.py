"""The whole examination: which servers are asked, in what order, and what all findings come to."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from lockfast import names
from lockfast.clock import now
from lockfast.doctor import cluster, facts, sentinel, shape
from lockfast.doctor.catalogue import CATALOGUE, LEVELS, Finding, counted, found, worst
from lockfast.doctor.facts import Facts, Unreached
from lockfast.doctor.findings import judge, judge_unreached
from lockfast.doctor.quorum import judge_quorum
from lockfast.doctor.several import each

if TYPE_CHECKING:
    from lockfast.endpoints import Endpoint

JSON_VERSION = 1
PARTS = 6  # time-outs that a server may cost: connecting, two silences, and what answers slowly


class Report(NamedTuple):
    """What was found. `findings` are sorted, worst first."""

    kind: str
    servers: list[Facts | Unreached]
    findings: list[Finding]

    @property
    def level(self) -> str:
        """The worst: ok, note, warning or problem; unreachable or refused when no server let us in."""
        there = [server for server in self.servers if isinstance(server, Facts)]
        if not there and any(isinstance(server, Unreached) for server in self.servers):
            refused = all(server.code for server in self.servers if isinstance(server, Unreached))
            return "refused" if refused else "unreachable"
        return worst(self.findings)

    @property
    def verdict(self) -> str:
        """One line in words."""
        counts = {level: sum(one.level == level for one in self.findings) for level in LEVELS}
        some = [counted(counts[level], level) for level in reversed(LEVELS[1:]) if counts[level]]
        tail = f": {', '.join(some)}" if some else ""
        return {
            "unreachable": "cannot be judged: no answer",
            "refused": "cannot be judged: not let in",
            "problem": f"not fit for locks{tail}",
            "warning": f"fit for locks, as long as nothing fails{tail}",
        }.get(self.level, f"fit for locks{tail}")

    def accepting(self, keys: set[str]) -> Report:
        """The same with findings of these kinds counted as notes: known, and lived with."""
        accepted = [one._replace(accepted=one.key in keys and one.level in LEVELS[2:]) for one in self.findings]
        return self._replace(findings=_sorted(accepted))

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "version": JSON_VERSION,
            "shape": self.kind,
            "servers": [_server(server) for server in self.servers],
            "findings": [finding.as_dict() for finding in self.findings],
            "level": self.level,
            "verdict": self.verdict,
        }


def examine(url: str | None = None, *, prefix: str = "lockfast", timeout_s: float = 2.0) -> Report:
    """Examine what a URL means; None: LOCKFAST_URL, else the embedded server, which is started if need be.

    timeout_s: how long to wait for each answer; the whole takes six times that at most, for a Sentinel or a cluster
    twelve. Raises ValueError for a URL that cannot be read; whatever goes wrong with the servers is a finding.
    """
    names.check_prefix(prefix)
    meant = shape.read(url)
    if meant.kind == "sentinel":
        return _sentinel(meant, prefix, timeout_s)
    if meant.kind == "cluster":
        return _cluster(meant, prefix, timeout_s)
    servers = _examine(meant.nodes, meant.kind, prefix, timeout_s)
    if meant.kind == "quorum":
        return Report("quorum", servers, _sorted(judge_quorum(servers)))
    return Report("one", servers, _sorted(_judge(servers, "")))


def _examine(nodes: tuple[Endpoint, ...], kind: str, prefix: str, timeout_s: float) -> list[Facts | Unreached]:
    by = now() + timeout_s * PARTS
    ask = partial(facts.examine, prefix=prefix, clustered=kind == "cluster", timeout_s=timeout_s, by=by)
    return each(nodes, ask, _late, by + timeout_s)


def _late(endpoint: Endpoint) -> Unreached:
    return Unreached(endpoint.where, f"{endpoint.where} was not done in time: is its name being looked up?")


def _judge(servers: list[Facts | Unreached], kind: str) -> list[Finding]:
    return [
        finding
        for server in servers
        for finding in (judge(server, kind) if isinstance(server, Facts) else [judge_unreached(server)])
    ]


def _sentinel(meant: shape.Shape, prefix: str, timeout_s: float) -> Report:
    by = now() + timeout_s * PARTS
    ask = partial(sentinel.examine, service=meant.service, timeout_s=timeout_s, by=by)
    sentinels = each(meant.nodes, ask, _late, by + timeout_s)
    judged = sentinel.judge_sentinels(sentinels, meant.service)
    primary = sentinel.chosen(sentinels)
    if primary is None:
        gone = [one for one in sentinels if isinstance(one, Unreached)]
        return Report("sentinel", [] if len(gone) < len(sentinels) else list(gone), _sorted(judged))
    servers = _examine((meant.at(*primary),), meant.kind, prefix, timeout_s)
    return Report("sentinel", servers, _sorted(judged + _judge(servers, "sentinel")))


def _cluster(meant: shape.Shape, prefix: str, timeout_s: float) -> Report:
    by = now() + timeout_s * PARTS
    seen = each(meant.nodes, partial(cluster.examine, timeout_s=timeout_s, by=by), _late, by + timeout_s)
    gone = [one for one in seen if isinstance(one, Unreached)]
    told = [one for one in seen if isinstance(one, cluster.Cluster)]
    knowing = [one for one in told if not one.refusal]
    denied = [one for one in told if one.is_denied]
    if denied and not knowing:
        servers = _examine(meant.nodes, meant.kind, prefix, timeout_s)
        # One whose INFO says that it is in no cluster was asked in vain.
        if any(one.in_cluster or not one.mode for one in servers if isinstance(one, Facts)):
            words = "; ".join(f"{one.where}: {one.refusal}" for one in denied)
            untold = found("cluster-untold", "the cluster", words, at=denied[0].where, user=[denied[0].user])
            return Report("cluster", servers, _sorted([*_judge(servers, "cluster"), untold]))
    if not knowing:
        words = "; ".join([one.words for one in gone] + [f"{one.where}: {one.refusal}" for one in told])
        nothing = found("cluster-none", "the cluster", words)
        return Report("cluster", [] if told else list(gone), _sorted([nothing, *map(judge_unreached, gone)]))
    one = knowing[0]
    nodes = tuple(meant.at(node.host, node.port) for node in one.primaries[: cluster.MOST_PRIMARIES])
    servers = _examine(nodes, meant.kind, prefix, timeout_s)
    judged = [*_judge(servers, "cluster"), *cluster.judge_cluster(one, servers)]
    if gone:
        judged.append(found("cluster-seeds-lost", "the cluster", "; ".join(lost.words for lost in gone)))
    return Report("cluster", servers, _sorted(judged))


def _sorted(judged: list[Finding]) -> list[Finding]:
    order = list(CATALOGUE)
    unique = list(dict.fromkeys(judged))
    return sorted(unique, key=lambda one: (-LEVELS.index(one.level), order.index(one.key)))


def _server(server: Facts | Unreached) -> dict[str, Any]:
    if isinstance(server, Unreached):
        return {"server": server.where, "reached": False, "error": server.words}
    median_ms = server.median_ms
    return {
        "server": server.where,
        "reached": True,
        "product": server.product,
        "product_version": server.version,
        "role": server.role,
        "user": server.user,
        "uptime_s": server.number("uptime_in_seconds"),
        "trip_ms_median": None if median_ms is None else round(median_ms, 3),
        "trip_ms_worst": round(max(server.trips_ms), 3) if server.trips_ms else None,
        "clock_offset_s": None if server.offset_s is None else round(server.offset_s, 6),
        "names_in_use": server.names.in_use if server.names else None,
        "embedded_directory": server.directory or None,
    }
