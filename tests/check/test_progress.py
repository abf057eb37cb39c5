"""Nobody is stuck, once faults have stopped."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from check.made import crash, ev, hold
from lockfast import check
from lockfast.check import server_lost_memory
from lockfast.check.progress import GAP_S

if TYPE_CHECKING:
    from lockfast.check import Event

QUIET, END = ev(10, "quiet"), ev(100, "end")
ASKED = ev(5, "asked", "a")


def test_whoever_is_served_is_not_stuck() -> None:
    assert check.not_stuck([ASKED, QUIET, *hold("a", 20, 30), END]).ok
    assert check.not_stuck([ASKED, QUIET, ev(100, "granted", "a", 110), END]).ok, "at the last moment"


def test_whoever_still_waits_at_the_end_is_stuck() -> None:
    verdict = check.not_stuck([ASKED, QUIET, END])
    assert verdict.bad
    assert verdict.events == (ASKED, END)
    assert "95.000000 s after it asked" in verdict.why
    assert check.not_stuck([QUIET, ev(11, "asked", "a"), END]).bad


@pytest.mark.parametrize("why", [ev(20, "failed", "a"), crash(20, "A"), ev(20, "left", "a"), ev(20, "leaving", "a")])
def test_whoever_failed_or_crashed_is_not_waited_for(why: Event) -> None:
    assert check.not_stuck([ASKED, QUIET, why, END]).ok


def test_the_crash_of_another_is_no_excuse() -> None:
    assert check.not_stuck([ASKED, QUIET, crash(20, "B"), END]).bad


@pytest.mark.parametrize("history", [[ASKED, QUIET], [ASKED, END], [ASKED], [ev(1, "end"), ASKED, QUIET]])
def test_without_a_quiet_time_that_was_watched_nothing_is_known(history: list[Event]) -> None:
    assert check.not_stuck(history).status == "unknown"


def test_where_nobody_asks_nothing_is_known() -> None:
    assert check.not_stuck([QUIET, END]).status == "unknown"


def waiting(*server: Event, served_at: float = 60.0) -> list[Event]:
    history = [ASKED, QUIET, *server, ev(served_at, "granted", "a", served_at + 5), END]
    return sorted(history, key=lambda event: event.at)


def test_a_name_that_lies_free_with_somebody_waiting_is_stuck() -> None:
    held = [ev(12, "held", "x", 22), ev(20, "let_go", "x")]
    assert check.not_stuck(waiting(*held, served_at=20 + GAP_S)).ok
    verdict = check.not_stuck(waiting(*held, served_at=20 + GAP_S + 0.1))
    assert verdict.bad
    assert "free at the server for 8.1" in verdict.why
    assert verdict.events == (ASKED,)
    assert check.not_stuck(waiting(*held, served_at=21.5), gap_s=1).bad


def test_a_lease_that_ran_out_leaves_the_name_free_noticed_or_not() -> None:
    assert check.not_stuck(waiting(ev(12, "held", "x", 22), ev(39, "expired", "x"), ev(39, "held", "a", 69))).bad


def test_a_server_that_forgot_has_a_free_name() -> None:
    held = ev(12, "held", "x", 72)
    assert check.not_stuck(waiting(held)).ok
    assert check.not_stuck(waiting(held, server_lost_memory(20))).bad


def test_a_ticket_held_again_has_one_end() -> None:
    assert check.not_stuck(waiting(ev(11, "held", "x", 70), ev(12, "held", "x", 72), ev(13, "let_go", "x"))).bad


def test_several_short_gaps_are_not_a_long_one() -> None:
    held = [ev(at, "held", f"x{at}", at + 3) for at in range(11, 60, 10)]
    assert check.not_stuck(waiting(*held)).ok
    assert check.not_stuck(waiting(*held[:2], *held[3:])).bad, "one missing makes two of them one"


def test_a_hand_over_in_one_moment_is_no_gap() -> None:
    held = [event for at in range(10, 60, 5) for event in (ev(at, "held", f"x{at}", at + 5),)]
    assert check.not_stuck(waiting(*held), gap_s=0).ok


def test_one_who_waits_after_another_makes_one_gap() -> None:
    """The first gave up, the second goes on waiting: the name lay free all the time."""
    history = [ASKED, QUIET, ev(14, "asked", "b"), ev(15, "failed", "a"), ev(19, "granted", "b", 29), END]
    assert check.not_stuck([ev(1, "held", "x", 2), *history]).bad
    apart = [ASKED, QUIET, ev(14, "failed", "a"), ev(14.5, "asked", "b"), ev(19, "granted", "b", 29), END]
    assert check.not_stuck([ev(1, "held", "x", 2), *apart]).ok


def test_only_the_time_between_quiet_and_end_counts() -> None:
    early = [ev(1, "asked", "a"), ev(1, "held", "x", 2), ev(10, "quiet"), ev(12, "granted", "a", 20), END]
    assert check.not_stuck(early).ok, "free for 10 s, of which 2 after the faults"
    late = [QUIET, ev(11, "held", "x", 95), ev(12, "asked", "a"), END, ev(150, "granted", "a", 160)]
    assert check.not_stuck(late).ok, "free for 5 s of the time that was watched"


def test_a_name_that_nobody_wants_may_lie_free() -> None:
    assert check.not_stuck([ASKED, ev(6, "held", "a", 16), ev(6, "granted", "a", 16), QUIET, END]).ok
