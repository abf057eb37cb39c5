"""Grace after a hold that was not given back, and a bound on how long a hold may last in all."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from behaviour.queueing import PATIENCE_S, wait_over
from kit.servers import wait_until
from lockfast import LeaseLost, NotAcquired
from lockfast.clock import now
from lockfast.drivers.ledger import LOOK_S

if TYPE_CHECKING:
    from kit.proxy import Proxy
    from kit.servers import Server
    from kit.sides import Side
    from lockfast.sync import Lockfast


def test_expired_hold_stays_closed_for_its_grace(lf: Lockfast, other: Lockfast, name: str) -> None:
    grant = lf.lock(name, lease=0.1, grace=600, renew=False).acquire()
    assert grant.remaining < 0.1
    wait_over(grant)
    assert grant.lost
    assert other.lock(name).try_acquire() is None
    assert other.inspect(name).holders[0].lease_left > 500
    with pytest.raises(NotAcquired):
        other.lock(name, wait=0.05).acquire()


def test_name_is_free_when_lease_and_grace_have_passed(lf: Lockfast, other: Lockfast, name: str) -> None:
    grant = lf.lock(name, lease=0.05, grace=0.1, renew=False).acquire()
    with other.lock(name, wait=PATIENCE_S) as later:
        assert grant.lost
        assert later.fence > grant.fence


def test_late_holder_ends_the_grace_by_its_own_release(lf: Lockfast, other: Lockfast, name: str) -> None:
    grant = lf.lock(name, lease=0.1, grace=600, renew=False).acquire()
    wait_over(grant)
    with pytest.raises(LeaseLost):
        grant.release()
    assert other.lock(name).try_acquire() is not None


def test_hold_that_is_given_back_leaves_no_grace(lf: Lockfast, other: Lockfast, name: str) -> None:
    lf.lock(name, grace=600).acquire().release()
    assert other.lock(name).try_acquire() is not None


def test_renewals_keep_lease_and_grace(lf: Lockfast, other: Lockfast, name: str) -> None:
    grant = lf.lock(name, lease=0.2, grace=600).acquire()
    before = grant.deadline
    wait_until(lambda: grant.deadline > before, what="a renewal", timeout_s=PATIENCE_S)
    assert grant.remaining < 0.2
    assert 599 < other.inspect(name).holders[0].lease_left <= 600.2


def test_grace_of_shared_holds_keeps_their_permits(lf: Lockfast, other: Lockfast, name: str) -> None:
    grants = [lf.semaphore(name, limit=2, lease=0.1, grace=600, renew=False).acquire() for _ in range(2)]
    for grant in grants:
        wait_over(grant)
    assert other.semaphore(name, limit=2).try_acquire() is None


def test_hold_is_lost_when_its_bound_is_over_although_it_is_renewed(lf: Lockfast, other: Lockfast, name: str) -> None:
    grant = lf.lock(name, lease=0.2, max_hold=0.5).acquire()
    first = grant.deadline
    wait_until(lambda: grant.deadline > first or grant.lost, what="a renewal", timeout_s=PATIENCE_S)
    wait_over(grant)
    with pytest.raises(LeaseLost, match=r"max_hold of 0\.5 s is over"):
        grant.check()
    with other.lock(name, wait=PATIENCE_S) as later:  # the server lets it go too, with nobody releasing it
        assert later.fence > grant.fence


def test_lease_is_never_longer_than_the_bound(lf: Lockfast, other: Lockfast, name: str) -> None:
    lock = lf.lock(name, lease=3600, max_hold=5)
    assert lock.lease == 5
    grant = lock.acquire()
    grant.extend(3600)
    assert grant.remaining <= 5
    assert other.inspect(name).holders[0].lease_left < 6


def test_block_that_outlives_its_bound_raises(side: Side, lf: Lockfast, name: str) -> None:
    with pytest.raises(LeaseLost, match="max_hold"), lf.lock(name, lease=0.1, max_hold=0.1) as grant:
        if side.name == "threads":
            wait_over(grant)
        else:
            wait_until(lambda: not grant.held, what="the bound", timeout_s=PATIENCE_S)


def test_bound_is_counted_from_the_grant_and_not_from_the_wait(
    side: Side, server: Server, lf: Lockfast, name: str
) -> None:
    holder = side.client(server.url).lock(name, lease=0.3, renew=False).acquire()
    grant = lf.lock(name, lease=5, max_hold=5, wait=PATIENCE_S).acquire()
    assert holder.lost
    assert 4 < grant.remaining <= 5


@pytest.mark.parametrize("bad", [-1, float("nan"), float("inf"), 10**9, "1", True, None])
def test_grace_that_makes_no_sense_is_refused(lf: Lockfast, name: str, bad: object) -> None:
    for make in (lf.lock, lf.rwlock, lf.rlock, lf.semaphore):
        with pytest.raises((ValueError, TypeError), match="grace"):
            make(name, grace=bad)  # type: ignore[arg-type]


@pytest.mark.parametrize("bad", [0, -1, 0.01, float("nan"), float("inf"), 10**9, "1", True])
def test_bound_that_makes_no_sense_is_refused(lf: Lockfast, name: str, bad: object) -> None:
    for make in (lf.lock, lf.rwlock, lf.rlock, lf.semaphore):
        with pytest.raises((ValueError, TypeError), match="max_hold"):
            make(name, max_hold=bad)  # type: ignore[arg-type]


def test_decorated_functions_keep_grace_and_bound(lf: Lockfast, other: Lockfast, name: str) -> None:
    @lf.lock(name + ":{part}", lease=1, grace=600, max_hold=700)
    def work(part: str) -> float:
        return other.inspect(f"{name}:{part}").holders[0].lease_left

    assert work("x") > 500


def test_one_of_several_keeps_its_grace_and_its_bound(lf: Lockfast, other: Lockfast, name: str) -> None:
    made = (lf.lock(name, lease=3600, max_hold=5), lf.lock(name, "b", lease=10, grace=600))
    several = lf.locks(*[getattr(lock, "twin_of", lock) for lock in made], wait=5)
    for _ in range(2):  # the second time their names are known
        with several as grants:
            first, second = grants.twin_of if hasattr(grants, "twin_of") else grants
            assert first.remaining <= 5
            assert second.remaining <= 10
            assert other.inspect(name, "b").holders[0].lease_left > 500


@pytest.mark.slow
def test_bound_counts_for_locks_that_are_taken_together(lf: Lockfast, other: Lockfast, name: str) -> None:
    bounded = lf.lock(name, lease=0.2, max_hold=0.4)
    grants = lf.locks(getattr(bounded, "twin_of", bounded), f"{name}-b").acquire()
    first, second = getattr(grants, "twin_of", grants)
    wait_over(first)
    assert second.held
    with pytest.raises(LeaseLost, match="max_hold"):
        grants.check()
    with other.lock(name, wait=PATIENCE_S) as later:
        assert later.fence > first.fence
    with pytest.raises(LeaseLost, match="max_hold"):
        grants.release()


@pytest.mark.slow
def test_release_that_was_not_confirmed_is_tried_again_for_as_long_as_the_grace_lasts(
    side: Side, lf: Lockfast, proxy: Proxy, name: str
) -> None:
    client = side.client(proxy.url, timeout=0.2)
    with client.lock(name, lease=1, grace=600, renew=False) as grant:
        proxy.refuse()
        proxy.cut_all()
    late = grant.deadline + LOOK_S + 0.2
    wait_until(lambda: now() > late, what="the lease to be over for long", timeout_s=PATIENCE_S)
    proxy.accept()
    wait_until(lambda: not lf.inspect(name).holders, what="the release to be heard", timeout_s=PATIENCE_S)
