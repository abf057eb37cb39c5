"""Slots that move, key by key, while a name in them is held, waited for and handed over."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest

from check.test_real_history import waited
from kit.cluster import said
from kit.servers import wait_until
from kit.sides import make_side
from lockfast import check, errors, names
from lockfast.check import io
from lockfast.check.record import Recorder
from lockfast.flows import admission
from topologies.test_cluster import asks_since, listens, waits

if TYPE_CHECKING:
    from pathlib import Path

    from kit.cluster import Cluster
    from kit.servers import Server
    from kit.sides import Side
    from lockfast.sync import Lockfast

pytestmark = pytest.mark.slow


def elsewhere(cluster: Cluster, slot: int) -> Server:
    """A master that does not own the slot."""
    return next(node for node in cluster.masters if node is not cluster.owner(slot))


def test_slot_moves_while_it_is_held_waited_for_and_given_back(
    cluster: Cluster, side: Side, lf: Lockfast, other: Lockfast, name: str
) -> None:
    slot = cluster.slot_of(name)
    target = elsewhere(cluster, slot)
    held = lf.lock(name, lease=30).acquire()
    waiting = []
    for place in range(2):
        waiting.append(side.spawn(other.lock(name, lease=30, wait=30).acquire))
        waits(lf, name, place + 1)
    moved = said(cluster.nodes, "MOVED")
    with cluster.moving(slot, target) as source:
        with pytest.raises(errors.Unreachable, match="TRYAGAIN"):
            side.client(cluster.url, timeout=0.3).inspect(name)
        giving = side.spawn(held.release)  # tried again until the move is over
        keys = cluster.keys_in(slot, source)
        assert {key.decode() for key in keys} >= set(names.make("lockfast", (name,)).keys[:3])
        before = cluster.owner(slot).command("GET", f"lockfast:{{{name}}}")
        for key in keys:
            asked = said([source, target], "TRYAGAIN")
            cluster.move_key(key, source, target)
            wait_until(lambda asked=asked: said([source, target], "TRYAGAIN") > asked, what="asked in vain")  # type: ignore[misc]
        assert not giving.done
        assert not any(each.done for each in waiting)
        with target.wire() as wire:
            wire.call("ASKING")
            assert wire.call("GET", f"lockfast:{{{name}}}") == before, "nobody has touched it meanwhile"
    giving.result()
    first = waiting[0].result()
    assert not waiting[1].done
    first.release()
    second = waiting[1].result()
    second.release()
    assert held.fence < first.fence < second.fence
    assert said(cluster.nodes, "MOVED") > moved, "the old owner has sent us on"
    assert lf.names() == []


def test_looks_and_breaks_are_made_once_the_move_is_over(cluster: Cluster, side: Side, name: str) -> None:
    slot = cluster.slot_of(name)
    lf = side.client(cluster.url, timeout=20)
    grant = lf.lock(name, lease=30).acquire()
    nodes = [cluster.owner(slot), elsewhere(cluster, slot)]
    for look, expected in (
        (lambda: lf.inspect(name).fence, grant.fence),
        (lf.names, [(name,)]),
        (lf.deadlocks, ()),
        (lambda: lf.break_lock(name, reason="test").fence, grant.fence),
    ):
        nodes.reverse()
        with cluster.moving(slot, nodes[0]):
            asked = said(nodes, "TRYAGAIN")
            looking = side.spawn(look)
            wait_until(lambda asked=asked: said(nodes, "TRYAGAIN") > asked + 3, what="asked in vain")  # type: ignore[misc]
            assert not looking.done
        assert looking.result() == expected


def test_name_is_left_alone_during_a_move_even_when_all_its_keys_are_there(
    cluster: Cluster, side: Side, lf: Lockfast, other: Lockfast, name: str
) -> None:
    """A key that a script empties looks, from then on, as if it had moved: the rest of the script would fail."""
    slot = cluster.slot_of(name)
    holders = [lf.semaphore(name, limit=3).acquire() for _ in range(2)]
    waiting = side.spawn(other.semaphore(name, limit=3, permits=3, wait=20).acquire)
    waits(lf, name)
    own = names.make("lockfast", (name,))
    source = cluster.owner(slot)
    source.command("ZADD", own.keys[4], 4102444800000, "a.tombstone.1")
    assert source.command("EXISTS", *own.keys) == 5
    with cluster.moving(slot, elsewhere(cluster, slot)):
        with pytest.raises(errors.Unreachable, match="TRYAGAIN"):
            side.client(cluster.url, timeout=0.3).inspect(name)
        giving = [side.spawn(each.release) for each in holders]
        assert source.command("ZCARD", own.keys[3]) == 2
    for each in giving:
        each.result()
    waiting.result().release()


def test_hold_outlives_a_move_and_its_renewals_follow_it(valkey_cluster: Cluster, side: Side, name: str) -> None:
    slot = valkey_cluster.slot_of(name)
    with side.client(valkey_cluster.url) as lf:
        grant = lf.lock(name, lease=0.9).acquire()
        for _ in range(2):
            valkey_cluster.move(slot, elsewhere(valkey_cluster, slot), pause_s=0.1)
        threading.Event().wait(0.8)
        assert grant.held, "renewed on the new owner"
        grant.extend()
        grant.release()


def test_name_that_nobody_has_used_is_asked_for_at_both_ends_and_taken_after_the_move(
    cluster: Cluster, side: Side, lf: Lockfast, name: str
) -> None:
    slot = cluster.slot_of(name)
    target = elsewhere(cluster, slot)
    with cluster.moving(slot, target) as source:
        asks, again = said([source], "ASK"), said([target], "TRYAGAIN")
        asking = side.spawn(lf.lock(name, lease=20, wait=20).acquire)
        wait_until(lambda: said([source], "ASK") > asks and said([target], "TRYAGAIN") > again, what="sent on, in vain")
        assert not asking.done
    grant = asking.result()
    assert target.command("EXISTS", f"lockfast:{{{name}}}") == 1
    grant.release()


def test_waiter_hears_a_push_of_the_new_owner(
    cluster: Cluster, side: Side, lf: Lockfast, other: Lockfast, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admission, "HEARTBEAT_S", 60.0)
    slot = cluster.slot_of(name)
    target = elsewhere(cluster, slot)
    held = lf.lock(name, lease=30).acquire()
    waiting = side.spawn(other.lock(name, lease=30, wait=20).acquire)
    waits(lf, name)
    listens(cluster.owner(slot), name)
    cluster.move(slot, target)
    listens(target, name)  # without a heartbeat: the old owner has told that it is over
    wait_until(lambda: asks_since(target) == 0, what="the waiter has asked again, and waits")
    held.extend()
    target.reset_stats()
    held.release()
    waiting.result().release()
    assert target.stats()["spublish"] == 1


def test_acquire_that_is_given_up_in_a_moved_slot_leaves_nothing(
    cluster: Cluster, side: Side, lf: Lockfast, other: Lockfast, name: str
) -> None:
    slot = cluster.slot_of(name)
    with lf.lock(name, lease=30):
        waiting = side.spawn(other.lock(name, wait=1.0).acquire)
        waits(lf, name)
        cluster.move(slot, elsewhere(cluster, slot))
        assert isinstance(waiting.error(), errors.NotAcquired)
        wait_until(lambda: not lf.inspect(name).waiters, what="nobody waits")


def test_transaction_is_made_again_on_the_new_owner(valkey_cluster: Cluster, name: str) -> None:
    side = make_side("threads")
    lf = side.client(valkey_cluster.url)
    slot = valkey_cluster.slot_of(name)
    key = f"{{{name}}}:n"

    calls: list[int] = []

    def once_more(tx: object) -> None:
        number = int(tx.get(key) or 0)  # type: ignore[attr-defined]
        if not calls:
            valkey_cluster.move(slot, elsewhere(valkey_cluster, slot))
        calls.append(number)
        tx.set(key, number + 1)  # type: ignore[attr-defined]

    lf.transaction(lambda tx: tx.set(key, 1), key)
    assert lf.transaction(once_more, key).attempts == 2
    assert calls == [1, 1]
    assert valkey_cluster.owner(slot).command("GET", key) == b"2"
    side.close()


def test_slot_that_is_moved_in_one_step_keeps_its_names(valkey_cluster: Cluster, side: Side, name: str) -> None:
    """Valkey 9 moves slots atomically: nobody sees a slot in two places."""
    slot = valkey_cluster.slot_of(name)
    source, target = valkey_cluster.owner(slot), elsewhere(valkey_cluster, slot)
    lf, other = side.client(valkey_cluster.url), side.client(valkey_cluster.url)
    held = lf.lock(name, lease=30).acquire()
    waiting = side.spawn(other.lock(name, lease=30, wait=20).acquire)
    waits(lf, name)
    node_id = target.command("CLUSTER", "MYID").decode()
    source.command("CLUSTER", "MIGRATESLOTS", "SLOTSRANGE", slot, slot, "NODE", node_id)
    wait_until(lambda: all(valkey_cluster.owner(slot, node) is target for node in valkey_cluster.masters), what="moved")
    held.release()
    following = waiting.result()
    assert following.fence > held.fence
    following.release()


@pytest.mark.parametrize("side", ["threads"], indirect=True)
def test_storm_on_a_slot_that_wanders_leaves_a_clean_history(
    cluster: Cluster, side: Side, tmp_path: Path, name: str
) -> None:
    slot = cluster.slot_of(name)
    aside = make_side("asyncio")
    clients = [one.client(cluster.url) for one in (side, side, aside, aside)]
    least_moves, most_moves, least_sections = 3, 50, 60
    done: list[int] = []
    over = threading.Event()

    def wander() -> None:
        try:
            for moves in range(most_moves):
                if moves >= least_moves and len(done) >= least_sections:
                    return
                cluster.move(slot, elsewhere(cluster, slot), pause_s=0.01)
                over.wait(0.1)
        finally:
            over.set()

    with Recorder(tmp_path / "history", "all") as recorder:
        recorder.quiet()

        def work(client: Lockfast) -> None:
            while not over.is_set():
                ticket = recorder.asked(name, lease=20)
                grant = client.lock(name, lease=20, wait=60).acquire()
                recorder.granted(ticket, grant)
                recorder.wrote(ticket, grant.fence)
                recorder.leaving(ticket)
                grant.release()
                recorder.left(ticket)
                done.append(1)

        wandering = side.spawn(wander)
        running = [side.spawn(work, client) for client in clients]
        for each in running:
            each.result(60)
        wandering.result()
        recorder.end()
    history = io.load(tmp_path / "history")
    verdicts = check.all(history)
    for question in ("exclusion", "permits", "fences_grow", "not_stuck", "no_resumption"):
        assert verdicts[question].ok, str(verdicts[question])
    assert waited(history) > 10, "they contended"
    assert clients[0].names() == []
    for client in clients:
        client.close()
    aside.close()
