"""Fences that grow, and when it cannot be known that they must."""

from __future__ import annotations

import pytest

from check.made import ev
from lockfast import check
from lockfast.check import Event, server_clock_jumped, server_lost_memory


def held(at: float, ticket: str, fence: int, **more: int) -> Event:
    return ev(at, "held", ticket, at + 1, fence=fence, **more)


def granted(at: float, ticket: str, fence: int, until: float = 0.0, **more: int) -> Event:
    return ev(at, "granted", ticket, until or at + 1, fence=fence, **more)


def test_growing_fences_are_ok() -> None:
    assert check.fences_grow([held(1, "a", 5), held(2, "b", 6), held(2, "c", 99)]).ok


@pytest.mark.parametrize("fence", [5, 4])
def test_a_fence_that_does_not_grow_is_a_violation(fence: int) -> None:
    verdict = check.fences_grow([held(1, "a", 5), held(3, "b", fence)])
    assert verdict.bad
    assert [event.ticket for event in verdict.events] == ["a", "b"]


def test_a_fence_is_compared_with_the_highest_before_not_only_the_last() -> None:
    history = [held(1, "a", 9), server_lost_memory(2), held(3, "b", 3), held(4, "c", 8)]
    assert check.fences_grow([history[0], *history[2:]]).bad
    assert check.fences_grow([held(1, "a", 3), held(2, "b", 9), held(3, "c", 8)]).bad


def test_a_ticket_granted_again_gets_a_new_fence() -> None:
    assert check.fences_grow([held(1, "a", 5), ev(2, "expired", "a"), held(3, "a", 5)]).bad
    assert check.fences_grow([held(1, "a", 5), ev(2, "expired", "a"), held(3, "a", 6)]).ok


def test_holders_that_overlap_at_the_server_are_in_its_order() -> None:
    assert check.fences_grow([ev(1, "held", "a", 11, fence=5), ev(3, "held", "b", 13, fence=4)]).bad


def test_a_hold_that_is_resumed_is_not_a_new_grant() -> None:
    """That it is resumed is another question."""
    assert check.fences_grow([held(1, "a", 5), ev(3, "prolonged", "a", 9, fence=5)]).ok
    assert check.fences_grow([granted(1, "a", 5), ev(3, "renewed", "a", 9, fence=5)]).ok


def test_names_count_for_themselves() -> None:
    assert check.fences_grow([held(1, "a", 5), ev(2, "held", "b", 3, fence=4, name="m")]).ok


def test_fences_grow_across_a_memory_loss() -> None:
    assert check.fences_grow([held(1, "a", 5), server_lost_memory(2), held(3, "b", 1)]).bad
    assert check.fences_grow([held(1, "a", 5), server_lost_memory(2), held(3, "b", 6)]).ok


def test_a_clock_that_went_back_excuses_nothing_while_the_server_remembers() -> None:
    assert check.fences_grow([held(1, "a", 5), server_clock_jumped(2, -60), held(3, "b", 1)]).bad


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_a_memory_loss_and_a_clock_that_went_back_beyond_what_has_passed_is_unknown(order: tuple[int, int]) -> None:
    upsets = [server_lost_memory(2), server_clock_jumped(2, -60)]
    verdict = check.fences_grow([held(1, "a", 5), *(upsets[i] for i in order), held(3, "b", 1)])
    assert verdict.status == "unknown"
    assert [event.ticket for event in verdict.events] == ["a", "b"]


def test_a_clock_that_went_back_by_less_than_has_passed_since_excuses_nothing() -> None:
    upsets = [server_lost_memory(2), server_clock_jumped(2, -60)]
    assert check.fences_grow([held(1, "a", 5), *upsets, held(61, "b", 1)]).status == "unknown", "the same µs"
    assert check.fences_grow([held(1, "a", 5), *upsets, held(61.5, "b", 1)]).bad


def test_a_clock_that_was_right_again_excuses_nothing() -> None:
    upsets = [server_clock_jumped(2, -60), server_lost_memory(2), server_clock_jumped(2, 60)]
    assert check.fences_grow([held(1, "a", 5), *upsets, held(3, "b", 1)]).bad


def test_a_jump_before_the_last_fence_counts_too() -> None:
    """The fence at 3 is the old one plus one, ahead of the clock that went back; only the loss at 4 shows it."""
    history = [held(1, "a", 500), server_clock_jumped(2, -60), held(3, "b", 501), server_lost_memory(4)]
    assert check.fences_grow([*history, held(5, "c", 450)]).status == "unknown"


def test_fences_after_an_explained_fall_must_grow_again() -> None:
    fall = [held(1, "a", 500), server_lost_memory(2), server_clock_jumped(2, -60), held(3, "b", 450)]
    assert check.fences_grow([*fall, held(4, "c", 451)]).status == "unknown"
    assert check.fences_grow([*fall, held(4, "c", 449)]).bad


def test_the_loss_of_another_name_explains_nothing() -> None:
    upsets = [server_lost_memory(2, "m"), server_clock_jumped(2, -60)]
    assert check.fences_grow([held(1, "a", 5), *upsets, held(3, "b", 1)]).bad


def test_fences_made_while_the_clock_was_ahead_are_ahead() -> None:
    ahead = [server_clock_jumped(0, 100), held(1, "a", 500), server_lost_memory(2)]
    assert check.fences_grow([*ahead, server_clock_jumped(2, -60), held(3, "b", 400)]).status == "unknown"
    assert check.fences_grow([*ahead, held(3, "b", 400)]).bad


def test_a_clock_that_jumped_by_nobody_knows_how_much_is_unknown() -> None:
    upsets = [server_lost_memory(2), server_clock_jumped(2, 0.0)]
    assert check.fences_grow([held(1, "a", 5), *upsets, held(3, "b", 1)]).status == "unknown"


def test_a_clock_a_day_ahead_makes_the_server_forget() -> None:
    upsets = [server_clock_jumped(2, 2 * 86400), server_clock_jumped(3, -3 * 86400)]
    assert check.fences_grow([held(1, "a", 5), *upsets, held(4, "b", 1)]).status == "unknown"


# --- without server-side events


def test_beliefs_one_after_the_other_have_growing_fences() -> None:
    assert check.fences_grow([granted(1, "a", 5), granted(2, "b", 6)]).ok
    assert check.fences_grow([granted(1, "a", 5), granted(2, "b", 4)]).bad, "ends as the other starts: before it"


def test_beliefs_that_overlap_have_no_order_but_differ() -> None:
    assert check.fences_grow([granted(1, "a", 5, until=9), granted(2, "b", 4)]).ok
    assert check.fences_grow([granted(1, "a", 5, until=9), granted(2, "b", 5)]).bad


def test_an_overlapping_belief_hides_no_earlier_one() -> None:
    history = [granted(1, "long", 3, until=99), granted(1.5, "a", 7), granted(5, "b", 6)]
    assert check.fences_grow(history).bad
    # The last that ended had a smaller fence than the one that it overlapped.
    assert check.fences_grow([granted(1, "a", 9), granted(1.5, "c", 3), granted(4, "b", 5)]).bad


def test_told_twice_of_one_grant_is_one_grant() -> None:
    assert check.fences_grow([granted(1, "a", 5), granted(1.5, "a", 5), granted(3, "b", 6)]).ok
    assert check.fences_grow([granted(1, "a", 5), granted(3, "a", 5)]).bad, "the first had ended"
    assert check.fences_grow([granted(1, "a", 5, until=9), granted(2, "a", 4)]).bad, "another fence: another grant"


def test_a_fall_known_from_clients_only_is_judged_from_when_they_asked() -> None:
    upsets = [server_lost_memory(2), server_clock_jumped(2, -60)]
    late = [ev(59, "asked", "b"), granted(62, "b", 1)]
    assert check.fences_grow([granted(1, "a", 5), *upsets, *late]).status == "unknown"
    assert check.fences_grow([granted(1, "a", 5), *upsets, ev(61.5, "asked", "b"), granted(62, "b", 1)]).bad


def test_without_fences_nothing_is_known() -> None:
    assert check.fences_grow([granted(1, "a", 0), granted(3, "b", 6)]).status == "unknown"


# --- shared holds


def test_shared_holds_need_no_order_but_a_fence_of_their_own() -> None:
    assert check.fences_grow([held(1, "a", 5, limit=9), held(2, "b", 4, limit=9)]).ok
    assert check.fences_grow([held(1, "a", 5, limit=9), held(2, "b", 5, limit=9)]).bad


def test_writers_among_readers_have_growing_fences() -> None:
    writers = [held(1, "a", 5, limit=9, weight=9), held(2, "b", 1, limit=9), held(3, "c", 4, limit=9, weight=9)]
    assert check.fences_grow(writers).bad
