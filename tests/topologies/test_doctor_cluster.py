"""What the doctor finds of a real cluster: what an account lacks there, and slots that move."""

from __future__ import annotations

import dataclasses
from itertools import count
from typing import TYPE_CHECKING

import pytest

from lockfast import Lockfast, Refused
from lockfast.doctor import access, findings
from topologies.doctoring import bad, facts_of, keys, look, pasted, the
from topologies.test_acl import RULE, extras

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from kit.cluster import Cluster

_users = count(1)


@pytest.fixture
def member(cluster: Cluster) -> Iterator[Callable[..., str]]:
    """The URL of a new account with exactly these rights, on every node."""
    made: list[str] = []

    def make(*rights: str) -> str:
        made.append(f"member{next(_users)}")
        for node in cluster.nodes:
            node.command("ACL", "SETUSER", made[-1], "on", ">hunter2", *rights)
        return f"cluster://{made[-1]}:hunter2@127.0.0.1:{cluster.masters[0].port}"

    yield make
    for node in cluster.nodes:
        node.command("ACL", "DELUSER", *made)


def documented() -> list[str]:
    """The rights that docs/topologies/acl.md names for locks in a cluster, and for the doctor of one."""
    more = [right.replace("!", "|") for what, add in extras().items() if "cluster" in what for right in add]
    assert {"+cluster|slots", "+asking", "+cluster|nodes"} <= set(more)
    return [right for right in (*RULE, *more) if not right.startswith(">")]


def test_rule_of_the_docs_is_clean_in_a_cluster(member: Callable[..., str]) -> None:
    report = look(member(*documented()))
    assert len([finding for finding in report.findings if finding.key == "rights-ok"]) == 3
    assert bad(report) <= {"cluster-no-replica"}


@pytest.mark.parametrize("how", ["asked", "tried"])
@pytest.mark.parametrize(
    ("lacking", "key", "level", "words"),
    [
        (["cluster|slots"], "rights-commands", "problem", "CLUSTER SLOTS"),
        (["asking"], "rights-commands", "problem", "ASKING"),
        (["spublish"], "rights-pushes", "warning", "SPUBLISH"),
        (["ssubscribe", "sunsubscribe"], "rights-pushes", "warning", "SSUBSCRIBE, SUNSUBSCRIBE"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_right_that_only_a_cluster_needs_is_told_with_the_rule_that_gives_it(
    cluster: Cluster, member: Callable[..., str], lacking: list[str], key: str, level: str, words: str, how: str
) -> None:
    asking = ["+acl|whoami", "+acl|dryrun"] if how == "asked" else []
    url = member(*documented(), *asking, *(f"-{command}" for command in lacking))
    report = look(url)
    found = [finding for finding in report.findings if finding.key == key]
    assert {finding.where for finding in found} == {node.url for node in cluster.masters}
    assert {finding.level for finding in found} == {level}
    assert all(finding.seen.endswith(f" may not run {words}") for finding in found)
    assert "rights-ok" not in keys(report)
    for node in cluster.nodes:
        node.command(*pasted(found[0].mend))
    assert key not in keys(look(url))


def test_account_of_one_server_cannot_lock_in_a_cluster_nor_is_it_called_fit(member: Callable[..., str]) -> None:
    url = member(*(right for right in RULE if not right.startswith(">")))
    with Lockfast(url) as lf, pytest.raises(Refused, match=r"cluster\|slots"):
        lf.lock("x").try_acquire()
    report = look(url)  # which it may not ask for the nodes either
    assert {"+asking", "+cluster|slots"} <= set(pasted(the(report, "rights-commands").mend))
    assert "SPUBLISH, SSUBSCRIBE, SUNSUBSCRIBE" in the(report, "rights-pushes").seen
    assert report.level == "problem"


def test_rule_that_the_doctor_names_for_an_open_cluster_is_enough_there(
    cluster: Cluster, member: Callable[..., str], name: str
) -> None:
    told = dataclasses.replace(facts_of(look(cluster.url)), host="cache.example")
    (finding,) = [one for one in findings.judge(told, "cluster") if one.key == "scope-open"]
    rules = pasted(finding.mend)
    with Lockfast(member(*rules[rules.index(">SECRET") + 1 :])) as lf, lf.lock(name):
        pass


def test_copies_that_no_client_of_a_cluster_can_ask_for_are_not_advised(
    cluster: Cluster, member: Callable[..., str]
) -> None:
    with pytest.raises(ValueError, match="replicas="):
        Lockfast(cluster.url, replicas=1)
    report = look(member(*documented(), "+info", "+config|get"))
    told = [finding for finding in report.findings if finding.key == "replicas-unwaited"]
    assert {finding.where for finding in told} == {node.url for node in cluster.masters if cluster.replicas}
    assert {(finding.seen, finding.mend) for finding in told} <= {("1 replica", "check fences")}
    assert not keys(report) & {"replicas-async", "rights-replicas"}
    assert "+wait" not in access.all_rules("lockfast", "cluster")


def test_channels_of_a_cluster_are_tried_as_well(member: Callable[..., str]) -> None:
    report = look(member(*documented(), "resetchannels"))
    seen = {finding.seen.partition(" in ")[2] for finding in report.findings if finding.key == "rights-channels"}
    assert seen == {"PUBLISH, SPUBLISH, SSUBSCRIBE, SUBSCRIBE"}


def test_names_of_a_slot_that_moves_are_not_taken_for_keys_of_others(cluster: Cluster, name: str) -> None:
    cluster.flush()
    moving, staying = cluster.name_on(cluster.masters[0], name), cluster.name_on(cluster.masters[0], f"{name}-still")
    with Lockfast(cluster.url) as lf, lf.lock(moving, lease=60), lf.lock(staying, lease=60):
        slot = cluster.slot_of(moving)
        with cluster.moving(slot, cluster.masters[1]) as source:
            # The node that gets the slot has the key and lists it, and sends whoever asks for it to the other one.
            cluster.move_key(f"lockfast:{{{moving}}}".encode(), source, cluster.masters[1])
            report = look(cluster.url)
        cluster.move(slot, cluster.masters[0])
    assert "keys-not-ours" not in keys(report)
    told = {finding.where: finding.seen for finding in report.findings if finding.key == "names-in-use"}
    assert told[cluster.masters[0].url] == "1 in use, 1 remembered"
    assert told[cluster.masters[1].url].startswith("at least 0 in use")
