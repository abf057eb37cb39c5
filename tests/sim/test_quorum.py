"""A majority of several servers, in worlds drawn from seeds: what it promises, and that bugs in it are found.

The clocks of clients are hours apart in a third of the worlds, and those of servers; servers crash, come back with
and without their memory, freeze and are cut off from single clients.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from lockfast import check, names
from lockfast.flows import asks
from lockfast.sim import runs, several
from lockfast.sim.batch import run_many
from lockfast.sim.client import PREFIX
from lockfast.sim.driving import Work
from lockfast.sim.holding import hold
from lockfast.sim.quorum_runs import add_server
from lockfast.sim.quorum_swarm import FORGETTING, KINDS
from lockfast.sim.runs import play, run_seed
from lockfast.sim.shrink import shrink
from lockfast.sim.swarm import ServerPlan, plan
from lockfast.sim.world import World
from sim import playing
from sim.planted import Planted, planted
from sim.quorum_planted import ALL
from sim.test_primitives import Downgrades

if TYPE_CHECKING:
    from collections.abc import Generator

    from lockfast.sim.client import Client
    from lockfast.sim.holding import Section
    from lockfast.sim.node import Node
    from lockfast.sim.runs import Result
    from lockfast.sim.swarm import Visit

SEEDS = 500  # for each number of servers
FOUND_WITHIN = 100  # seeds


@pytest.fixture(scope="module")
def some() -> list[Result]:
    return [run_seed(seed, {"servers": 3 if seed % 2 else 5}) for seed in range(80)]


@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.parametrize("servers", [3, 5])
def test_worlds_of_several_servers_with_all_faults_break_no_promise(servers: int) -> None:
    found = [one for chunk in run_many(0, SEEDS, choices={"servers": servers}) for one in chunk.found]
    words = "\n".join(f"seed {one.seed}: {', '.join(one.checkers)}: {one.why}" for one in found)
    assert not found, f"replay them with `lockfast sim --servers {servers} --seed N`\n{words}"


def test_every_kind_of_fault_is_drawn_and_both_kinds_of_servers() -> None:
    plans = [plan(seed, {"servers": 5}) for seed in range(400)]
    assert {fault.kind for one in plans for fault in one.faults} == set(KINDS)
    assert {server.keeps for one in plans for server in one.servers} == {True, False}
    assert {len(one.servers) for one in plans} == {5}
    assert {one.options.limit for one in plans} == {1, 2}


def test_servers_that_keep_their_memory_lose_their_disks_too() -> None:
    plans = [plan(seed, {"servers": 3}) for seed in range(300)]
    keeping = [{server.name for server in one.servers if server.keeps} for one in plans]
    lost = {
        fault.kind for one, names_ in zip(plans, keeping, strict=True) for fault in one.faults if fault.who in names_
    }
    assert lost >= set(FORGETTING)


def test_the_worlds_are_crowded_and_much_goes_wrong_in_them(some: list[Result]) -> None:
    whats = Counter(event.what for result in some for event in result.history)
    for what in ("lost", "failed", "crashed", "renewed"):
        assert whats[what] > len(some) / 4, f"{what}: {whats}"
    statuses = Counter((name, verdict.status) for result in some for name, verdict in result.verdicts.items())
    for name in ("exclusion", "readers_writers", "fences_grow", "not_stuck", "no_orphan"):
        assert statuses[name, "ok"] > len(some) / 8, f"{name}: {statuses}"


def test_memory_that_is_lost_excuses_nothing_and_a_clock_that_jumps_ahead_does(some: list[Result]) -> None:
    for result in some:
        assert "server_lost_memory" not in {event.what for event in result.history}
        for verdict in result.verdicts.values():
            if verdict.excused:
                assert "clock ahead" in {fault.kind for fault in result.plan.faults}


@pytest.mark.slow
@pytest.mark.parametrize("bug", ALL, ids=lambda bug: bug.name)
def test_a_planted_bug_is_found(bug: Planted) -> None:
    find(bug)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["no quarantine", "a minority is enough"])
def test_a_find_is_shrunk_to_a_short_run_with_the_same_failure(name: str) -> None:
    bug = next(bug for bug in ALL if bug.name == name)
    result = find(bug)
    with planted(bug):
        short = play(shrink(result, max_runs=150), trace=True)
    assert set(short.failed) & set(result.failed)
    assert len(short.plan.clients) <= 3
    assert len(short.plan.faults) <= max(4, len(result.plan.faults) // 3)


def find(bug: Planted) -> Result:
    """The first seed that shows the bug, and nothing of the kind without it."""
    for seed in range(FOUND_WITHIN):
        with planted(bug):
            result = run_seed(seed, bug.choices)
        if bug.caught_by & set(result.failed) and not run_seed(seed, bug.choices).failed:
            return result
    pytest.fail(f"{bug.name} was not found in {FOUND_WITHIN} seeds")


# Contenders.


class Crowd:
    """Clients that want one name again and again, of a quorum in which nothing fails."""

    def __init__(self, contenders: int, servers: int, length_s: float, **world: float) -> None:
        self.world = World(7, quiet=True)
        self.world.spread_s = world.get("spread_s", 0.0005)
        self._length_s = length_s
        nodes = [add_server(self.world, ServerPlan(f"s{i}", False, 0.0, 1.0, 3600.0)) for i in range(1, servers + 1)]
        self._ask = asks.lock(names.make(PREFIX, ("n1",)), 2.0)
        self.clients = []
        for number in range(contenders):
            style = "threads" if number % 2 else "asyncio"
            client = self.world.add_client(f"c{number}", nodes, style=style)
            client.join_quorum(node_timeout_s=0.1, max_lease_s=10.0)
            self.clients.append(client)
        tasks = [client.start(self._again_and_again) for client in self.clients]
        self.world.run(length_s + 10.0)
        assert all(task.done for task in tasks)

    def _again_and_again(self, client: Client) -> Generator[Any, Any, None]:
        while self.world.now < self._length_s:
            yield from hold(client, self._ask, None, 0.005)

    def grants(self) -> list[int]:
        """How many each of them got."""
        got = Counter(event.client for event in self.world.history if event.what == "granted")
        return [got[client.name] for client in self.clients]

    def rounds_per_grant(self) -> float:
        fleets = [client.env.fleet for client in self.clients]
        return sum(fleet.rounds for fleet in fleets if fleet) / sum(fleet.grants for fleet in fleets if fleet)


@pytest.mark.slow
@pytest.mark.parametrize("spread_s", [0.0005, 0.005])
def test_of_32_contenders_all_are_served_alike_with_little_more_than_one_round_per_grant(spread_s: float) -> None:
    crowd = Crowd(32, servers=5, length_s=4.0, spread_s=spread_s)
    grants = crowd.grants()
    jain = sum(grants) ** 2 / (len(grants) * sum(count * count for count in grants))
    print(f"{sum(grants)} grants, {min(grants)} to {max(grants)} each, Jain {jain:.4f}, "
          f"{crowd.rounds_per_grant():.2f} rounds per grant")  # fmt: skip
    assert min(grants) >= 0.7 * max(grants)
    assert jain > 0.98
    assert crowd.rounds_per_grant() < 1.4
    assert not [name for name, verdict in check.all(crowd.world.history).items() if verdict.bad and name != "fifo"]


def test_one_that_is_alone_needs_one_round_per_grant() -> None:
    assert Crowd(1, servers=5, length_s=0.2).rounds_per_grant() < 1.1


# Other callers.


class TakesTwo(runs._Caller):
    """Wants both names, one after the other or with luck at once."""

    def turn(self, client: Client, visit: Visit, number: int) -> Generator[Any, Any, Any]:
        both = [self._ask(replace(visit, name=name, weight=1)) for name in ("n1", "n2")]

        def body(sections: list[Section]) -> Generator[Any, Any, None]:
            for held in [section.hold for section in sections if section.hold.held()]:
                self._run.resource.write(client, held.ask.name.shown, held.ticket, held.fence)
            try:
                yield Work(visit.work_s)
            finally:
                for held in [section.hold for section in sections if section.hold.held()]:
                    about = {"name": held.ask.name.shown, "ticket": held.ticket, "fence": held.fence}
                    client.world.record("leaving", client=client.name, **about)

        return several.hold_all(client, both, visit.wait_s, body)


@pytest.mark.slow
def test_a_writer_that_becomes_a_reader_breaks_no_promise_by_majority() -> None:
    results, found = playing.play(Downgrades, {"servers": 3, "limit": 2}, range(60))
    assert not found, found
    assert any(event.note == "downgrade" for result in results for event in result.history)


@pytest.mark.slow
def test_several_names_at_once_break_no_promise_by_majority() -> None:
    results, found = playing.play(TakesTwo, {"servers": 3, "limit": 1}, range(60))
    assert not found, found
    assert playing.counts(results)["granted"] > 5 * len(results)


# Servers that are silent, or new.


def world_of(count: int, up_s: float = 3600.0) -> tuple[World, list[Node], Client]:
    world = World(3)
    nodes = [add_server(world, ServerPlan(f"s{i}", False, 0.0, 1.0, up_s)) for i in range(1, count + 1)]
    client = world.add_client("a", nodes, style="threads")
    client.join_quorum(node_timeout_s=0.1, max_lease_s=10.0)
    return world, nodes, client


def times(client: Client, count: int) -> list[float]:
    """How long each of some acquires took, one after the other."""
    ask = asks.lock(names.make(PREFIX, ("n1",)), 5.0)
    began: list[float] = []
    took: list[float] = []

    def body(client: Client) -> Generator[Any, Any, None]:
        for _ in range(count):
            began.append(client.world.now)
            assert (yield from hold(client, ask, None, note))

    def note(_section: Section) -> Generator[Any, Any, None]:
        took.append(client.world.now - began[-1])
        yield Work(0.001)

    task = client.start(body)
    client.world.run(client.world.now + 60.0)
    task.result()
    return took


@pytest.mark.parametrize("hung", [["s1"], ["s1", "s2"], ["s4", "s5"], ["s2", "s3"]])
def test_a_hung_minority_costs_its_time_out_once_and_then_nothing(hung: list[str]) -> None:
    _, nodes, client = world_of(5)
    times(client, 3)
    for node in nodes:
        if node.name in hung:
            node.freeze(1000.0)
    took = times(client, 50)
    assert max(took) < 0.25
    assert sum(length > 0.01 for length in took) <= 1
    assert sorted(took)[-2] < 0.01


def test_a_server_that_was_hung_is_asked_again_soon_after_it_answers() -> None:
    world, nodes, client = world_of(3)
    times(client, 1)
    nodes[0].freeze(5.0)
    times(client, 3)
    fleet = client.env.fleet
    assert fleet is not None
    assert world.now > 5.0
    assert fleet.ready(client.now()) == [0, 1, 2]


def test_servers_that_have_all_just_started_make_who_asks_wait_for_the_longest_lease() -> None:
    _, _, client = world_of(3, up_s=0.0)
    (took,) = times(client, 1)
    assert 10.0 < took < 11.5, "max_lease, and the second by which an uptime may be wrong"


def test_a_server_that_restarts_empty_is_not_counted_until_the_longest_lease_has_passed() -> None:
    world, nodes, client = world_of(3)
    times(client, 1)
    nodes[1].restart(memory=False)
    began = world.now
    nodes[2].crash()
    (took,) = times(client, 1)
    assert world.now - began > 10.0
    assert 10.0 < took < 12.5


def test_a_server_that_keeps_its_memory_counts_when_it_is_back() -> None:
    _, nodes, client = world_of(3)
    for node in nodes:
        node.server.keeps = True
    times(client, 1)
    nodes[1].restart()
    nodes[2].crash()
    (took,) = times(client, 1)
    assert took < 1.5
