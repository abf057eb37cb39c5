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
        "_is_renamed",
        "_lines",
        "_ticket",
        "ask",
        "asked",
        "deadlines",
        "dues_ms",
        "fences",
        "fleet",
        "is_wanted",
        "owed",
        "placed_at",
        "positions",
        "replies",
        "round",
        "tickets",
        "unsure",
        "voted_at",
    )

    def __init__(self, ask: Ask, ticket: str, fleet: Fleet) -> None:
        count = len(fleet.nodes)
        self.ask = ask
        self.fleet = fleet
        self._ticket = ticket
        self.round = 0
        self.tickets = [ticket] * count  # never changed in place: a round keeps what it has asked by
        self._is_renamed = False  # whether one of them is another
        self.asked = [False] * count  # whether the server may know the ticket
        self.fences = [0] * count
        self.deadlines = [-inf] * count  # until when each vote is sure
        self.dues_ms = [0] * count  # when a lease of others ends there
        self.positions = [0] * count  # the place in the queue of a server that was asked to keep one
        self.placed_at = [-inf] * count  # when the request was sent that was last answered with a place
        self.voted_at = [-inf] * count  # when the newest request was sent that was answered with a vote
        self.replies: list[Any] = [None] * count  # of the last round
        self.is_wanted = False  # a server told that the holder is asked to let go
        self.owed = [0] * count  # requests that were not answered
        self._lines: list[object] = [None] * count  # the connection that the last request went out on
        self.unsure = [False] * count  # a request may still run that a `leave` could overtake

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
        if not self._is_renamed:
            call = Call(bound, (proposal, self._ticket), by)
            return [(place, call) for place in places]
        calls = {ticket: Call(bound, (proposal, ticket), by) for ticket in set(tickets)}
        return [(place, calls[tickets[place]]) for place in places]

    def begin(self, places: list[int], lines: Sequence[object], replies: list[Any]) -> None:
        """A new round, in which these are asked, over these connections."""
        self.round += 1
        self.replies = replies
        if self.round == 1 and places is self.fleet.everywhere:  # what follows, where nothing was asked before
            count = len(places)
            self._lines, self.asked, self.owed = list(lines), [True] * count, [1] * count
            return
        for place in places:
            self.unsure[place] = self.is_unsure(place, lines)
            self._lines[place] = lines[place]
            self.asked[place] = True
            self.owed[place] += 1

    def cancel(self, places: list[int]) -> None:
        """The round that was begun is not asked for after all."""
        for place in places:
            self.owed[place] -= 1

    def pushed(self, place: int, fence: int) -> None:
        """A server pushed its vote, to a place in its queue."""
        if fence > self.fences[place]:  # else it belongs to an earlier life of the ticket
            self.fences[place] = fence
            # It was given after the last request that was answered with a place; maybe before one that was not.
            self.deadlines[place] = deadline_of(self.placed_at[place], self.ask.lease_ms)
            self.positions[place] = 0

    def granted(self, fence: int, moment: float) -> list[int]:
        """Whose votes count at this moment, and have at least this fence."""
        fences, nodes = self.fences, self.fleet.nodes
        return [
            place
            for place, deadline in enumerate(self.deadlines)
            if deadline > moment and fences[place] >= fence and nodes[place].counts_at <= moment
        ]

    def sure_until(self, fence: int, moment: float) -> float:
        """Until when a majority has voted for it; -inf when there is none."""
        deadlines = self.deadlines
        ends = sorted([deadlines[place] for place in self.granted(fence, moment)], reverse=True)
        majority = self.fleet.majority
        return ends[majority - 1] if len(ends) >= majority else -inf

    def where(self, moment: float) -> tuple[str, ...]:
        """The servers whose votes count at this moment."""
        return tuple(self.fleet.nodes[place].where for place in self.granted(0, moment))

    def leaves(self, places: list[int], lines: Sequence[object], by: float) -> list[tuple[int, Call]]:
        """The requests that take the votes back; one Call for those that are the same."""
        # Nothing that was lost, and all over the connections of the last round: nobody is unsure.
        if not self._is_renamed and True not in self.unsure and self._lines == lines:
            call = Call(self.ask.leave, (self._ticket,), by)
            return [(place, call) for place in places]
        calls: dict[tuple[str, bool], Call] = {}
        made = []
        for place in places:
            ticket, unsure = self.tickets[place], self.is_unsure(place, lines)
            if (ticket, unsure) not in calls:
                calls[ticket, unsure] = Call(leave_of(self.ask, unsure), (ticket,), by)
            made.append((place, calls[ticket, unsure]))
        return made

    def is_owed(self, place: int) -> bool:
        """Whether a server has not answered all that it was asked."""
        return self.owed[place] > 0

    def standing(self, last: int) -> list[int]:
        """The servers that may have something to take back, with this one at the end."""
        places = [place for place in self.fleet.everywhere if place != last and self.may_stand(place)]
        return [*places, last] if self.may_stand(last) else places

    def may_stand(self, place: int) -> bool:
        """Whether a server may have something to take back: not if it was not asked, or has said no since."""
        return self.asked[place] and (
            self.deadlines[place] > -inf or self.positions[place] > 0 or self.owed[place] > 0 or self.unsure[place]
        )

    def is_unsure(self, place: int, lines: Sequence[object]) -> bool:
        """Whether a request to this server may still run, later than one that goes out on these connections."""
        return self.unsure[place] or (self.owed[place] > 0 and self._lines[place] is not lines[place])

    def forget(self, places: list[int]) -> None:
        """A `leave` was sent to these: what they said counts no more, and they are asked anew by another ticket.

        Another thread may be hearing a late reply to the old one at this moment. So the lists are exchanged, behind the
        tickets: who has found an old ticket valid writes to lists that nobody reads any more. See `Round.hear`.
        """
        gone = [place for place in places if self.asked[place]]  # else the ticket was never sent
        tickets = list(self.tickets)
        for place in gone:
            tickets[place] = f"{self._ticket}~{self.round}"
        self.tickets, self._is_renamed = tickets, True
        deadlines, positions, owed = list(self.deadlines), list(self.positions), list(self.owed)
        for place in gone:
            self.asked[place] = self.unsure[place] = False
            deadlines[place], positions[place], owed[place] = -inf, 0, 0
        self.fences = list(self.fences)
        self.deadlines, self.positions, self.owed = deadlines, positions, owed


class Round:
    """Requests to several servers at once, all of them about one ticket, and what comes back.

    fence: the one that the votes are to have.
    """

    __slots__ = (
        "_nodes", "_tickets", "_votes", "_whole_ms",
        "agreed", "deadline", "fence", "no", "places", "replies", "sent", "yes",
    )  # fmt: skip

    def __init__(self, votes: Votes, places: list[int], sent: float, lease_ms: int, fence: int = 0) -> None:
        self._votes = votes
        self._nodes = votes.fleet.nodes
        self._tickets = votes.tickets
        self.fence = fence
        self._whole_ms = lease_ms + votes.ask.grace_ms  # what a server is asked for
        self.places = places
        self.sent = sent
        self.deadline = deadline_of(sent, lease_ms)
        # By server: a code, or an error; None: not asked, or no answer.
        self.replies: list[Any] = [None] * len(votes.tickets)
        self.yes = 0  # votes that count
        self.agreed = 0  # those among them that have the fence, and the whole lease
        self.no = 0  # whatever else was said

    def begin(self, lines: Sequence[object]) -> None:
        """It is about to be written, to these connections."""
        self._votes.begin(self.places, lines, self.replies)

    def hear(self, index: int, reply: Any) -> None:
        """The reply to its request to places[index]; or the error that it came to."""
        place, votes, sent = self.places[index], self._votes, self.sent
        # Before the tickets are looked at: see `Votes.forget`.
        fences, deadlines, positions, owed = votes.fences, votes.deadlines, votes.positions, votes.owed
        if votes.tickets is not self._tickets and votes.tickets[place] != self._tickets[place]:
            return  # it was taken back meanwhile
        node = self._nodes[place]
        if type(reply) is list:
            code, fence, ms, last = reply
            if last < 1_000_000_000:  # of `admit`: the position
                positions[place] = last
                votes.placed_at[place] = sent
            else:
                if code > 0 or code == -1:  # any other no to `vote` says nothing of a place that an `admit` has taken
                    positions[place] = 0
                node.told_time(last, sent, node.env.now())
        elif type(reply) is int:  # `admit`: it holds from now on, with the whole lease
            code, fence, ms = 1, reply, self._whole_ms
            positions[place] = 0
        else:
            if isinstance(reply, Unreachable) and reply.sent:
                votes.unsure[place] = True
            self.replies[place] = reply
            self.no += 1
            owed[place] -= 1
            return
        self.replies[place] = code
        if code < 1:
            if sent >= votes.voted_at[place]:  # else it was overtaken by a vote
                fences[place] = fence
                deadlines[place] = -inf
                votes.dues_ms[place] = ms
            self.no += 1
            owed[place] -= 1
            return
        fences[place] = fence
        if sent > votes.voted_at[place]:
            votes.voted_at[place] = sent
        # Never more than was asked for: a server whose clock stepped back sees more left than there is.
        deadline = self.deadline if ms >= self._whole_ms else deadline_of(sent, ms - votes.ask.grace_ms)
        if deadline > deadlines[place]:
            deadlines[place] = deadline
        owed[place] -= 1  # last: who is interrupted before that has it taken back
        if code == 2:
            votes.is_wanted = True
        if node.counts_at > sent:
            self.no += 1
            return
        self.yes += 1
        if fence == self.fence and deadline == self.deadline:
            self.agreed += 1
