"""What a client knows of the servers of a quorum: when their votes count, what fence to propose, whom to ask."""

from __future__ import annotations

from math import inf

import pytest

from lockfast import names
from lockfast.errors import Refused
from lockfast.flows import asks
from lockfast.flows.admission import deadline_of
from lockfast.flows.effects import Env
from lockfast.flows.fleet import MAX_LEAD_US, RATE, Fleet, Node
from lockfast.flows.introduction import COARSE_S, Introduction, greeting, read_greeting
from lockfast.flows.votes import Round, Votes

MAX_LEASE_S = 10.0
NOON_US = 1_700_000_000_000_000


class Clock:
    now_s = 100.0

    def now(self) -> float:
        return self.now_s


def fleet_of(count: int, clock: Clock, max_lease_s: float | None = MAX_LEASE_S) -> Fleet:
    nodes = [Node(f"s{i}", Env(clock.now, lambda: 0.5, 2.0)) for i in range(count)]
    return Fleet(nodes, node_timeout_s=0.1, max_lease_s=max_lease_s)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def fleet(clock: Clock) -> Fleet:
    return fleet_of(3, clock)


def told(
    run_id: str, uptime_s: int = 3600, lasts: bool = False, server_us: int = NOON_US, mark: str = "", whole: bool = True
) -> Introduction:
    return Introduction(run_id, uptime_s, lasts, lasts and whole, server_us, round(MAX_LEASE_S * 1000), "key", mark)


def test_a_server_counts_when_it_has_been_up_for_the_longest_lease_by_the_time_it_was_heard(fleet: Fleet) -> None:
    fleet.introduce(0, told("a", uptime_s=4), sent=100.0, heard=103.0)
    # Its uptime is the difference of two whole seconds: it may be up for a second less.
    assert fleet.nodes[0].counts_at == pytest.approx(103.0 + (MAX_LEASE_S + COARSE_S - 4) * RATE)
    assert not fleet.is_counted(0, 109.9)
    assert fleet.is_counted(0, 111.0)


def test_a_server_that_is_up_for_long_counts_at_once_and_one_that_only_just_might_not(fleet: Fleet) -> None:
    fleet.introduce(0, told("a", uptime_s=11), 100.0, 100.1)
    fleet.introduce(1, told("b", uptime_s=10), 100.0, 100.1)
    assert fleet.is_counted(0, 100.1)
    assert not fleet.is_counted(1, 100.1)


def test_a_server_that_shows_that_it_kept_its_memory_counts_at_once(fleet: Fleet) -> None:
    fleet.introduce(0, told("a", uptime_s=0, lasts=True, mark="earlier 0"), 100.0, 100.1)
    assert fleet.is_counted(0, 100.1)


# Marks.

WAITS_S = MAX_LEASE_S + COARSE_S


def test_an_append_only_file_without_a_mark_may_be_a_new_one() -> None:
    wiped = told("a", uptime_s=0, lasts=True)
    assert wiped.short_s == WAITS_S
    assert wiped.new_mark == f"a {NOON_US + round(COARSE_S * 1e6)}", "it has kept nothing from before that"


def test_a_mark_of_another_run_shows_that_its_memory_was_kept_and_counts_from_then_on() -> None:
    again = told("b", uptime_s=0, lasts=True, mark=f"a {NOON_US - 6_000_000}")
    assert again.short_s == MAX_LEASE_S - 6, "the run before was not counted before that, and this one knows no more"
    assert again.new_mark == f"b {NOON_US - 6_000_000}"
    assert told("b", uptime_s=0, lasts=True, mark=f"a {NOON_US - 60_000_000}").short_s == 0


def test_a_mark_that_was_left_under_a_wrong_max_lease_is_judged_by_the_right_one() -> None:
    """A program that named a second came by, and was refused; then the key was put right."""
    wiped = told("a", uptime_s=3, lasts=True)._replace(max_lease_ms=1000)
    assert wiped.short_s == 0
    later = told("a", uptime_s=4, lasts=True, server_us=NOON_US + 1_000_000, mark=wiped.new_mark or "")
    assert later.short_s == WAITS_S - 4


def test_the_default_max_lease_is_offered_once_all_have_told_that_they_have_none_at_about_the_same_time(
    clock: Clock,
) -> None:
    fleet = fleet_of(3, clock, max_lease_s=None)
    blank = told("a", uptime_s=3)._replace(max_lease_ms=0)
    for place, heard in ((0, 10.0), (1, 100.0), (2, 100.1)):
        assert not fleet.introduce(place, blank, heard - 0.1, heard)
        assert not fleet.offer_ms, "the first may have been told one since"
    assert not fleet.introduce(0, blank, 100.1, 100.2)
    assert fleet.offer_ms == 60_000


def test_servers_are_judged_anew_when_another_max_lease_is_taken_over() -> None:
    nodes = [Node(f"s{place}", Env(lambda: 100.0, lambda: 0.5, 2.0)) for place in range(3)]
    fleet = Fleet(nodes, 0.05, None)
    fleet.introduce(0, told("a", uptime_s=3)._replace(max_lease_ms=1000), 100.0, 100.1)
    assert fleet.is_counted(0, 100.1)
    fleet._is_agreed = False  # as when servers that could not work together are looked at again
    fleet.introduce(1, told("b"), 101.0, 101.1)
    assert not fleet.is_counted(0, 101.1)
    assert 0 in fleet.to_probe(200.0)
    fleet.introduce(0, told("a", uptime_s=4), 101.2, 101.3)
    assert not fleet.is_counted(0, 101.3)
    assert fleet.is_counted(0, 101.3 + WAITS_S)


def test_words_of_an_earlier_run_that_come_late_end_no_quarantine(fleet: Fleet) -> None:
    """Threads may dial twice: the first connection was held up, and the server restarted empty meanwhile."""
    fleet.introduce(0, told("a"), 100.0, 100.1)
    fleet.introduce(0, told("b", uptime_s=0), 101.0, 101.1)
    fleet.introduce(0, told("a"), 100.0, 101.2)
    assert not fleet.is_counted(0, 101.2)
    assert not fleet.is_counted(0, 101.2 + MAX_LEASE_S - 1)
    assert fleet.is_counted(0, 101.2 + WAITS_S)


def test_a_mark_of_this_run_tells_what_came_of_it_whatever_became_of_the_file_since() -> None:
    assert told("a", uptime_s=1, lasts=True, whole=False, mark="a 0").short_s == 0
    assert told("a", uptime_s=1, lasts=True, mark=f"a {NOON_US - 5_000_000}").short_s == MAX_LEASE_S - 5
    assert told("a", uptime_s=1, lasts=True, mark="a 0").new_mark is None


def test_a_mark_that_came_from_elsewhere_than_the_append_only_file_shows_nothing() -> None:
    """As from a snapshot that is older than the last votes."""
    assert told("b", uptime_s=0, lasts=True, whole=False, mark="a 0").short_s == WAITS_S
    assert told("b", uptime_s=0, lasts=False, mark="a 0").short_s == WAITS_S


def test_a_server_whose_writes_may_be_lost_has_its_mark_taken_away() -> None:
    """Else one that is told to write always after its next crash would pass for one that always did."""
    assert told("b", lasts=False, mark="a 0").new_mark == ""
    assert told("b", lasts=False, mark="b 0").new_mark == ""
    assert told("b", lasts=False).new_mark is None


def test_a_clock_that_was_set_back_puts_nobody_off_for_longer_than_the_longest_lease() -> None:
    assert told("b", uptime_s=4, lasts=True, mark=f"a {2 * NOON_US}").short_s == WAITS_S - 4


@pytest.mark.parametrize("mark", ["a", "a x", " ", "a -1", "a 1 2", "é ²"])
def test_a_mark_that_cannot_be_read_is_none(mark: str) -> None:
    assert told("a", uptime_s=0, lasts=True, mark=mark).short_s == WAITS_S


# Who they are.


def test_a_restart_is_seen_by_the_run_id_and_greeted_again_it_is_not_put_off(fleet: Fleet) -> None:
    fleet.introduce(0, told("a"), 100.0, 100.1)
    fleet.introduce(0, told("a2", uptime_s=0), 200.0, 200.1)
    counts_at = fleet.nodes[0].counts_at
    assert counts_at > 210.0
    fleet.introduce(0, told("a2", uptime_s=3), 203.0, 203.1)
    assert fleet.nodes[0].counts_at == counts_at


def test_a_server_that_was_never_heard_of_does_not_count(fleet: Fleet) -> None:
    assert not fleet.is_counted(0, 1e9)
    assert fleet.counts_at() == inf


def test_one_server_by_two_addresses_is_refused(fleet: Fleet) -> None:
    fleet.introduce(0, told("a"), 100.0, 100.1)
    with pytest.raises(Refused, match="it would vote twice"):
        fleet.introduce(1, told("a"), 100.0, 100.1)
    with pytest.raises(Refused, match="it would vote twice"):
        fleet.check(1000)
    fleet.introduce(1, told("b"), 100.0, 100.1)
    fleet.check(1000)


def test_what_keeps_all_from_working_is_asked_anew_after_a_while_and_who_is_gone_is_no_trouble(fleet: Fleet) -> None:
    fleet.introduce(0, told("a"), 100.0, 100.1)
    with pytest.raises(Refused):
        fleet.introduce(1, told("a"), 100.0, 100.1)
    fleet.nodes[1].looked_at = 100.0
    assert not fleet.doubts(100.2)
    assert fleet.doubts(102.0)
    assert not fleet.doubts(102.0), "one asks, for all"
    assert 1 in fleet.to_probe(102.0)
    with pytest.raises(Refused):
        fleet.check(1000)
    fleet.doubt_no_more()
    fleet.check(1000)


def test_a_proposal_is_above_the_clock_of_every_server_when_it_arrives(fleet: Fleet) -> None:
    fleet.introduce(0, told("a", server_us=NOON_US), sent=100.0, heard=100.02)
    fleet.introduce(1, told("b", server_us=NOON_US + 3_600_000_000), sent=100.0, heard=100.02)
    arrives_us = NOON_US + 3_600_000_000 + 10_000_000 + 10_000  # ten seconds later, and a trip of 10 ms
    assert arrives_us < fleet.proposal(0, 110.0) < arrives_us + 100_000
    assert fleet.proposal(2 * NOON_US, 110.0) == 2 * NOON_US + 1


@pytest.mark.parametrize("took_s", [0.0, 0.001, 0.3, 8.0])
def test_however_slow_an_answer_was_the_proposal_stays_near_the_clock(fleet: Fleet, took_s: float) -> None:
    """Whether the request was slow or the reply: what the server showed it showed in between."""
    fleet.introduce(0, told("a", server_us=NOON_US), sent=100.0, heard=100.0 + took_s)
    for read_at in (100.0, 100.0 + took_s):
        clock_us = NOON_US + (120.0 - read_at) * 1e6
        assert fleet.proposal(0, 120.0) <= clock_us + MAX_LEAD_US + 1


def test_a_greeting_is_read_as_the_servers_write_it() -> None:
    info = b"# Server\r\nredis_mode:standalone\r\nrun_id:abc\r\nuptime_in_seconds:7\r\n"
    aof = b"aof_enabled:1\r\naof_last_write_status:ok\r\n"
    replies = [
        info,
        aof,
        [b"appendfsync", b"always", b"no-appendfsync-on-rewrite", b"no"],
        None,
        b"10000",
        b"abc 7",
        [b"1700000000", b"5"],
    ]
    asked = greeting("lockfast", 10_000)
    assert len([words for words in asked if words[0] != "SCRIPT"]) == len(replies), (
        "the scripts are told, not asked for"
    )
    read = read_greeting("lockfast", replies, lambda _reply: None)
    assert read == Introduction("abc", 7, True, True, NOON_US + 5, 10_000, "lockfast:quorum", "abc 7")
    replies[2] = [b"appendfsync", b"everysec"]
    assert not read_greeting("lockfast", replies, lambda _reply: None).lasts


@pytest.mark.parametrize(
    "line", ["aof_rewrite_in_progress:1", "aof_rewrite_scheduled:1", "aof_last_rewrite_time_sec:0"]
)
def test_an_append_only_file_that_began_after_the_start_shows_nothing(line: str) -> None:
    info = b"run_id:abc\r\nuptime_in_seconds:7\r\n"
    aof = f"aof_enabled:1\r\naof_last_write_status:ok\r\n{line}\r\n".encode()
    replies = [
        info,
        aof,
        [b"appendfsync", b"always", b"no-appendfsync-on-rewrite", b"no"],
        None,
        b"10000",
        None,
        [b"1700000000", b"5"],
    ]
    read = read_greeting("lockfast", replies, lambda _reply: None)
    assert read.lasts
    assert not read.is_whole


# Votes.


def votes_of(fleet: Fleet) -> Votes:
    for place in range(len(fleet.nodes)):
        fleet.introduce(place, told(f"run{place}"), 100.0, 100.0)
    return Votes(asks.lock(names.make("lockfast", ("x",)), 3.0), "t", fleet)


def ask_all(votes: Votes, sent: float, lease_ms: int = 3000) -> Round:
    asked = Round(votes, [0, 1, 2], sent, lease_ms)
    asked.begin(["line"] * 3)
    return asked


def test_a_pushed_vote_counts_from_the_last_request_that_was_answered_with_a_place(fleet: Fleet) -> None:
    votes = votes_of(fleet)
    ask_all(votes, sent=100.0).hear(0, [0, 50, 900, 1])
    ask_all(votes, sent=102.0)  # lost on the way
    votes.pushed(0, 51)
    assert votes.deadlines[0] == deadline_of(100.0, 3000)


def test_a_pushed_vote_of_an_earlier_life_of_the_ticket_is_not_believed(fleet: Fleet) -> None:
    votes = votes_of(fleet)
    ask_all(votes, sent=100.0).hear(0, [0, 50, 900, 1])
    votes.pushed(0, 50)
    assert votes.deadlines[0] == -inf


def test_a_vote_is_for_no_longer_than_was_asked_whatever_a_clock_that_stepped_back_sees_left(fleet: Fleet) -> None:
    votes = votes_of(fleet)
    ask_all(votes, sent=100.0).hear(0, [1, 60, 9000, NOON_US])
    assert votes.deadlines[0] == deadline_of(100.0, 3000)


def test_two_rounds_at_once_hear_their_own_replies(fleet: Fleet) -> None:
    votes = votes_of(fleet)
    one, two = Round(votes, [0, 1, 2], 100.0, 3000), Round(votes, [0, 1, 2], 100.0, 3000)
    one.begin(["line"] * 3)
    two.begin(["other"] * 3)
    for place in range(3):
        one.hear(place, [1, 60, 3000, NOON_US])
        two.hear(place, [0, 60, 500, NOON_US])
    assert (one.replies, two.replies) == ([1, 1, 1], [0, 0, 0])


def test_what_was_taken_back_is_asked_for_by_another_ticket_and_its_late_votes_do_not_count(fleet: Fleet) -> None:
    votes = votes_of(fleet)
    asked = ask_all(votes, sent=100.0)
    votes.forget([0])
    assert votes.tickets == ["t~1", "t", "t"]
    asked.hear(0, [1, 60, 3000, NOON_US])
    assert votes.deadlines[0] == -inf


def test_a_leave_is_unsure_while_a_request_may_overtake_it(fleet: Fleet) -> None:
    votes = votes_of(fleet)
    asked = ask_all(votes, sent=100.0)
    assert not votes.is_unsure(0, ["line"] * 3), "it goes behind"
    assert votes.is_unsure(0, ["other"] * 3)
    asked.hear(0, [1, 60, 3000, NOON_US])
    assert not votes.is_unsure(0, ["other"] * 3)


def test_a_majority_of_votes_is_sure_as_long_as_the_shortest_of_the_longest(fleet: Fleet) -> None:
    votes = votes_of(fleet)
    for place, sent in ((0, 100.0), (1, 101.0), (2, 102.0)):
        ask_all(votes, sent).hear(place, [1, 60 + place, 3000, NOON_US])
    assert votes.sure_until(0, 102.0) == deadline_of(101.0, 3000)
    assert votes.sure_until(61, 102.0) == deadline_of(101.0, 3000)
    assert votes.sure_until(62, 102.0) == -inf, "one server alone has that fence"


def test_a_server_whose_vote_was_taken_back_is_asked_by_another_ticket_and_old_answers_count_for_nothing(
    fleet: Fleet,
) -> None:
    votes = votes_of(fleet)
    first = ask_all(votes, sent=100.0)
    votes.forget([0])
    assert votes.tickets[0] not in ("t", votes.tickets[1])
    first.hear(0, [3, 50, 3000, NOON_US])
    assert votes.granted(0, 100.0) == []
    again = votes.tickets[0]
    ask_all(votes, sent=101.0)
    votes.forget([0])
    assert votes.tickets[0] not in ("t", again)
