"""Who waits for whom: deadlocks found in snapshots, against a plain model that plays the queues to their end."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lockfast.snapshots import Holder, Owner, Snapshot, Waiter
from lockfast.waitfor import Deadlocks, Sightings, agent_of, words

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lockfast.waitfor import Found

AGENTS = "abcdef"
NAMES = "NMOP"


def made(
    name: str,
    limit: int,
    holders: Sequence[tuple[str, int]],
    waiters: Sequence[tuple[str, int, float]],
    at: float = 100.0,
) -> Snapshot:
    """A name with holders (agent, weight) and waiters (agent, weight, since)."""
    return Snapshot(
        name,
        "semaphore",
        limit,
        1,
        at,
        tuple(
            Holder(f"c.{agent}.{name}h{number}", number + 1, weight, Owner(agent, 1, ""), 1.0, 10.0)
            for number, (agent, weight) in enumerate(holders)
        ),
        tuple(
            Waiter(f"c.{agent}.{name}w", weight, Owner(agent, 1, ""), since, 5.0) for agent, weight, since in waiters
        ),
        len(waiters),
        None,
    )


def world(*names: Snapshot) -> Found:
    return {one.name: one for one in names}


def circle(deadlocks: Deadlocks, agent: str) -> str:
    """The agents of a cycle, in order."""
    return "".join(step.agent for step in deadlocks.cycle(agent))


def lock(name: str, holder: str, *waiters: str, since: float = 1.0) -> Snapshot:
    """A lock whose waiters came one after the other."""
    places = [(agent, 1, since + number) for number, agent in enumerate(waiters)]
    return made(name, 1, [(holder, 1)] if holder else [], places)


def test_crossed_locks_are_a_cycle_of_two_and_the_youngest_is_the_victim() -> None:
    found = Deadlocks(world(lock("N", "a", "b", since=5.0), lock("M", "b", "a", since=7.0)))
    assert found.groups == [{"a", "b"}]
    assert found.victim(found.groups[0]) == "a"
    first, second = found.cycle("a")
    assert (first.agent, first.waits_for, first.held_by.host, first.since, first.ahead) == ("a", "M", "b", 7.0, False)
    assert (second.agent, second.waits_for, second.held_by_agent) == ("b", "N", "a")
    assert (
        words((first, second))
        == "a pid 1 #a waits for 'M', held by b pid 1 #b; b pid 1 #b waits for 'N', held by a pid 1 #a"
    )


def test_ties_of_age_are_broken_by_ticket() -> None:
    found = Deadlocks(world(lock("N", "a", "b"), lock("M", "b", "a")))
    assert found.victim(found.groups[0]) == "b", "c.b.Nw is after c.a.Mw"


def test_ring_of_three_is_told_in_order() -> None:
    found = Deadlocks(world(lock("N", "a", "c"), lock("M", "b", "a"), lock("O", "c", "b")))
    assert circle(found, "b") == "bca"


def test_who_waits_for_what_it_holds_is_a_cycle_of_one() -> None:
    found = Deadlocks(world(lock("N", "a", "a")))
    assert found.groups == [{"a"}]
    assert found.victim(found.groups[0]) == "a"
    assert circle(found, "a") == "a"


def test_chain_without_a_cycle_is_none() -> None:
    assert not Deadlocks(world(lock("N", "a", "b"), lock("M", "b", "c"), lock("O", "c", "d", "e"))).groups


def test_those_who_only_wait_for_a_deadlock_are_not_in_it_however_young() -> None:
    crossed = [lock("N", "a", "c", "b", "d", since=5.0), lock("M", "b", "a"), lock("O", "d", "e", since=50.0)]
    found = Deadlocks(world(*crossed))
    assert found.groups == [{"a", "b"}]
    assert found.victim(found.groups[0]) == "b"
    assert found.group_of("d") == frozenset()


def test_semaphore_with_one_holder_that_can_go_on_is_no_deadlock() -> None:
    crossed = lock("M", "b", "a")
    assert not Deadlocks(world(made("N", 2, [("a", 1), ("x", 1)], [("b", 1, 1.0)]), crossed)).groups
    both = Deadlocks(world(made("N", 2, [("a", 1), ("x", 1)], [("b", 2, 1.0)]), crossed))
    assert both.groups == [{"a", "b"}], "it wants both permits, and one of them never comes back"


def test_victim_is_one_whose_giving_up_helps() -> None:
    # w wants both permits; r and s hold one each, and each waits for something of w's.
    names = [
        made("N", 2, [("r", 1), ("s", 1)], [("w", 2, 1.0)]),
        made("M", 1, [("w", 1)], [("r", 1, 8.0)]),
        made("O", 1, [("w", 1)], [("s", 1, 9.0)]),
    ]
    found = Deadlocks(world(*names))
    assert found.groups == [{"r", "s", "w"}]
    assert found.victim(found.groups[0]) == "w", "without r alone, w would still wait for s"
    assert found.victim(found.groups[0], "rs".__contains__) == "s", "w cannot be told: the youngest that can"
    assert found.victim(found.groups[0], "".__contains__) == ""


def test_two_must_give_up_and_each_is_found_in_turn() -> None:
    def names(*holders: str) -> Found:
        return world(
            made("N", 2, [(agent, 1) for agent in holders], [("c", 2, 1.0), ("d", 2, 2.0)]),
            made("M", 2, [("c", 1), ("d", 1)], [(agent, 2, 3.0 + number) for number, agent in enumerate(holders)]),
        )

    found = Deadlocks(names("a", "b"))
    assert found.victim(found.groups[0]) == "b"
    found = Deadlocks(names("a"))
    assert found.victim(found.groups[0]) == "a"


def test_writer_in_the_queue_is_in_the_way_of_the_readers_behind_it() -> None:
    limit = 10
    found = Deadlocks(
        world(
            made("N", limit, [("z", 1)], [("w", limit, 1.0), ("r", 1, 2.0)]),
            made("M", 1, [("r", 1)], [("z", 1, 3.0)]),
        )
    )
    assert found.groups == [{"z", "w", "r"}]
    assert circle(found, "r") == "rwz"
    assert [step.ahead for step in found.cycle("r")] == [True, False, False]
    assert found.victim(found.groups[0], "wr".__contains__) == "r"
    assert found.victim(found.groups[0], "w".__contains__) == "w", "without the writer the reader gets in"


def test_place_that_was_left_behind_does_not_count() -> None:
    crossed = world(lock("N", "a", "b", since=5.0), lock("M", "b", "a", since=7.0))
    assert Deadlocks(crossed).groups
    crossed["O"] = made("O", 1, [("x", 1)], [("a", 1, 9.0)])
    assert not Deadlocks(crossed).groups, "a waits elsewhere by now"


def test_ticket_without_an_agent_stands_for_itself() -> None:
    assert agent_of("client.agent.random") == "agent"
    assert agent_of("holder") == "holder"
    assert agent_of("a.1") == "a.1"


# Looks


def test_first_look_confirms_nothing_and_the_second_what_stood_and_was_heard_of() -> None:
    sightings = Sightings()
    crossed = world(lock("N", "a", "b"), lock("M", "b", "a"))
    assert not Deadlocks(sightings.confirm(crossed)).groups
    assert not Deadlocks(sightings.confirm(crossed)).groups, "nobody was heard of in between"
    later = {name: one._replace(at=one.at + 1) for name, one in crossed.items()}
    assert Deadlocks(sightings.confirm(later)).groups


@pytest.mark.parametrize("change", ["holder", "fence", "waiter", "since", "gone"])
def test_what_has_changed_between_two_looks_does_not_count(change: str) -> None:
    sightings = Sightings()
    crossed = world(lock("N", "a", "b"), lock("M", "b", "a"))
    sightings.confirm(crossed)
    later = {name: one._replace(at=one.at + 1) for name, one in crossed.items()}
    one = later["N"]
    holder, waiter = one.holders[0], one.waiters[0]
    later["N"] = {
        "holder": one._replace(holders=(holder._replace(ticket="c.a.other"),)),
        "fence": one._replace(holders=(holder._replace(fence=holder.fence + 1),)),
        "waiter": one._replace(waiters=(waiter._replace(ticket="c.b.other"),)),
        "since": one._replace(waiters=(waiter._replace(since=2.0),)),
        "gone": one._replace(waiters=()),
    }[change]
    assert not Deadlocks(sightings.confirm(later)).groups


def test_looks_may_be_any_time_apart_as_long_as_somebody_was_heard_of() -> None:
    sightings = Sightings()
    crossed = world(lock("N", "a", "b"), lock("M", "b", "a"))
    sightings.confirm(crossed)
    half = {**crossed, "N": crossed["N"]._replace(at=101.0)}
    assert not Deadlocks(sightings.confirm(half)).groups, "only one of them was"
    rest = {name: one._replace(at=101.0) for name, one in crossed.items()}
    assert Deadlocks(sightings.confirm(rest)).groups, "the other was since the first look"


# A plain model


def play(found: Found) -> set[str]:
    """Let everybody finish who can, one at a time, as the server would: who is left waiting?"""
    held = {name: [(agent_of(h.ticket), h.weight) for h in one.holders] for name, one in found.items()}
    queues = {name: [(agent_of(w.ticket), w.weight) for w in one.waiters] for name, one in found.items()}
    while True:
        waiting = {agent for queue in queues.values() for agent, _ in queue}
        before = sum(map(len, held.values())) + sum(map(len, queues.values()))
        for name, one in found.items():
            held[name] = [(agent, weight) for agent, weight in held[name] if agent in waiting]
            while queues[name] and sum(weight for _, weight in held[name]) + queues[name][0][1] <= one.limit:
                held[name].append(queues[name].pop(0))
        if before == sum(map(len, held.values())) + sum(map(len, queues.values())) and waiting == {
            agent for queue in queues.values() for agent, _ in queue
        }:
            return waiting


@st.composite
def worlds(draw: st.DrawFn) -> Found:
    """Names with any limit, any holders that fit, and each agent waiting in one place at most."""
    where: dict[str, list[str]] = {name: [] for name in NAMES}
    for agent in draw(st.permutations(AGENTS)):
        name = draw(st.sampled_from([*NAMES, ""]))
        if name:
            where[name].append(agent)
    found = {}
    for name, waiting in where.items():
        limit = draw(st.integers(1, 4))
        holders, room = [], limit
        for agent in draw(st.lists(st.sampled_from(AGENTS), max_size=4)):
            weight = draw(st.integers(1, limit))
            if weight <= room:
                holders.append((agent, weight))
                room -= weight
        waiters = [(agent, draw(st.integers(1, limit)), draw(st.integers(1, 9)) + 0.0) for agent in waiting]
        found[name] = made(name, limit, holders, waiters)
    return found


@settings(max_examples=400, deadline=None)
@given(worlds())
def test_a_deadlock_is_found_just_where_the_model_does_not_get_on(found: Found) -> None:
    left = play(found)
    deadlocks = Deadlocks(found)
    members = set().union(*deadlocks.groups)
    assert members <= left
    assert bool(members) == bool(left)
    assert set(deadlocks._edges) == left
    for group in deadlocks.groups:
        judge(found, deadlocks, group, left)


def without(found: Found, agents: set[str] | frozenset[str]) -> Found:
    """The same without some agents."""
    return {
        name: one._replace(
            holders=tuple(h for h in one.holders if agent_of(h.ticket) not in agents),
            waiters=tuple(w for w in one.waiters if agent_of(w.ticket) not in agents),
        )
        for name, one in found.items()
    }


def judge(found: Found, deadlocks: Deadlocks, group: frozenset[str], left: set[str]) -> None:
    assert group <= left
    others = set(AGENTS) - group
    helping = [agent for agent in group if play(without(found, others | {agent})) != group - {agent}]
    victim = deadlocks.victim(group)
    youngest = max(helping or group, key=lambda agent: deadlocks._age(agent)) if len(group) > 1 else victim
    assert victim == youngest or (not helping and victim in group)
    for agent in group:
        cycle = deadlocks.cycle(agent)
        assert cycle[0].agent == agent
        assert len({step.agent for step in cycle}) == len(cycle)
        assert {step.agent for step in cycle} <= group
        for step, following in zip(cycle, [*cycle[1:], cycle[0]], strict=True):
            one = found[step.waits_for]
            assert step.held_by_agent == following.agent
            assert any(waiter.ticket == step.ticket and waiter.since == step.since for waiter in one.waiters)
            if step.ahead:
                queue = [agent_of(waiter.ticket) for waiter in one.waiters]
                assert queue.index(following.agent) < queue.index(step.agent)
            else:
                assert following.agent in {agent_of(holder.ticket) for holder in one.holders}


@settings(max_examples=300, deadline=None)
@given(worlds())
def test_victims_that_give_up_one_after_the_other_end_every_deadlock(found: Found) -> None:
    for _ in AGENTS:
        deadlocks = Deadlocks(found)
        if not deadlocks.groups:
            break
        victim = deadlocks.victim(deadlocks.groups[0])
        assert victim in deadlocks.groups[0]
        found = without(found, {victim})
    assert not play(found)


def test_a_thousand_readers_and_their_writer_are_judged_soon() -> None:
    readers = [f"r{number}" for number in range(1000)]
    limit = 1_000_000
    found = world(
        made("N", limit, [(reader, 1) for reader in readers], [("w", limit, 1.0)]),
        made("M", 1, [("w", 1)], [(reader, 1, 2.0 + number) for number, reader in enumerate(readers)]),
    )
    deadlocks = Deadlocks(found)
    assert len(deadlocks.groups[0]) == 1001
    assert len(deadlocks.cycle("w")) == 2
    started = time.perf_counter()
    assert deadlocks.victim(deadlocks.groups[0]) == "w"
    assert time.perf_counter() - started < 0.5, "it is a loop's own time"
