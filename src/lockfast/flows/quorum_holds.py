"""What follows an acquire by majority: votes are kept, and taken back in the end."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lockfast.errors import LockfastError, Refused, Unreachable
from lockfast.flows import renewal
from lockfast.flows.effects import Scatter, backoff
from lockfast.flows.votes import Round
from lockfast.grants import HELD

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lockfast.flows.effects import Call, Env, Flow
    from lockfast.flows.fleet import Fleet
    from lockfast.flows.votes import Votes
    from lockfast.grants import Hold

ANEW = 3  # what a server answers that did not know of the vote
LOST = "a majority of the servers no longer knows it (broken, flushed, or restarted empty)"


def renew_all(due: list[Hold], env: Env) -> Flow[list[Hold]]:
    """Have the votes of each hold kept, all in one trip, and tell it what came of it. Returns the unanswered ones.

    Servers that have not voted for a hold, or have forgotten it, are asked for their vote as well.
    """
    assert env.fleet is not None
    sent = env.now()
    places = env.fleet.ready(sent)
    rounds = [_Renewal(hold, env, places, sent, hold.lease_ms) for hold in due]
    yield _scatter(rounds, places, sent, env, min(hold.deadline for hold in due))
    return [hold for hold, asked in zip(due, rounds, strict=True) if not asked.settle()]


def extend(hold: Hold, lease_ms: int, env: Env) -> Flow[None]:
    """Renew one hold now, trying as long as it is sure.

    Raises LeaseLost, NotHeld, Unreachable, or ValueError for a lease that is longer than the quorum allows.
    """
    assert env.fleet is not None
    hold.check()
    env.fleet.check(lease_ms + hold.ask.grace_ms)
    hold.lease_ms = lease_ms
    gives_up_at = min(env.now() + env.timeout_s, hold.deadline)
    failures = 0
    while True:
        sent = env.now()
        places = env.fleet.ready(sent)
        asked = _Renewal(hold, env, places, sent, lease_ms)
        yield _scatter([asked], places, sent, env, gives_up_at)
        if asked.settle():
            hold.check()
            return
        failures += 1
        if env.now() >= gives_up_at:
            hold.check()  # if it is over by now, that is what the caller must hear
            raise env.fleet.too_few(hold.ask.name.shown, asked.heard(), env.now())
        yield backoff(failures, gives_up_at, env)


class _Renewal:
    """One renewal of one hold."""

    def __init__(self, hold: Hold, env: Env, places: list[int], sent: float, lease_ms: int) -> None:
        assert env.fleet is not None
        assert hold.votes is not None
        self._hold = hold
        self._fleet: Fleet = env.fleet
        self._votes: Votes = hold.votes
        self.sent = sent
        self._lease_ms = lease_ms if hold.max_hold_s is None else renewal.bounded(lease_ms, hold.ends_at - sent)
        self._weight = hold.ask.weight  # a server that has not heard of a downgrade hears of it here
        self._had = [deadline > sent for deadline in hold.votes.deadlines]
        # Votes that were asked for, and may have been given: the answer was not waited for.
        self._doubtful = len([p for p, had in enumerate(self._had) if not had and hold.votes.is_owed(p)])
        self._round = Round(hold.votes, places, sent, self._lease_ms)
        self._least = hold.fence if self._weight == hold.ask.limit else 0
        self._worked: bool | None = None  # what `settle` has told, once it has

    def requests(self, lines: Sequence[object], env: Env, by: float) -> list[tuple[int, Call]]:
        votes, places = self._votes, self._round.places
        self._round.begin(lines)
        # In this order: a release in another thread either finds these under way, or is seen here.
        if self._hold.state is not HELD:
            votes.cancel(places)
            return []
        return votes.requests(places, self._lease_ms, self._weight, self._hold.fence, env, by)

    def hear(self, index: int, reply: Any) -> None:
        self._round.hear(index, reply)
        # Not at the end of the trip: others in it may be waited for until this hold's own deadline.
        if self._worked is None and self._hold.state is HELD and self.is_decided():
            self.settle()

    def is_decided(self) -> bool:
        return (
            self._worked is not None
            or self._hold.state is not HELD
            or self._said_yes() >= self._fleet.majority
            or self._is_gone()
        )

    def _said_yes(self) -> int:
        replies, fleet = self._round.replies, self._fleet
        return len(
            [
                place
                for place, code in enumerate(replies)
                if type(code) is int
                and code >= 1
                and fleet.is_counted(place, self.sent)
                and not (code == ANEW and self._had[place])  # who forgot once is believed in the next round
            ]
        )

    def _is_gone(self) -> bool:
        """Whether too few are left that may have kept their votes.

        A server that had voted and gives its vote anew has forgotten it: in between, others may have had it. (Not of
        one that restarted: nobody counted it since.)
        """
        without = forgot = 0
        for place, code in enumerate(self._round.replies):
            if type(code) is int and (code < 1 or (code == ANEW and self._had[place])):
                without += 1
                forgot += self._had[place] and self._fleet.is_counted(place, self.sent)
        majority = self._fleet.majority
        return len(self._had) - without < majority or sum(self._had) + self._doubtful - forgot < majority

    def heard(self) -> dict[int, Any]:
        """What came of each request."""
        return dict(enumerate(self._round.replies))

    def settle(self) -> bool:
        """Tell the hold what came of it, once. False when too few have answered."""
        if self._worked is None:
            self._worked = self._settle()
        return self._worked

    def _settle(self) -> bool:
        hold, votes = self._hold, self._votes
        if self._is_gone():
            hold.lose(LOST)
            return True
        hold.renewed(votes.sure_until(self._least, self.sent))
        if votes.is_wanted:
            hold.revoke()
        if self._said_yes() >= self._fleet.majority:
            if hold.is_failing:
                hold.renewal_worked()
            return True
        hold.renewal_failed(self._fleet.too_few(hold.ask.name.shown, self.heard(), self.sent, votes.owed))
        return False


def _scatter(rounds: list[_Renewal], places: list[int], sent: float, env: Env, gives_up_at: float) -> Scatter:
    by = max(sent + 0.05, min(sent + env.attempt_s, gives_up_at))
    order: list[tuple[int, int]] = []  # which of the rounds, and which of its requests, each one is

    def make(lines: Sequence[object]) -> list[tuple[int, Call]]:
        made = [asked.requests(lines, env, by) for asked in rounds]
        # All that goes to one server stands together, so that it is written at once.
        order.extend((number, at) for at in range(len(places)) for number, calls in enumerate(made) if calls)
        return [made[number][at] for number, at in order]

    def hear(index: int, reply: Any) -> None:
        number, at = order[index]
        rounds[number].hear(at, reply)

    return Scatter(places, make, by, hear, lambda: all(asked.is_decided() for asked in rounds))


def leave(hold: Hold, env: Env, sent_before: bool, patience_s: float | None = None) -> Flow[bool]:
    """Take all votes back. True when a majority stood until now; the rest is as for admission.leave.

    It is done when those that are free of it are a majority: then the next one can be let in. Raises Refused when too
    many refuse for that.
    """
    votes, fleet = hold.votes, env.fleet
    assert votes is not None
    assert fleet is not None
    started = env.now()
    gives_up_at = started + (env.timeout_s if patience_s is None else patience_s)
    # The door hears it last: whom it lets in finds the others free.
    door = fleet.door(hold.ask.name.shown, fleet.everywhere)
    if not fleet.is_ready(door, started):
        door = fleet.door(hold.ask.name.shown, fleet.ready(started))
    places = votes.standing(door)
    elsewhere = len(fleet.nodes) - len(places)  # servers that have nothing to take back
    found: dict[int, Any] = {}
    failures = 0
    moment = started
    while True:
        by = min(moment + min(max(fleet.node_timeout_s, 0.05) * 2**failures, env.attempt_s), gives_up_at)
        missing = [place for place in places if place not in found] if found else places
        needed = fleet.majority - elsewhere - len(found)
        leaving = _Leaving(votes, missing, by, needed)
        yield Scatter(missing, leaving.make, by, leaving.hear, leaving.enough, behind=True)
        heard = dict(leaving.heard)  # late ones do not count: what came of it is decided here
        for place, reply in heard.items():
            if not isinstance(reply, BaseException):
                found[place] = reply
            elif not isinstance(reply, Unreachable) or reply.sent:
                sent_before = True
        if elsewhere + len(found) >= fleet.majority:
            gone = len([reply for reply in found.values() if reply != 1])
            return len(places) - gone >= fleet.majority or sent_before
        refusals = [reply for reply in heard.values() if isinstance(reply, Refused)]
        if len(missing) - len(refusals) < needed:
            raise refusals[0]  # they would say the same again: who waits, waits in vain
        # Who has not answered in time may have done it: asked once more, it finds nothing, which is no loss.
        sent_before = sent_before or len(heard) < len(missing)
        failures += 1
        moment = env.now()
        if moment >= gives_up_at:
            failure: LockfastError = fleet.too_few(hold.ask.name.shown, heard, moment)
            raise Unreachable(f"{failure} (release of {hold.ask.name.shown!r})", sent=True) from None
        yield backoff(failures, gives_up_at, env)
        moment = env.now()


class _Leaving:
    """Requests that take votes back, until so many servers have confirmed it, or too many have refused."""

    __slots__ = ("_answers", "_by", "_needed", "_places", "_refusals", "_votes", "heard")

    def __init__(self, votes: Votes, places: list[int], by: float, needed: int) -> None:
        self._votes = votes
        self._places = places
        self._by = by
        self._needed = needed
        self._answers = self._refusals = 0
        self.heard: dict[int, Any] = {}  # by server: an answer, or the error that it came to

    def make(self, lines: Sequence[object]) -> list[tuple[int, Call]]:
        return self._votes.leaves(self._places, lines, self._by)

    def hear(self, index: int, reply: Any) -> None:
        self.heard[self._places[index]] = reply
        if not isinstance(reply, BaseException):
            self._answers += 1
        elif isinstance(reply, Refused):
            self._refusals += 1

    def enough(self) -> bool:
        return self._answers >= self._needed or len(self._places) - self._refusals < self._needed
