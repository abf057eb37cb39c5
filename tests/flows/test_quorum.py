"""The short cuts of a quorum's flows: what they come to is what the long way comes to."""

from __future__ import annotations

from math import inf
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockfast import names
from lockfast.errors import Unreachable
from lockfast.flows import asks, quorum
from lockfast.flows.effects import Env
from lockfast.flows.fleet import Fleet, Node
from lockfast.flows.introduction import Introduction
from lockfast.flows.votes import Votes

NOON_US = 1_700_000_000_000_000
SENT = 100.0
COUNT = 5


class World:
    """Five servers that have introduced themselves, and an acquire that asks them all for the first time."""

    def __init__(self) -> None:
        self.now = SENT
        nodes = [Node(f"s{place}", self._env()) for place in range(COUNT)]
        self.fleet = Fleet(nodes, node_timeout_s=0.05, max_lease_s=10.0)
        for place in range(COUNT):
            self.fleet.introduce(
                place, Introduction(f"run{place}", 3600, False, False, NOON_US, 10_000, "key", ""), SENT, SENT
            )
        self.env = self._env()
        self.env.fleet = self.fleet
        self.votes = Votes(asks.lock(names.make("lockfast", ("x",)), 3.0, 0.5), "t", self.fleet)
        self.ballot = self.ask_again(None)

    def ask_again(self, wait_s: float | None, failures: int = 0) -> quorum._Ballot:
        """Another round of the same acquire, a moment later."""
        self.now += 0.001
        patience = quorum._Patience("x", wait_s, self.env, self.fleet)
        patience.failures = failures
        return quorum._Ballot(self.votes, self.fleet.everywhere, -1, patience, self.env, self.fleet)

    def _env(self) -> Env:
        return Env(lambda: self.now, lambda: 0.5, 2.0)


def replies(fence: int) -> st.SearchStrategy[Any]:
    """What a server may say to the first request: most often yes, with the fence that was proposed."""
    fences = st.sampled_from([fence] * 6 + [fence - 1, fence + 7])
    return st.one_of(
        st.builds(lambda fence, ms: [3, fence, ms, NOON_US], fences, st.sampled_from([3500, 3500, 3500, 900])),
        fences,  # of `admit`
        st.just([0, fence, 400, NOON_US]),
        st.just(Unreachable("gone")),
        st.none(),  # nothing yet
    )


@given(st.data())
def test_what_is_settled_at_once_is_settled_alike_by_the_long_way(data: st.DataObject) -> None:
    world = World()
    ballot, votes, fleet, env = world.ballot, world.votes, world.fleet, world.env
    ballot.make(["line"] * COUNT)
    for place in range(COUNT):
        reply = data.draw(replies(ballot.fence))
        if reply is not None:
            ballot.hear(place, reply)
    world.now += data.draw(st.sampled_from([0.001, 0.04, 1.6]))
    for node in fleet.nodes:  # one that was restarted, and met again meanwhile
        node.counts_at = data.draw(st.sampled_from([-inf] * 7 + [inf]))
    at_once = quorum._at_once(votes, ballot, env, fleet)
    if at_once is None:
        return
    with pytest.raises(StopIteration) as ended:  # else it would ask once more
        next(quorum._settle(votes, env, fleet))
    assert tuple(ended.value.value) == tuple(at_once)


def test_plain_majority_is_settled_at_once() -> None:
    world = World()
    world.ballot.make(["line"] * COUNT)
    for place in range(3):
        assert not world.ballot.enough()
        world.ballot.hear(place, [3, world.ballot.fence, 3500, NOON_US])
    assert world.ballot.enough()
    held = quorum._at_once(world.votes, world.ballot, world.env, world.fleet)
    assert held is not None
    assert held[:2] == (world.ballot.fence, world.ballot.deadline)


@given(st.lists(st.sampled_from(["same", "other", "answered", "lost"]), min_size=COUNT, max_size=COUNT))
def test_leaves_that_are_made_in_one_go_are_those_that_each_server_needs(states: list[str]) -> None:
    world = World()
    votes, ballot = world.votes, world.ballot
    lines = [f"line {place}" for place in range(COUNT)]
    ballot.make(lines)
    for place, state in enumerate(states):
        if state == "answered":
            ballot.hear(place, [3, ballot.fence, 3500, NOON_US])
        elif state == "lost":
            ballot.hear(place, Unreachable("gone"))
    later = [f"new {place}" if state == "other" else lines[place] for place, state in enumerate(states)]
    made = votes.leaves(world.fleet.everywhere, later, 200.0)
    assert [place for place, _ in made] == world.fleet.everywhere
    for place, call in made:
        assert call.bound.args[1] == (1 if states[place] in ("other", "lost") else 0), "whether it leaves a tombstone"
        assert call.args == ("t",)


@pytest.mark.parametrize("how", ["yes", "no", "a place in the queue", "no answer"])
def test_late_reply_that_is_heard_while_its_vote_is_taken_back_counts_for_nothing(how: str) -> None:
    # In threads another one may read the reply, and be anywhere in `hear` when the owner forgets. Here the owner does
    # so at the place where the reply makes the reader look at the clock or at the vote's own words.
    world = World()
    ballot, votes = world.ballot, world.votes
    ballot.begin([object()] * COUNT)
    said: dict[str, Any] = {
        "yes": [3, ballot.fence, 3500, NOON_US],
        "no": [0, ballot.fence, 400, NOON_US],
        "a place in the queue": [0, ballot.fence, 400, 2],
        "no answer": Unreachable("gone", sent=False),
    }

    class Nodes(list[Node]):
        def __getitem__(self, place: Any) -> Any:
            votes.forget(world.fleet.everywhere)
            return super().__getitem__(place)

    ballot._nodes = Nodes(world.fleet.nodes)
    ballot.hear(0, said[how])
    assert votes.tickets[0] != "t"
    assert votes.granted(0, SENT) == []
    assert not votes.may_stand(0)
    assert (votes.positions[0], votes.owed[0], votes.fences[0]) == (0, 0, 0)


def test_reply_that_was_heard_before_others_were_taken_back_still_counts() -> None:
    world = World()
    ballot, votes = world.ballot, world.votes
    ballot.begin([object()] * COUNT)
    ballot.hear(0, [3, ballot.fence, 3500, NOON_US])
    votes.forget([1, 2, 3, 4])
    ballot.hear(1, [3, ballot.fence, 3500, NOON_US])
    assert votes.granted(ballot.fence, SENT) == [0]
    assert votes.tickets[0] == "t"


@pytest.mark.parametrize("code", [0, quorum.WAITED_FOR])
def test_no_to_a_vote_makes_nobody_forget_a_place_in_the_queue(code: int) -> None:
    world = World()
    for reply in ([0, world.ballot.fence, 400, 2], [code, world.ballot.fence, 400, NOON_US]):
        ballot = world.ask_again(None)
        ballot.begin([object()] * COUNT)
        ballot.hear(0, reply)
    assert world.votes.positions[0] == 2
    assert world.votes.may_stand(0), "there is something to take back"


def test_no_that_was_overtaken_by_a_vote_does_not_erase_it() -> None:
    world = World()
    lines = [object()] * COUNT
    older, newer = world.ask_again(None), world.ask_again(None)
    older.begin(lines)
    newer.begin(lines)
    newer.hear(0, [3, newer.fence, 3500, NOON_US])
    older.hear(0, [0, newer.fence - 5, 400, 1])
    assert world.votes.granted(newer.fence, world.now) == [0]
    newest = world.ask_again(None)
    newest.begin(lines)
    newest.hear(0, [0, newer.fence + 5, 400, NOON_US])
    assert world.votes.granted(0, world.now) == [], "a later no counts"


@pytest.mark.parametrize(("wait_s", "end"), [(0.0, 2.0), (0.02, 0.05), (0.7, 0.7), (None, 1.0), (30.0, 1.0)])
def test_round_ends_with_the_patience_of_who_asks(wait_s: float | None, end: float) -> None:
    """But every server has its time to answer; and one try is not all of the time-out."""
    world = World()
    ballot = world.ask_again(wait_s, failures=9)
    assert ballot.by - world.now == pytest.approx(min(end, 1.0))
