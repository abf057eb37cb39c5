"""A grant: who may end it, how long it lasts, and what it says about itself."""

from __future__ import annotations

import gc
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from behaviour.queueing import PATIENCE_S, holder, wait_over
from kit.servers import wait_until
from lockfast import LeaseLost, NotHeld
from lockfast import Lockfast as SyncLockfast
from lockfast.clock import now

if TYPE_CHECKING:
    from kit.proxy import Proxy
    from kit.servers import Server
    from kit.sides import Side
    from lockfast.sync import Lockfast


def test_release_from_another_thread_or_task_works(side: Side, lf: Lockfast, name: str) -> None:
    grant = side.spawn(lf.lock(name).acquire).result()
    assert grant.held
    grant.release()
    assert holder(lf, name) is None


def test_block_may_be_left_by_another_thread(server: Server, name: str) -> None:
    with SyncLockfast(server.url) as lf:
        lock = lf.lock(name)
        with ThreadPoolExecutor(1) as pool:
            grant = pool.submit(lock.__enter__).result()
        lock.__exit__(None, None, None)
        assert not grant.held
        assert holder(lf, name) is None


def test_second_release_is_not_held(lf: Lockfast, other: Lockfast, name: str) -> None:
    grant = lf.lock(name).acquire()
    grant.release()
    with other.lock(name) as now_held:
        with pytest.raises(NotHeld, match=name):
            grant.release()
        with pytest.raises(NotHeld):
            grant.check()
        with pytest.raises(NotHeld):
            grant.extend()
        assert holder(lf, name) == now_held.ticket
    assert not grant.lost, "it was given back, not lost"


def test_two_releases_at_the_same_time_are_one(side: Side, proxy: Proxy, name: str) -> None:
    with side.client(proxy.url) as lf:
        grant = lf.lock(name).acquire()
        late = proxy.when("EVALSHA", containing=grant.ticket).delay_reply()
        first = side.spawn(grant.release)
        late.wait_hit()  # the server has let it go, and the first does not know yet
        late_too = proxy.when("EVALSHA", containing=grant.ticket).delay_reply()
        second = side.spawn(grant.release)
        late_too.wait_hit()
        late_too.let_go()
        late.let_go()
        assert [first.error(), second.error()] == [None, None]
        assert not grant.lost


def test_of_two_releases_at_the_same_time_one_tells_that_the_hold_had_gone(
    side: Side, proxy: Proxy, other: Lockfast, name: str
) -> None:
    with side.client(proxy.url) as lf:
        grant = lf.lock(name).acquire()
        other.break_lock(name, reason="test")
        late = proxy.when("EVALSHA", containing=grant.ticket).delay_reply()
        first = side.spawn(grant.release)
        late.wait_hit()
        second = side.spawn(grant.release)
        if side.name == "threads":
            second.error()
        late.let_go()
        assert any(isinstance(one.error(), LeaseLost) for one in (first, second))
        assert grant.lost


def test_release_inside_the_block_is_enough(lf: Lockfast, name: str) -> None:
    with lf.lock(name) as grant:
        grant.release()
        assert holder(lf, name) is None
    assert not grant.lost


def test_release_after_the_lease_has_ended_tells_and_leaves_the_new_holder_alone(
    lf: Lockfast, other: Lockfast, name: str
) -> None:
    old = lf.lock(name, lease=0.1, renew=False).acquire()
    wait_over(old)
    new = other.lock(name, wait=PATIENCE_S).acquire()
    with pytest.raises(LeaseLost, match=name) as caught:
        old.release()
    assert (caught.value.name, caught.value.fence) == (name, old.fence)
    assert holder(lf, name) == new.ticket
    new.check()
    with pytest.raises(NotHeld):
        old.release()
    assert old.lost, "it stays lost"
    new.release()


def test_release_of_a_hold_that_the_server_forgot_tells(server: Server, lf: Lockfast, name: str) -> None:
    grant = lf.lock(name).acquire()
    server.command("FLUSHALL")
    with pytest.raises(LeaseLost):
        grant.release()
    assert grant.lost


def test_deadline_is_before_the_servers_and_on_the_clock_that_counts_through_suspend(lf: Lockfast, name: str) -> None:
    before = now()
    grant = lf.lock(name, lease=10).acquire()
    assert before + 9.8 < grant.deadline <= now() + 9.9
    assert grant.remaining == pytest.approx(grant.deadline - now(), abs=0.5)
    (held,) = lf.inspect(name).holders
    assert grant.remaining < held.lease_left
    grant.release()
    assert (grant.remaining, grant.held) == (0.0, False)


def test_lease_as_a_timedelta(lf: Lockfast, name: str) -> None:
    lock = lf.lock(name, lease=timedelta(seconds=10), wait=timedelta(0))  # type: ignore[arg-type]
    assert (lock.lease, lock.wait) == (10.0, 0.0)
    with lock as grant:
        assert 9 < grant.remaining < 10


def test_unrenewed_hold_ends_with_its_lease(lf: Lockfast, other: Lockfast, name: str) -> None:
    grant = lf.lock(name, lease=0.15, renew=False).acquire()
    assert (grant.held, grant.lost) == (True, False)
    grant.check()
    wait_over(grant)
    assert (grant.held, grant.lost, grant.remaining) == (False, True, 0.0)
    with pytest.raises(LeaseLost):
        grant.check()
    other.lock(name).acquire(wait=PATIENCE_S).release()
    with pytest.raises(LeaseLost):
        grant.release()


def test_holder_hears_of_the_loss_before_the_server_gives_the_name_to_another(
    side: Side, lf: Lockfast, other: Lockfast, name: str
) -> None:
    grant = lf.lock(name, lease=0.2, renew=False).acquire()

    def take() -> bool:
        taken = other.lock(name, wait=PATIENCE_S).acquire()
        was_lost = grant.lost
        taken.release()
        return was_lost

    assert side.spawn(take).result()


@pytest.mark.slow
def test_renewal_keeps_a_hold_over_several_leases(lf: Lockfast, other: Lockfast, name: str) -> None:
    with lf.lock(name, lease=0.5) as grant:
        first = grant.deadline
        assert not grant.wait_lost(1.6)
        assert grant.deadline > first + 1
        assert other.lock(name).try_acquire() is None
        grant.check()


@pytest.mark.slow
def test_renewal_keeps_many_holds_in_one_trip(side: Side, server: Server, name: str) -> None:
    lf = side.client(server.url)
    grants = [lf.lock(name, str(i), lease=1.0).acquire() for i in range(30)]
    server.reset_stats()
    assert not grants[0].wait_lost(0.9)
    assert all(grant.held for grant in grants)
    assert 30 <= server.stats()["evalsha"] <= 120
    for grant in grants:
        grant.release()


def test_extend_raises_the_deadline_and_never_lowers_it(lf: Lockfast, name: str) -> None:
    grant = lf.lock(name, lease=5, renew=False).acquire()
    first = grant.deadline
    grant.extend()
    assert grant.deadline >= first
    grant.extend(20)
    second = grant.deadline
    assert 18 < grant.remaining < 20
    grant.extend(1)
    assert second <= grant.deadline < second + 0.1
    (held,) = lf.inspect(name).holders
    assert 18 < held.lease_left <= 20
    assert held.fence == grant.fence
    grant.release()


@pytest.mark.parametrize("lease", [0, 0.01, -1, float("nan"), float("inf"), "5", True])
def test_extend_refuses_what_lock_refuses(lf: Lockfast, name: str, lease: object) -> None:
    with lf.lock(name) as grant:
        before = grant.deadline
        with pytest.raises((ValueError, TypeError)):
            grant.extend(lease)  # type: ignore[arg-type]
        assert grant.deadline == before


def test_extend_after_the_lease_has_ended_tells_and_creates_nothing(server: Server, lf: Lockfast, name: str) -> None:
    grant = lf.lock(name, lease=0.1, renew=False).acquire()
    wait_over(grant)
    server.command("FLUSHALL")
    with pytest.raises(LeaseLost):
        grant.extend()
    assert server.command("DBSIZE") == 0


def test_extend_of_a_hold_that_the_server_forgot_tells_and_creates_nothing(
    server: Server, lf: Lockfast, name: str
) -> None:
    grant = lf.lock(name).acquire()
    server.command("FLUSHALL")
    with pytest.raises(LeaseLost):
        grant.extend()
    assert grant.lost
    assert server.command("DBSIZE") == 0


def test_extend_of_a_hold_that_passed_to_another_leaves_the_other_alone(
    server: Server, lf: Lockfast, other: Lockfast, name: str
) -> None:
    grant = lf.lock(name).acquire()
    server.command("FLUSHALL")
    with other.lock(name) as new:
        with pytest.raises(LeaseLost):
            grant.extend()
        assert holder(lf, name) == new.ticket


def test_loss_is_final(lf: Lockfast, name: str) -> None:
    grant = lf.lock(name, lease=0.1, renew=False).acquire()
    wait_over(grant)
    for _ in range(3):
        assert grant.lost
        assert not grant.held
        with pytest.raises(LeaseLost):
            grant.extend(60)


def test_wait_lost_tells_a_loss_or_gives_up(lf: Lockfast, name: str) -> None:
    grant = lf.lock(name, lease=0.25, renew=False).acquire()
    assert grant.wait_lost(0.01) is False
    assert grant.wait_lost(0) is False
    assert grant.wait_lost() is True
    assert grant.wait_lost() is True, "also afterwards, at once"
    with pytest.raises(LeaseLost):
        grant.release()
    assert grant.wait_lost(0.01) is True


def test_wait_lost_of_a_released_grant_is_false_at_once(lf: Lockfast, name: str) -> None:
    grant = lf.lock(name).acquire()
    grant.release()
    start = time.monotonic()
    assert grant.wait_lost(PATIENCE_S) is False
    assert time.monotonic() - start < 5


def test_wait_lost_ends_when_the_grant_is_released_meanwhile(side: Side, lf: Lockfast, name: str) -> None:
    grant = lf.lock(name, lease=5).acquire()
    watching = side.spawn(grant.wait_lost, 3.0)
    while not watched(grant):
        time.sleep(0.002)
    start = time.monotonic()
    grant.release()
    assert watching.result(PATIENCE_S) is False
    assert time.monotonic() - start < 2, "it went on waiting for something that cannot come any more"


def watched(grant: Any) -> bool:
    hold = getattr(grant, "twin_of", grant)._hold
    return bool(hold.on_end)


def test_grant_shows_itself_without_secrets(side: Side, server: Server, name: str) -> None:
    lf = side.client(server.url)
    lock = lf.lock(name)
    with lock as grant:
        assert name in repr(grant)
        assert str(grant.fence) in repr(grant)
        assert grant.ticket not in repr(grant), "the ticket is the proof of ownership"
    assert name in repr(lock)
    assert "127.0.0.1" in repr(lf)


@pytest.mark.slow
def test_grant_that_is_dropped_is_given_back(lf: Lockfast, other: Lockfast, name: str) -> None:
    lf.lock(name, lease=60).acquire()
    gc.collect()
    wait_until(lambda: holder(other, name) is None, what="the forgotten grant to be given back")
