"""`resize`, and the `renew` that lowers: nobody loses a hold, whoever fits is let in, a second send changes nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from kit.resp import ServerError
from lua.scripts import DAY_MS, LEASE_MS, PLACE_MS, Scripts
from lua.test_admit import listen, pushes
from lua.test_shared import weights

if TYPE_CHECKING:
    from kit.servers import FreshServer, Kind
    from lua.scripts import Named


def test_raised_limit_lets_in_whoever_fits_in_order(shared: Named) -> None:
    shared.admit("a", weight=4)
    with listen(shared.scripts, "ch") as listener:
        for ticket, weight in (("b", 2), ("c", 3), ("d", 1)):
            shared.admit(ticket, weight=weight, channel="ch")
        assert shared.resize(7) == 4
        assert [push.split()[1] for push in pushes(listener)] == ["b"], "d fits, and does not overtake c"
    assert weights(shared) == {"a": 4, "b": 2}
    assert shared.waiters == ["c", "d"]
    assert shared.inspect().limit == 7


def test_lowered_limit_takes_nothing_away_and_new_grants_obey_it(shared: Named) -> None:
    fences = [shared.admit(ticket).fence for ticket in ("a", "b", "c")]
    assert shared.resize(2) == 4
    assert weights(shared) == {"a": 1, "b": 1, "c": 1}
    assert [shared.renew(ticket, fence)[0] for ticket, fence in zip("abc", fences, strict=True)] == [1, 1, 1]
    assert shared.admit("d").position == 1
    shared.leave("a")
    assert shared.waiters == ["d"], "two of two are taken"
    shared.leave("b")
    assert weights(shared) == {"c": 1, "d": 1}


def test_waiters_heavier_than_the_new_limit_are_refused_wherever_they_stand(shared: Named) -> None:
    shared.admit("a", weight=4)
    with listen(shared.scripts, "ch") as listener:
        for ticket, weight in (("b", 1), ("heavy", 3), ("c", 2), ("whole", 4)):
            shared.admit(ticket, weight=weight, channel="ch")
        shared.resize(2)
        assert pushes(listener) == ["refused heavy 2", "refused whole 2"]
    assert shared.waiters == ["b", "c"]
    assert shared.fields()["waiting"] == "2"
    assert not {b"heavy", b"whole"} & set(shared.everything()[4]), "their entries are gone too"


def test_refused_head_makes_way_for_those_behind_it_at_once(shared: Named) -> None:
    shared.admit("a")
    shared.admit("whole", weight=4)
    shared.admit("b")
    shared.resize(3)
    assert weights(shared) == {"a": 1, "b": 1}
    assert shared.waiters == []


def test_holder_of_the_whole_becomes_the_holder_of_a_part(shared: Named) -> None:
    held = shared.admit("a", weight=4, lease=9000, owner="host 7 some label")
    before = shared.inspect().holders[0]
    shared.scripts.pass_ms(1000)
    shared.resize(6)
    after = shared.inspect().holders[0]
    assert (after.weight, after.fence, after.owner, after.since) == (4, held.fence, before.owner, before.since)
    assert shared.admit("a", weight=4) == (1, held.fence, 8000, 0)
    assert shared.admit("b", weight=2).code == 1
    assert shared.renew("a", held.fence, 20_000) == [1, 20_000]
    assert [shared.leave("a"), shared.leave("a")] == [1, 0]
    assert weights(shared) == {"b": 2}


def test_holder_of_the_whole_of_a_limit_that_was_lowered_keeps_all_it_has(shared: Named) -> None:
    held = shared.admit("a", weight=4)
    shared.resize(2)
    assert weights(shared) == {"a": 4}
    assert shared.renew("a", held.fence) == [1, LEASE_MS]
    assert shared.admit("b", place=0).code == 0
    shared.leave("a")
    assert shared.admit("b", weight=2).code == 1


def test_holder_of_the_whole_whose_lease_has_ended_is_dropped(shared: Named) -> None:
    held = shared.admit("a", weight=4, lease=1000)
    shared.admit("b", weight=2)
    shared.scripts.pass_ms(2000)
    shared.resize(5)
    assert weights(shared) == {"b": 2}
    assert shared.renew("a", held.fence) == [0, 0]
    assert shared.admit("c", weight=3).code == 1, "nothing of what has ended is counted"


@pytest.mark.parametrize("limit", [2, 4, 6])
def test_second_send_of_a_resize_changes_nothing(shared: Named, limit: int) -> None:
    shared.admit("a", weight=4)
    for ticket, weight in (("b", 1), ("c", 3), ("d", 2), ("e", 1)):
        shared.admit(ticket, weight=weight)
    shared.resize(limit)
    before = shared.everything()
    shared.scripts.pass_ms(1)
    assert shared.resize(limit) == limit
    assert shared.everything() == before


def test_name_that_nobody_has_used_keeps_the_limit_for_its_next_user(shared: Named) -> None:
    assert shared.resize(3) == 0
    assert shared.admit("a", weight=3, limit=0).code == 1
    assert shared.inspect().limit == 3


def test_empty_name_of_another_kind_takes_kind_and_limit(shared: Named) -> None:
    lock = shared.scripts.name("shared")
    fence = lock.admit("a").fence
    lock.leave("a")
    assert shared.resize(3) == 0
    assert (shared.inspect().kind, shared.inspect().limit) == ("semaphore", 3)
    assert shared.admit("b").fence > fence


@pytest.mark.parametrize("use", ["held", "waited for"])
def test_name_in_use_as_another_kind_is_refused_and_nothing_changes(shared: Named, use: str) -> None:
    lock = shared.scripts.name("shared")
    lock.admit("a")
    if use == "waited for":
        lock.admit("b")
    before = lock.everything()
    with pytest.raises(ServerError, match="LOCKFASTKIND lock 1"):
        shared.resize(3)
    assert lock.everything() == before


def test_refusal_does_not_lose_the_grant_that_it_made(shared: Named) -> None:
    lock = shared.scripts.name("shared")
    lock.admit("dead", lease=1000)
    lock.admit("next")
    shared.scripts.pass_ms(1000)
    with pytest.raises(ServerError, match="LOCKFASTKIND lock 1"):
        shared.resize(3)
    assert lock.admit("newcomer", place=0).code == 0
    assert lock.holders == ["next"]


def test_what_is_no_state_we_know_is_refused_and_never_touched(shared: Named) -> None:
    shared.scripts.wire.call("SET", shared.keys[0], "something else")
    with pytest.raises(ServerError, match="LOCKFASTFORMAT"):
        shared.resize(3)
    assert shared.state == "something else"


def test_leftovers_of_a_state_that_was_evicted_are_not_counted(shared: Named) -> None:
    """The other keys may outlive the first one; what they say belongs to nothing any more."""
    shared.admit("ghost", weight=3, lease=5000)
    shared.admit("place", weight=3)
    shared.scripts.wire.call("DEL", shared.keys[0])
    shared.resize(4)
    assert shared.admit("a", weight=2).code == 1
    assert shared.admit("b", weight=1).code == 1
    shared.scripts.pass_ms(PLACE_MS + 1)
    assert shared.admit("c", weight=2, place=0).code == 0, "3 of 4 are held"
    assert weights(shared) == {"a": 2, "b": 1}
    assert shared.waiters == []


# A limit that was changed, and those who still name the old one


def test_waiter_that_named_the_old_limit_keeps_its_place(shared: Named) -> None:
    """Its heartbeat is the same `admit`: a limit counts for who comes, not for who is there."""
    shared.admit("a", weight=4)
    shared.admit("b", weight=2)
    shared.resize(3)
    assert shared.admit("b", weight=2, limit=4).position == 1
    shared.leave("a")
    assert shared.admit("b", weight=2, limit=4).code == 1


@pytest.mark.parametrize("asked", [0, 4])
@pytest.mark.parametrize("limit", [2, 5])
@pytest.mark.parametrize("weight", [3, 4])
def test_holder_that_asks_again_after_a_resize_is_told_that_it_holds(
    shared: Named, weight: int, limit: int, asked: int
) -> None:
    """Also one that has more than there is now: what was given is never taken away."""
    held = shared.admit("a", weight=weight)
    shared.resize(limit)
    assert shared.admit("a", weight=weight, limit=asked) == (1, held.fence, LEASE_MS, 0)


def test_newcomer_that_names_the_old_limit_is_refused_and_nothing_changes(shared: Named) -> None:
    shared.admit("a")
    shared.resize(3)
    before = shared.everything()
    with pytest.raises(ServerError, match="LOCKFASTKIND semaphore 3"):
        shared.admit("b", limit=4)
    assert shared.everything() == before


def test_refused_waiter_that_asks_again_is_refused_again(shared: Named) -> None:
    """The push may be lost: then the heartbeat tells."""
    shared.admit("a", weight=2)
    shared.admit("heavy", weight=4)
    shared.resize(3)
    for limit in (0, 3):
        with pytest.raises(ServerError, match="LOCKFASTLIMIT 3"):
            shared.admit("heavy", weight=4, limit=limit)
    with pytest.raises(ServerError, match="LOCKFASTKIND semaphore 3"):
        shared.admit("heavy", weight=4, limit=4)
    assert shared.waiters == []


def test_stored_limit_is_taken_where_none_is_named(shared: Named) -> None:
    with pytest.raises(ServerError, match="LOCKFASTLIMIT 0"):
        shared.admit("a", limit=0)
    assert shared.scripts.wire.call("EXISTS", *shared.keys) == 0
    shared.admit("a", weight=3)
    assert shared.admit("b", weight=1, limit=0).code == 1
    assert shared.admit("c", weight=1, limit=0).code == 0
    for ticket in ("a", "b", "c"):
        shared.leave(ticket)
    assert shared.admit("d", weight=4, limit=0).code == 1, "also of a name that is empty by now"


# A hold that is made lighter


def test_lowering_renewal_keeps_fence_and_ticket_and_lets_others_in(shared: Named) -> None:
    held = shared.admit("a", weight=4, owner="host 7 label")
    with listen(shared.scripts, "ch") as listener:
        for ticket, weight in (("b", 2), ("whole", 4), ("c", 1)):
            shared.admit(ticket, weight=weight, channel="ch")
        shared.scripts.pass_ms(1000)
        assert shared.renew("a", held.fence, LEASE_MS, weight=1) == [1, LEASE_MS]
        assert [push.split()[1] for push in pushes(listener)] == ["b"], "the one behind waits for the whole"
    assert weights(shared) == {"a": 1, "b": 2}
    assert shared.inspect().holders[0].fence == held.fence
    assert shared.renew("a", held.fence, 2 * LEASE_MS) == [1, 2 * LEASE_MS]
    assert shared.leave("a") == 1


def test_second_send_of_a_lowering_renewal_changes_nothing(shared: Named) -> None:
    held = shared.admit("a", weight=4)
    shared.admit("b", weight=2)
    shared.admit("c", weight=4)
    shared.renew("a", held.fence, weight=1)
    before = shared.everything()
    assert shared.renew("a", held.fence, weight=1) == [1, LEASE_MS]
    assert shared.everything() == before


def test_part_can_be_lowered_and_is_never_raised(shared: Named) -> None:
    held = shared.admit("a", weight=3)
    shared.admit("b", weight=2)
    assert shared.renew("a", held.fence, weight=4) == [1, LEASE_MS]
    assert weights(shared) == {"a": 3}
    shared.renew("a", held.fence, weight=2)
    assert weights(shared) == {"a": 2, "b": 2}
    shared.renew("a", held.fence, weight=3)
    assert weights(shared) == {"a": 2, "b": 2}


@pytest.mark.parametrize("weight", [3, 4])
def test_lowering_revives_nothing_and_needs_the_right_fence(shared: Named, weight: int) -> None:
    held = shared.admit("a", weight=weight, lease=1000)
    before = shared.everything()
    assert shared.renew("a", held.fence + 1, weight=1) == [0, 0]
    assert shared.everything() == before
    shared.scripts.pass_ms(1000)
    assert shared.renew("a", held.fence, weight=1) == [0, 0]
    assert shared.admit("b", weight=4).code == 1


def test_lowering_never_lowers_the_end(shared: Named) -> None:
    held = shared.admit("a", weight=4, lease=10_000)
    assert shared.renew("a", held.fence, 50, weight=1) == [1, 10_000]
    assert shared.renew("a", held.fence, 50) == [1, 10_000]


# What stays on the server


@pytest.mark.parametrize("step", ["resize of nothing", "resize", "lower"])
def test_every_key_has_an_end_and_none_before_the_lease_in_it(scripts: Scripts, step: str) -> None:
    name = scripts.name("n", kind="semaphore", limit=4)
    week_ms = 7 * DAY_MS
    if step == "resize of nothing":
        name.resize(5)
    else:
        held = name.admit("a", weight=4, lease=week_ms)
        name.admit("b", weight=2, lease=1000)
        name.resize(6) if step == "resize" else name.renew("a", held.fence, 1000, weight=1)
        assert len(name.holders) == 2
    stand = [key for key in name.keys if scripts.wire.call("EXISTS", key)]
    assert len(stand) == (1 if step == "resize of nothing" else 3)
    for key in stand:
        ttl_ms = scripts.wire.call("PTTL", key)
        assert 0 < ttl_ms <= DAY_MS + week_ms
        assert step == "resize of nothing" or ttl_ms > week_ms, key


def test_hundreds_of_rounds_of_resizing_and_lowering_leave_one_small_key(shared: Named) -> None:
    for turn in range(300):
        limit = 2 + turn % 5
        shared.resize(limit)
        held = shared.admit(f"w{turn}", weight=limit)
        shared.admit(f"r{turn}")
        if turn % 2:
            shared.renew(f"w{turn}", held.fence, weight=1)
        shared.leave(f"w{turn}")
        shared.leave(f"r{turn}")
    assert shared.scripts.wire.call("EXISTS", *shared.keys) == 1
    assert len(shared.state) < 100


def test_full_server_still_resizes_and_makes_lighter(fresh_server: FreshServer, server_kind: Kind) -> None:
    """Both make room; a server without any must still do that."""
    server = fresh_server(server_kind)
    with Scripts(server) as scripts:
        name = scripts.name("n", kind="semaphore", limit=2)
        held = name.admit("a", weight=2)
        name.admit("b")
        name.admit("c", weight=2)
        server.command("CONFIG", "SET", "maxmemory", "1")
        assert name.renew("a", held.fence, weight=1)[0] == 1
        assert name.resize(3) == 2
        assert weights(name) == {"a": 1, "b": 1}
        assert name.resize(4) == 3
        assert weights(name) == {"a": 1, "b": 1, "c": 2}
