"""Nodes of a cluster that die, hang, are cut off or lose messages."""

from __future__ import annotations

import asyncio
import ctypes
import threading
import time
from typing import TYPE_CHECKING

import pytest

from kit.cluster import Cluster, said
from kit.servers import wait_until
from kit.sides import AsyncioSide, make_side
from lockfast import check, errors
from lockfast.check import io
from lockfast.check.record import Recorder
from topologies.test_cluster import waits

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from kit.proxy import Proxy, ProxyFor
    from kit.servers import Server
    from kit.sides import Side
    from lockfast.sync import Lockfast

pytestmark = pytest.mark.slow


def is_replicated(cluster: Cluster, node: Server) -> None:
    """Waits until the replica of a master has all that it has."""
    replica = cluster.replicas[cluster.masters.index(node)]
    wait_until(
        lambda: replica.info("replication")["slave_repl_offset"] == node.info("replication")["master_repl_offset"],
        what="replicated",
    )


@pytest.fixture
def sides() -> Iterator[list[Side]]:
    """Both, for what needs a fresh cluster: that is dear."""
    made = [make_side("threads"), make_side("asyncio")]
    yield made
    for side in made:
        side.close()


def test_killed_master_is_followed_by_its_replica_and_everybody_goes_on(
    fresh_cluster: Cluster, sides: list[Side]
) -> None:
    cluster = fresh_cluster
    node = max(cluster.masters, key=lambda node: node.port)  # which those who list all names come to last
    names = [cluster.name_on(node, side.name) for side in sides]
    clients = [(side.client(cluster.url), side.client(cluster.url)) for side in sides]
    try:
        held = [lf.lock(name, lease=30).acquire() for (lf, _), name in zip(clients, names, strict=True)]
        waiting = [
            side.spawn(other.lock(name, lease=30, wait=30).acquire)
            for side, (_, other), name in zip(sides, clients, names, strict=True)
        ]
        for (lf, _), name in zip(clients, names, strict=True):
            waits(lf, name)
        is_replicated(cluster, node)
        node.kill9()
        fresh = [
            side.spawn(lf.lock(f"{name}-new", lease=30, wait=30).acquire)
            for side, (lf, _), name in zip(sides, clients, names, strict=True)
        ]
        looking = [
            side.spawn(side.client(cluster.url, timeout=30).inspect, name)
            for side, name in zip(sides, names, strict=True)
        ]
        listing = [side.spawn(side.client(cluster.url, timeout=30).names) for side in sides]
        cluster.wait_failed_over(cluster.slot_of_running(names[0]), node)
        assert [each.result().holders[0].fence for each in looking] == [grant.fence for grant in held]
        for listed in listing:
            assert {(name,) for name in names} <= set(listed.result()), "of the shard whose master was killed, too"
        for grant in held:
            grant.extend()
            assert grant.held, "the replica knew of it"
            grant.release()
        for grant, each in zip(held, waiting, strict=True):
            following = each.result()
            assert following.fence > grant.fence
            following.release()
        for each in fresh:
            each.result().release()
        assert clients[0][0].names() == []
    finally:
        for pair in clients:
            for client in pair:
                client.close()


def test_frozen_master_is_left_and_not_believed_when_it_wakes(fresh_cluster: Cluster, sides: list[Side]) -> None:
    cluster, node = fresh_cluster, fresh_cluster.masters[0]
    names = [cluster.name_on(node, side.name) for side in sides]
    clients = [side.client(cluster.url) for side in sides]
    try:
        held = [lf.lock(name, lease=30).acquire() for lf, name in zip(clients, names, strict=True)]
        others = [
            side.spawn(lf.lock(f"{name}-w", wait=30).acquire)
            for side, lf, name in zip(sides, clients, names, strict=True)
        ]
        for each in others:
            each.result().release()
        is_replicated(cluster, node)
        node.pause()
        started = time.monotonic()
        waiting = [
            side.spawn(side.client(cluster.url).lock(name, lease=30, wait=30).acquire)
            for side, name in zip(sides, names, strict=True)
        ]
        new = cluster.wait_failed_over(cluster.slot_of_running(names[0], node), node)
        for grant in held:
            grant.release()
        grants = [each.result() for each in waiting]
        assert time.monotonic() - started < 20
        node.resume()
        wait_until(lambda: node.info("replication")["role"] == "slave", timeout_s=20, what="it has become a replica")
        for grant in grants:
            grant.extend()
            grant.release()
        with clients[0].lock(names[0], wait=10) as grant:
            assert new.command("EXISTS", f"lockfast:{{{names[0]}}}") == 1
            assert grant.held
    finally:
        node.resume()
        for client in clients:
            client.close()


def test_slot_that_nobody_serves_is_waited_for(valkey_cluster: Cluster, side: Side, name: str) -> None:
    slot = valkey_cluster.slot_of(name)
    owner = valkey_cluster.owner(slot)
    with side.client(valkey_cluster.url) as lf:
        lf.lock(name, wait=5).acquire().release()
        down = said([owner], "CLUSTERDOWN")
        owner.command("CLUSTER", "DELSLOTS", slot)
        try:
            asking = side.spawn(lf.lock(name, wait=20).acquire)
            wait_until(lambda: said([owner], "CLUSTERDOWN") > down, what="refused")
            assert not asking.done
        finally:
            owner.command("CLUSTER", "ADDSLOTS", slot)
        asking.result().release()


class Proxied:
    """Three masters, each behind a proxy that the cluster takes for it."""

    def __init__(self, cluster: Cluster, proxy_for: ProxyFor) -> None:
        self.cluster = cluster
        self.proxies: list[Proxy] = []
        for node in cluster.masters:
            proxy = proxy_for(node)
            node.command("CONFIG", "SET", "cluster-announce-bus-port", node.port + 10000)
            node.command("CONFIG", "SET", "cluster-announce-port", proxy.port)
            self.proxies.append(proxy)
        ports = {proxy.port for proxy in self.proxies}
        for node in cluster.masters:
            wait_until(
                lambda node=node: {int(place[2][1]) for place in node.command("CLUSTER", "SLOTS")} == ports,  # type: ignore[misc]
                what="announced",
            )
        self.url = "cluster://" + ",".join(f"127.0.0.1:{proxy.port}" for proxy in self.proxies)

    def name_on(self, shard: int, stem: str) -> str:
        node = self.cluster.masters[shard]
        for number in range(1000):
            tag = f"{stem}-{number}"
            slot = node.command("CLUSTER", "KEYSLOT", tag)
            places = node.command("CLUSTER", "SLOTS")
            if any(first <= slot <= last and place[1] == self.proxies[shard].port for first, last, place, *_ in places):
                return tag
        raise AssertionError("no name found")


@pytest.fixture(scope="module")
def shared_masters() -> Iterator[Cluster]:
    with Cluster("valkey", replicas=False) as cluster:
        yield cluster


@pytest.fixture
def proxied(shared_masters: Cluster, proxy_for: ProxyFor) -> Proxied:
    return Proxied(shared_masters, proxy_for)


def test_lost_requests_and_replies_are_made_good_on_every_shard(proxied: Proxied, side: Side, name: str) -> None:
    lf, other = side.client(proxied.url, timeout=0.4), side.client(proxied.url)
    faults = ("drop_reply", "drop_reply_and_cut"), ("cut_request", "drop_reply"), ("swallow_request", "cut_request")
    for shard, proxy in enumerate(proxied.proxies):
        tag = proxied.name_on(shard, name)
        with lf.lock(tag, wait=5):
            pass
        for fault in faults[shard]:
            getattr(proxy.when("EVALSHA"), fault)()
            grant = lf.lock(tag, lease=30, wait=10).acquire()
            assert len(other.inspect(tag).holders) == 1
            getattr(proxy.when("EVALSHA"), fault)()
            grant.release()
            assert not other.inspect(tag).holders


def test_interrupted_acquire_is_undone_behind_its_request(proxied: Proxied, side: Side, name: str) -> None:
    lf, other = side.client(proxied.url, timeout=0.4), side.client(proxied.url)
    tag = proxied.name_on(2, name)
    with lf.lock(tag, wait=5):
        pass
    proxied.proxies[2].when("EVALSHA", containing=tag, times=None).drop_reply()
    with pytest.raises(errors.Unreachable):
        lf.lock(tag, lease=30, wait=0).acquire()
    proxied.proxies[2].heal()
    wait_until(lambda: not other.inspect(tag).holders, what="given back")
    lf.close()


def test_waiter_whose_first_connection_died_leaves_no_place_behind(proxied: Proxied, side: Side, name: str) -> None:
    lf, other = side.client(proxied.url, timeout=0.5), side.client(proxied.url)
    tag = proxied.name_on(1, name)
    with lf.lock(tag, wait=5):
        pass
    held = other.lock(tag, lease=30).acquire()
    proxied.proxies[1].when("EVALSHA", containing=tag).swallow_request()  # and whatever follows on that connection
    waiting = side.spawn(lf.lock(tag, lease=30).acquire, wait=3)
    waits(other, tag)
    with pytest.raises(errors.NotAcquired):
        waiting.result()
    wait_until(lambda: not other.inspect(tag).waiters, timeout_s=2, what="its place given up, long before that ends")
    held.release()
    assert not other.inspect(tag).holders


def test_shard_that_is_cut_off_costs_only_its_own_holds(proxied: Proxied, side: Side, name: str) -> None:
    lf = side.client(proxied.url, timeout=0.4)
    tags = [proxied.name_on(shard, name) for shard in range(3)]
    grants = [lf.lock(tag, lease=1.0).acquire() for tag in tags]
    proxied.proxies[0].blackhole()
    wait_until(lambda: grants[0].lost, what="it is no longer sure")
    threading.Event().wait(0.7)
    assert [grant.held for grant in grants] == [False, True, True]
    with lf.lock(proxied.name_on(1, f"{name}-new"), wait=5):
        pass
    proxied.proxies[0].heal()
    proxied.proxies[0].cut_all()
    for grant in grants[1:]:
        grant.release()
    with lf.lock(tags[0], wait=10):
        pass
    lf.close()


def test_guard_needs_no_shard_but_the_one_of_its_name(proxied: Proxied, side: Side, name: str) -> None:
    tag = proxied.name_on(1, name)
    clients = [side.client(proxied.url, timeout=4) for _ in range(8)]  # each has yet to ask what commands there are
    grants = [lf.semaphore(tag, limit=8, lease=30).acquire() for lf in clients]
    for shard in (0, 2):
        proxied.proxies[shard].blackhole()
    for grant in grants:
        assert grant.guard(("INCR", f"{{{tag}}}:n"))
    assert [len(proxy.seen("COMMAND")) for proxy in proxied.proxies] == [0, 8, 0]
    for grant in grants:
        grant.release()
    for shard in (0, 2):
        proxied.proxies[shard].heal()


def test_lost_push_connection_is_made_again_and_missed_grants_are_found(
    proxied: Proxied, side: Side, name: str
) -> None:
    lf, other = (side.client(proxied.url) for _ in range(2))
    tag = proxied.name_on(1, name)
    held = lf.lock(tag, lease=30).acquire()
    waiting = side.spawn(other.lock(tag, lease=30, wait=20).acquire)
    waits(lf, tag)
    wait_until(lambda: proxied.cluster.masters[1].command("PUBSUB", "SHARDCHANNELS", f"*{tag}*"), what="subscribed")
    proxied.proxies[1].cut_all()
    held.release()
    waiting.result().release()


def test_storm_with_a_failover_is_excused_by_nothing_else(fresh_cluster: Cluster, tmp_path: Path) -> None:
    """What a master has answered and not yet replicated is lost with it: that is the only excuse."""
    cluster = fresh_cluster
    sides = [make_side("threads"), make_side("asyncio")]
    names = [cluster.name_on(node, "storm") for node in cluster.masters]
    clients = [side.client(cluster.url) for side in sides for _ in range(2)]
    victim = cluster.masters[2]
    over = threading.Event()
    done = [0] * len(clients)
    with Recorder(tmp_path / "history", "all") as recorder:

        def work(number: int, client: Lockfast) -> None:
            while not over.is_set():
                name = names[done[number] % len(names)]
                ticket = recorder.asked(name, lease=2)
                try:
                    grant = client.lock(name, lease=2, wait=30).acquire()
                except errors.LockfastError as failure:
                    recorder.failed(ticket, repr(failure))
                    continue
                recorder.granted(ticket, grant)
                recorder.wrote(ticket, grant.fence)
                recorder.leaving(ticket)
                try:
                    grant.release()
                    recorder.left(ticket)
                except errors.LeaseLost as loss:
                    recorder.lost(ticket, repr(loss))
                except errors.Unreachable:
                    pass  # the lease ends it
                done[number] += 1

        running = [sides[0].spawn(work, number, client) for number, client in enumerate(clients)]
        wait_until(lambda: min(done) > 10, what="all work")
        recorder.server_lost_memory(names[2], "its master is killed")
        victim.kill9()
        cluster.wait_failed_over(cluster.slot_of_running(names[2], victim), victim)
        recorder.server_lost_memory(names[2], "its replica has taken over")
        before = list(done)
        wait_until(
            lambda: all(now > then + 10 for now, then in zip(done, before, strict=True)), timeout_s=30, what="on"
        )
        over.set()
        for each in running:
            each.result()
        recorder.end()
    for client in clients:
        client.close()
    for side in sides:
        side.close()
    for question, verdict in check.all(io.load(tmp_path / "history")).items():
        assert not verdict.bad, f"{question}: {verdict}"
    others = [event for event in io.load(tmp_path / "history") if event.name != names[2]]
    for question in ("exclusion", "fences_grow", "no_resumption"):
        assert check.CHECKERS[question](others).ok, "the other shards have no excuse"


def test_acquire_that_is_interrupted_while_its_slot_moves_is_undone_on_the_new_owner(
    proxied: Proxied, side: Side, name: str
) -> None:
    """The `leave` goes behind the unanswered request, and from there to where the hold is now."""
    tag = proxied.name_on(0, name)
    lf, other = side.client(proxied.url, timeout=20), side.client(proxied.url)
    with lf.lock(tag, wait=5):
        pass
    late = proxied.proxies[0].when("EVALSHA", containing=tag).delay_reply()
    stop, ended = begin_acquire(side, lf, tag)
    wait_until(lambda: other.inspect(tag).holders, what="granted, though nobody was told")
    source, target = proxied.cluster.masters[:2]
    slot = source.command("CLUSTER", "KEYSLOT", tag)
    target.command("CLUSTER", "SETSLOT", slot, "IMPORTING", source.command("CLUSTER", "MYID"))
    source.command("CLUSTER", "SETSLOT", slot, "MIGRATING", target.command("CLUSTER", "MYID"))
    for key in proxied.cluster.keys_in(slot, source):
        proxied.cluster.move_key(key, source, target)
    proxied.cluster.end_move(slot, source, target)
    assert other.inspect(tag).holders
    seen = len(proxied.proxies[0].requests)
    stop()
    wait_until(lambda: len(proxied.proxies[0].requests) > seen, what="it is being undone")
    assert proxied.proxies[0].requests[seen].command == "EVAL"
    late.let_go()
    assert ended.wait(10)
    wait_until(lambda: not other.inspect(tag).holders, what="given back where it is now")
    lf.close()
    other.close()


def begin_acquire(side: Side, lf: Lockfast, name: str) -> tuple[Callable[[], object], threading.Event]:
    """Begins an acquire. Returns what interrupts it, as Ctrl-C or as a cancelled task, and what is set at its end."""
    ended = threading.Event()
    if isinstance(side, AsyncioSide):

        async def acquire() -> None:
            try:
                await lf.twin_of.lock(name, lease=60).acquire()  # type: ignore[attr-defined]
            finally:
                ended.set()

        task = asyncio.run_coroutine_threadsafe(acquire(), side.loop)
        return task.cancel, ended

    def work() -> None:
        try:
            lf.lock(name, lease=60).acquire()
        except KeyboardInterrupt:
            ended.set()

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    interrupt = ctypes.pythonapi.PyThreadState_SetAsyncExc
    return lambda: interrupt(ctypes.c_ulong(thread.ident or 0), ctypes.py_object(KeyboardInterrupt)), ended
