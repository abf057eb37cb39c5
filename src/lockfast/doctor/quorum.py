"""A majority of independent servers: what its nodes mean together. Pure."""

from __future__ import annotations

from math import ceil
from typing import TYPE_CHECKING

from lockfast.doctor.catalogue import Finding, found
from lockfast.doctor.facts import Facts, quorum_key
from lockfast.doctor.findings import CLOCK_OFF_S, judge, judge_unreached
from lockfast.flows.fleet import DEFAULT_MAX_LEASE_S
from lockfast.flows.introduction import Introduction, began_later, lasts

if TYPE_CHECKING:
    from lockfast.doctor.facts import Unreached

WHERE = "the quorum"


def judge_quorum(nodes: list[Facts | Unreached]) -> list[Finding]:
    """Findings about each node, and about all together."""
    there = [node for node in nodes if isinstance(node, Facts)]
    gone = [node for node in nodes if not isinstance(node, Facts)]
    # A quorum lives with a few that are gone; why they are is told with them.
    findings = [] if len(there) > len(nodes) // 2 else [judge_unreached(node) for node in gone]
    for node in there:
        findings += judge(node, "quorum")
    findings += [*_count(len(nodes), there, gone), *_independence(there), *_memory(there)]
    return [*findings, *_young(len(nodes), there), *_clocks(there)]


def _count(size: int, there: list[Facts], gone: list[Unreached]) -> list[Finding]:
    majority = size // 2 + 1
    may_fail = len(there) - majority
    seen = f"{len(there)} of {size} nodes answer, {majority} are needed"
    words = "; ".join(node.words for node in gone)
    findings = []
    if may_fail < 0:
        findings.append(found("quorum-majority-lost", WHERE, seen, missing=-may_fail))
    elif gone:
        findings.append(found("quorum-nodes-lost", WHERE, f"{seen}; {may_fail} more may fail; {words}"))
    else:
        findings.append(found("quorum-ok", WHERE, f"{seen}; {may_fail} may fail"))
    if size < 3:
        findings.append(found("quorum-too-small", WHERE, f"{size} nodes"))
    elif size % 2 == 0:
        findings.append(found("quorum-even", WHERE, f"{size} nodes"))
    return findings


def _independence(there: list[Facts]) -> list[Finding]:
    by_id: dict[str, list[str]] = {}
    for node in there:
        by_id.setdefault(node.info.get("run_id", node.where), []).append(node.where)
    findings = [
        found("quorum-same-server", WHERE, f"{' and '.join(twice)} are one server")
        for twice in by_id.values()
        if len(twice) > 1
    ]
    findings += [
        found("quorum-node-untold", node.where, "INFO is not answered", user=[node.user or "default"])
        for node in there
        if "run_id" not in node.info
    ]
    tied = [node for node in there if node.role == "replica" or node.in_cluster]
    for node in tied:
        what = "a replica" if node.role == "replica" else "a node of a cluster"
        findings.append(found("quorum-not-independent", node.where, f"{what}, not a server of its own"))
    return findings


def _memory(there: list[Facts]) -> list[Finding]:
    findings: list[Finding] = []
    told = {node.where: node.max_lease for node in there if node.max_lease is not None}
    longest = {node: int(value) for node, value in told.items() if value.isascii() and value.isdigit()}
    if len(set(told.values())) > 1 or len(longest) < len(told):
        seen = ", ".join(f"{node} {value[:20]!r} ms" for node, value in told.items())
        findings.append(
            found("quorum-lease-differs", WHERE, f"longest lease: {seen}", stored=[quorum_key(there[0].prefix)])
        )
    missing = [node.where for node in there if node.max_lease is None]
    if missing:
        seen = f"no longest lease is stored on {', '.join(missing)}"
        findings.append(found("quorum-lease-missing", WHERE, seen))
    forgetful = [node for node in there if not _keeps(node)]
    if forgetful:
        seen = f"no append-only file with appendfsync always: {', '.join(node.where for node in forgetful)}"
        findings.append(found("quorum-forgets", WHERE, seen))
    return findings


def _young(size: int, there: list[Facts]) -> list[Finding]:
    """Nodes that are not counted yet, and whether too few are."""
    texts = [node.max_lease or "" for node in there]
    stored = [int(text) for text in texts if text.isascii() and text.isdigit()]
    max_lease_ms = max(stored, default=round(DEFAULT_MAX_LEASE_S * 1000))
    findings = []
    left_s = []
    for node in there:
        up_s = node.number("uptime_in_seconds")
        if up_s is None or "run_id" not in node.info:
            continue
        short_s = _introduced(node, up_s, max_lease_ms).short_s
        left_s.append(short_s)
        if short_s > 0:
            seen = f"up for {up_s} s, longest lease {max_lease_ms / 1000:g} s"
            findings.append(found("quorum-node-young", node.where, seen, left=ceil(short_s)))
    majority, count = size // 2 + 1, len([short_s for short_s in left_s if short_s <= 0])
    if count < majority <= len(left_s):
        wait_s = ceil(sorted(left_s)[majority - 1])
        seen = f"{count} of {size} nodes {'counts' if count == 1 else 'count'} now, {majority} are needed"
        findings.append(found("quorum-not-yet", WHERE, f"{seen}; enough will in {wait_s} s", left=wait_s))
    return findings


def _introduced(node: Facts, up_s: int, max_lease_ms: int) -> Introduction:
    """The node as a client of the quorum would hear of it."""
    is_whole = _keeps(node) and not began_later(node.info)
    time_us, key = round(node.time_s * 1e6), quorum_key(node.prefix)
    return Introduction(node.info["run_id"], up_s, _keeps(node), is_whole, time_us, max_lease_ms, key, node.mark)


def _keeps(node: Facts) -> bool:
    return lasts(node.info, node.config)


def _clocks(there: list[Facts]) -> list[Finding]:
    clocks = sorted((node.offset_s, node.offset_error_s, node.where) for node in there if node.offset_s is not None)
    if len(clocks) < 2:
        return []
    first, last = clocks[0], clocks[-1]
    apart_s = last[0] - first[0]
    if apart_s - first[1] - last[1] <= CLOCK_OFF_S:
        return []
    seen = f"{last[2]} is {apart_s:.3f} s ahead of {first[2]}"
    return [found("quorum-clocks-apart", WHERE, seen)]
