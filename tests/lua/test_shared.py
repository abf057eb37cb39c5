"""The same scripts with limits and weights above 1: holders side by side, and a queue that nobody overtakes in."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from kit.resp import ServerError
from lockfast.flows.asks import READERS
from lua.scripts import LEASE_MS, PLACE_MS
from lua.test_admit import listen, pushes

if TYPE_CHECKING:
    from lua.scripts import Named, Scripts


def weights(name: Named) -> dict[str, int]:
    return {holder.ticket: holder.weight for holder in name.inspect().holders}


def test_holders_stand_side_by_side_up_to_the_limit(shared: Named) -> None:
    answers = [shared.admit("a", weight=1), shared.admit("b", weight=2), shared.admit("c", weight=1)]
    assert [answer.code for answer in answers] == [1, 1, 1]
    fences = [answer.fence for answer in answers]
    assert fences == sorted(set(fences)), "each has its own"
    assert weights(shared) == {"a": 1, "b": 2, "c": 1}
    assert shared.admit("d").code == 0


def test_second_send_of_a_shared_holder_gives_the_same_fence_and_the_ms_left(shared: Named) -> None:
    shared.admit("other")
    held = shared.admit("a", weight=2)
    shared.admit("another")
    before = shared.everything()
    shared.scripts.pass_ms(7000)
    assert shared.admit("a", weight=2) == (1, held.fence, LEASE_MS - 7000, 0)
    assert shared.everything() == before


def test_nobody_overtakes_a_heavy_head(shared: Named) -> None:
    for ticket in ("a", "b", "c"):
        shared.admit(ticket)
    assert shared.admit("heavy", weight=3).position == 1
    assert shared.admit("light", weight=1).position == 2, "there is room for it, and it waits all the same"
    shared.leave("a")
    assert shared.waiters == ["heavy", "light"]
    shared.leave("b")
    assert weights(shared) == {"c": 1, "heavy": 3}
    shared.leave("c")
    assert weights(shared) == {"heavy": 3, "light": 1}


def test_one_release_lets_in_all_that_fit(shared: Named) -> None:
    shared.admit("whole", weight=4)
    with listen(shared.scripts, "ch") as listener:
        for ticket in ("a", "b", "c", "d", "e"):
            shared.admit(ticket, channel="ch")
        shared.leave("whole")
        assert [push.split()[1] for push in pushes(listener)] == ["a", "b", "c", "d"]
    assert list(weights(shared).values()) == [1, 1, 1, 1]
    assert shared.waiters == ["e"]


def test_whole_and_shared_holders_exclude_each_other(shared: Named) -> None:
    shared.admit("reader")
    assert shared.admit("writer", weight=4).code == 0
    shared.leave("reader")
    assert weights(shared) == {"writer": 4}
    assert shared.admit("reader2").code == 0
    shared.leave("writer")
    assert weights(shared) == {"reader2": 1}


def test_ended_shared_holders_make_room(shared: Named) -> None:
    shared.admit("short", weight=2, lease=1000)
    shared.admit("long", weight=2)
    assert shared.admit("next", weight=2).ms == 1000, "the earliest lease to end is told"
    shared.scripts.pass_ms(1000)
    assert shared.admit("next", weight=2).code == 1
    assert weights(shared) == {"long": 2, "next": 2}
    assert shared.leave("short") == 0


def test_thousands_of_ended_shared_holders_are_swept_in_chunks(shared: Named) -> None:
    many = shared.scripts.name("many", kind="semaphore", limit=1200)
    wire = shared.scripts.wire
    for i in range(1200):
        wire.send(*many.admit_request(f"t{i}", lease=1000))
    assert all(isinstance(wire.read(), int) for _ in range(1200)), "not all of them were let in"
    shared.scripts.pass_ms(1000)
    codes = [many.admit("whole", weight=1200).code for _ in range(3)]
    assert codes == [0, 0, 1]
    assert wire.call("EXISTS", many.keys[3]) == 0


def test_renewal_of_a_shared_holder_raises_never_lowers_and_never_revives(shared: Named) -> None:
    held = shared.admit("a", lease=1000)
    assert shared.renew("a", held.fence, 50) == [1, 1000]
    assert shared.renew("a", held.fence + 1, 5000) == [0, 0]
    assert shared.renew("a", held.fence, 5000) == [1, 5000]
    shared.scripts.pass_ms(5000)
    assert shared.renew("a", held.fence, 5000) == [0, 0]
    assert shared.admit("whole", weight=4).code == 1


def test_leave_of_a_shared_holder_is_found_once(shared: Named) -> None:
    shared.admit("a", weight=3)
    assert [shared.leave("a"), shared.leave("a")] == [1, 0]
    assert shared.admit("whole", weight=4).code == 1


def test_place_heavier_than_the_limit_is_dropped_and_told(shared: Named) -> None:
    """As after the limit was lowered: the place was taken when it would have fitted."""
    shared.admit("whole", weight=4)
    with listen(shared.scripts, "ch") as listener:
        shared.admit("heavy", weight=4, channel="ch")
        shared.admit("light", weight=1)
        fields = [*shared.fields().values()]
        fields[list(shared.fields()).index("limit")] = "3"
        shared.scripts.wire.call("SET", shared.keys[0], " ".join(fields), "KEEPTTL")
        assert shared.leave("whole") == 1
        assert pushes(listener) == ["refused heavy 3"]
    assert weights(shared) == {"light": 1}
    assert shared.waiters == []


def test_unheard_grants_of_shared_holders_end_with_their_places(shared: Named) -> None:
    shared.admit("whole", weight=4)
    shared.admit("a")
    shared.admit("b")
    shared.leave("whole")
    shared.scripts.pass_ms(PLACE_MS)
    assert shared.admit("again", weight=4, place=0).code == 1


@pytest.mark.parametrize(("kind", "limit"), [("semaphore", 5), ("lock", 4), ("other", 4)])
def test_name_in_use_refuses_another_kind_or_limit(shared: Named, kind: str, limit: int) -> None:
    shared.admit("a")
    other = shared.scripts.name("shared", kind=kind, limit=limit)
    before = shared.everything()
    with pytest.raises(ServerError, match="LOCKFASTKIND semaphore 4"):
        other.admit("b")
    assert shared.everything() == before


def test_empty_name_takes_the_kind_and_limit_of_its_next_user(shared: Named) -> None:
    first = shared.admit("a")
    shared.leave("a")
    other = shared.scripts.name("shared", kind="lock", limit=1)
    second = other.admit("b")
    assert second.code == 1
    assert second.fence > first.fence, "the fence is the name's, whatever the kind"
    assert other.inspect().kind == "lock"


def test_name_whose_last_lease_has_ended_counts_as_empty(shared: Named) -> None:
    shared.admit("a", weight=4, lease=1000)
    shared.scripts.pass_ms(1000)
    assert shared.scripts.name("shared", kind="lock", limit=1).admit("b").code == 1


def test_refusal_of_another_kind_does_not_lose_the_grant_it_made(shared: Named) -> None:
    """Somebody of another kind asks just when the lease of a dead holder has ended and another waits."""
    lock = shared.scripts.name("name")
    lock.admit("dead", lease=1000)
    with listen(shared.scripts, "ch") as listener:
        lock.admit("next", channel="ch")
        shared.scripts.pass_ms(1000)
        other = shared.scripts.name("name", kind="semaphore", limit=4)
        with pytest.raises(ServerError, match="LOCKFASTKIND lock 1"):
            other.admit("stranger")
        granted = [push.split()[1] for push in pushes(listener)]
    # Told or not told, but never told of a hold that the server then forgets: it would let a second one in.
    newcomer = lock.admit("newcomer", place=0)
    assert granted in ([], ["next"])
    assert newcomer.code == 0, "two clients believe that they hold it"
    assert lock.holders == ["next"]


# Readers and writers, at their own limit


@pytest.fixture
def rwlock(clocked: Scripts) -> Named:
    """A read/write lock, as the library names it."""
    return clocked.name("rwlock", kind="rwlock", limit=READERS)


def test_reader_behind_a_waiting_writer_waits_and_those_that_follow_each_other_go_together(rwlock: Named) -> None:
    rwlock.admit("r1")
    assert rwlock.admit("w1", weight=READERS).position == 1
    assert [rwlock.admit(ticket).position for ticket in ("r2", "r3")] == [2, 3]
    rwlock.admit("w2", weight=READERS)
    rwlock.admit("r4")
    assert rwlock.admit("late", place=0).code == 0
    turns = []
    while holders := rwlock.holders:
        turns.append(holders)
        for ticket in holders:
            rwlock.leave(ticket)
    assert turns == [["r1"], ["w1"], ["r2", "r3"], ["w2"], ["r4"]]


def test_newcomers_cannot_starve_the_writer_whatever_comes_and_goes(rwlock: Named) -> None:
    """Each reader overlaps the next, so that the name is never free; the writer is in when the first two are gone."""
    rwlock.admit("r0")
    rwlock.admit("r1")
    rwlock.admit("writer", weight=READERS)
    for turn in range(2, 20):
        assert rwlock.admit(f"r{turn}").position == turn
    rwlock.leave("r0")
    rwlock.leave("r1")
    assert rwlock.holders == ["writer"]
    rwlock.leave("writer")
    assert len(rwlock.holders) == 18


def test_zombie_readers_are_swept_and_living_ones_stay(rwlock: Named) -> None:
    for i in range(700):
        rwlock.admit(f"zombie{i}", lease=1000)
    alive = rwlock.admit("alive")
    rwlock.admit("writer", weight=READERS)
    rwlock.scripts.pass_ms(1000)
    for _ in range(2):  # what has ended is dropped in portions
        assert rwlock.admit("writer", weight=READERS).code == 0
    assert rwlock.holders == ["alive"]
    assert rwlock.scripts.wire.call("ZCARD", rwlock.keys[3]) == 1
    assert rwlock.scripts.wire.call("HLEN", rwlock.keys[2]) == 2
    assert rwlock.renew("alive", alive.fence)[0] == 1
    rwlock.leave("alive")
    assert rwlock.holders == ["writer"]


def test_thousands_who_came_and_went_leave_one_small_key(rwlock: Named) -> None:
    wire = rwlock.scripts.wire
    for i in range(2000):
        wire.send(*rwlock.admit_request(f"r{i}"))
    for i in range(2000):
        wire.send(*rwlock.leave_request(f"r{i}"))
    assert [wire.read() for _ in range(4000)][2000:] == [1] * 2000
    assert wire.call("EXISTS", *rwlock.keys) == 1
    assert len(rwlock.state) < 100
    assert rwlock.admit("writer", weight=READERS).code == 1


def test_release_that_lets_in_more_than_one_call_may_makes_the_next_ask_at_once(clocked: Scripts) -> None:
    name = clocked.name("many", kind="rwlock", limit=READERS)
    name.admit("writer", weight=READERS)
    with listen(clocked, "ch") as listener:
        for i in range(1003):
            channel = "nobody" if 500 <= i < 503 else "ch"
            clocked.wire.send(*name.admit_request(f"r{i}", channel=channel))
            clocked.wire.read()
        name.leave("writer")
        first = pushes(listener)
        assert first[-1] == "again r503 0", "the first that listens"
        assert len(first) == 501
        name.admit("r503", channel="ch")
        more = pushes(listener)
        assert more[-1] == "again r1000 0"
        name.admit("r1000", channel="ch")
        assert [push.split()[0] for push in pushes(listener)] == ["grant"] * 2
    assert len(name.holders) == 1003


def test_entries_that_were_deleted_by_hand_cost_their_owners_no_more_than_their_place(shared: Named) -> None:
    shared.admit("a", weight=2)
    shared.admit("next", weight=3)
    shared.scripts.wire.call("DEL", shared.keys[2])
    assert shared.admit("next", weight=3).position == 1
    assert shared.admit("a", weight=2).position == 2, "nobody knows its fence any more"
    assert shared.admit("next", weight=3).code == 1
