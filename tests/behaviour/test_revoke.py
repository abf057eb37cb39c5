"""Holders are asked to let go; they see it, at once if they wait for it, and nobody is made to."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from behaviour.queueing import PATIENCE_S, waiting
from kit.servers import wait_until
from lockfast.clock import now

if TYPE_CHECKING:
    from kit.proxy import Proxy
    from kit.servers import FreshServer
    from kit.sides import Side
    from lockfast.sync import Lockfast


def test_holder_that_is_asked_for_sees_it_at_its_next_renewal_and_still_holds(
    lf: Lockfast, other: Lockfast, name: str
) -> None:
    grant = lf.lock(name, lease=0.3).acquire()
    assert not grant.revoked
    assert other.revoke(name) == 1
    wait_until(lambda: grant.revoked, what="a renewal", timeout_s=PATIENCE_S)
    assert grant.held


def test_extend_by_hand_tells_as_well(lf: Lockfast, other: Lockfast, name: str) -> None:
    grant = lf.lock(name, renew=False).acquire()
    other.revoke(name)
    assert not grant.revoked
    grant.extend()
    assert grant.revoked


def test_holder_that_waits_for_it_hears_at_once(side: Side, lf: Lockfast, other: Lockfast, name: str) -> None:
    grant = lf.lock(name, lease=600).acquire()
    waits = side.spawn(grant.wait_revoked, PATIENCE_S)
    wait_until(lambda: _listeners(other, name) > 0, what="the holder to listen", timeout_s=PATIENCE_S)
    assert other.revoke(name) == 1
    assert waits.result() is True
    assert grant.revoked


def _listeners(lf: Lockfast, name: str) -> int:
    """How many listen on the channel of whoever holds the name; asked on a connection of the test's own."""
    ticket = lf.inspect(name).holders[0].ticket
    import redis

    endpoint = getattr(lf, "twin_of", lf)._driver.endpoint
    with redis.Redis(host=endpoint.host, port=endpoint.port) as client:
        ((_, count),) = client.pubsub_numsub(f"lockfast:push:{ticket.partition('.')[0]}")
        return int(count)


def test_holder_that_was_asked_before_it_listened_hears_too(lf: Lockfast, other: Lockfast, name: str) -> None:
    grant = lf.lock(name, lease=600).acquire()
    other.revoke(name)
    assert grant.wait_revoked(PATIENCE_S)


def test_waiting_for_it_ends_by_the_clock_and_with_the_hold(
    side: Side, lf: Lockfast, other: Lockfast, name: str
) -> None:
    grant = lf.lock(name, lease=600).acquire()
    assert grant.wait_revoked(0.05) is False
    assert grant.wait_revoked(0) is False
    waits = side.spawn(grant.wait_revoked)
    wait_until(lambda: _listeners(other, name) > 0, what="the holder to listen", timeout_s=PATIENCE_S)
    grant.release()
    assert waits.result() is False


def test_who_comes_later_is_not_meant(lf: Lockfast, other: Lockfast, name: str) -> None:
    first = lf.lock(name).acquire()
    other.revoke(name)
    first.release()
    second = lf.lock(name).acquire()
    second.extend()
    assert not second.revoked


def test_all_who_share_a_name_are_asked(lf: Lockfast, other: Lockfast, name: str) -> None:
    grants = [lf.semaphore(name, limit=3).acquire() for _ in range(3)]
    assert other.revoke(name) == 3
    for grant in grants:
        grant.extend()
        assert grant.revoked
    alone = lf.semaphore(name, "b", limit=3).acquire()
    assert other.revoke(name, "b") == 1
    alone.extend()
    assert alone.revoked


def test_waiters_are_not_asked_and_get_in_when_the_holder_lets_go(
    side: Side, lf: Lockfast, other: Lockfast, name: str
) -> None:
    grant = lf.lock(name).acquire()
    next_one = waiting(side, lf, other.lock(name), name, wait=PATIENCE_S)
    assert other.revoke(name) == 1
    assert grant.wait_revoked(PATIENCE_S)
    grant.release()
    late = next_one.result()
    late.extend()
    assert not late.revoked


def test_nobody_is_asked_for_a_free_or_unknown_name(lf: Lockfast, other: Lockfast, name: str) -> None:
    assert other.revoke(name) == 0
    lf.lock(name).acquire().release()
    assert other.revoke(name) == 0


def test_revoke_is_asked_again_when_its_reply_is_lost(side: Side, lf: Lockfast, proxy: Proxy, name: str) -> None:
    grant = lf.lock(name).acquire()
    client = side.client(proxy.url)
    lost = proxy.when("EVALSHA", containing=name).drop_reply_and_cut()
    assert client.revoke(name) == 1
    assert lost.hits == 1
    grant.extend()
    assert grant.revoked


@pytest.mark.slow
def test_lost_push_connection_is_made_anew_by_who_waits_to_be_asked(
    side: Side, fresh_server: FreshServer, name: str
) -> None:
    server = fresh_server()
    lf, other = side.client(server.url), side.client(server.url)
    grant = lf.lock(name, lease=600).acquire()
    waits = side.spawn(grant.wait_revoked, PATIENCE_S)
    wait_until(lambda: _listeners(other, name) > 0, what="the holder to listen", timeout_s=PATIENCE_S)
    server.command("CLIENT", "KILL", "TYPE", "pubsub")
    other.revoke(name)
    assert waits.result() is True


@pytest.mark.slow
def test_several_may_wait_to_be_asked_for_the_same_hold(side: Side, lf: Lockfast, other: Lockfast, name: str) -> None:
    grant = lf.lock(name, lease=600).acquire()
    waits = [side.spawn(grant.wait_revoked, timeout_s) for timeout_s in (0.2, 0.3)]
    assert [one.result() for one in waits] == [False, False]
    waits = [side.spawn(grant.wait_revoked, PATIENCE_S) for _ in range(3)]
    other.revoke(name)
    assert [one.result() for one in waits] == [True, True, True]


@pytest.mark.slow
def test_waiting_to_be_asked_does_not_prolong_a_hold_that_is_not_renewed(lf: Lockfast, name: str) -> None:
    grant = lf.lock(name, lease=0.4, renew=False).acquire()
    ends_at = grant.deadline + 0.1
    while grant.held and now() < ends_at:
        grant.wait_revoked(0.05)
    assert grant.lost


@pytest.mark.slow
def test_waiting_to_be_asked_ends_by_the_clock_although_the_server_is_silent(
    side: Side, proxy: Proxy, name: str
) -> None:
    client = side.client(proxy.url, timeout=4)
    grant = client.lock(name, lease=60).acquire()
    proxy.blackhole()
    started = now()
    assert grant.wait_revoked(0.1) is False
    assert now() - started < 2, "not the patience of a request"
    proxy.heal()
