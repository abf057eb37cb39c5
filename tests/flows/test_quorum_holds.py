"""Renewals by majority, step by step: each hold is told as soon as its own servers have decided."""

from __future__ import annotations

import pytest

from lockfast import names
from lockfast.flows import asks, quorum_holds
from lockfast.flows.effects import Env, Scatter
from lockfast.flows.fleet import Fleet, Node
from lockfast.flows.introduction import Introduction
from lockfast.flows.quorum import Voted
from lockfast.flows.votes import Votes
from lockfast.grants import Era, Hold

NOON_US = 1_700_000_000_000_000
LEASE_S = 1.2


class World:
    """Three servers, and holds that all of them have voted for."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.env = self._env()
        nodes = [Node(f"s{place}", self._env()) for place in range(3)]
        self.fleet = self.env.fleet = Fleet(nodes, node_timeout_s=0.05, max_lease_s=10.0)
        for place in range(3):
            told = Introduction(f"run{place}", 3600, False, False, NOON_US, 10_000, "key", "")
            self.fleet.introduce(place, told, self.now_s, self.now_s)

    def _env(self) -> Env:
        return Env(lambda: self.now_s, lambda: 0.5, 2.0)

    def hold(self, name: str) -> Hold:
        votes = Votes(asks.lock(names.make("lockfast", (name,)), LEASE_S), name, self.fleet)
        deadline = self.now_s + LEASE_S
        votes.fences, votes.deadlines, votes.asked = [7] * 3, [deadline] * 3, [True] * 3
        return Hold(votes.ask, name, Voted.of(7, deadline, votes), Era(lambda: self.now_s), renews=True)


def test_a_renewal_that_is_decided_does_not_wait_for_others_of_its_trip() -> None:
    world = World()
    torn, whole = world.hold("torn"), world.hold("whole")
    ends_at = whole.deadline
    world.now_s += 0.4
    flow = quorum_holds.renew_all([torn, whole], world.env)
    scatter = next(flow)
    assert isinstance(scatter, Scatter)
    requests = scatter.make(["line"] * 3)
    for place in (0, 1):
        for index, (asked, call) in enumerate(requests):
            if asked == place:
                yes = call.args[-1] == "whole" or place == 0
                scatter.hear(index, [1 if yes else 0, 7, 1200, NOON_US])
    assert not scatter.enough(), "one may still be saved"
    assert whole.deadline > ends_at
    assert torn.deadline == ends_at
    world.now_s = ends_at + 0.01  # the trip ended no sooner
    with pytest.raises(StopIteration) as ended:
        flow.send(None)
    assert ended.value.value == [torn]
    assert whole.held()
    assert not torn.held()
