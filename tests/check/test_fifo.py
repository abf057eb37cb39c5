"""First come, first served, among those who stay."""

from __future__ import annotations

import pytest

from check.made import crash, ev, hold
from lockfast import check
from lockfast.check import Event, server_clock_jumped, server_lost_memory

QUEUE = [ev(1, "asked", "a"), ev(1, "asked", "b"), ev(1, "queued", "a"), ev(1, "queued", "b")]
FIRST, SECOND = ev(5, "held", "a", 15), ev(5, "held", "b", 15)


def test_places_served_in_order_are_ok() -> None:
    assert check.fifo([*QUEUE, FIRST, SECOND]).ok


def test_a_later_place_served_first_is_a_violation() -> None:
    verdict = check.fifo([*QUEUE, SECOND, FIRST])
    assert verdict.bad
    assert verdict.events == (QUEUE[2], QUEUE[3], SECOND)


def test_whoever_is_held_without_a_place_has_barged_in() -> None:
    verdict = check.fifo([*QUEUE, ev(4, "held", "c", 14)])
    assert verdict.bad
    assert "c, without a place, was held before a" in verdict.why


def test_somebody_may_be_held_without_a_place_when_nobody_waits() -> None:
    assert check.fifo([ev(1, "held", "c", 14), *QUEUE, FIRST, SECOND, ev(6, "held", "d", 16)]).ok


@pytest.mark.parametrize(
    "absence",
    [
        ev(2, "failed", "a"),
        ev(2, "leaving", "a"),
        ev(2, "left", "a"),
        ev(2, "place_ended", "a"),
        ev(2, "unqueued", "a"),
        crash(2, "A"),
        server_lost_memory(2),
        server_lost_memory(2, "n"),
    ],
)
def test_whoever_was_absent_may_be_overtaken(absence: Event) -> None:
    assert check.fifo([*QUEUE, absence, SECOND]).ok


@pytest.mark.parametrize(
    "other", [ev(2, "failed", "b"), crash(2, "B"), server_lost_memory(2, "m"), server_clock_jumped(2, 9)]
)
def test_what_happens_to_others_is_no_reason_to_overtake(other: Event) -> None:
    assert check.fifo([*QUEUE, other, SECOND]).bad


def test_the_server_may_still_let_an_absent_one_in() -> None:
    """It failed, and the server does not know yet: its turn is its turn."""
    assert check.fifo([*QUEUE, ev(2, "failed", "a"), FIRST, SECOND]).ok
    assert check.fifo([*QUEUE, crash(2, "A"), FIRST, SECOND]).ok


def test_an_absent_one_does_not_overtake_either() -> None:
    assert check.fifo([*QUEUE, ev(2, "failed", "b"), SECOND]).bad


def test_a_place_taken_again_is_at_the_end() -> None:
    again = [*QUEUE, ev(2, "place_ended", "a"), ev(3, "queued", "a")]
    assert check.fifo([*again, SECOND, FIRST]).ok
    assert check.fifo([*again, FIRST, SECOND]).bad


def test_an_old_place_is_forgotten_when_another_is_taken() -> None:
    again = [
        *QUEUE,
        ev(2, "failed", "a"),
        ev(3, "queued", "a"),
        SECOND,
        FIRST,
        ev(6, "asked", "c"),
        ev(6, "queued", "c"),
    ]
    assert check.fifo(again).ok
    assert check.fifo([*again, ev(7, "held", "a", 17)]).bad, "without a place, whatever it had once"


def test_a_place_told_twice_is_one_place() -> None:
    assert check.fifo([*QUEUE, ev(2, "queued", "a"), FIRST, SECOND]).ok
    assert check.fifo([*QUEUE, ev(2, "queued", "a"), SECOND]).bad


def test_queues_of_other_names_are_others() -> None:
    assert check.fifo([*QUEUE, ev(2, "held", "x", 12, name="m"), FIRST, SECOND]).ok


def test_without_server_side_events_the_order_is_unknown() -> None:
    assert check.fifo(hold("a", 1, 2)).status == "unknown"
    assert check.fifo([ev(1, "asked", "a")]).status == "unknown"
    half = [*QUEUE, FIRST, ev(6, "granted", "x", 9, name="m")]
    assert check.fifo(half).status == "unknown"
    assert "m: no server-side events" in check.fifo(half).why
