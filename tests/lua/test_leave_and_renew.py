"""`leave` and `renew`: tombstones, and lease ends that only rise."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from lua.scripts import LEASE_MS, PLACE_MS

if TYPE_CHECKING:
    from lua.scripts import Named


def tombstones(name: Named) -> list[str]:
    return [ticket.decode() for ticket in name.scripts.wire.call("ZRANGE", name.keys[4], 0, -1)]


def test_leave_tells_where_it_found_the_ticket(lock: Named) -> None:
    lock.admit("a")
    lock.admit("b")
    assert [lock.leave("b"), lock.leave("a"), lock.leave("a")] == [2, 1, 0]


def test_leave_of_a_lease_that_ended_unnoticed_found_it(lock: Named) -> None:
    lock.admit("a", lease=1000)
    lock.scripts.pass_ms(5000)
    assert lock.leave("a") == 1


def test_leave_of_a_lease_that_passed_to_another_leaves_the_other_alone(lock: Named) -> None:
    lock.admit("a", lease=1000)
    lock.scripts.pass_ms(1000)
    lock.admit("b")
    assert lock.leave("a") == 0
    assert lock.holders == ["b"]


def test_sure_leave_that_found_its_ticket_leaves_no_tombstone(lock: Named) -> None:
    lock.admit("a")
    lock.admit("b")
    lock.leave("b")
    lock.leave("a")
    assert tombstones(lock) == []
    assert lock.scripts.wire.call("EXISTS", *lock.keys[1:]) == 0


def test_leave_that_came_before_its_admit_has_it_refused(lock: Named) -> None:
    assert lock.leave("a", lease=5000) == 0
    assert lock.admit("a") == (-1, 0, 0, 0)
    assert lock.admit("a", place=0).code == -1
    assert lock.admit("b").code == 1, "others are let in"
    assert lock.admit("a").code == -1, "also once the name has a state"
    assert lock.waiters == []


@pytest.mark.parametrize("place", ["holder", "queue"])
def test_unsure_leave_has_a_later_admit_refused(lock: Named, place: str) -> None:
    if place == "queue":
        lock.admit("before")
    lock.admit("a")
    assert lock.leave("a", unsure=True) == (1 if place == "holder" else 2)
    assert lock.admit("a").code == -1
    assert lock.holders == (["before"] if place == "queue" else [])


def test_tombstone_stands_for_one_lease(lock: Named) -> None:
    lock.leave("a", lease=5000)
    lock.scripts.pass_ms(4999)
    assert lock.admit("a").code == -1
    lock.scripts.pass_ms(1)
    assert lock.admit("a").code == 1


def test_tombstones_of_many_are_dropped_with_time(lock: Named) -> None:
    for i in range(50):
        lock.leave(f"old{i}", lease=1000)
    lock.scripts.pass_ms(1000)
    lock.leave("new", lease=1000)
    assert tombstones(lock) == ["new"]


def test_shorter_tombstone_does_not_shorten_a_longer_one(lock: Named) -> None:
    lock.leave("long", lease=9000)
    lock.leave("short", lease=1000)
    lock.scripts.pass_ms(2000)
    lock.admit("holder")
    assert lock.admit("long").code == -1


def test_tombstone_of_a_name_in_use_survives_grants_and_releases(lock: Named) -> None:
    lock.admit("a")
    lock.leave("late", lease=20_000)
    lock.leave("a")
    lock.admit("b")
    lock.leave("b")
    assert lock.admit("late").code == -1


def test_leave_of_a_stranger_changes_nothing_for_those_who_are_there(lock: Named) -> None:
    held = lock.admit("a")
    lock.admit("b")
    lock.leave("stranger")
    assert lock.admit("a").fence == held.fence
    assert lock.waiters == ["b"]


def test_leave_runs_the_grant_loop_even_if_it_found_nothing(lock: Named) -> None:
    lock.admit("a", lease=1000)
    lock.admit("b")
    lock.scripts.pass_ms(1000)
    lock.leave("stranger")
    assert lock.holders == ["b"]


def test_note_of_a_break_is_kept_only_if_something_was_broken(lock: Named) -> None:
    held = lock.admit("a")
    lock.leave("stranger", note="me/1 nothing there")
    assert lock.inspect().broken is None
    lock.leave("a", unsure=True, note="me/1 it was stuck")
    broken = lock.inspect().broken
    assert broken is not None
    assert (broken.by, broken.reason) == ("me/1", "it was stuck")
    assert broken.at == pytest.approx(lock.scripts.now_ms / 1000)
    assert lock.renew("a", held.fence) == [0, 0]
    assert lock.admit("a").code == -1


def test_renew_raises_the_end(lock: Named) -> None:
    held = lock.admit("a", lease=1000)
    lock.scripts.pass_ms(600)
    assert lock.renew("a", held.fence, 1000) == [1, 1000]
    lock.scripts.pass_ms(600)
    assert lock.admit("a").ms == 400
    assert lock.renew("a", held.fence, 5000) == [1, 5000]


def test_renew_never_lowers_the_end(lock: Named) -> None:
    held = lock.admit("a", lease=10_000)
    before = lock.everything()
    assert lock.renew("a", held.fence, 50) == [1, 10_000]
    assert lock.everything() == before


def test_renew_never_revives(lock: Named) -> None:
    held = lock.admit("a", lease=1000)
    lock.scripts.pass_ms(1000)
    assert lock.renew("a", held.fence, 1000) == [0, 0]
    assert lock.admit("b", place=0).code == 1


def test_renew_creates_nothing(lock: Named) -> None:
    assert lock.renew("a", 1, 1000) == [0, 0]
    assert lock.scripts.wire.call("EXISTS", *lock.keys) == 0
    lock.admit("b")
    before = lock.everything()
    assert lock.renew("a", 1, 1000) == [0, 0]
    assert lock.everything() == before


@pytest.mark.parametrize("off_by", [-1, 1])
def test_renew_with_another_fence_is_refused(lock: Named, off_by: int) -> None:
    held = lock.admit("a", lease=1000)
    assert lock.renew("a", held.fence + off_by, 9000) == [0, 0]
    assert lock.admit("a").ms == 1000


def test_renew_with_the_fence_of_an_earlier_life_of_the_ticket_is_refused(lock: Named) -> None:
    first = lock.admit("a", lease=1000)
    lock.scripts.pass_ms(1000)
    second = lock.admit("a", lease=1000)
    assert lock.renew("a", first.fence, 9000) == [0, 0]
    assert lock.renew("a", second.fence, 9000) == [1, 9000]


def test_renew_of_a_waiter_is_refused(lock: Named) -> None:
    held = lock.admit("a")
    lock.admit("b")
    assert lock.renew("b", held.fence) == [0, 0]
    assert lock.waiters == ["b"]


def test_admit_that_comes_late_does_not_lower_what_renew_has_raised(lock: Named) -> None:
    held = lock.admit("a", lease=1000)
    lock.renew("a", held.fence, 60_000)
    assert lock.admit("a", lease=1000).ms == 60_000


def test_renewed_grant_that_nobody_heard_has_a_full_lease(lock: Named) -> None:
    """A push that reached nobody gives a short hold; its client learns of it by admit and renews."""
    lock.admit("a")
    lock.admit("b")
    lock.leave("a")
    answer = lock.admit("b")
    assert answer.ms == PLACE_MS
    assert lock.renew("b", answer.fence) == [1, LEASE_MS]
