"""Semaphores: permits with weight, in order, with leases of their own, and a limit that can change while in use."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pytest

from behaviour.queueing import PATIENCE_S, queued, wait_over, wait_queued, waiting
from kit.servers import wait_until
from lockfast import LeaseLost, NotAcquired, NotHeld, Refused
from lua.scripts import Scripts

if TYPE_CHECKING:
    from collections.abc import Callable

    from kit.proxy import Proxy
    from kit.servers import Server
    from kit.sides import Side
    from lockfast.sync import Grant, Lockfast

AT_ONCE_S = 1.0  # less than the shortest heartbeat: whoever knows by then was told


def used(lf: Lockfast, name: str) -> int:
    return sum(holder.weight for holder in lf.inspect(name).holders)


def wait_listening(server: Server) -> None:
    """Until the one client that waits hears pushes."""
    wait_until(lambda: server.command("PUBSUB", "CHANNELS"), what="a subscription")


def refusal(function: Callable[..., object], *arguments: Any, **options: Any) -> Refused:
    with pytest.raises(Refused) as caught:
        function(*arguments, **options)
    return caught.value


def test_limit_of_permits_is_held_at_once_and_no_more(lf: Lockfast, other: Lockfast, name: str) -> None:
    semaphore = lf.semaphore(name, limit=3)
    assert (semaphore.limit, semaphore.permits, semaphore.name) == (3, 1, name)
    grants = [semaphore.acquire(), other.semaphore(name, limit=3).acquire(), semaphore.acquire()]
    assert len({grant.ticket for grant in grants}) == len({grant.fence for grant in grants}) == 3
    assert other.semaphore(name, limit=3).try_acquire() is None
    assert queued(lf, name) == []
    grants[1].release()
    again = other.semaphore(name, limit=3).try_acquire()
    assert again is not None
    for grant in (grants[0], grants[2], again):
        grant.check()
        grant.release()
    assert used(lf, name) == 0


def test_acquire_takes_as_many_permits_as_it_says(lf: Lockfast, other: Lockfast, name: str) -> None:
    with lf.semaphore(name, limit=5, permits=3) as grant:
        assert grant.held
        assert used(other, name) == 3
        assert other.semaphore(name, limit=5, permits=3).try_acquire() is None
        with other.semaphore(name, limit=5, permits=2, wait=0):
            assert used(lf, name) == 5
    assert used(lf, name) == 0


def test_all_permits_can_be_had_by_one(lf: Lockfast, other: Lockfast, name: str) -> None:
    with lf.semaphore(name, limit=4, permits=4):
        assert other.semaphore(name, limit=4).try_acquire() is None
    with other.semaphore(name, limit=4):
        assert lf.semaphore(name, limit=4, permits=4).try_acquire() is None


def test_busy_semaphore_is_not_acquired_at_once_or_after_the_wait(lf: Lockfast, other: Lockfast, name: str) -> None:
    with lf.semaphore(name, limit=2, permits=2):
        for wait in (0, 0.1):
            start = time.monotonic()
            with pytest.raises(NotAcquired, match=name):
                other.semaphore(name, limit=2).acquire(wait=wait)
            assert wait <= time.monotonic() - start < wait + 2
        with pytest.raises(NotAcquired), other.semaphore(name, limit=2, wait=0):
            pytest.fail("entered without a permit")
        assert queued(lf, name) == []


def test_nobody_overtakes_one_that_waits_for_several(side: Side, lf: Lockfast, other: Lockfast, name: str) -> None:
    held = [lf.semaphore(name, limit=3).acquire() for _ in range(2)]
    heavy = waiting(side, lf, other.semaphore(name, limit=3, permits=3), name)
    light = waiting(side, lf, other.semaphore(name, limit=3), name, 2)
    assert lf.semaphore(name, limit=3).try_acquire() is None, "one is free, but somebody waits for it"
    held[0].release()
    assert len(queued(lf, name)) == 2
    assert not light.done
    held[1].release()
    first = heavy.result()
    assert not light.done
    first.release()
    light.result().release()


def test_waiters_are_served_in_the_order_in_which_they_came(
    side: Side, lf: Lockfast, other: Lockfast, name: str
) -> None:
    whole = lf.semaphore(name, limit=3, permits=3).acquire()
    weights = [1, 2, 2, 1, 3, 1]
    waiters = [
        waiting(side, lf, other.semaphore(name, limit=3, permits=weight), name, number)
        for number, weight in enumerate(weights, 1)
    ]
    whole.release()
    grants: list[Grant] = []
    for left in (4, 2, 1, 0):  # 1+2, then 2+1, then 3, then 1
        wait_queued(lf, name, left)
        let_in = [waiter.result() for waiter in waiters[len(grants) : 6 - left]]
        assert not any(waiter.done for waiter in waiters[6 - left :])
        grants += let_in
        for grant in let_in:
            grant.release()
    fences = [grant.fence for grant in grants]
    assert fences == sorted(set(fences))


def test_one_release_lets_in_all_that_fit(side: Side, lf: Lockfast, other: Lockfast, name: str) -> None:
    whole = lf.semaphore(name, limit=3, permits=3).acquire()
    waiters = [waiting(side, lf, other.semaphore(name, limit=3), name, number) for number in (1, 2, 3, 4)]
    whole.release()
    grants = [waiter.result() for waiter in waiters[:3]]
    assert not waiters[3].done
    grants[1].release()
    for grant in (grants[0], grants[2], waiters[3].result()):
        grant.release()


def test_workers_never_hold_more_than_the_limit(side: Side, lf: Lockfast, other: Lockfast, name: str) -> None:
    inside: list[int] = []
    crowded: list[int] = []

    def work(number: int) -> None:
        weight = 1 + number % 3
        for _ in range(4):
            with (lf, other)[number % 2].semaphore(name, limit=4, permits=weight, wait=PATIENCE_S):
                inside.extend([number] * weight)
                crowded.append(len(inside))
                for _ in range(weight):
                    inside.remove(number)

    for worker in [side.spawn(work, number) for number in range(8)]:
        worker.result()
    assert len(crowded) == 32
    assert max(crowded) <= 4
    assert used(lf, name) == 0


# Leases


@pytest.mark.slow
def test_keeper_renews_every_permit(lf: Lockfast, other: Lockfast, name: str) -> None:
    grants = [lf.semaphore(name, limit=3, permits=permits, lease=0.25).acquire() for permits in (1, 2)]
    assert not grants[0].wait_lost(0.6)
    for grant in grants:
        grant.check()
    assert used(other, name) == 3
    assert other.semaphore(name, limit=3).try_acquire() is None
    for grant in grants:
        grant.release()


def test_lease_of_each_permit_is_its_own(lf: Lockfast, other: Lockfast, name: str) -> None:
    short = lf.semaphore(name, limit=3, lease=0.1, renew=False).acquire()
    long = lf.semaphore(name, limit=3, permits=2, lease=20, renew=False).acquire()
    wait_over(short)
    taken = other.semaphore(name, limit=3).acquire(wait=PATIENCE_S)
    long.check()
    assert short.lost
    with pytest.raises(LeaseLost):
        short.release()
    assert used(lf, name) == 3, "the late release has taken nothing from the others"
    taken.release()
    long.release()


def test_extend_by_hand_keeps_a_permit(lf: Lockfast, name: str) -> None:
    grant = lf.semaphore(name, limit=3, permits=2, lease=5, renew=False).acquire()
    grant.extend(20)
    assert 18 < grant.remaining < 20
    (held,) = lf.inspect(name).holders
    assert (held.weight, held.fence) == (2, grant.fence)
    assert 18 < held.lease_left <= 20
    grant.release()


def test_permits_of_the_dead_come_back_within_a_lease(
    side: Side, server: Server, lf: Lockfast, other: Lockfast, name: str
) -> None:
    with Scripts(server) as scripts:
        named = scripts.name(name, kind="semaphore", limit=3)
        named.admit("dead1", lease=150)
        named.admit("dead2", lease=200)
    alive = lf.semaphore(name, limit=3).acquire()
    start = time.monotonic()
    grant = other.semaphore(name, limit=3, permits=2).acquire(wait=PATIENCE_S)
    assert time.monotonic() - start < 1.5
    alive.check()
    assert used(lf, name) == 3
    grant.release()
    alive.release()


def test_permits_given_back_twice_count_once(lf: Lockfast, other: Lockfast, name: str) -> None:
    grant = lf.semaphore(name, limit=2).acquire()
    with other.semaphore(name, limit=2):
        grant.release()
        with pytest.raises(NotHeld, match=name):
            grant.release()
        assert used(lf, name) == 1


# Which limit counts


def test_another_limit_is_told_and_changes_nothing(lf: Lockfast, other: Lockfast, name: str) -> None:
    with lf.semaphore(name, limit=3):
        for limit in (1, 2, 4):
            for wait in (0, 5):
                error = refusal(other.semaphore(name, limit=limit).acquire, wait=wait)
                assert (error.code, "limit 3" in str(error)) == ("KIND", True)
        seen = lf.inspect(name)
        assert (seen.limit, len(seen.holders), len(seen.waiters)) == (3, 1, 0)
        other.semaphore(name, limit=3, wait=0).acquire().release()


def test_limit_of_an_empty_name_is_that_of_its_next_user(lf: Lockfast, other: Lockfast, name: str) -> None:
    lf.semaphore(name, limit=3).acquire().release()
    with other.semaphore(name, limit=1):
        assert lf.inspect(name).limit == 1
        assert refusal(lf.semaphore(name, limit=3).acquire).code == "KIND"


def test_without_a_limit_the_stored_one_is_taken(lf: Lockfast, other: Lockfast, name: str) -> None:
    semaphore = other.semaphore(name, wait=0)
    assert semaphore.limit is None
    error = refusal(semaphore.acquire)
    assert (error.code, "no limit" in str(error)) == ("LIMIT", True)
    assert lf.inspect(name).kind == "", "nothing is stored by that"
    first = lf.semaphore(name, limit=2).acquire()
    second = semaphore.acquire()
    assert semaphore.try_acquire() is None
    first.release()
    second.release()
    with semaphore:
        assert lf.inspect(name).limit == 2, "also of a name that was empty"


def test_more_permits_than_the_stored_limit_are_refused(lf: Lockfast, other: Lockfast, name: str) -> None:
    with lf.semaphore(name, limit=3):
        for wait in (0, 5):
            error = refusal(other.semaphore(name, permits=4).acquire, wait=wait)
            assert (error.code, "3" in str(error)) == ("LIMIT", True)
        assert queued(lf, name) == []
    with pytest.raises(ValueError, match="permits"):
        other.semaphore(name, limit=3, permits=4)


def test_name_in_use_as_something_else_is_refused_and_nothing_changes(lf: Lockfast, other: Lockfast, name: str) -> None:
    with lf.lock(name) as grant:
        for semaphore in (other.semaphore(name, limit=1), other.semaphore(name, limit=3), other.semaphore(name)):
            error = refusal(semaphore.acquire)
            assert (error.code, "a lock" in str(error)) == ("KIND", True)
        grant.check()
        assert [holder.ticket for holder in lf.inspect(name).holders] == [grant.ticket]
    with lf.semaphore(name, limit=1) as grant:
        assert refusal(other.lock(name).acquire).code == "KIND"
        assert refusal(other.lock(name).try_acquire).code == "KIND"
        grant.check()
    other.lock(name, wait=0).acquire().release()


# Resize


def test_raised_limit_lets_waiters_in_at_once(
    side: Side, server: Server, lf: Lockfast, other: Lockfast, name: str
) -> None:
    held = lf.semaphore(name, limit=2, permits=2).acquire()
    waiters = [waiting(side, lf, other.semaphore(name, limit=2), name, number) for number in (1, 2, 3)]
    wait_listening(server)
    start = time.monotonic()
    lf.semaphore(name).resize(4)
    grants = [waiter.result() for waiter in waiters[:2]]
    assert time.monotonic() - start < AT_ONCE_S
    assert not waiters[2].done
    held.check()
    held.release()
    for grant in (*grants, waiters[2].result()):
        grant.release()


def test_lowered_limit_revokes_nothing_and_new_grants_obey_it(
    side: Side, lf: Lockfast, other: Lockfast, name: str
) -> None:
    grants = [lf.semaphore(name, limit=3).acquire() for _ in range(3)]
    other.semaphore(name).resize(1)
    for grant in grants:
        grant.check()
        grant.extend()
    waiter = waiting(side, lf, other.semaphore(name, limit=1), name)
    grants[0].release()
    grants[1].release()
    assert not waiter.done
    assert len(queued(lf, name)) == 1
    grants[2].release()
    waiter.result().release()


@pytest.mark.slow
def test_keeper_goes_on_renewing_after_a_resize(lf: Lockfast, other: Lockfast, name: str) -> None:
    """Also the holder of what was the whole: it is kept in another place from then on."""
    whole = lf.semaphore(name, limit=2, permits=2, lease=0.25).acquire()
    other.semaphore(name).resize(3)
    part = other.semaphore(name, limit=3, lease=0.25).acquire(wait=0)
    other.semaphore(name).resize(1)
    assert not whole.wait_lost(0.6)
    assert used(lf, name) == 3
    whole.release()
    part.release()


def test_heavy_waiters_are_refused_at_once_and_the_others_wait_on(
    side: Side, server: Server, lf: Lockfast, other: Lockfast, name: str
) -> None:
    held = lf.semaphore(name, limit=3, permits=2).acquire()
    heavy = waiting(side, lf, other.semaphore(name, limit=3, permits=3), name)
    light = waiting(side, lf, other.semaphore(name, limit=3, permits=2), name, 2)
    wait_listening(server)
    start = time.monotonic()
    lf.semaphore(name).resize(2)
    error = heavy.error()
    assert time.monotonic() - start < AT_ONCE_S, "not told, but found out"
    assert isinstance(error, Refused)
    assert (error.code, name in str(error)) == ("LIMIT", True)
    assert len(queued(lf, name)) == 1
    held.release()
    light.result().release()


def test_light_waiters_behind_a_refused_one_are_let_in(side: Side, lf: Lockfast, other: Lockfast, name: str) -> None:
    held = lf.semaphore(name, limit=3).acquire()
    heavy = waiting(side, lf, other.semaphore(name, limit=3, permits=3), name)
    light = waiting(side, lf, other.semaphore(name, limit=3), name, 2)
    lf.semaphore(name).resize(2)
    light.result().release()
    assert isinstance(heavy.error(), Refused)
    held.release()


def test_waiter_that_named_the_old_limit_waits_on_when_it_asks_again(
    side: Side, proxy: Proxy, lf: Lockfast, name: str
) -> None:
    held = lf.semaphore(name, limit=3, permits=3).acquire()
    waiter = waiting(side, lf, side.client(proxy.url).semaphore(name, limit=3), name)
    (ticket,) = queued(lf, name)
    lf.semaphore(name).resize(2)
    asked = proxy.requests[-1].number
    proxy.cut_all()
    proxy.wait_until(lambda: any(request.answered for request in proxy.seen("EVALSHA", since=asked + 1)))
    assert not waiter.done
    assert queued(lf, name) == [ticket]
    held.release()
    waiter.result().release()


def test_holder_of_the_whole_keeps_it_as_a_part(lf: Lockfast, other: Lockfast, name: str) -> None:
    whole = lf.semaphore(name, limit=2, permits=2).acquire()
    fence = whole.fence
    lf.semaphore(name).resize(3)
    with other.semaphore(name, limit=3, wait=0):
        assert used(lf, name) == 3
        whole.extend()
        whole.check()
        assert whole.fence == fence
    whole.release()
    assert used(lf, name) == 0


def test_resize_counts_for_those_who_come_later(lf: Lockfast, other: Lockfast, name: str) -> None:
    with lf.semaphore(name, limit=3):
        lf.semaphore(name, limit=3).resize(2)
        assert refusal(other.semaphore(name, limit=3).acquire).code == "KIND"
        with other.semaphore(name, limit=2, wait=0):
            assert other.semaphore(name).try_acquire() is None


def test_resize_of_an_unused_name_keeps_the_limit_for_its_next_user(lf: Lockfast, other: Lockfast, name: str) -> None:
    lf.semaphore(name).resize(2)
    with other.semaphore(name), lf.semaphore(name, limit=2):
        assert other.semaphore(name).try_acquire() is None


def test_resize_of_what_is_no_semaphore_is_refused(lf: Lockfast, other: Lockfast, name: str) -> None:
    with lf.lock(name) as grant:
        error = refusal(other.semaphore(name).resize, 5)
        assert (error.code, "a lock" in str(error)) == ("KIND", True)
        seen = lf.inspect(name)
        assert (seen.kind, seen.limit, seen.holders[0].ticket) == ("lock", 1, grant.ticket)
        grant.check()


@pytest.mark.parametrize("limit", [0, -1, True, "3", 1.5, 10**9, None])
def test_resize_to_what_is_no_limit_is_refused_and_nothing_changes(lf: Lockfast, name: str, limit: Any) -> None:
    with lf.semaphore(name, limit=3) as grant:
        with pytest.raises((TypeError, ValueError), match="limit"):
            lf.semaphore(name).resize(limit)
        assert lf.inspect(name).limit == 3
        grant.check()


def test_resize_whose_answer_is_lost_is_asked_again(side: Side, proxy: Proxy, lf: Lockfast, name: str) -> None:
    asking = side.client(proxy.url)
    held = lf.semaphore(name, limit=2, permits=2).acquire()
    asking.inspect(name)
    lost = proxy.when(containing=name).drop_reply_and_cut()
    asking.semaphore(name).resize(3)
    lost.wait_hit()
    assert lf.inspect(name).limit == 3
    held.check()
    held.release()


# As a decorator


def test_permits_are_held_around_the_call_and_only_then(lf: Lockfast, other: Lockfast, name: str) -> None:
    def work(order: int) -> int:
        return used(other, f"{name}-{order}")

    limited = lf.semaphore(name + "-{order}", limit=3, permits=2)(work)
    assert limited(7) == 2
    assert used(other, f"{name}-7") == 0
    with other.semaphore(f"{name}-7", limit=3, permits=2), pytest.raises(NotAcquired):
        lf.semaphore(name + "-{order}", limit=3, permits=2, wait=0)(work)(7)
    assert name in repr(lf.semaphore(name, limit=3))
