"""Exclusion, permits, readers and writers: who believed at once; and deadlines that come before takeovers."""

from __future__ import annotations

from math import inf

import pytest

from check.made import crash, ev, hold, ordered
from lockfast import check
from lockfast.check import Event, server_clock_jumped, server_lost_memory

LOSS = server_lost_memory(3)
AHEAD = server_clock_jumped(3, 60)
BACK = server_clock_jumped(3, -60)


def test_one_after_the_other_is_exclusive() -> None:
    assert check.exclusion(ordered(hold("a", 1, 2), hold("b", 3, 4))).ok


def test_what_ends_as_another_starts_does_not_overlap() -> None:
    assert check.exclusion(ordered(hold("a", 1, 2), hold("b", 2, 3))).ok
    # Also when the recorder wrote them down the other way round.
    assert check.exclusion([ev(1, "granted", "a", 9), ev(2, "granted", "b", 9), ev(2, "leaving", "a")]).ok
    assert check.exclusion([ev(1, "granted", "a", 2), ev(2, "granted", "b", 3)]).ok


def test_two_who_believe_at_once_are_a_violation() -> None:
    first, second = ev(1, "granted", "a", 3), ev(2.5, "granted", "b", 4)
    verdict = check.exclusion([first, second])
    assert verdict.bad
    assert verdict.events == (first, second)
    assert "for 0.500000 s from 2.500000" in verdict.why


def test_a_short_hold_inside_a_long_one_is_seen_after_others() -> None:
    history = ordered(hold("a", 1, 9), ev(1.5, "granted", "b", 1.2), hold("c", 5, 6))
    assert check.exclusion(history).events[-1].ticket == "c", "b never believed: it was too late from the start"


@pytest.mark.parametrize("end", [ev(2, "leaving", "a"), ev(2, "lost", "a"), crash(2, "A"), ev(2, "left", "a")])
def test_a_belief_ends_by_leaving_loss_or_crash(end: Event) -> None:
    history = [ev(1, "granted", "a", inf), end, ev(2, "granted", "b", 4)]
    assert check.exclusion(history).ok
    assert check.exclusion([history[0], history[2], end]).ok
    assert check.exclusion([history[0], history[2]]).bad


def test_the_crash_of_another_client_ends_nothing() -> None:
    assert check.exclusion([ev(1, "granted", "a", 9), crash(2, "B"), ev(3, "granted", "c", 9)]).bad


def test_a_renewal_lengthens_a_belief() -> None:
    history = [ev(1, "granted", "a", 3), ev(2, "renewed", "a", 6), ev(5, "granted", "b", 9)]
    assert check.exclusion(history).bad
    assert check.exclusion([history[0], history[2]]).ok


def test_a_renewal_never_shortens_a_belief() -> None:
    assert check.exclusion([ev(1, "granted", "a", 6), ev(2, "renewed", "a", 3), ev(5, "granted", "b", 9)]).bad


def test_a_renewal_after_leaving_is_not_believed() -> None:
    history = [ev(1, "granted", "a", 3), ev(2, "leaving", "a"), ev(2, "renewed", "a", 9), ev(5, "granted", "b", 9)]
    assert check.exclusion(history).ok


def test_a_renewal_after_loss_is_a_belief_that_others_can_overlap() -> None:
    history = [ev(1, "granted", "a", 3), ev(2, "lost", "a"), ev(4, "renewed", "a", 9), ev(5, "granted", "b", 9)]
    assert check.exclusion(history).bad


def test_other_names_are_other_locks() -> None:
    assert check.exclusion([ev(1, "granted", "a", 3), ev(2, "granted", "b", 4, name="m")]).ok


def test_without_grants_nothing_is_known() -> None:
    history = [ev(1, "asked", "a"), ev(2, "failed", "a")]
    for name in ("exclusion", "permits", "readers_writers", "deadline_before_takeover", "fences_grow", "no_resumption"):
        assert check.CHECKERS[name](history).status == "unknown", name


def test_exclusion_does_not_ask_about_semaphores() -> None:
    history = [ev(1, "granted", "a", 9, limit=2), ev(2, "granted", "b", 9, limit=2)]
    assert check.exclusion(history).status == "unknown"


# --- what no lease can help


@pytest.mark.parametrize("upset", [LOSS, AHEAD, server_clock_jumped(3, 0.0)])
def test_an_overlap_across_a_memory_loss_or_clock_jump_is_excused(upset: Event) -> None:
    verdict = check.exclusion([ev(1, "granted", "a", 9), upset, ev(4, "granted", "b", 9)])
    assert (verdict.status, verdict.excused, verdict.bad) == ("violated", True, False)
    assert verdict.why.startswith(f"documented limit: {upset.what} in between: n: a of A and b of B")
    assert upset in verdict.events


@pytest.mark.parametrize("upset", [BACK, server_lost_memory(3, "m")])
def test_a_clock_set_back_or_the_loss_of_another_name_excuses_nothing(upset: Event) -> None:
    assert check.exclusion([ev(1, "granted", "a", 9), upset, ev(4, "granted", "b", 9)]).bad


def test_a_loss_before_or_after_both_were_granted_excuses_nothing() -> None:
    pair = [ev(4, "granted", "a", 9), ev(5, "granted", "b", 9)]
    assert check.exclusion([LOSS, *pair]).bad
    assert check.exclusion([*pair, server_lost_memory(6)]).bad
    assert check.exclusion([*pair[:1], server_lost_memory(5), *pair[1:]]).excused, "equal times: the order decides"
    assert check.exclusion([*pair, server_lost_memory(5)]).bad


def test_an_overlap_that_has_no_excuse_is_told_before_one_that_has() -> None:
    history = [ev(1, "granted", "a", 9), LOSS, ev(4, "granted", "b", 9), ev(5, "granted", "c", 9)]
    verdict = check.exclusion(history)
    assert verdict.bad
    assert [event.ticket for event in verdict.events] == ["b", "c"]
    elsewhere = [ev(20, "granted", "d", 25, name="m"), ev(21, "granted", "e", 25, name="m")]
    assert check.exclusion(history[:3] + elsewhere).bad


def test_a_hold_that_was_prolonged_after_the_jump_is_sound_again() -> None:
    before = [ev(1, "held", "a", 11), ev(1, "granted", "a", 11), AHEAD]
    after = [ev(6, "held", "b", 16), ev(6, "granted", "b", 16)]
    assert check.exclusion(before + after).excused
    renewed = [ev(4, "prolonged", "a", 14), ev(4, "renewed", "a", 14)]
    assert check.exclusion(before + renewed + after).bad


def test_without_server_side_events_a_hold_may_be_as_old_as_its_ask() -> None:
    history = [ev(1, "asked", "a"), LOSS, ev(4, "granted", "a", 9), ev(5, "granted", "b", 9)]
    assert check.exclusion(history).excused
    assert check.exclusion(history[1:]).bad


def test_a_ticket_held_twice_is_judged_by_the_hold_that_it_believes_in() -> None:
    before = [ev(1, "held", "a", 2), ev(2, "expired", "a"), ev(2, "held", "b", 12), ev(2, "granted", "b", 12)]
    assert check.exclusion([*before, LOSS, ev(4, "held", "a", 14), ev(4, "granted", "a", 14)]).excused


def test_a_grant_known_late_is_judged_by_when_the_server_gave_it() -> None:
    """The server gave it before it forgot; the reply came after another had it."""
    late = [ev(1, "asked", "a"), ev(1, "held", "a", 11), LOSS, ev(4, "held", "b", 14), ev(4, "granted", "b", 14)]
    assert check.exclusion([*late, ev(5, "granted", "a", 9)]).excused
    # The server forgot before it gave either.
    early = [ev(1, "asked", "a"), LOSS, ev(4, "held", "a", 11), ev(5, "held", "b", 14), ev(5, "granted", "b", 14)]
    assert check.exclusion([*early, ev(6, "granted", "a", 9)]).bad


# --- permits


def of(limit: int, *tickets: str, weight: int = 1) -> list[Event]:
    return [ev(number, "granted", ticket, 99, limit=limit, weight=weight) for number, ticket in enumerate(tickets, 1)]


def test_as_many_as_the_limit_fit() -> None:
    assert check.permits(of(3, "a", "b", "c")).ok


def test_one_more_than_the_limit_is_a_violation() -> None:
    verdict = check.permits(of(3, "a", "b", "c", "d"))
    assert verdict.bad
    assert "4 held of 3 at 4.000000, by 4" in verdict.why
    assert len(verdict.events) == 4


def test_weights_are_added() -> None:
    assert check.permits(of(4, "a", "b", weight=2)).ok
    assert check.permits(of(5, "a", "b", "c", weight=2)).bad
    assert check.permits(of(1, "a", weight=2)).bad, "more than there is"


def test_a_permit_given_back_as_another_is_taken_is_free() -> None:
    history = [*of(2, "a", "b"), ev(3, "granted", "c", 9, limit=2), ev(3, "leaving", "a")]
    assert check.permits(history).ok
    assert check.permits(history[:3]).bad


def test_the_smallest_limit_of_those_inside_counts() -> None:
    """A lowered limit lets nobody in until there is room; a raised one is not known to those who hold by the old."""
    many = of(4, "a", "b", "c")
    assert check.permits([*many, ev(5, "granted", "d", 99, limit=2)]).bad
    assert "limits 2, 4" in check.permits([*many, ev(5, "granted", "d", 99, limit=2)]).why
    assert check.permits([many[0], ev(5, "granted", "d", 99, limit=2)]).ok
    assert check.permits([ev(1, "granted", "a", 9), ev(2, "granted", "b", 9, limit=4)]).bad
    assert check.permits([ev(1, "granted", "a", 2), ev(2, "granted", "b", 9, limit=4), *[]]).ok
    # Once all of the old limit have ended it is forgotten.
    later = [ev(200 + n, "granted", f"x{n}", 900, limit=6) for n in range(6)]
    assert check.permits([*many, ev(5, "granted", "d", 99, limit=9), *later]).ok


def test_a_semaphore_that_forgot_is_excused_only_for_what_it_forgot() -> None:
    old, new = of(2, "a", "b"), [ev(4, "granted", "c", 9, limit=2), ev(5, "granted", "d", 9, limit=2)]
    assert check.permits([*old, LOSS, *new]).excused
    assert check.permits([*old, LOSS, *new, ev(6, "granted", "e", 9, limit=2)]).bad
    assert check.permits([*old, *new]).bad


# --- readers and writers

W = 1 << 20


def reads(ticket: str, start: float, end: float) -> list[Event]:
    return hold(ticket, start, end, limit=W)


def writes(ticket: str, start: float, end: float) -> list[Event]:
    return hold(ticket, start, end, limit=W, weight=W)


def test_readers_share_and_a_writer_is_alone() -> None:
    history = ordered(reads("a", 1, 3), reads("b", 2, 4), writes("c", 4, 5), reads("d", 5, 6))
    assert check.readers_writers(history).ok


@pytest.mark.parametrize(
    "history",
    [
        ordered(reads("a", 1, 3), writes("b", 2, 4)),
        ordered(writes("a", 1, 3), reads("b", 2, 4)),
        ordered(writes("a", 1, 3), writes("b", 2, 4)),
        ordered(reads("a", 1, 9), reads("b", 2, 3), writes("c", 4, 5)),
    ],
)
def test_a_writer_beside_anybody_is_a_violation(history: list[Event]) -> None:
    verdict = check.readers_writers(history)
    assert verdict.bad
    assert len(verdict.events) == 2
    assert check.permits(history).bad


def test_a_writer_across_a_memory_loss_is_excused() -> None:
    assert check.readers_writers(ordered(writes("a", 1, 9), LOSS, reads("b", 4, 5))).excused


def test_readers_alone_or_locks_say_nothing_about_writers() -> None:
    assert check.readers_writers(reads("a", 1, 2)).status == "unknown"
    assert check.readers_writers(hold("a", 1, 2)).status == "unknown"


# --- deadlines before takeovers

TAKEN = [ev(1, "asked", "a"), ev(1, "held", "a", 11), ev(2, "granted", "a", 10.9)]


def test_a_deadline_at_or_before_the_takeover_is_in_time() -> None:
    takeover = [ev(11, "expired", "a"), ev(11, "held", "b", 21), ev(11, "granted", "b", 20)]
    assert check.deadline_before_takeover([*TAKEN, *takeover]).ok
    to_the_last = [*TAKEN[:2], ev(2, "granted", "a", 11)]
    assert check.deadline_before_takeover([*to_the_last, *takeover]).ok


def test_a_belief_that_outlasts_the_servers_lease_is_a_violation_once_another_is_held() -> None:
    too_long = [*TAKEN[:2], ev(2, "granted", "a", 12)]
    assert check.deadline_before_takeover([*too_long, ev(11, "expired", "a")]).ok, "nobody else came"
    verdict = check.deadline_before_takeover([*too_long, ev(11, "expired", "a"), ev(11.5, "held", "b", 21)])
    assert verdict.bad, "although b never came to believe it"
    assert "b of B was held at 11.500000, not over: a of A until 12.000000" in verdict.why
    assert check.exclusion([*too_long, ev(11, "expired", "a"), ev(11.5, "held", "b", 21)]).ok


def test_a_belief_that_begins_when_the_server_has_another_is_a_violation() -> None:
    stale = [ev(1, "held", "a", 3), ev(3, "expired", "a"), ev(3, "held", "b", 13), ev(5, "granted", "a", 9)]
    assert check.deadline_before_takeover(stale).bad
    assert check.deadline_before_takeover([*stale[:3], ev(4, "let_go", "b"), stale[3]]).ok, "b had gone by then"


def test_a_belief_that_comes_back_after_the_lease_is_seen_beside_the_first() -> None:
    again = [ev(5, "lost", "a"), ev(11, "expired", "a"), ev(12, "renewed", "a", 20), ev(13, "held", "b", 23)]
    assert check.deadline_before_takeover([*TAKEN, *again]).bad
    assert check.deadline_before_takeover([*TAKEN, *again[:2], again[3]]).ok


def test_a_server_that_forgot_another_name_still_has_this_one() -> None:
    history = [ev(1, "held", "a", 11), server_lost_memory(3, "m"), ev(4, "held", "b", 14), ev(4, "granted", "b", 14)]
    assert check.deadline_before_takeover(history).bad
    assert check.deadline_before_takeover([history[0], LOSS, *history[2:]]).ok, "a did not believe"


def test_a_server_that_has_two_holders_is_a_violation() -> None:
    assert check.deadline_before_takeover([*TAKEN, ev(3, "held", "b", 13)]).bad


def test_a_lease_that_ran_out_unnoticed_holds_nobody_up() -> None:
    assert check.deadline_before_takeover([*TAKEN, ev(12, "held", "b", 22), ev(12, "expired", "a")]).ok


def test_a_prolonged_lease_counts_until_its_new_end() -> None:
    longer = [*TAKEN, ev(5, "prolonged", "a", 15), ev(5, "renewed", "a", 14.9)]
    assert check.deadline_before_takeover([*longer, ev(12, "held", "b", 22)]).bad
    assert check.deadline_before_takeover([*longer, ev(15, "held", "b", 22)]).ok


@pytest.mark.parametrize("upset", [LOSS, AHEAD])
def test_a_takeover_after_a_memory_loss_or_jump_is_unknown(upset: Event) -> None:
    verdict = check.deadline_before_takeover([*TAKEN, upset, ev(4, "held", "b", 14)])
    assert (verdict.status, verdict.excused) == ("unknown", False)
    assert upset.what in verdict.why


def test_a_takeover_after_a_clock_set_back_is_a_violation() -> None:
    assert check.deadline_before_takeover([*TAKEN, BACK, ev(4, "held", "b", 14)]).bad


def test_permits_are_taken_over_one_by_one() -> None:
    two = [ev(n, what, t, 11, limit=2) for n, t in ((1, "a"), (2, "b")) for what in ("held", "granted")]
    assert check.deadline_before_takeover(two).ok
    assert check.deadline_before_takeover([*two, ev(5, "held", "c", 15, limit=2)]).bad
    assert check.deadline_before_takeover(
        [*two, ev(4, "leaving", "a"), ev(5, "let_go", "a"), ev(5, "held", "c", 15, limit=2)]
    ).ok


def test_without_server_side_events_takeovers_are_unknown() -> None:
    verdict = check.deadline_before_takeover(hold("a", 1, 2))
    assert verdict.status == "unknown"
    assert "no server-side events" in verdict.why
