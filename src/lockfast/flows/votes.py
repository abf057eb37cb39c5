"""The votes for one acquire, and later for one hold: what each server was asked, and what it said."""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, Any

from lockfast.errors import Unreachable
from lockfast.flows.admission import deadline_of, leave_of
from lockfast.flows.effects import Call
from lockfast.flows.scripts import VOTE, Bound

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lockfast.flows.asks import Ask
    from lockfast.flows.effects import Env
    from lockfast.flows.fleet import Fleet


class Votes:
    """One ticket's standing with every server.

    After a `leave` a ticket is never sent again, so that a late `leave` cannot take a vote away that was given since:
    a server that is asked once more is asked in the name of another ticket, `ticket~round`.
    """

    __slots__ = (
        "_fleet",
        "_lines",
        "_owed",
        "_ticket",
        "_unsure",
        "ask",
        "asked",
        "deadlines",
        "dues_ms",
        "fences",
        "is_wanted",
        "placed_at",
        "positions",
        "replies",
        "round",
        "tickets",
    )

    def __init__(self, ask: Ask, ticket: str, fleet: Fleet) -> None:
        count = len(fleet.nodes)
        self.ask = ask
        self._fleet = fleet
        self._ticket = ticket
        self.round = 0
        self.tickets = [ticket] * count
        self.asked = [False] * count  # whether the server may know the ticket
        self.fences = [0] * count
        self.deadlines = [-inf] * count  # until when each vote is sure
        self.dues_ms = [0] * count  # when a lease of others ends there
        self.positions = [0] * count  # the place in the queue of a server that was asked to keep one
        self.placed_at = [-inf] * count  # when the request was sent that was last answered with a place
        self.replies: list[Any] = [None] * count  # of the last round
        self.is_wanted = False  # a server told that the holder is asked to let go
        self._owed = [0] * count  # requests that were not answered
        self._lines: list[object] = [None] * count  # the connection that the last request went out on
        self._unsure = [False] * count  # a request may still run that a `leave` could overtake

    def requests(
        self, places: list[int], lease_ms: int, weight: int, proposal: int, env: Env, by: float
    ) -> list[tuple[int, Call]]:
        """The requests for votes, or to keep them. What is the same for several servers is one Call: packed once."""
        ask = self.ask
        if lease_ms == ask.lease_ms and weight == ask.weight:
            bound = ask.vote(env)
        else:
            bound = Bound(VOTE, ask.name, (ask.kind, ask.limit, weight, lease_ms + ask.grace_ms, env.owner))
        tickets = self.tickets
        calls = {ticket: Call(bound, (proposal, ticket), by) for ticket in set(tickets)}
        return [(place, calls[tickets[place]]) for place in places]

    def begin(self, places: list[int], lines: Sequence[object], replies: list[Any]) -> None:
        """A new round, in which these are asked, over these connections."""
        self.round += 1
        self.replies = replies
        for place in places:
            self._unsure[place] = self.is_unsure(place, lines)
            self._lines[place] = lines[place]
            self.asked[place] = True
            self._owed[place] += 1

    def cancel(self, places: list[int]) -> None:
        """The round that was begun is not asked for after all."""
        for place in places:
            self._owed[place] -= 1

    def hear(self, place: int, ticket: str, reply: Any, sent: float, lease_ms: int) -> Any:
        """What a server says to a request of this ticket: a code, or the error that it came to."""
        if self.tickets[place] != ticket:
            return None  # it was taken back meanwhile
        self._owed[place] -= 1
        if not isinstance(reply, BaseException):
            return self._count(place, reply, sent, lease_ms)
        if isinstance(reply, Unreachable) and reply.sent:
            self._unsure[place] = True
        return reply

    def _count(self, place: int, reply: Any, sent: float, lease_ms: int) -> int:
        ask = self.ask
        if type(reply) is int:  # `admit`: it holds from now on, with the whole lease
            code, fence, ms = 1, reply, ask.lease_ms + ask.grace_ms
            self.positions[place] = 0
        else:
            code, fence, ms, last = reply
            if last < 1_000_000_000:  # of `admit`: the position
                self.positions[place] = last
                self.placed_at[place] = sent
            else:
                self.positions[place] = 0
                node = self._fleet.nodes[place]
                node.told_time(last, sent, node.env.now())
        if code >= 1:
            self.fences[place] = fence
            # Never more than was asked for: a server whose clock stepped back sees more left than there is.
            deadline = deadline_of(sent, min(ms - ask.grace_ms, lease_ms))
            self.deadlines[place] = max(self.deadlines[place], deadline)
            self.is_wanted = self.is_wanted or code == 2
        else:
            self.fences[place] = fence
            self.deadlines[place] = -inf
            self.dues_ms[place] = ms
        return code

    def pushed(self, place: int, fence: int) -> None:
        """A server pushed its vote, to a place in its queue."""
        if fence > self.fences[place]:  # else it belongs to an earlier life of the ticket
            self.fences[place] = fence
            # It was given after the last request that was answered with a place; maybe before one that was not.
            self.deadlines[place] = deadline_of(self.placed_at[place], self.ask.lease_ms)
            self.positions[place] = 0

    def granted(self, fence: int, moment: float) -> list[int]:
        """Whose votes count at this moment, and have at least this fence."""
        fences, nodes = self.fences, self._fleet.nodes
        return [
            place
            for place, deadline in enumerate(self.deadlines)
            if deadline > moment and fences[place] >= fence and nodes[place].counts_at <= moment
        ]

    def sure_until(self, fence: int, moment: float) -> float:
        """Until when a majority has voted for it; -inf when there is none."""
        deadlines = self.deadlines
        ends = sorted([deadlines[place] for place in self.granted(fence, moment)], reverse=True)
        majority = self._fleet.majority
        return ends[majority - 1] if len(ends) >= majority else -inf

    def where(self, moment: float) -> tuple[str, ...]:
        """The servers whose votes count at this moment."""
        return tuple(self._fleet.nodes[place].where for place in self.granted(0, moment))

    def leaves(self, places: list[int], lines: Sequence[object], by: float) -> list[tuple[int, Call]]:
        """The requests that take the votes back; one Call for those that are the same."""
        calls: dict[tuple[str, bool], Call] = {}
        made = []
        for place in places:
            ticket, unsure = self.tickets[place], self.is_unsure(place, lines)
            call = calls.get((ticket, unsure))
            if call is None:
                call = calls[ticket, unsure] = Call(leave_of(self.ask, unsure), (ticket,), by)
            made.append((place, call))
        return made

    def is_owed(self, place: int) -> bool:
        """Whether a server has not answered all that it was asked."""
        return self._owed[place] > 0

    def may_stand(self, place: int) -> bool:
        """Whether a server may have something to take back: not if it was not asked, or has said no since."""
        return self.asked[place] and (
            self.deadlines[place] > -inf or self.positions[place] > 0 or self._owed[place] > 0 or self._unsure[place]
        )

    def is_unsure(self, place: int, lines: Sequence[object]) -> bool:
        """Whether a request to this server may still run, later than one that goes out on these connections."""
        return self._unsure[place] or (self._owed[place] > 0 and self._lines[place] is not lines[place])

    def forget(self, places: list[int]) -> None:
        """A `leave` was sent to these: what they said counts no more, and they are asked anew by another ticket."""
        for place in places:
            if self.asked[place]:  # else the ticket was never sent
                self.tickets[place] = f"{self._ticket}~{self.round}"
                self.asked[place] = self._unsure[place] = False
                self._owed[place] = 0
                self.deadlines[place], self.positions[place] = -inf, 0


class Round:
    """Requests to several servers at once, all of them about one ticket, and what comes back."""

    __slots__ = ("_lease_ms", "_tickets", "_votes", "places", "replies", "sent")

    def __init__(self, votes: Votes, places: list[int], sent: float, lease_ms: int) -> None:
        self._votes = votes
        self._lease_ms = lease_ms
        self._tickets = [votes.tickets[place] for place in places]
        self.places = places
        self.sent = sent
        # By server: a code, or an error; None: not asked, or no answer.
        self.replies: list[Any] = [None] * len(votes.tickets)

    def begin(self, lines: Sequence[object]) -> None:
        """It is about to be written, to these connections."""
        self._votes.begin(self.places, lines, self.replies)

    def hear(self, index: int, reply: Any) -> None:
        """The reply to its request to places[index]."""
        place = self.places[index]
        self.replies[place] = self._votes.hear(place, self._tickets[index], reply, self.sent, self._lease_ms)
