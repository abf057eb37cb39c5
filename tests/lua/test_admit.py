"""`admit` and the grant loop on a name with limit 1, by hand and on a clock of the test's own."""

from __future__ import annotations

import random
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest

from lua.scripts import LEASE_MS, PLACE_MS, Named, Scripts

if TYPE_CHECKING:
    from kit.resp import Wire


def pushes(listener: Wire) -> list[str]:
    """Every message that has arrived at a subscribed connection."""
    listener.send("PING", "end")
    found = []
    while (message := listener.read())[0] != b"pong":
        found.append(message[2].decode())
    return found


def listen(scripts: Scripts, channel: str) -> Wire:
    wire = scripts.server.wire()
    assert wire.call("SUBSCRIBE", channel)[0] == b"subscribe"
    return wire


def test_free_name_is_held_at_once_with_the_servers_micros_as_fence(lock: Named) -> None:
    assert lock.admit("a") == (1, lock.scripts.clock_us, LEASE_MS, 0)
    assert lock.holders == ["a"]


def test_second_send_gives_the_same_fence_and_the_ms_left(lock: Named) -> None:
    first = lock.admit("a")
    before = lock.everything()
    lock.scripts.pass_ms(10_000)
    assert lock.admit("a") == (1, first.fence, LEASE_MS - 10_000, 0)
    assert lock.everything() == before, "it changed something"


def test_second_send_with_a_longer_lease_gets_no_fresh_one(lock: Named) -> None:
    lock.admit("a")
    lock.scripts.pass_ms(10_000)
    assert lock.admit("a", lease=2 * LEASE_MS).ms == LEASE_MS - 10_000


def test_granted_waiter_that_asks_has_the_ms_left_too(lock: Named) -> None:
    lock.admit("a")
    lock.admit("b")
    with listen(lock.scripts, "ch") as listener:
        lock.admit("b", channel="ch")
        lock.leave("a")
        (push,) = pushes(listener)
    lock.scripts.pass_ms(1000)
    answer = lock.admit("b")
    assert answer == (1, answer.fence, LEASE_MS - 1000, 0)
    assert push == f"grant b {answer.fence}"


def test_busy_name_is_answered_with_its_fence_the_ms_to_the_end_and_the_position(lock: Named) -> None:
    held = lock.admit("a")
    lock.scripts.pass_ms(4000)
    assert lock.admit("b") == (0, held.fence, LEASE_MS - 4000, 1)
    assert lock.admit("c") == (0, held.fence, LEASE_MS - 4000, 2)
    assert lock.admit("b").position == 1, "a heartbeat keeps the place"
    assert lock.waiters == ["b", "c"]


def test_asking_without_a_place_leaves_nothing(lock: Named) -> None:
    held = lock.admit("a")
    before = lock.everything()
    assert lock.admit("b", place=0) == (0, held.fence, LEASE_MS, 0)
    assert lock.everything() == before


def test_newcomer_does_not_pass_those_who_wait(lock: Named) -> None:
    lock.admit("a")
    lock.admit("b")
    lock.leave("a")
    assert lock.admit("c", place=0).code == 0
    assert lock.holders == ["b"]


def test_grant_loop_runs_whoever_asks(lock: Named) -> None:
    """The holder dies; a third party that only looks in makes the head of the queue the holder."""
    lock.admit("a", lease=1000)
    lock.admit("b")
    lock.scripts.pass_ms(1000)
    assert lock.admit("c", place=0).code == 0
    assert lock.holders == ["b"]


def test_head_of_the_queue_takes_over_with_its_own_heartbeat(lock: Named) -> None:
    first = lock.admit("a", lease=1000)
    lock.admit("b", lease=9000)
    lock.scripts.pass_ms(1000)
    answer = lock.admit("b", lease=9000)
    assert (answer.code, answer.ms) == (1, 9000)
    assert answer.fence > first.fence


def test_lease_ends_at_its_last_millisecond_and_not_before(lock: Named) -> None:
    lock.admit("a", lease=1000)
    lock.scripts.pass_ms(999)
    assert lock.admit("b", place=0).code == 0
    lock.scripts.pass_ms(1)
    assert lock.admit("b", place=0).code == 1


def test_dead_places_are_skipped(lock: Named) -> None:
    lock.admit("a")
    for ticket in ("b", "c", "d"):
        lock.admit(ticket)
    lock.scripts.pass_ms(PLACE_MS - 1)
    lock.admit("d")
    lock.scripts.pass_ms(1)
    lock.leave("a")
    assert lock.holders == ["d"]
    assert lock.waiters == []


def test_place_that_died_and_asks_again_goes_to_the_back(lock: Named) -> None:
    lock.admit("a", lease=PLACE_MS)
    lock.admit("b")
    lock.scripts.pass_ms(PLACE_MS)
    assert lock.admit("c", place=0).code == 1
    assert lock.admit("d").position == 1
    assert lock.admit("b").position == 2


def test_push_goes_to_the_next_alone(lock: Named) -> None:
    with listen(lock.scripts, "one") as one, listen(lock.scripts, "two") as two:
        lock.admit("a", channel="one")
        lock.admit("b", channel="one")
        lock.admit("c", channel="two")
        lock.leave("a")
        (first,) = pushes(one)
        assert pushes(two) == []
        lock.leave("b")
        assert pushes(one) == []
        (second,) = pushes(two)
    assert first.split()[:2] == ["grant", "b"]
    assert second.split()[:2] == ["grant", "c"]
    assert int(second.split()[2]) > int(first.split()[2])


def test_asker_that_is_granted_by_its_own_call_is_not_pushed_to(lock: Named) -> None:
    with listen(lock.scripts, "ch") as listener:
        lock.admit("a", lease=1000)
        lock.admit("b", channel="ch")
        lock.scripts.pass_ms(1000)
        assert lock.admit("b", channel="ch").code == 1
        assert pushes(listener) == []


def test_grant_whose_push_reaches_nobody_lasts_only_as_long_as_the_place_would(lock: Named) -> None:
    lock.admit("a")
    lock.admit("b")
    lock.scripts.pass_ms(2000)
    lock.leave("a")
    assert lock.admit("b").ms == PLACE_MS - 2000
    lock.scripts.pass_ms(PLACE_MS - 2000)
    assert lock.admit("c", place=0).code == 1


def test_grant_whose_push_reaches_nobody_is_never_longer_than_its_lease(lock: Named) -> None:
    lock.admit("a")
    lock.admit("b", lease=1000)
    lock.leave("a")
    assert lock.admit("b", lease=1000).ms == 1000


def test_fence_is_above_what_the_client_has_seen(lock: Named) -> None:
    future = lock.scripts.clock_us + 10**12
    assert lock.admit("a", seen=future).fence == future + 1
    lock.leave("a")
    assert lock.admit("b").fence == future + 2, "and the name remembers it"


def test_fence_of_a_queued_client_is_above_what_it_has_seen(lock: Named) -> None:
    future = lock.scripts.clock_us + 10**12
    lock.admit("a")
    with listen(lock.scripts, "ch") as listener:
        lock.admit("b", seen=future, channel="ch")
        lock.leave("a")
        assert pushes(listener) == [f"grant b {future + 1}"]
    assert lock.admit("b").fence == future + 1


def test_fence_grows_although_the_clock_stands_still_or_steps_back(lock: Named) -> None:
    fences = []
    for i in range(20):
        fences.append(lock.admit(f"t{i}").fence)
        lock.leave(f"t{i}")
        lock.scripts.pass_ms(random.Random(i).choice([0, 0, -5000, 3]))
    assert fences == sorted(set(fences))


def test_ticket_granted_twice_has_two_fences(lock: Named) -> None:
    first = lock.admit("a", lease=1000)
    lock.scripts.pass_ms(1000)
    second = lock.admit("a", lease=1000)
    assert (second.code, second.ms) == (1, 1000)
    assert second.fence > first.fence


def test_thousands_of_dead_places_are_swept_in_chunks_until_the_living_one_is_reached(lock: Named) -> None:
    lock.admit("a", lease=10 * PLACE_MS)
    wire = lock.scripts.wire
    for i in range(2200):
        wire.send(*lock.admit_request(f"dead{i}"))
    for _ in range(2200):
        assert wire.read()[0] == 0
    lock.scripts.pass_ms(PLACE_MS)
    lock.admit("alive")
    lock.leave("a")
    answers = [lock.admit("alive") for _ in range(4)]
    assert [answer.code for answer in answers] == [0, 0, 0, 1]
    positions = [answer.position for answer in answers[:-1]]
    assert all(0 < before - after <= 600 for before, after in pairwise(positions)), positions
    assert lock.waiters == []


@pytest.mark.parametrize("gone", ["queue", "entries"])
def test_queue_that_was_deleted_by_hand_does_not_block_the_name(lock: Named, gone: str) -> None:
    lock.admit("a")
    lock.admit("b")
    lock.scripts.wire.call("DEL", f"{lock.keys[0]}:{gone}")
    lock.leave("a")
    assert lock.admit("c", place=0).code == 1


def test_state_that_was_deleted_by_hand_takes_its_leftovers_with_it(lock: Named) -> None:
    lock.admit("a")
    lock.admit("b")
    lock.scripts.wire.call("DEL", lock.keys[0])
    assert lock.admit("c").code == 1
    assert lock.waiters == []
    lock.leave("c")
    assert lock.admit("d", place=0).code == 1


def test_waiter_that_comes_back_after_its_place_has_ended_is_let_in_before_who_came_later(lock: Named) -> None:
    """It asks, so it is alive: after a long outage the first in the queue is still the first."""
    lock.admit("holder", lease=5000)
    lock.admit("first", place=6000)
    lock.admit("second", place=60_000)
    lock.scripts.pass_ms(10_000)
    assert lock.admit("first").code == 1
    assert lock.waiters == ["second"]
