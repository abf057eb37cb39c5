"""What the doctor finds about several servers together: quorums, Sentinels, clusters."""

from __future__ import annotations

import dataclasses
import re
from typing import TYPE_CHECKING

import pytest

from kit.servers import Server, free_port, wait_until
from kit.small_shapes import SERVICE, OneSentinel
from lockfast import Lockfast
from lockfast.doctor import cluster, sentinel
from lockfast.doctor.facts import Facts, Unreached
from lockfast.doctor.quorum import judge_quorum
from lockfast.doctor.shape import read
from lockfast.flows.introduction import marking
from topologies.doctoring import look, pasted

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kit.quorum import Masters
    from lockfast.doctor import Report
    from lockfast.doctor.catalogue import Finding

NOBODY = "redis://127.0.0.1:1/0"


def keys(findings: list[Finding]) -> set[str]:
    return {finding.key for finding in findings}


def seen(report: Report, key: str) -> str:
    return " / ".join(finding.seen for finding in report.findings if finding.key == key)


# Quorum


@pytest.fixture(scope="module")
def nodes() -> Iterator[list[Server]]:
    """Three servers, the first of which keeps what it answers."""
    with Server(appendonly=True) as first, Server() as second, Server() as third:
        yield [first, second, third]


def quorum(*urls: str) -> Report:
    return look(" ".join(urls), timeout_s=1)


def test_three_independent_nodes(nodes: list[Server]) -> None:
    report = quorum(*(node.url for node in nodes))
    assert report.kind == "quorum"
    assert seen(report, "quorum-ok") == "3 of 3 nodes answer, 2 are needed; 1 may fail"
    assert nodes[0].url not in seen(report, "quorum-forgets")
    assert nodes[1].url in seen(report, "quorum-forgets")
    said = seen(report, "quorum-not-yet")
    assert report.level == "warning", "they have just been started"
    left_s = int(re.findall(r"0 of 3 nodes count now, 2 are needed; enough will in (\d+) s", said)[0])
    assert 0 < left_s <= 61, "as long as a client that names no max_lease would wait"
    assert "persistence-none" not in keys(report.findings)  # a quorum lives with it, and says how
    assert "no longest lease" in seen(report, "quorum-lease-missing")


def test_nodes_that_do_not_answer(nodes: list[Server]) -> None:
    one_gone = quorum(nodes[0].url, nodes[1].url, NOBODY)
    assert "0 more may fail" in seen(one_gone, "quorum-nodes-lost")
    assert one_gone.level == "warning"
    two_gone = quorum(nodes[0].url, "redis://127.0.0.1:2/0", NOBODY)
    assert "1 of 3" in seen(two_gone, "quorum-majority-lost")
    assert two_gone.level == "problem"
    assert quorum(NOBODY, "redis://127.0.0.1:2/0", "redis://127.0.0.1:3/0").level == "unreachable"


def test_account_that_a_majority_cannot_work_with(nodes: list[Server]) -> None:
    for node in nodes:
        node.command("ACL", "SETUSER", "clerk", "on", "nopass", "~*", "&*", "+@all", "-info")
    report = quorum(*(f"redis://clerk:x@127.0.0.1:{node.port}" for node in nodes))
    assert "INFO" in seen(report, "quorum-node-untold")
    mend = next(finding.mend for finding in report.findings if finding.key == "quorum-node-untold")
    assert pasted(mend)[-4:] == ["clerk", "+info", "+config|get", "+script|load"]
    assert report.level == "problem"


def test_rule_that_the_doctor_names_for_an_open_node_is_enough_for_a_majority(trio: Masters, short: str) -> None:
    told = [server for server in quorum(*trio.urls).servers if isinstance(server, Facts)]
    opened = [dataclasses.replace(one, host="cache.example", prefix=short) for one in told]
    rules = pasted(next(one.mend for one in judge_quorum([*opened]) if one.key == "scope-open"))
    trio.mark(short)
    for node in trio:
        node.command("ACL", "SETUSER", short, "on", "nopass", *rules[rules.index(">SECRET") + 1 :])
    urls = [f"redis://{short}:x@127.0.0.1:{node.port}" for node in trio]
    with Lockfast(urls, prefix=short) as lf, lf.lock("x", wait=5) as grant:
        assert grant.held
    for node in trio:
        node.command("ACL", "DELUSER", short)


def test_sizes_that_gain_nothing(nodes: list[Server]) -> None:
    two = quorum(nodes[0].url, nodes[1].url)
    assert "quorum-too-small" in keys(two.findings)
    assert two.level == "problem", "a client refuses it, too"
    four = quorum(*(node.url for node in nodes), NOBODY)
    assert "quorum-even" in keys(four.findings)


def test_server_that_is_named_twice(nodes: list[Server]) -> None:
    report = quorum(nodes[0].url, nodes[1].url, nodes[1].unix_url)
    assert nodes[1].url in seen(report, "quorum-same-server")
    assert report.level == "problem"


def test_longest_lease_has_to_be_the_same_and_young_nodes_are_left_out(nodes: list[Server]) -> None:
    for node, value in zip(nodes, ("600000", "600000", "5000"), strict=True):
        node.command("SET", "lockfast:quorum", value)
    report = quorum(*(node.url for node in nodes))
    assert "'5000' ms" in seen(report, "quorum-lease-differs")
    nodes[2].command("SET", "lockfast:quorum", "600000")
    report = quorum(*(node.url for node in nodes))
    assert not keys(report.findings) & {"quorum-lease-differs", "quorum-lease-missing"}
    young = {finding.where for finding in report.findings if finding.key == "quorum-node-young"}
    assert young == {node.url for node in nodes}
    assert "0 of 3 nodes count now" in seen(report, "quorum-not-yet")
    nodes[0].command(*marking("lockfast", "earlier 0"))
    report = quorum(*(node.url for node in nodes))
    young = {finding.where for finding in report.findings if finding.key == "quorum-node-young"}
    assert young == {nodes[1].url, nodes[2].url}, "the first can show that it kept its memory"
    assert "1 of 3 nodes counts now" in seen(report, "quorum-not-yet")
    for node in nodes:
        node.command("SET", "lockfast:quorum", 50)
    wait_until(lambda: all(int(node.info("server")["uptime_in_seconds"]) > 1 for node in nodes))
    report = quorum(*(node.url for node in nodes))
    assert not keys(report.findings) & {"quorum-node-young", "quorum-not-yet"}
    for node in nodes:
        node.command("DEL", "lockfast:quorum", "lockfast:quorum:run")


def test_nodes_that_are_tied_to_others_or_far_apart_in_time(nodes: list[Server]) -> None:
    told = [server for server in quorum(*(node.url for node in nodes)).servers if isinstance(server, Facts)]
    replica = dataclasses.replace(told[1], info=told[1].info | {"role": "slave"})
    member = dataclasses.replace(told[2], info=told[2].info | {"cluster_enabled": "1"})
    judged = judge_quorum([told[0], replica, member])
    assert len([one for one in judged if one.key == "quorum-not-independent"]) == 2
    ahead = dataclasses.replace(told[1], offset_s=5.0)
    apart = next(one for one in judge_quorum([told[0], ahead, told[2]]) if one.key == "quorum-clocks-apart")
    assert f"{nodes[1].url} is" in apart.seen


# Sentinel


@pytest.fixture(scope="module")
def watched() -> Iterator[tuple[Server, OneSentinel]]:
    """A primary and the one Sentinel that watches it."""
    with Server() as primary, OneSentinel(primary) as watcher:
        yield primary, watcher


@pytest.mark.slow
def test_one_sentinel_with_one_primary(watched: tuple[Server, OneSentinel]) -> None:
    primary, watcher = watched
    report = look(f"sentinel://127.0.0.1:{watcher.port}/{SERVICE}", timeout_s=1)
    assert f"name 127.0.0.1:{primary.port}" in seen(report, "sentinel-ok")
    assert {"sentinel-few", "sentinel-no-replica", "sentinel-slow", "role-primary"} <= keys(report.findings)
    assert [server.where for server in report.servers] == [primary.url]
    assert report.level == "warning"


def test_sentinels_that_are_gone_and_services_that_are_not_theirs(watched: tuple[Server, OneSentinel]) -> None:
    _, watcher = watched
    report = look(f"sentinel://127.0.0.1:{watcher.port},127.0.0.1:1/{SERVICE}", timeout_s=1)
    assert "1 of 2" in seen(report, "sentinel-lost")
    unknown = look(f"sentinel://127.0.0.1:{watcher.port}/other", timeout_s=1)
    assert "'other'" in seen(unknown, "sentinel-service-unknown")
    assert unknown.level == "problem"
    nobody = look("sentinel://127.0.0.1:1,127.0.0.1:2/orders", timeout_s=1)
    assert "sentinel-none" in keys(nobody.findings)
    assert nobody.level == "unreachable"


def test_one_sentinel_that_is_gone_does_not_make_those_that_answered_unreachable(
    watched: tuple[Server, OneSentinel],
) -> None:
    primary, watcher = watched
    for port, key in ((watcher.port, "sentinel-service-unknown"), (primary.port, "sentinel-not-one")):
        report = look(f"sentinel://127.0.0.1:{port},127.0.0.1:1/other", timeout_s=1)
        assert keys(report.findings) == {key, "sentinel-lost"}
        assert report.level == "problem"


def test_sentinel_named_as_a_server_is_told_apart(watched: tuple[Server, OneSentinel]) -> None:
    report = look(f"redis://127.0.0.1:{watched[1].port}/0", timeout_s=1)
    assert keys(report.findings) == {"role-sentinel"}
    assert f"sentinel://127.0.0.1:{watched[1].port}/" in report.findings[0].mend


def test_sentinels_that_disagree_or_cannot_fail_over(watched: tuple[Server, OneSentinel]) -> None:
    """From what a real one told, changed in one place each."""
    meant = read(f"sentinel://127.0.0.1:{watched[1].port}/{SERVICE}")
    told = sentinel.examine(meant.nodes[0], service=SERVICE, timeout_s=1, by=float("inf"))
    assert isinstance(told, sentinel.Sentinel)

    def judged(*changes: dict[str, str]) -> set[str]:
        changed: list[sentinel.Sentinel | Unreached] = [
            dataclasses.replace(told, primary=told.primary | change) for change in changes
        ]
        return keys(sentinel.judge_sentinels(changed, SERVICE))

    three = {"num-other-sentinels": "2", "quorum": "2", "num-slaves": "1", "down-after-milliseconds": "5000"}
    assert judged(three, three, three) == {"sentinel-ok"}
    assert "sentinel-disagree" in judged(three, three, three | {"port": "1"})
    assert "sentinel-primary-down" in judged(three | {"flags": "master,o_down"})
    assert "sentinel-even" in judged(three | {"num-other-sentinels": "3"})
    assert "sentinel-quorum-one" in judged(three | {"quorum": "1"})
    assert "sentinel-quorum-unmet" in judged(three | {"quorum": "4"})


# Cluster


@pytest.fixture(scope="module")
def lone() -> Iterator[Server]:
    """A cluster of one node that has all slots."""
    # A bus port of its own: the usual one, 10 000 above, is beyond the last for many free ports.
    with Server(extra=("--cluster-enabled", "yes", "--cluster-port", str(free_port()))) as server:
        server.command("CLUSTER", "ADDSLOTSRANGE", "0", "16383")
        wait_until(lambda: "cluster_state:ok" in server.command("CLUSTER", "INFO").decode(), what="cluster ok")
        yield server


@pytest.mark.slow
def test_cluster_of_one_node(lone: Server) -> None:
    report = look(f"cluster://127.0.0.1:{lone.port}", timeout_s=1)
    assert seen(report, "cluster-ok") == "1 primary, 0 replicas"
    assert {"cluster-few-primaries", "cluster-no-replica", "cluster-full-coverage"} <= keys(report.findings)
    assert "role-cluster-node" not in keys(report.findings)
    assert [server.where for server in report.servers] == [lone.url]
    assert {"rights-ok", "eviction-none", "version-ok"} <= keys(report.findings)
    lost = look(f"cluster://127.0.0.1:1,127.0.0.1:{lone.port}", timeout_s=1)
    assert "127.0.0.1:1/0" in seen(lost, "cluster-seeds-lost")
    assert lost.level == "warning"


def test_cluster_node_named_as_a_server(lone: Server) -> None:
    report = look(lone.url, timeout_s=1)
    finding = next(one for one in report.findings if one.key == "role-cluster-node")
    assert finding.level == "problem"
    assert f"cluster://127.0.0.1:{lone.port}" in finding.mend


def test_what_is_no_cluster(nodes: list[Server]) -> None:
    report = look(f"cluster://127.0.0.1:{nodes[0].port}", timeout_s=1)
    assert keys(report.findings) == {"cluster-none"}
    assert report.level == "problem"
    assert look("cluster://127.0.0.1:1", timeout_s=1).level == "unreachable"


def test_clusters_with_slots_that_nobody_serves_and_nodes_that_fail(lone: Server) -> None:
    """From what a real one told, changed in one place each."""
    told = cluster.examine(read(f"cluster://127.0.0.1:{lone.port}").nodes[0], timeout_s=1, by=float("inf"))
    assert isinstance(told, cluster.Cluster)
    node = told.nodes[0]
    assert node.slots == cluster.SLOTS
    half = dataclasses.replace(told, nodes=(node._replace(slots=8000),), state={"cluster_state": "fail"})
    assert {"cluster-down", "cluster-slots-missing"} <= keys(cluster.judge_cluster(half, []))
    gone = node._replace(id="other", flags=frozenset({"slave", "fail"}), primary_id=node.id, slots=0)
    judged = keys(cluster.judge_cluster(dataclasses.replace(told, nodes=(node, gone)), []))
    assert {"cluster-nodes-failing", "cluster-no-replica"} <= judged
    three = [node._replace(id=str(number), slots=slots) for number, slots in enumerate((5000, 5000, 6384))]
    copies = [node._replace(id=f"c{one.id}", flags=frozenset({"slave"}), primary_id=one.id, slots=0) for one in three]
    well = dataclasses.replace(told, nodes=(*three, *copies))
    assert keys(cluster.judge_cluster(well, [])) == {"cluster-ok"}
    server = look(lone.url, timeout_s=1).servers[0]
    assert isinstance(server, Facts)
    old = dataclasses.replace(server, info=server.info | {"redis_version": "6.2.14"})
    assert "cluster-too-old" in keys(cluster.judge_cluster(well, [old]))


# URLs


def test_urls_of_several_servers_are_read_without_showing_a_secret() -> None:
    meant = read("sentinels://clerk:hunter2@a:1,b,[::1]:3/orders/2?ssl_cert_reqs=none&sentinel_password=sesame")
    assert (meant.kind, meant.service) == ("sentinel", "orders")
    assert [(node.host, node.port) for node in meant.nodes] == [("a", 1), ("b", 26379), ("::1", 3)]
    assert "hunter2" not in repr(meant)
    primary = meant.at("c", 6379)
    assert (primary.where, primary.username) == ("rediss://c:6379/2", "clerk")
    assert primary.password is not None
    assert primary.password.reveal() == "hunter2"
    first = meant.nodes[0].password
    assert first is not None
    assert first.reveal() == "sesame"
    assert read("redis://a, redis://b").kind == "quorum"
    for url in (
        "sentinel://a:1",
        "sentinel://:hunter2@[::1/orders",
        "sentinel:///orders",
        "redis://a cluster://b",
        "gopher://a",
    ):
        with pytest.raises(ValueError) as refusal:
            read(url)
        assert "hunter2" not in str(refusal.value)
