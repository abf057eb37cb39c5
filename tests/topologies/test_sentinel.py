"""Locks behind sentinels: how the master is found, and that a failover is followed by holders, waiters and renewals."""

from __future__ import annotations

import asyncio
import itertools
import time
from typing import TYPE_CHECKING, Any

import pytest
import redis.asyncio.sentinel
import redis.sentinel
import valkey.sentinel

from kit.sentinels import SERVICE, Sentinel, Sentinels
from kit.servers import wait_until
from kit.small_shapes import OneSentinel
from lockfast import LeaseLost, NotAcquired, Refused, Unreachable
from lockfast.drivers import sentinel as scouting

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kit.servers import Server
    from kit.sides import Side

pytestmark = pytest.mark.slow


def names_of_clients(server: Server) -> list[bytes]:
    """The connections of ours that a server has."""
    listed: bytes = server.command("CLIENT", "LIST")
    return [line for line in listed.splitlines() if b"name=lockfast " in line]


# Finding the master


def test_lock_is_held_on_the_master_that_the_sentinels_name(sentinels: Sentinels, side: Side, name: str) -> None:
    lf, other = side.client(sentinels.url), side.client(sentinels.url)
    with lf.lock(name, lease=5) as grant:
        assert other.lock(name).try_acquire() is None
        assert sentinels.master.command("EXISTS", f"lockfast:{{{name}}}") == 1
        assert lf.inspect(name).holders[0].ticket == grant.ticket
    with other.lock(name, wait=0) as second:
        assert second.fence > grant.fence
    assert repr(lf) == f"<Lockfast sentinel://{sentinels.hosts}/{SERVICE}/0>"


@pytest.mark.parametrize("family", [redis.sentinel, redis.asyncio.sentinel, valkey.sentinel])
def test_client_that_a_sentinel_made_is_read_and_not_used(
    sentinels: Sentinels, side: Side, name: str, family: Any
) -> None:
    hosts = [("127.0.0.1", sentinel.port) for sentinel in sentinels.sentinels]
    client = family.Sentinel(hosts).master_for(SERVICE, db=3)
    with side.client(client).lock(name, wait=0), sentinels.master.wire() as wire:
        wire.call("SELECT", "3")
        assert wire.call("EXISTS", f"lockfast:{{{name}}}") == 1


@pytest.fixture
def redis_sentinels() -> Iterator[Sentinels]:
    with Sentinels("redis") as group:
        yield group


@pytest.mark.needs_redis
def test_redis_and_its_sentinels_are_followed_as_well(redis_sentinels: Sentinels, threads: Side, name: str) -> None:
    lf = threads.client(redis_sentinels.url)
    with lf.lock(name, lease=6) as grant:
        _wait_replicated(redis_sentinels)
        redis_sentinels.fail_over()
        grant.extend()
        assert threads.client(redis_sentinels.url).lock(name).try_acquire() is None


def test_account_of_the_sentinels_is_their_own(sentinels: Sentinels, side: Side, name: str) -> None:
    for sentinel in sentinels.sentinels:
        sentinel.command("ACL", "SETUSER", "asker", "on", ">ask", "+sentinel|get-master-addr-by-name")
    account = f"{sentinels.url}?sentinel_username=asker&sentinel_password="
    with side.client(f"{account}ask").lock(name, wait=0) as grant:
        assert grant.held
    with pytest.raises(Refused) as caught:
        side.client(f"{account}topsecret").lock(name).acquire()
    assert caught.value.code == "WRONGPASS"
    assert "topsecret" not in str(caught.value)


def test_master_that_no_sentinel_knows_is_refused_at_once(sentinels: Sentinels, side: Side, name: str) -> None:
    started = time.monotonic()
    with pytest.raises(Refused, match="knows no master named 'nothing'") as caught:
        side.client(f"sentinel://{sentinels.hosts}/nothing").lock(name, wait=5).acquire()
    assert caught.value.code == "SERVICE"
    assert time.monotonic() - started < 1


def test_sentinel_that_hangs_costs_a_moment_and_is_asked_last_from_then_on(
    sentinels: Sentinels, side: Side, name: str
) -> None:
    lf, master = side.client(sentinels.url), sentinels.master
    sentinels.sentinels[0].pause()
    started = time.monotonic()
    lf.lock(name, wait=0).acquire().release()
    assert time.monotonic() - started > scouting.ASK_S
    master.command("CLIENT", "KILL", "TYPE", "normal")
    started = time.monotonic()
    lf.lock(name, wait=0).acquire().release()
    assert time.monotonic() - started < scouting.ASK_S


def test_nobody_to_ask_is_unreachable_within_the_time_out(side: Side, name: str) -> None:
    started = time.monotonic()
    with pytest.raises(
        Unreachable, match=r"no sentinel of sentinel://127\.0\.0\.1:1,127\.0\.0\.1:2/orders/0"
    ) as caught:
        side.client("sentinel://127.0.0.1:1,127.0.0.1:2/orders", timeout=0.5).lock(name).acquire()
    assert not caught.value.sent
    assert time.monotonic() - started < 2


@pytest.fixture
def misled(sentinels: Sentinels) -> Iterator[str]:
    """The URL of a sentinel that names a replica for the master of "misled"."""
    sentinel = sentinels.sentinels[0]
    sentinel.command("SENTINEL", "MONITOR", "misled", "127.0.0.1", str(sentinels.replica.port), "3")
    yield f"sentinel://127.0.0.1:{sentinel.port}/misled"
    sentinel.command("SENTINEL", "REMOVE", "misled")


def test_named_server_that_is_no_master_is_not_used(sentinels: Sentinels, side: Side, misled: str, name: str) -> None:
    replica = sentinels.replica
    replica.reset_stats()
    with pytest.raises(Unreachable) as caught:
        side.client(misled, timeout=0.4).lock(name, wait=0).acquire()
    assert not caught.value.sent
    assert replica.stats()["hello"] > 1, "it was asked again and again"
    assert "evalsha" not in replica.stats(), "but not for a lock"


def test_named_server_is_used_as_soon_as_it_is_a_master(
    sentinels: Sentinels, side: Side, misled: str, name: str
) -> None:
    waiting = side.spawn(side.client(misled).lock(name, wait=8).acquire)
    replica = sentinels.replica
    wait_until(lambda: "hello" in replica.stats(), what="it was asked whether it is a master")
    replica.command("REPLICAOF", "NO", "ONE")
    waiting.result().release()


# Failover


def _wait_replicated(sentinels: Sentinels) -> None:
    """Until the replica has all that the master has: a failover before that may lose it."""

    def has_all() -> bool:
        sent, got = sentinels.master.info("replication"), sentinels.replica.info("replication")
        return got.get("master_link_status") == "up" and got["slave_repl_offset"] == sent["master_repl_offset"]

    wait_until(has_all, what="all is replicated")


def _follows(server: Server) -> bool:
    """Whether it is a replica. Sentinels end the connections of a server that they demote, ours too."""
    try:
        return bool(server.command("ROLE")[0] == b"slave")
    except ConnectionError:
        return False


def test_hold_lives_through_the_death_of_the_master_and_its_return(sentinels: Sentinels, side: Side, name: str) -> None:
    lf, other = side.client(sentinels.url), side.client(sentinels.url)
    old = sentinels.master
    with lf.lock(name, lease=6) as grant:
        wait_until(lambda: sentinels.replica.command("EXISTS", f"lockfast:{{{name}}}"), what="it is replicated")
        old.kill9()
        new = sentinels.wait_moved(old)
        before = grant.remaining
        wait_until(lambda: grant.remaining > before, what="it is renewed on the new master")
        assert other.lock(name, wait=1).try_acquire() is None
        old.start()  # which takes itself for a master, until the sentinels tell it otherwise
        assert other.lock(name).try_acquire() is None
        wait_until(lambda: _follows(old), what="the old master follows the new one")
        assert other.lock(name).try_acquire() is None
        assert new.command("EXISTS", f"lockfast:{{{name}}}") == 1
        grant.check()
    with other.lock(name, wait=1) as second:
        assert second.fence > grant.fence


def test_waiter_is_served_after_a_failover_in_the_order_of_arrival(sentinels: Sentinels, side: Side, name: str) -> None:
    lf = side.client(sentinels.url)
    waiters = [side.client(sentinels.url) for _ in range(2)]
    with lf.lock(name, lease=6) as grant:
        waiting = []
        for count, waiter in enumerate(waiters, 1):
            waiting.append(side.spawn(waiter.lock(name, lease=6, wait=15).acquire))
            wait_until(lambda count=count: len(lf.inspect(name).waiters) == count, what="it waits")  # type: ignore[misc]
        _wait_replicated(sentinels)
        sentinels.fail_over()
        wait_until(lambda: len(lf.inspect(name).waiters) == 2, what="both wait on the new master")
    first = waiting[0].result()
    assert first.fence > grant.fence
    assert not waiting[1].done
    first.release()
    second = waiting[1].result()
    assert second.fence > first.fence
    second.release()


def test_frozen_master_is_left_within_the_callers_deadline(sentinels: Sentinels, side: Side, name: str) -> None:
    lf, other = side.client(sentinels.url, timeout=1), side.client(sentinels.url, timeout=1)
    grant = lf.lock(name, lease=5).acquire()
    old = sentinels.master
    _wait_replicated(sentinels)
    old.pause()
    waiting = side.spawn(other.lock(name, wait=20).acquire)
    sentinels.wait_moved(old)
    before = grant.remaining
    wait_until(lambda: grant.remaining > before, what="it is renewed on the new master")
    old.resume()
    assert not waiting.done
    grant.release()
    waiting.result().release()


def test_demoted_master_that_keeps_its_connections_is_left_at_its_first_refusal(
    sentinels: Sentinels, side: Side, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """READONLY means that it was not run: the next try goes to the new master, for all that a client has open."""
    monkeypatch.setattr(scouting, "RECHECK_S", 60.0)
    lf = side.client(sentinels.url)
    old = sentinels.master
    grants = [lf.lock(name, part, lease=30).acquire() for part in ("acquire", "extend", "release", "several")]
    grants[0].release()
    _wait_replicated(sentinels)
    sentinels.cut_off(old)
    new = sentinels.wait_moved(old)
    old.command("REPLICAOF", "127.0.0.1", str(new.port))

    def write(attempt: Any) -> Any:
        attempt.write("SET", name, "written")
        return asyncio.sleep(0) if side.name == "asyncio" else None

    for call in (
        lf.lock(name, "acquire", wait=0).acquire,
        grants[1].extend,
        grants[2].release,
        lf.locks(f"{name}-1", f"{name}-2", wait=0).acquire,
        lambda: lf.transaction(write, name),
    ):
        call()
    assert new.command("GET", name) == b"written"
    assert int(old.info("errorstats")["errorstat_READONLY"].removeprefix("count=")) >= 1


def test_plain_url_of_a_replica_is_still_refused(sentinels: Sentinels, side: Side, name: str) -> None:
    with pytest.raises(Refused, match="connect to the primary"):
        side.client(sentinels.replica.url).lock(name, wait=0).acquire()


def test_old_master_that_does_not_know_it_is_left_soon(
    sentinels: Sentinels, side: Side, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cut off from the sentinels it goes on answering; what is open to it is cut, the push connection as well."""
    monkeypatch.setattr(scouting, "RECHECK_S", 0.1)
    lf, other = side.client(sentinels.url), side.client(sentinels.url)
    old = sentinels.master
    grant = lf.lock(name, lease=10).acquire()
    waiting = side.spawn(other.lock(name, lease=10, wait=20).acquire)
    wait_until(lambda: len(lf.inspect(name).waiters) == 1, what="it waits")
    _wait_replicated(sentinels)
    sentinels.cut_off(old)
    new = sentinels.wait_moved(old)
    moved = time.monotonic()
    wait_until(lambda: not names_of_clients(old), what="all connections to the old master are cut")
    assert time.monotonic() - moved < 3 * (0.1 + scouting.ASK_S) + 0.5
    assert old.command("ROLE")[0] == b"master"
    wait_until(lambda: len(lf.inspect(name).waiters) == 1, what="it waits at the new master")
    grant.release()
    waiting.result().release()
    assert len(names_of_clients(new)) >= 2


def test_sentinel_that_knows_only_the_old_master_is_overruled(
    sentinels: Sentinels, threads: Side, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scouting, "RECHECK_S", 0.1)
    old = sentinels.master
    sentinels.cut_off(old)
    new = sentinels.wait_moved(old)
    lone = Sentinel("valkey", old.port)  # it monitors the old master, and cannot reach it either
    try:
        lf = threads.client(f"sentinel://127.0.0.1:{lone.port},{sentinels.hosts}/{SERVICE}")
        grant = lf.lock(name, "first", lease=10).acquire()
        assert old.command("EXISTS", f"lockfast:{{{name}}}:first") + old.command("DBSIZE") >= 1, "it was believed"
        wait_until(lambda: not names_of_clients(old), what="the others are heard")
        with pytest.raises(LeaseLost):
            grant.extend()
        for _ in range(3):
            lf.lock(name, "second", wait=0).acquire().release()
            new.command("CLIENT", "KILL", "TYPE", "normal")
        assert not names_of_clients(old), "what was heard once is not forgotten"
    finally:
        lone.close()


def test_master_that_sentinels_spell_differently_keeps_its_connections(
    side: Side, server: Server, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scouting, "RECHECK_S", 0.05)
    spelled = ("sentinel resolve-hostnames yes", "sentinel announce-hostnames yes")
    with OneSentinel(server) as one, OneSentinel(server, settings=spelled, host="localhost") as another:
        for watcher, host in ((one, b"127.0.0.1"), (another, b"localhost")):
            assert watcher.command("SENTINEL", "GET-MASTER-ADDR-BY-NAME", SERVICE)[0] == host
            wait_until(lambda watcher=watcher: _run_id(watcher), what="the sentinel has asked the master")  # type: ignore[misc]
        with side.client(f"sentinel://127.0.0.1:{one.port},127.0.0.1:{another.port}/{SERVICE}") as lf:
            lf.lock(name).acquire().release()
            before = names_of_clients(server)
            for watcher in (one, another):
                _wait_asked(watcher, 5)
            lf.lock(name).acquire().release()
            assert _ids(names_of_clients(server)) == _ids(before)


def _run_id(watcher: OneSentinel) -> bytes:
    told = watcher.command("SENTINEL", "MASTER", SERVICE)
    return dict(zip(told[::2], told[1::2], strict=True))[b"runid"]  # type: ignore[no-any-return]


def _wait_asked(watcher: OneSentinel, times: int) -> None:
    """Waits until a sentinel has had so many connections besides those that ask for their number."""
    looks = itertools.count(1)

    def taken() -> int:
        told: bytes = watcher.command("INFO", "stats")
        return int(told.split(b"total_connections_received:")[1].split()[0])

    before = taken()
    wait_until(lambda: taken() - next(looks) >= before + times, what="asked again")


def _ids(clients: list[bytes]) -> list[bytes]:
    return [line.split()[0] for line in clients]


# What a failover may lose


def test_hold_that_a_failover_lost_is_told_at_the_next_contact(sentinels: Sentinels, side: Side, name: str) -> None:
    lf, other = side.client(sentinels.url), side.client(sentinels.url)
    old = sentinels.master
    sentinels.stop_following(sentinels.replica)
    grant = lf.lock(name, lease=30).acquire()
    old.kill9()
    sentinels.wait_moved(old)
    with other.lock(name, wait=5) as second:  # nobody on the new master knows of the first
        with pytest.raises(LeaseLost, match="no longer knows it"):
            grant.extend()
        assert grant.lost
        assert second.fence > grant.fence
        with pytest.raises(NotAcquired):
            lf.lock(name, wait=0).acquire()
    with lf.lock(name, wait=0) as third:
        assert third.fence > second.fence


@pytest.fixture
def faketime_sentinels() -> Iterator[Sentinels]:
    with Sentinels(faketime=True) as group:
        yield group


@pytest.mark.needs_faketime
def test_fence_grows_over_a_failover_if_clocks_agree_or_the_client_has_seen_it(
    faketime_sentinels: Sentinels, threads: Side, name: str
) -> None:
    """The old master's clock is ahead: by less than the time that passes, and by more."""
    group = faketime_sentinels
    lf, stranger = threads.client(group.url), threads.client(group.url)
    old = group.master
    group.stop_following(group.replica)
    old.clock_shift(0.5)
    slightly = lf.lock(name, "slightly", lease=30).acquire()
    old.clock_shift(100)
    seen, unseen = (lf.lock(name, part, lease=30).acquire() for part in ("seen", "unseen"))
    old.kill9()
    group.wait_moved(old)
    assert stranger.lock(name, "slightly", wait=5).acquire().fence > slightly.fence
    assert lf.lock(name, "seen", wait=5).acquire().fence > seen.fence, "the client carries the highest it saw"
    assert stranger.lock(name, "unseen", wait=5).acquire().fence < unseen.fence, "a documented limit"
