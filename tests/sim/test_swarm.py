"""Worlds drawn from seeds: what is in them, and that the lock as shipped keeps its promises in a thousand of them."""

from __future__ import annotations

from collections import Counter

import pytest

from lockfast.sim.batch import run_many
from lockfast.sim.faults import KINDS
from lockfast.sim.runs import Result, play, run_seed
from lockfast.sim.swarm import plan

SEEDS = 1000


@pytest.fixture(scope="module")
def some() -> list[Result]:
    return [run_seed(seed) for seed in range(120)]


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_a_thousand_seeds_with_all_faults_break_no_promise() -> None:
    found = [one for chunk in run_many(0, SEEDS) for one in chunk.found]
    words = "\n".join(f"seed {one.seed}: {', '.join(one.checkers)}: {one.why}" for one in found)
    assert not found, f"replay them with `lockfast sim --seed N`\n{words}"


def test_a_seed_is_one_plan_and_choices_replace_what_was_drawn() -> None:
    assert plan(7) == plan(7)
    assert plan(7) != plan(8)
    chosen = plan(7, {"clients": 3, "kinds": ("pause",), "faults": 4})
    assert len(chosen.clients) == 3
    assert [fault.kind for fault in chosen.faults] == ["pause"] * 4


def test_every_kind_of_fault_and_both_styles_are_drawn() -> None:
    plans = [plan(seed) for seed in range(400)]
    kinds = {fault.kind for one in plans for fault in one.faults}
    assert kinds == set(KINDS)
    assert {client.style for one in plans for client in one.clients} == {"threads", "asyncio"}
    assert {len(one.clients) for one in plans} == {2, 3, 4, 5, 6}


def test_clocks_are_apart_by_less_than_the_margin_covers() -> None:
    for one in (plan(seed) for seed in range(200)):
        for client in one.clients:
            assert client.rate / one.server_rate > 0.99


def test_faults_with_a_moment_are_over_when_the_quiet_begins() -> None:
    for one in (plan(seed) for seed in range(200)):
        for fault in one.faults:
            if not fault.nth:
                assert fault.at <= one.options.safety_s


def test_the_quiet_comes_after_the_faults_and_everybody_alive_is_served_in_it(some: list[Result]) -> None:
    for result in some:
        quiet = next(event.at for event in result.history if event.what == "quiet")
        assert result.history[-1].what == "end"
        last_asked = {event.client: event.ticket for event in result.history if event.what == "asked"}
        crashed = {event.client for event in result.history if event.what == "crashed"}
        served = {event.ticket for event in result.history if event.what == "granted" and event.at >= quiet}
        assert {ticket for client, ticket in last_asked.items() if client not in crashed} <= served


def test_the_worlds_are_crowded_and_much_goes_wrong_in_them(some: list[Result]) -> None:
    """A swarm in which nobody ever waits, loses or crashes would pass whatever the lock did."""
    whats = Counter(event.what for result in some for event in result.history)
    for what in ("unqueued", "expired", "lost", "failed", "crashed", "renewed"):
        assert whats[what] > len(some) / 4, f"{what}: {whats}"
    assert whats["queued"] > 3 * len(some)
    assert sum(result.script_runs for result in some) > 40 * len(some)


def test_places_end_where_waiters_die_behind_a_hog() -> None:
    choices = {"work": "hogs", "kinds": ("crash", "kill", "pause"), "faults": 20, "clients": 6, "waits_s": (None,)}
    ended = Counter(event.what for seed in range(15) for event in run_seed(seed, choices).history)
    assert ended["place_ended"] >= 3


def test_an_overlap_is_excused_only_where_no_lease_can_hold(some: list[Result]) -> None:
    for result in some:
        for verdict in result.verdicts.values():
            if verdict.excused:
                assert {fault.kind for fault in result.plan.faults} & {"forget", "clock ahead"}


def test_a_plan_says_what_it_is_in_plain_words() -> None:
    one = plan(3, {"kinds": ("pause", "slow"), "faults": 2, "cancel_share": 1.0, "renew_share": 0.0})
    lines = one.options.lines() + one.lines()
    assert "clients = " in lines[0]
    assert any(line.startswith("client a: ") for line in lines)
    assert any("is cancelled after" in line and "does not renew" in line for line in lines)
    assert sum(line.startswith("fault: ") for line in lines) == 2


def test_a_run_without_faults_serves_in_order_and_loses_nothing() -> None:
    calm = {"faults": 0, "cancel_share": 0.0, "waits_s": (None,), "leases_s": (3.0,), "spread_s": 0.001}
    for seed in range(20):
        result = play(plan(seed, calm | {"renew_share": 1.0, "extend_share": 0.0, "timeout_s": 2.0}))
        assert not result.failed
        assert not [event for event in result.history if event.what in ("lost", "failed", "expired", "place_ended")]
