"""What has ended stays ended, and nothing is held that nobody is behind."""

from __future__ import annotations

import pytest

from check.made import LEASE_S, crash, ev, hold
from lockfast import check
from lockfast.check import Event, server_clock_jumped, server_lost_memory
from lockfast.check.endings import PLACE_S, SLACK_S

GRANTED = ev(1, "granted", "a", 11, fence=1)


def test_a_belief_that_is_renewed_in_time_goes_on() -> None:
    assert check.no_resumption([GRANTED, ev(8, "renewed", "a", 18), ev(18, "renewed", "a", 28)]).ok, "also at its end"


@pytest.mark.parametrize(
    "end", [[ev(5, "lost", "a")], [crash(5, "A")], [], [ev(12, "lost", "a")], [ev(11, "lost", "a")]]
)
@pytest.mark.parametrize("again", [ev(13, "renewed", "a", 23, fence=1), ev(13, "granted", "a", 23, fence=2)])
def test_a_belief_that_was_lost_or_ran_out_never_comes_back(end: list[Event], again: Event) -> None:
    verdict = check.no_resumption([GRANTED, *end, again])
    assert verdict.bad
    assert verdict.events == (GRANTED, again)


def test_a_belief_that_was_too_late_from_the_start_is_not_renewed() -> None:
    assert check.no_resumption([ev(1, "granted", "a", 0.5), ev(2, "renewed", "a", 9)]).bad


def test_another_ticket_is_another_hold() -> None:
    assert check.no_resumption([GRANTED, ev(5, "lost", "a"), ev(6, "granted", "b", 16)]).ok


def test_one_that_resumes_is_seen_although_another_never_believed() -> None:
    history = [ev(1, "asked", "b"), GRANTED, ev(5, "lost", "a"), ev(6, "renewed", "a", 16)]
    assert check.no_resumption(history).bad


def test_a_late_renewal_after_leaving_resumes_nothing() -> None:
    assert check.no_resumption([GRANTED, ev(5, "leaving", "a"), ev(6, "renewed", "a", 16)]).ok


HELD = ev(1, "held", "a", 11, fence=1)


def test_a_hold_is_prolonged_while_it_lives() -> None:
    assert check.no_resumption([HELD, ev(11, "prolonged", "a", 21, fence=1), ev(20, "prolonged", "a", 30, fence=1)]).ok


@pytest.mark.parametrize("end", [ev(11, "expired", "a"), ev(5, "let_go", "a"), ev(5, "expired", "a")])
def test_a_hold_that_has_ended_is_not_prolonged(end: Event) -> None:
    late = ev(end.at + 1, "prolonged", "a", 22, fence=1)
    assert check.no_resumption([HELD, end, late]).bad
    assert check.no_resumption([HELD, end, ev(12, "prolonged", "a", 22)]).bad, "no fence told: the same"
    assert check.no_resumption([HELD, end, ev(12, "prolonged", "a", 22, fence=2)]).ok, "another hold"
    assert check.no_resumption([HELD, end]).ok


def test_a_lease_that_ran_out_unnoticed_is_not_prolonged() -> None:
    assert check.no_resumption([HELD, ev(11.1, "prolonged", "a", 22, fence=1)]).bad
    assert check.no_resumption([HELD, ev(11.0005, "prolonged", "a", 22, fence=1)]).ok, "within the server's tick"


def test_a_hold_that_was_let_go_is_not_prolonged_within_a_tick_either() -> None:
    assert check.no_resumption([HELD, ev(5, "let_go", "a"), ev(5, "prolonged", "a", 15, fence=1)]).bad


def test_a_hold_under_a_new_fence_is_another_hold() -> None:
    again = [HELD, ev(11, "expired", "a"), ev(12, "held", "a", 22, fence=2)]
    assert check.no_resumption([*again, ev(13, "prolonged", "a", 23, fence=2)]).ok


@pytest.mark.parametrize("upset", [server_lost_memory(5), server_clock_jumped(5, -9), server_clock_jumped(5, 9)])
def test_a_hold_prolonged_after_a_memory_loss_or_jump_is_unknown(upset: Event) -> None:
    verdict = check.no_resumption([HELD, upset, ev(12, "prolonged", "a", 22, fence=1)])
    assert verdict.status == "unknown"
    assert upset in verdict.events
    assert check.no_resumption([HELD, ev(12, "prolonged", "a", 22, fence=1), server_lost_memory(13)]).bad


def test_nothing_is_known_of_holds_that_never_were() -> None:
    assert check.no_resumption([ev(1, "asked", "a")]).status == "unknown"


# --- orphans

BOUND_S = LEASE_S + PLACE_S + SLACK_S
ENDS = [ev(5, "failed", "a"), crash(5, "A"), ev(5, "left", "a")]
ASKED = ev(1, "asked", "a")


def orphan(gone: Event, until: float) -> list[Event]:
    """It is gone, and the server goes on prolonging its hold until `until`."""
    return [ASKED, ev(2, "held", "a", 12), gone, ev(6, "prolonged", "a", until), ev(99, "end")]


@pytest.mark.parametrize("gone", ENDS)
def test_whoever_is_gone_is_forgotten_within_a_lease_and_a_place(gone: Event) -> None:
    assert check.no_orphan(orphan(gone, 5 + BOUND_S)).ok
    verdict = check.no_orphan(orphan(gone, 5 + BOUND_S + 0.01))
    assert verdict.bad
    assert verdict.events[0] == gone
    assert check.no_orphan(orphan(gone, 5 + BOUND_S + 0.01), slack_s=SLACK_S + 1).ok


def test_whoever_failed_and_crashed_later_is_gone_since_it_failed() -> None:
    history = orphan(ENDS[0], 5 + BOUND_S + 0.01)
    assert check.no_orphan([*history[:-1], crash(20, "A"), history[-1]]).bad


def test_a_hold_that_was_let_go_in_time_is_no_orphan() -> None:
    history = orphan(ENDS[0], 90)
    assert check.no_orphan([*history[:-1], ev(5 + BOUND_S, "let_go", "a"), history[-1]]).ok
    assert check.no_orphan([*history[:-1], ev(5 + BOUND_S + 1, "let_go", "a"), history[-1]]).bad


def test_a_dead_waiter_that_is_let_in_too_late_is_an_orphan() -> None:
    late = ev(20, "held", "a", 30)
    assert check.no_orphan([ASKED, ENDS[1], late, ev(99, "end")]).bad
    assert check.no_orphan([ASKED, ENDS[1], ev(5 + PLACE_S, "held", "a", 5 + PLACE_S + LEASE_S), ev(99, "end")]).ok


def test_a_release_that_was_confirmed_is_final() -> None:
    again = [ASKED, ev(2, "held", "a", 12), ev(5, "let_go", "a"), ENDS[2], ev(6, "held", "a", 7)]
    assert check.no_orphan(again).bad, "however short"
    assert check.no_orphan([*again[:3], ev(5, "failed", "a"), again[4]]).ok, "that it failed was never confirmed"
    assert check.no_orphan([*again[:4], server_lost_memory(5.5), again[4]]).status == "unknown"


def test_what_was_not_watched_is_not_held_against_anybody() -> None:
    assert check.no_orphan(orphan(ENDS[0], 5000)[:-1]).ok


def test_a_live_holder_is_no_orphan() -> None:
    assert check.no_orphan([ASKED, ev(2, "held", "a", 95), crash(5, "B"), ev(99, "end")]).ok


def test_a_lease_that_was_never_told_is_read_from_the_hold() -> None:
    """Held for 10 s at once: that was its lease."""
    told = [ev(2, "held", "a", 12, lease=0.0), crash(5, "A"), ev(6, "prolonged", "a", 5 + BOUND_S), ev(99, "end")]
    assert check.no_orphan(told).ok
    longer = [*told[:2], ev(6, "prolonged", "a", 6 + BOUND_S), told[3]]
    assert check.no_orphan(longer).bad
    first = [ev(0, "held", "a", 1, lease=0.0), ev(1, "expired", "a")]
    assert check.no_orphan([*first, *told]).ok, "the longest that it was given"


@pytest.mark.parametrize("upset", [server_lost_memory(3), server_clock_jumped(3, -50), server_clock_jumped(7, 50)])
def test_an_orphan_of_a_server_that_was_upset_is_unknown(upset: Event) -> None:
    history = sorted([*orphan(ENDS[0], 90), upset], key=lambda event: event.at)
    assert check.no_orphan(history).status == "unknown"


def test_without_server_side_events_orphans_are_unknown() -> None:
    assert check.no_orphan(hold("a", 1, 2)).status == "unknown"
    assert check.no_orphan([ASKED]).status == "unknown"
    named = [ev(1, "held", "a", 2), *hold("b", 3, 4, name="m")]
    assert check.no_orphan(named).status == "unknown"
