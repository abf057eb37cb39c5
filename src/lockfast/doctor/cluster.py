"""A cluster: asked by one of its nodes for its state and its nodes, and judged."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from lockfast.doctor.asking import Asker, NotTold, lines, text
from lockfast.doctor.catalogue import Finding, counted, found
from lockfast.doctor.facts import Unreached, unreached, user_of
from lockfast.doctor.findings import WITH_FLAGS, version_of
from lockfast.errors import LockfastError
from lockfast.flows import denials

if TYPE_CHECKING:
    from lockfast.doctor.facts import Facts
    from lockfast.endpoints import Endpoint

SLOTS = 16384
BAD = {"fail", "fail?", "handshake", "noaddr"}
MOST_PRIMARIES = 32  # examined one by one; a larger cluster is judged by these


class Node(NamedTuple):
    """A line of CLUSTER NODES."""

    id: str
    host: str
    port: int
    flags: frozenset[str]
    primary_id: str
    slots: int

    @property
    def address(self) -> str:
        return f"{self.host}:{self.port}"


@dataclass(frozen=True)
class Cluster:
    """What one node told of all. refusal: its words when it is in no cluster, or may not tell."""

    where: str
    state: dict[str, str] = field(default_factory=dict)
    nodes: tuple[Node, ...] = ()
    refusal: str = ""
    user: str = "default"

    @property
    def is_denied(self) -> bool:
        """Whether this account may not ask it, which says nothing about a cluster."""
        return denials.is_denial(self.refusal)

    @property
    def primaries(self) -> list[Node]:
        return [node for node in self.nodes if "master" in node.flags and node.slots]


def examine(endpoint: Endpoint, *, timeout_s: float, by: float) -> Cluster | Unreached:
    """Ask one node for the whole."""
    try:
        with Asker(endpoint, timeout_s, by) as asker:
            state, nodes = asker.ask_all([("CLUSTER", "INFO"), ("CLUSTER", "NODES")])
    except LockfastError as error:
        return unreached(endpoint.where, error)
    for reply in (state, nodes):
        if isinstance(reply, NotTold):
            if reply.silent:
                return Unreached(endpoint.where, reply.words)
            return Cluster(endpoint.where, refusal=reply.words, user=user_of(endpoint, reply.words))
    try:
        read = [_node(line.split(), endpoint) for line in text(nodes).splitlines() if len(line.split()) >= 8]
    except ValueError:
        return Cluster(endpoint.where, refusal=f"CLUSTER NODES tells {text(nodes)[:80]!r}")
    return Cluster(endpoint.where, lines(state), tuple(read))


def _node(words: list[str], asked: Endpoint) -> Node:
    """id ip:port@bus[,name] flags primary-id ping pong epoch link slot slot-slot [slot->-node] …"""
    address, _, _ = words[1].partition("@")
    host, _, port = address.rpartition(":")
    slots = 0
    for word in words[8:]:
        if not word.startswith("["):  # a slot that moves is counted where it is
            first, _, last = word.partition("-")
            slots += int(last or first) - int(first) + 1
    flags = frozenset(words[2].split(","))
    return Node(words[0], host or asked.host, int(port or 0), flags, words[3], slots)


def judge_cluster(cluster: Cluster, primaries: list[Facts | Unreached]) -> list[Finding]:
    """Pure: the cluster as one of its nodes sees it, and what its primaries said."""
    where, (scheme, _, rest) = "the cluster", cluster.where.partition("://")
    address = [rest.partition("/")[0], *(["--tls"] if scheme == "rediss" else [])]
    findings = []
    if cluster.state.get("cluster_state") != "ok":
        seen = f"cluster_state {cluster.state.get('cluster_state', '?')}"
        findings.append(found("cluster-down", where, seen, address=address))
    served = sum(node.slots for node in cluster.primaries if "fail" not in node.flags)
    if served < SLOTS:
        findings.append(found("cluster-slots-missing", where, f"{served} of {SLOTS} slots", address=address))
    failing = [node for node in cluster.nodes if node.flags & BAD]
    if failing:
        seen = ", ".join(f"{node.address} ({','.join(sorted(node.flags & BAD))})" for node in failing)
        findings.append(found("cluster-nodes-failing", where, seen, at=cluster.where, address=address))
    if len(cluster.primaries) < 3:
        findings.append(found("cluster-few-primaries", where, f"{len(cluster.primaries)} with slots", address=address))
    covered = {node.primary_id for node in cluster.nodes if not node.flags & BAD}
    alone = [node.address for node in cluster.primaries if node.id not in covered]
    if alone:
        findings.append(found("cluster-no-replica", where, f"no replica of {', '.join(alone)}", address=address))
    asked = [one for one in primaries if not isinstance(one, Unreached)]
    wholly = [one.where for one in asked if one.config.get("cluster-require-full-coverage") == "yes"]
    if wholly:
        findings.append(found("cluster-full-coverage", where, "cluster-require-full-coverage yes", at=wholly[0]))
    if any((version := version_of(one)) and version < WITH_FLAGS for one in asked):
        findings.append(found("cluster-too-old", where, "a node before Redis 7.0"))
    if cluster.state.get("cluster_state") == "ok" and served == SLOTS:
        replicas = sum("slave" in node.flags for node in cluster.nodes)
        size = f"{len(cluster.primaries)} {'primary' if len(cluster.primaries) == 1 else 'primaries'}"
        findings.append(found("cluster-ok", where, f"{size}, {counted(replicas, 'replica')}"))
    return findings
