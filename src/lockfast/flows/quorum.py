"""Hold a name by the votes of a majority of independent servers (Redlock, with a queue and fences).

What this file keeps true; health and clocks of the servers are in fleet.py, their part is lua/vote.lua:
- Two holders would need a majority each, and so one server that voted for both. A vote is counted from before it was
  asked for, less the margin for clocks (`deadline_of`); a hold is sure while a majority of its votes is.
- A server that may have forgotten its votes is not counted until all leases that it may have voted for have ended.
- The fence is the largest that any of the majority gave; it is handed out once a majority has stored it. Each later
  majority has one of these servers in it, which gives a larger one.
- Whatever ends an acquire without a hold, a `leave` goes wherever a vote was asked for, answered or not.
- Who finds others in front waits in the queue of one server, the door; only the head of that queue asks the others.
  Safety never depends on the door: it is for order and quiet.
"""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING

from lockfast.errors import LockfastError, NotAcquired, Refused
from lockfast.flows.admission import UNDO_S, busy, give_up_at, wait_for_push
from lockfast.flows.effects import Call, Scatter, Sleep, backoff
from lockfast.flows.fleet import PROBE_S
from lockfast.flows.votes import Round, Votes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lockfast.flows.admission import Held
    from lockfast.flows.asks import Ask
    from lockfast.flows.effects import Env, Flow
    from lockfast.flows.fleet import Fleet

WAITED_FOR = -2  # what a server answers whose queue others stand in: see lua/vote.lua
TRIES_AT_DOOR = 12  # how often the head of the queue asks the others before it queues anew
SHORTEST_PAUSE_S, LONGEST_PAUSE_S = 0.0005, 0.1


class Voted(tuple[int, float, bool]):  # noqa: SLOT001 - a tuple can have no slots of its own
    """What `acquire` returns: fence, until when it is sure, False; and the votes behind it."""

    votes: Votes

    @classmethod
    def of(cls, fence: int, deadline: float, votes: Votes) -> Voted:
        voted = cls((fence, deadline, False))
        voted.votes = votes
        return voted


def acquire(ask: Ask, ticket: str, wait_s: float | None, env: Env) -> Flow[Held]:
    """Hold what is asked for, queueing up to `wait_s` seconds (None: as long as it takes; 0: ask once).

    Raises NotAcquired, Unreachable (too few servers: the message says which and why), Refused, or ValueError for a
    lease that is longer than the quorum allows; however it ends without a hold, no vote stays.
    """
    fleet = env.fleet
    assert fleet is not None
    votes = Votes(ask, ticket, fleet)
    try:
        return (yield from _acquire(votes, wait_s, env, fleet))
    except GeneratorExit:
        raise  # the process died here; nobody is left to tidy up
    except BaseException:
        try:
            yield from _give_up(votes, fleet.everywhere, env, fleet, waits=True)
        except GeneratorExit:
            raise
        except BaseException:
            # Struck while connections were made for it, before anything was written: now it is, without waiting.
            yield from _give_up(votes, fleet.everywhere, env, fleet)
            raise
        raise


def _acquire(votes: Votes, wait_s: float | None, env: Env, fleet: Fleet) -> Flow[Held]:
    ask = votes.ask
    name = ask.name.shown
    if fleet.doubts(env.now()):
        yield from _look_again(env, fleet)
    patience = _Patience(name, wait_s, env, fleet)
    door = -1
    has_waited = False
    tries = 0
    while True:
        fleet.check(ask.lease_ms + ask.grace_ms)
        moment = env.now()
        ready = fleet.ready(moment)
        best = fleet.door(name, ready)
        # Who is the head of another queue than most others wait in has tried, before it goes over to theirs.
        if door != best and (door not in ready or votes.deadlines[door] <= moment or tries > 1):
            if door >= 0:
                yield from _give_up(votes, [door], env, fleet)
            door, tries = best, 0
        at_head = votes.deadlines[door] > moment
        queues = wait_s != 0 and not at_head
        if wait_s == 0 and not at_head and tries == 0 and fleet.is_contended(name, moment):
            # Who does not wait must not overtake those who do.
            tries = 1
            ballot = _Ballot(votes, [door], -1, patience, env, fleet, awaits=door)
            yield Scatter(ballot.places, ballot.make, ballot.by, ballot.hear, ballot.enough)
            if votes.replies[door] == WAITED_FOR:
                fleet.note_contention(name, env.now())
                raise NotAcquired(busy(name, wait_s), name=name, waited_s=0.0)
            continue
        if queues and (votes.positions[door] or fleet.is_contended(name, moment)):
            listening, sent = fleet.nodes[door].env.listening, moment
            ballot = _Ballot(votes, [door], door, patience, env, fleet)
            yield Scatter(ballot.places, ballot.make, ballot.by, ballot.hear, ballot.enough)
            moment = env.now()
            if votes.deadlines[door] > moment:
                continue  # now the others
            position = votes.positions[door] if type(votes.replies[door]) is int else 0
            if not position:  # it says nothing, or no to everybody: let the majority tell
                fleet.forget_contention(name)
                yield from patience.try_again(votes)
                continue
        else:
            listening, sent = fleet.nodes[door].env.listening, moment
            ballot = _Ballot(votes, ready, door if queues else -1, patience, env, fleet)
            yield Scatter(ready, ballot.make, ballot.by, ballot.hear, ballot.enough)
            is_early = env.now() < ballot.by
            position = votes.positions[door] or int(wait_s == 0 and votes.replies[door] == WAITED_FOR)
            # Who has a majority while others wait at the door came after them.
            held = None if position else _at_once(votes, ballot, env, fleet)
            if held is None and not position:
                held = yield from _settle(votes, env, fleet)
            if held is not None:
                fleet.check(ask.lease_ms + ask.grace_ms)  # what a server that was met just now has told
                if not has_waited:
                    fleet.forget_contention(name)
                fleet.grants += 1
                return held
            moment = env.now()
            fleet.check(ask.lease_ms + ask.grace_ms)
            # Those that count and did not fail: a no of theirs may be a yes later. Some were not waited for.
            able = [
                place
                for place in ready
                if (type(votes.replies[place]) is int or (votes.replies[place] is None and is_early))
                and fleet.is_counted(place, moment)
            ]
            if len(able) < fleet.majority:
                yield from _give_up(votes, fleet.everywhere, env, fleet)
                yield from patience.try_again(votes)
                continue
            if moment < patience.ends_at:
                yield from _give_up(votes, [place for place in fleet.everywhere if place != door], env, fleet)
        patience.heard(moment)
        fleet.note_contention(name, moment)
        if moment >= patience.ends_at:
            raise NotAcquired(busy(name, wait_s), name=name, waited_s=wait_s or 0.0)
        if position:
            has_waited, tries = True, 0
            yield from _wait_at_door(votes, door, listening, patience.ends_at, fleet)
        else:  # at the head, and the others are not free yet: most likely a `leave` is on its way to them
            tries += 1
            if tries > TRIES_AT_DOOR:  # others wait at another door, or hold without this one: let them go on
                yield from _give_up(votes, [door], env, fleet)
                tries = 0
            pause_s = min(max(moment - sent, SHORTEST_PAUSE_S) * 2 ** min(tries, 8), LONGEST_PAUSE_S)
            yield Sleep(max(0.0, min(pause_s * (0.5 + env.jitter()), patience.ends_at - env.now())))


def _look_again(env: Env, fleet: Fleet) -> Flow[None]:
    """Ask anew whether the servers can work together: they may have been mended."""
    by = env.now() + max(fleet.node_timeout_s, env.attempt_s / 2)
    while fleet.in_doubt and env.now() < by:
        yield _LOOK
        yield Sleep(SHORTEST_PAUSE_S * 4)
    fleet.doubt_no_more()


class _Patience:
    """How long an acquire goes on when too few servers can agree to anything."""

    def __init__(self, name: str, wait_s: float | None, env: Env, fleet: Fleet) -> None:
        self._name = name
        self._wait_s = wait_s
        self._env = env
        self._fleet = fleet
        self._started = self._heard_at = env.now()
        self.ends_at = inf if wait_s is None else self._started + wait_s
        self.tries_until = self.ends_at if wait_s != 0 else self._started + env.timeout_s
        self.failures = 0

    def heard(self, moment: float) -> None:
        """A majority has answered."""
        self._heard_at, self.failures = moment, 0

    def try_again(self, votes: Votes) -> Flow[None]:
        """Pause before the next try; raises what keeps the servers from it when there is to be none."""
        env, fleet = self._env, self._fleet
        self.failures += 1
        refusals = {place: reply for place, reply in enumerate(votes.replies) if isinstance(reply, Refused)}
        if len(fleet.nodes) - len(refusals) < fleet.majority:
            raise next(iter(refusals.values()))
        if fleet.refusals():
            raise self._too_few(votes)
        if self._wait_s == 0:  # then one that is about to introduce itself is all that there is to wait for
            while env.now() < fleet.counts_at() < inf and fleet.meets() and env.now() < self._started + env.attempt_s:
                yield Sleep(SHORTEST_PAUSE_S * 4)
        moment = env.now()
        counts_at = fleet.counts_at()
        if moment < counts_at < inf and (self.failures == 1 or self._wait_s != 0):
            # They answer, and will be counted: that is worth waiting for, as a lock that others hold is.
            while moment < counts_at < inf:
                if moment >= self.ends_at:
                    raise self._too_few(votes)
                yield Sleep(min(counts_at, self.ends_at, moment + PROBE_S) - moment)
                fleet.check(0)
                yield _LOOK
                moment, counts_at = env.now(), fleet.counts_at()
            self._heard_at, self.failures = moment, 0
            return
        gives_up_at = give_up_at(self._started, self._heard_at, self._wait_s, env)
        if self._wait_s and self.failures > 1:
            gives_up_at = min(gives_up_at, self.ends_at)
        if moment >= gives_up_at or (self._wait_s == 0 and self.failures > 2 and fleet.is_cut_off()):
            raise self._too_few(votes)
        yield backoff(self.failures, gives_up_at, env)

    def _too_few(self, votes: Votes) -> LockfastError:
        return self._fleet.too_few(self._name, dict(enumerate(votes.replies)), self._env.now(), votes.owed)


def _nothing(_index: int, _reply: object) -> None:
    """Nobody was asked."""


_LOOK = Scatter([], lambda _: [], 0.0, _nothing, lambda: True)  # drivers look after those that are down


class _Ballot(Round):
    """A round in which votes are asked for; at `queue_at` a place in the queue as well (-1: nowhere).

    awaits: whose answer is worth waiting for when too many have said no; that of `queue_at` always is.
    """

    __slots__ = ("_awaits", "_env", "_majority", "_queue_at", "by")

    def __init__(
        self,
        votes: Votes,
        places: list[int],
        queue_at: int,
        patience: _Patience,
        env: Env,
        fleet: Fleet,
        awaits: int = -1,
    ) -> None:
        ask = votes.ask
        sent = env.now()
        super().__init__(votes, places, sent, ask.lease_ms, fleet.proposal(env.seen.get(ask.name.shown, 0), sent))
        # Servers that are slow today must not be given up on for ever; but no longer than the caller has patience.
        by = min(sent + min(fleet.node_timeout_s * 2**patience.failures, env.attempt_s), patience.tries_until)
        self.by = max(by, sent + fleet.node_timeout_s)
        self._env = env
        self._queue_at = queue_at
        self._awaits = max(queue_at, awaits)
        self._majority = fleet.majority
        fleet.rounds += len(places) >= fleet.majority  # a place at the door is one request

    def make(self, lines: Sequence[object]) -> list[tuple[int, Call]]:
        self.begin(lines)
        votes, queue_at = self._votes, self._queue_at
        ask = votes.ask
        requests = votes.requests(self.places, ask.lease_ms, ask.weight, self.fence, self._env, self.by)
        if queue_at >= 0:
            queueing = Call(ask.admit(self._env, None), (self.fence - 1, votes.tickets[queue_at]), self.by)
            requests[self.places.index(queue_at)] = queue_at, queueing
        return requests

    def enough(self) -> bool:
        if self.yes >= self._majority:
            return True
        # Too many have said no; but where the caller stands in the queue is worth waiting for.
        return len(self.places) - self.no < self._majority and (
            self._awaits < 0 or self.replies[self._awaits] is not None
        )


def _at_once(votes: Votes, ballot: _Ballot, env: Env, fleet: Fleet) -> Held | None:
    """What `_settle` would return, where that is plain: a majority, asked once, and all have the fence."""
    if votes.round > 1 or ballot.yes < fleet.majority or ballot.agreed != ballot.yes:
        return None
    moment, fence, deadline = env.now(), ballot.fence, ballot.deadline
    for node in fleet.nodes:
        if node.counts_at > moment:
            return None
    if deadline - moment < votes.ask.lease_s / 2:
        return None
    env.seen.learn(votes.ask.name.shown, fence)
    return Voted.of(fence, deadline, votes)


def _settle(votes: Votes, env: Env, fleet: Fleet) -> Flow[Held | None]:
    """Make a hold of a majority of votes, if there is one: agree on its fence, and see that it is for long enough."""
    ask = votes.ask
    is_alone = ask.weight == ask.limit  # a shared hold's fence only tells it from others
    for _ in range(3):
        moment = env.now()
        granted = votes.granted(0, moment)
        if len(granted) < fleet.majority:
            return None
        fence = max(votes.fences[place] for place in granted)
        least = fence if is_alone else 0
        deadline = votes.sure_until(least, moment)
        if deadline - moment >= ask.lease_s / 2:
            env.seen.learn(ask.name.shown, fence)
            return Voted.of(fence, deadline, votes)
        lower = [place for place in granted if votes.fences[place] < least]
        yield from _keep(votes, lower or granted, ask.lease_ms, ask.weight, fence, env, fleet)
    return None


def _keep(
    votes: Votes, places: list[int], lease_ms: int, weight: int, fence: int, env: Env, fleet: Fleet
) -> Flow[None]:
    """Have votes kept for another lease, with this fence at least."""
    sent = env.now()
    by = sent + max(fleet.node_timeout_s, env.attempt_s / 4)
    asked = Round(votes, places, sent, lease_ms)

    def make(lines: Sequence[object]) -> list[tuple[int, Call]]:
        asked.begin(lines)
        return votes.requests(places, lease_ms, weight, fence, env, by)

    def enough() -> bool:
        return votes.sure_until(fence, sent) > sent + lease_ms / 2000

    yield Scatter(places, make, by, asked.hear, enough)


def _wait_at_door(votes: Votes, door: int, listening: int, ends_at: float, fleet: Fleet) -> Flow[None]:
    """Wait for the push by which the door gives its vote; or until it is time to ask it again."""
    ask, position, due_ms = votes.ask, votes.positions[door], votes.dues_ms[door]
    node = fleet.nodes[door]
    try:
        push = yield from wait_for_push(ask.name, votes.tickets[door], position, due_ms, ends_at, listening, node.env)
    except Refused as refusal:  # of new connections, by which pushes come: others make a majority, and another door
        node.fell_silent(str(refusal), refusal.code)
        yield Sleep(0.05 + 0.1 * node.env.jitter())
        return
    if push is None:
        return
    kind, number = push
    if kind == "refused":
        raise Refused(f"{ask.name.shown!r}: it wants {ask.weight}, the limit is {number} now", code="LIMIT")
    votes.pushed(door, number)


def _give_up(votes: Votes, places: list[int], env: Env, fleet: Fleet, waits: bool = False) -> Flow[None]:
    """Take back what these servers may have voted.

    waits: until those that are well have confirmed it, for a moment at most.
    """
    asked = [place for place in places if votes.may_stand(place)]
    if not asked:
        return
    moment = env.now()
    by = moment + min(UNDO_S, fleet.node_timeout_s)
    well = fleet.ready(moment) if waits else []
    left = len([place for place in asked if place in well])

    def make(lines: Sequence[object]) -> list[tuple[int, Call]]:
        requests = votes.leaves(asked, lines, by)
        votes.forget(asked)
        return requests

    def hear(index: int, _reply: object) -> None:
        nonlocal left
        if asked[index] in well:
            left -= 1

    try:
        yield Scatter(asked, make, by, hear, lambda: left <= 0, behind=True)
    except LockfastError:
        pass  # a vote ends with its lease
