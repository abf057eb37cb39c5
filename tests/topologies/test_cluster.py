"""Every primitive in a cluster, on names of every shard, with pushes from the node that has the name."""

from __future__ import annotations

import importlib
import json
import threading
from typing import TYPE_CHECKING, Any

import pytest

from behaviour.agents import Agent
from kit.servers import wait_until
from kit.sides import AsyncioSide
from kit.transacting import transact
from lockfast import errors
from lockfast.cli.main import main
from lockfast.drivers.slots import slot_of
from lockfast.flows import deadlocks, detection

if TYPE_CHECKING:
    from kit.cluster import Cluster
    from kit.servers import Server
    from kit.sides import Side
    from lockfast.sync import Lockfast


def waits(lf: Lockfast, name: str, count: int = 1) -> None:
    wait_until(lambda: len(lf.inspect(name).waiters) == count, what=f"{count} wait")


def listens(node: Server, tag: str) -> None:
    """Waits until a client hears pushes about a name, and has asked again since."""
    wait_until(lambda: node.command("PUBSUB", "SHARDCHANNELS", f"*{tag}*"), what="subscribed")
    before = node.stats().get("evalsha", 0)
    wait_until(lambda: node.stats().get("evalsha", 0) >= before, what="asked again")


@pytest.mark.slow
@pytest.mark.parametrize(("shard", "stem"), [(0, "{}"), (1, "{} of last night"), (2, "{}")])
def test_hand_over_comes_by_a_push_of_the_node_that_has_the_name(
    cluster: Cluster, side: Side, lf: Lockfast, other: Lockfast, name: str, shard: int, stem: str
) -> None:
    node = cluster.masters[shard]
    tag = cluster.name_on(node, stem.format(name))
    held = lf.lock(tag, lease=30).acquire()
    waiting = side.spawn(other.lock(tag, lease=30, wait=20).acquire)
    waits(lf, tag)
    listens(node, name)
    wait_until(lambda: asks_since(node) == 0, what="the waiter has stopped asking")
    node.reset_stats()
    held.release()
    following = waiting.result()
    stats = node.stats()
    assert stats["spublish"] == 1
    assert stats["evalsha"] == 1, "only the release: the waiter did not have to ask"
    assert following.fence > held.fence
    assert following.remaining > 15
    following.release()
    assert not lf.inspect(tag).holders


def asks_since(node: Server) -> int:
    node.reset_stats()
    threading.Event().wait(0.05)
    return node.stats().get("evalsha", 0)


@pytest.mark.slow
def test_queue_is_served_in_order_over_many_names(
    cluster: Cluster, side: Side, lf: Lockfast, other: Lockfast, name: str
) -> None:
    names = [f"{name}-{number}" for number in range(12)]
    held = [lf.lock(each, lease=30).acquire() for each in names]
    waiting = [side.spawn(other.lock(each, lease=30, wait=20).acquire) for each in names]
    for each in names:
        waits(lf, each)
    assert sorted(lf.names()) == sorted((each,) for each in names)
    for grant in held:
        grant.release()
    for one in waiting:
        one.result().release()
    assert lf.names() == []


@pytest.mark.slow
def test_command_line_lists_what_is_held_on_every_node(
    cluster: Cluster, lf: Lockfast, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    names = [cluster.name_on(node, name) for node in cluster.masters]
    for node in cluster.masters:
        node.command("FLUSHALL")  # names of other tests are looked at too
    with lf.locks(*names):
        lf.names()  # every node knows the script from here on
        for node in cluster.masters:
            node.reset_stats()
        assert main(["ls", "--json", "--url", cluster.url]) == 0
        assert [entry["name"] for entry in json.loads(capsys.readouterr().out)] == sorted(names)
        assert sum(node.stats().get("evalsha", 0) for node in cluster.masters) == len(names), "one look at each"


@pytest.mark.slow
def test_several_locks_across_slots_are_held_together_or_not_at_all(
    cluster: Cluster, side: Side, lf: Lockfast, other: Lockfast, name: str
) -> None:
    names = [cluster.name_on(node, name) for node in cluster.masters]
    for _ in range(2):  # the second time the names are known
        with lf.locks(*names, wait=5):
            assert sorted(lf.names()) == sorted((each,) for each in names)
            assert other.locks(*reversed(names)).try_acquire() is None
    with other.lock(names[1]):
        assert lf.locks(*names).try_acquire() is None
        assert lf.names() == [(names[1],)], "nothing of it stays held"
        waiting = side.spawn(lf.locks(*names, wait=20).acquire)
        waits(other, names[1])
    waiting.result().release()
    assert lf.names() == []


@pytest.mark.slow
def test_those_who_want_several_in_other_orders_never_deadlock(cluster: Cluster, side: Side, name: str) -> None:
    names = [f"{name}-{number}" for number in range(5)]
    inside: list[str] = []
    most = [0]

    def work(client: Lockfast, order: list[str]) -> None:
        for _ in range(8):
            with client.locks(*order, wait=30):
                inside.append("x")
                most[0] = max(most[0], len(inside))
                inside.pop()

    running = [side.spawn(work, side.client(cluster.url), names[n:] + names[:n]) for n in range(4)]
    for each in running:
        each.result()
    assert most == [1]


@pytest.mark.slow
def test_semaphore_readers_and_writers_and_reentry(side: Side, lf: Lockfast, other: Lockfast, name: str) -> None:
    one, two = (lf.semaphore(name, "s", limit=2).acquire() for _ in range(2))
    assert other.semaphore(name, "s", limit=2).try_acquire() is None
    one.release()
    other.semaphore(name, "s").acquire(wait=5).release()
    two.release()
    wrap: Any = side.wrap if isinstance(side, AsyncioSide) else lambda lock: lock
    readers = [wrap(client.rwlock(name, "rw").read()).acquire() for client in (lf, other)]
    writing = side.spawn(wrap(other.rwlock(name, "rw").write()).acquire, wait=20)
    wait_until(lambda: lf.inspect(name, "rw").waiters, what="a writer waits")
    for reader in readers:
        reader.release()
    writing.result().release()
    writer = wrap(lf.rwlock(name, "rw").write()).acquire()
    writer.downgrade()
    wrap(other.rwlock(name, "rw").read()).acquire(wait=5).release()
    writer.release()
    with lf.rlock(name, "r"):
        assert other.rlock(name, "r").try_acquire() is None


@pytest.mark.slow
@pytest.mark.parametrize("stem", ["{}", "{} of last night"])
def test_latch_barrier_and_election_push_to_those_who_wait(
    cluster: Cluster, side: Side, lf: Lockfast, other: Lockfast, name: str, stem: str
) -> None:
    name = stem.format(name)
    latch = lf.latch(name, "latch", count=2)
    waiting = side.spawn(other.latch(name, "latch", count=2).wait, wait=20)
    wait_until(lambda: lf.inspect(name, "latch").waiters, what="somebody waits")
    latch.count_down()
    latch.count_down()
    waiting.result()

    barriers = [client.barrier(name, "barrier", parties=2) for client in (lf, other)]
    arriving = [side.spawn(barrier.wait, wait=20) for barrier in barriers]
    assert sorted(each.result() for each in arriving) == [0, 1]

    elections = [client.election(name, "leader", lease=20, value=text) for client, text in ((lf, "a"), (other, "b"))]
    leader = elections[0].campaign().acquire()
    next_one = side.spawn(elections[1].campaign().acquire, wait=20)
    wait_until(lambda: lf.inspect(name, "leader").waiters, what="a candidate waits")
    seen = elections[1].leader()
    assert seen is not None
    assert seen.value == "a"
    leader.release()
    next_one.result().release()


@pytest.mark.slow
def test_holder_is_asked_to_let_go_by_a_push(
    cluster: Cluster, side: Side, lf: Lockfast, other: Lockfast, name: str
) -> None:
    tags = [cluster.name_on(node, name) for node in cluster.masters]
    for node, tag in zip(cluster.masters, tags, strict=True):
        with lf.lock(tag, lease=30) as grant:
            told = side.spawn(grant.wait_revoked, 20)
            listens(node, tag)
            assert other.revoke(tag) == 1
            assert told.result()


@pytest.mark.slow
def test_renewals_go_to_every_shard(valkey_cluster: Cluster, side: Side, name: str) -> None:
    names = [valkey_cluster.name_on(node, name) for node in valkey_cluster.masters]
    with side.client(valkey_cluster.url) as lf:
        grants = [lf.lock(each, lease=0.6).acquire() for each in names]
        threading.Event().wait(0.9)
        assert all(grant.held for grant in grants)
        for grant in grants:
            grant.release()


@pytest.mark.slow
def test_names_with_braces_and_other_odd_ones_are_names_like_any_other(lf: Lockfast, other: Lockfast) -> None:
    odd = ["{a}", "{", "}", "{}", "a{b}c{d}", "%7B", "{a}b", "user:{42}:cart", "é☃", "a b", "x|y"]
    grants = [lf.lock(each, lease=20).acquire() for each in odd]
    for each in odd:
        assert other.lock(each).try_acquire() is None
    assert sorted(other.names()) == sorted((each,) for each in odd)
    for grant in grants:
        grant.release()


@pytest.mark.slow
def test_guard_writes_keys_of_the_names_slot_and_says_what_is_wrong_with_others(
    cluster: Cluster, lf: Lockfast, name: str
) -> None:
    inside = f"{{{name}}}:balance"
    outside = next(f"{name}-{n}" for n in range(100) if slot_of(f"{name}-{n}") != slot_of(name))
    with lf.lock(name) as grant:
        assert grant.guard(("SET", inside, 90), ("INCR", inside)) == [b"OK", 91]
        with pytest.raises(errors.Refused, match="hash tag") as refusal:
            grant.guard(("SET", outside, 1))
        assert refusal.value.code == "CROSSSLOT"
    assert cluster.owner(slot_of(name)).command("GET", inside) == b"91"


@pytest.mark.slow
def test_transaction_runs_on_the_node_of_its_slot(cluster: Cluster, side: Side, lf: Lockfast, name: str) -> None:
    for node in cluster.masters:
        tag = cluster.name_on(node, name)
        keys = [f"{{{tag}}}:a", f"{{{tag}}}:b"]

        def move(tx: Any, keys: list[str] = keys) -> int:
            had = int(tx.get(keys[0]) or 5)
            tx.set(keys[0], had - 1)
            tx.write("INCR", keys[1])
            return had

        assert transact(side, lf, move, *keys).value == 5
        assert transact(side, lf, move, *keys, escalate=1).value == 4
        assert [node.command("GET", key) for key in keys] == [b"3", b"2"]


@pytest.mark.slow
def test_transaction_over_several_slots_is_refused_before_anything_is_sent(
    cluster: Cluster, side: Side, lf: Lockfast, name: str
) -> None:
    a, b = (cluster.name_on(node, name) for node in cluster.masters[:2])
    with pytest.raises(ValueError, match="hash tag"):
        transact(side, lf, lambda tx: None, a, b)

    def writes_elsewhere(tx: Any) -> None:
        tx.set(b, 1)

    with pytest.raises(errors.Refused, match="nothing was written"):
        transact(side, lf, writes_elsewhere, a, wait=1)


@pytest.mark.slow
def test_deadlock_over_two_shards_is_found(
    valkey_cluster: Cluster, side: Side, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(detection, "FIRST_LOOK_S", 0.05)
    monkeypatch.setattr(detection, "LOOK_EVERY_S", 0.1)
    monkeypatch.setattr(deadlocks, "PAUSE_S", 0.5)
    x, y = (valkey_cluster.name_on(node, name) for node in valkey_cluster.masters[:2])
    a, b = side.client(valkey_cluster.url), side.client(valkey_cluster.url)
    one, two = Agent(side), Agent(side)
    of_one, of_two = one.take(a.lock(x)), two.take(b.lock(y))
    elder = one.begin(a.lock(y, detect=True))
    waits(a, y)
    younger = two.begin(b.lock(x, detect=True))
    assert isinstance(younger.exception(20), errors.Deadlock)
    of_two.release()
    elder.result(20).release()
    of_one.release()
    one.end()
    two.end()


@pytest.mark.slow
def test_hold_is_handed_on_and_broken_as_elsewhere(lf: Lockfast, other: Lockfast, name: str) -> None:
    text = lf.lock(name, lease=20).acquire().export()
    adopted = other.adopt(text)
    assert adopted.held
    lf.break_lock(name, reason="a test")
    with pytest.raises(errors.LeaseLost):
        adopted.extend()


def test_plain_url_of_a_cluster_is_told_what_to_write(valkey_cluster: Cluster, side: Side, name: str) -> None:
    node = valkey_cluster.masters[0]
    elsewhere = valkey_cluster.name_on(valkey_cluster.masters[1], name)
    with pytest.raises(errors.Refused, match="write cluster://host:port"):
        side.client(node.url).lock(elsewhere).acquire()


def test_cluster_url_of_a_single_server_is_told_what_to_write(valkey_server: Server, side: Side, name: str) -> None:
    lf = side.client(f"cluster://127.0.0.1:{valkey_server.port}")
    with pytest.raises(errors.Refused, match="no cluster: write redis://"):
        lf.lock(name, wait=1).acquire()


def test_one_seed_is_enough_and_a_dead_one_is_passed_over(valkey_cluster: Cluster, side: Side, name: str) -> None:
    dead = "127.0.0.1:1"
    for seeds in (f"127.0.0.1:{valkey_cluster.replicas[0].port}", f"{dead},127.0.0.1:{valkey_cluster.masters[2].port}"):
        with side.client(f"cluster://{seeds}") as lf, lf.lock(name, wait=5):
            pass


def test_cluster_that_is_not_there_is_unreachable_soon(side: Side, name: str) -> None:
    lf = side.client("cluster://127.0.0.1:1,127.0.0.1:2", timeout=0.3)
    with pytest.raises(errors.Unreachable) as failure:
        lf.lock(name, wait=0).acquire()
    assert not failure.value.sent


@pytest.mark.parametrize("library", ["redis", "valkey"])
def test_cluster_clients_of_others_are_read(valkey_cluster: Cluster, side: Side, name: str, library: str) -> None:
    of_threads = importlib.import_module(f"{library}.cluster")
    of_tasks = importlib.import_module(f"{library}.asyncio.cluster")
    made = getattr(of_threads if side.name == "threads" else of_tasks, f"{library.title()}Cluster")
    port = valkey_cluster.masters[0].port
    theirs: Any = made(host="127.0.0.1", port=port)
    with side.client(theirs) as lf, lf.lock(name, wait=5) as grant:
        assert grant.held
        assert "cluster://127.0.0.1" in repr(lf)
    if side.name == "threads":
        theirs.close()


@pytest.mark.slow
def test_closing_wakes_those_who_wait_and_gives_back_what_is_held(
    cluster: Cluster, side: Side, lf: Lockfast, other: Lockfast, name: str
) -> None:
    names = [cluster.name_on(node, name) for node in cluster.masters]
    held = [lf.lock(each, lease=30).acquire() for each in names]
    waiting = [side.spawn(other.lock(each, wait=20).acquire) for each in names]
    for each in names:
        waits(lf, each)
    other.close()
    for one in waiting:
        assert isinstance(one.error(), errors.Misused)
    assert all(not lf.inspect(each).waiters for each in names)
    lf.close()
    assert not any(grant.held for grant in held)
    assert side.client(cluster.url).names() == []
