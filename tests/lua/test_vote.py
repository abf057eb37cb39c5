"""`vote`: one server's part of a hold that a majority decides on, by hand and on a clock of the test's own."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

import pytest

from kit.resp import ServerError
from lua.scripts import LEASE_MS, Named, Scripts

if TYPE_CHECKING:
    from kit.servers import FreshServer, Server

FAR = 10**12  # microseconds
KEPT, ANEW = 1, 3  # what a vote is answered with: it had it before, or not
WAITED_FOR = -2  # and this where others stand in the queue


def test_a_free_name_gives_its_vote_with_the_proposal_as_fence_and_tells_the_time(lock: Named) -> None:
    clock = lock.scripts.clock_us
    assert lock.vote("a", proposal=clock + FAR) == (ANEW, clock + FAR, LEASE_MS, clock)
    assert lock.holders == ["a"]


def test_a_proposal_that_the_servers_clock_has_passed_is_raised_to_it(lock: Named) -> None:
    clock = lock.scripts.clock_us
    assert lock.vote("a", proposal=clock - FAR).fence == clock


def test_a_proposal_that_is_not_above_the_names_fence_is_raised_above_it(lock: Named) -> None:
    first = lock.vote("a", proposal=lock.scripts.clock_us + FAR)
    lock.leave("a")
    assert lock.vote("b", proposal=first.fence).fence == first.fence + 1
    lock.leave("b")
    assert lock.vote("c", proposal=0).fence == first.fence + 2


def test_sent_again_it_keeps_the_vote_for_another_lease_and_never_lowers_its_end_or_its_fence(lock: Named) -> None:
    first = lock.vote("a")
    lock.scripts.pass_ms(10_000)
    assert lock.vote("a") == (1, first.fence, LEASE_MS, lock.scripts.clock_us)
    assert lock.vote("a", lease=1000, proposal=first.fence - 5)[:3] == (1, first.fence, LEASE_MS)


def test_a_vote_that_has_a_smaller_fence_is_raised_to_the_proposal(lock: Named) -> None:
    first = lock.vote("a")
    assert lock.vote("a", proposal=first.fence + 7).fence == first.fence + 7
    assert lock.fields()["fence"] == str(first.fence + 7), "and the name remembers it"


def test_others_get_no_vote_and_no_place_while_it_is_given(lock: Named) -> None:
    first = lock.vote("a", lease=5000)
    lock.scripts.pass_ms(2000)
    assert lock.vote("b") == (0, first.fence, 3000, lock.scripts.clock_us)
    assert lock.waiters == []


def test_a_vote_ends_with_its_lease(lock: Named) -> None:
    lock.vote("a", lease=5000)
    lock.scripts.pass_ms(5000)
    assert lock.vote("b").code == ANEW
    assert lock.vote("a").code == 0, "and is not kept for somebody whose lease has ended"


def test_a_vote_goes_to_nobody_past_a_queue_and_the_head_keeps_what_it_was_let_in_with(lock: Named) -> None:
    lock.vote("a")
    assert lock.admit("b").position == 1
    lock.leave("a")
    assert lock.holders == ["b"]
    assert lock.vote("c").code == 0
    assert lock.vote("b").code == 1


def test_who_gets_no_vote_is_told_whether_others_wait(lock: Named) -> None:
    lock.vote("a")
    assert lock.vote("c").code == 0
    lock.admit("b")
    told = lock.vote("c")
    assert (told.code, told.ms) == (WAITED_FOR, LEASE_MS)
    lock.leave("b")
    assert lock.vote("c").code == 0


def test_a_vote_lets_the_head_of_the_queue_in_before_it_answers(lock: Named) -> None:
    lock.vote("a", lease=1000)
    lock.admit("b", lease=9000)
    lock.scripts.pass_ms(1000)
    assert lock.vote("c")[:1] == (0,)
    assert lock.holders == ["b"]


def test_after_a_leave_that_found_nothing_or_was_unsure_the_ticket_is_refused(lock: Named) -> None:
    assert lock.leave("a") == 0
    assert lock.vote("a").code == -1
    lock.vote("b")
    assert lock.leave("b", unsure=True) == 1
    assert lock.vote("b").code == -1
    assert lock.holders == []
    lock.scripts.pass_ms(LEASE_MS)
    assert lock.vote("a").code == ANEW


def test_a_holder_that_is_asked_to_let_go_is_told(lock: Named) -> None:
    lock.vote("a")
    assert lock.vote("a").code == 1
    lock.revoke()
    assert lock.vote("a").code == 2
    lock.leave("a")
    assert lock.vote("b").code == ANEW


def test_readers_share_a_writer_does_not_and_each_reader_keeps_its_own_vote(shared: Named) -> None:
    one, two = shared.vote("r1"), shared.vote("r2", lease=4000)
    assert (one.code, two.code) == (ANEW, ANEW)
    assert two.fence > one.fence
    assert shared.vote("w", weight=4)[0::2] == (0, 4000)
    shared.scripts.pass_ms(3000)
    assert shared.vote("r2", lease=4000)[:3] == (1, two.fence, 4000)
    assert shared.vote("r2", lease=4000, proposal=two.fence + 9).fence == two.fence + 9
    shared.leave("r1")
    shared.leave("r2")
    assert shared.vote("w", weight=4).code == ANEW
    assert shared.vote("r1~1").code == 0


def test_a_reader_that_is_asked_to_let_go_is_told(shared: Named) -> None:
    shared.vote("r1")
    shared.vote("r2")
    shared.revoke()
    assert shared.vote("r1").code == 2


def test_a_writer_that_becomes_a_reader_makes_room_and_stays_one(shared: Named) -> None:
    held = shared.vote("w", weight=4)
    assert shared.vote("r").code == 0
    assert shared.vote("w", weight=1)[:3] == (1, held.fence, LEASE_MS)
    assert shared.vote("r").code == ANEW
    assert shared.vote("w", weight=4).code == KEPT, "kept, but with what it has"
    assert shared.vote("r2").code == ANEW


def test_a_writer_that_becomes_a_reader_lets_in_who_waits(shared: Named) -> None:
    shared.vote("w", weight=4)
    shared.admit("r", weight=1)
    shared.vote("w", weight=1)
    assert set(shared.holders) == {"w", "r"}


def test_another_kind_is_refused_while_the_name_is_in_use_and_taken_over_when_it_is_not(clocked: Scripts) -> None:
    lock, other = clocked.name("both"), clocked.name("both", kind="rwlock", limit=4)
    lock.vote("a")
    with pytest.raises(ServerError, match="LOCKFASTKIND lock 1"):
        other.vote("b", weight=4)
    lock.leave("a")
    assert other.vote("b", weight=4).code == ANEW
    assert other.fields()["limit"] == "4"


def test_a_state_that_nobody_knows_is_refused(lock: Named) -> None:
    lock.scripts.wire.call("SET", lock.keys[0], "9 something of a later version")
    with pytest.raises(ServerError, match="LOCKFASTFORMAT"):
        lock.vote("a")


def test_state_that_was_deleted_by_hand_takes_its_leftovers_with_it(lock: Named) -> None:
    lock.vote("a")
    lock.admit("b")
    lock.scripts.wire.call("DEL", lock.keys[0])
    assert lock.vote("c").code == ANEW
    assert lock.waiters == []


def test_a_vote_and_an_admit_that_does_not_queue_do_the_same_to_the_same_states(server: Server) -> None:
    """Whatever befell a name: who is let in, with which fence, until when, and what is stored."""
    rng = Random(5)
    with Scripts(server, clocked=True) as scripts:
        pairs = [
            [scripts.name(f"{script}{number}", kind="rwlock", limit=3) for script in ("admit", "vote")]
            for number in range(6)
        ]
        for step in range(900):
            by_admit, by_vote = rng.choice(pairs)
            what, ticket = rng.random(), f"t{rng.randrange(4)}{rng.choice('ab')}"
            weight, lease = rng.choice((1, 1, 3)), rng.choice((500, 2000))
            if what < 0.25:
                unsure = rng.random() < 0.3
                assert by_admit.leave(ticket, lease=300, unsure=unsure) == by_vote.leave(
                    ticket, lease=300, unsure=unsure
                )
            elif what < 0.4:
                queued = {"weight": weight, "lease": lease, "place": 700}
                assert by_admit.admit(ticket, **queued) == by_vote.admit(ticket, **queued)
            elif ticket in by_admit.holders or ticket.encode() in by_admit.everything()[1]:
                continue  # a vote is kept for another lease, and it is no heartbeat of a place: there they differ
            else:
                seen = rng.choice((0, scripts.clock_us + rng.randrange(10**6)))
                admitted = by_admit.admit(ticket, weight=weight, lease=lease, place=0, seen=seen)
                voted = by_vote.vote(ticket, weight=weight, lease=lease, proposal=seen + 1)
                code = voted.code if voted.code != WAITED_FOR else 0  # an `admit` does not tell that apart
                assert (3 if admitted.code == 1 else admitted.code, admitted.fence) == (code, voted.fence), (
                    f"step {step}"
                )
                assert admitted.code == 1 or admitted.ms == voted.ms, f"step {step}"
            assert by_admit.everything() == by_vote.everything(), f"step {step}: {what} {ticket}"
            scripts.pass_ms(rng.choice((0, 0, 1, 100, 400)))


def test_a_full_server_keeps_and_gives_votes(fresh_server: FreshServer) -> None:
    server = fresh_server("valkey", maxmemory="100mb")
    with Scripts(server) as scripts:
        lock, other = scripts.name("kept"), scripts.name("given")
        lock.vote("a")
        server.command("CONFIG", "SET", "maxmemory", "1")
        assert lock.vote("a").code == KEPT
        assert other.vote("b").code == ANEW
        assert lock.leave("a") == 1
