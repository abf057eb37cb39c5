"""The votes for one acquire, and later for one hold: what each server was asked, and what it said."""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, Any

from lockfast.errors import Unreachable
from lockfast.flows.admission import deadline_of, leave_of
from lockfast.flows.effects import Call
from lockfast.flows.scripts import VOTE, Bound

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

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
        self.replies: list[Any] = [None] * count  # of this round: a code, or an error; None: not asked, or no answer
        self.is_wanted = False  # a server told that the holder is asked to let go
        self._owed = [0] * count  # requests that were not answered
        self._lines: list[object] = [None] * count  # the connection that the last request went out on
        self._unsure = [False] * count  # a request may still run that a `leave` could overtake

    def vote(self, place: int, lease_ms: int, weight: int, proposal: int, env: Env, by: float) -> Call:
        """The request for a vote, or to keep it."""
        ask = self.ask
        bound = ask.vote(env) if lease_ms == ask.lease_ms and weight == ask.weight else None
        if bound is None:
            bound = Bound(VOTE, ask.name, (ask.kind, ask.limit, weight, lease_ms + ask.grace_ms, env.owner))
        return Call(bound, (proposal, self.tickets[place]), by)

    def begin(self, places: list[int], lines: Sequence[object]) -> None:
        """A new round, in which these are asked, over these connections."""
        self.round += 1
        self.replies = [None] * len(self.replies)
        for place in places:
            self._unsure[place] = self.is_unsure(place, lines)
            self._lines[place] = lines[place]
            self.asked[place] = True
            self._owed[place] += 1

    def cancel(self, places: list[int]) -> None:
        """The round that was begun is not asked for after all."""
        for place in places:
            self._owed[place] -= 1

    def hearer(self, places: list[int], sent: float) -> Callable[[int, Any], None]:
        """What hears the replies to the requests of the next round, sent at `sent`, the first to places[0]."""
        number, tickets = self.round + 1, [self.tickets[place] for place in places]

        def hear(index: int, reply: Any) -> None:
            place = places[index]
            if self.tickets[place] != tickets[index]:
                return  # it was taken back meanwhile
            self._owed[place] -= 1
            code: Any = reply
            if not isinstance(reply, BaseException):
                code = self._count(place, reply, sent)
            elif isinstance(reply, Unreachable) and reply.sent:
                self._unsure[place] = True
            if number == self.round:
                self.replies[place] = code

        return hear

    def _count(self, place: int, reply: Any, sent: float) -> int:
        ask = self.ask
        if type(reply) is int:  # `admit`: it holds from now on, with the whole lease
            code, fence, ms = 1, reply, ask.lease_ms + ask.grace_ms
            self.positions[place] = 0
        else:
            code, fence, ms, last = reply
            if last < 1_000_000_000:  # of `admit`: the position
                self.positions[place] = last
            else:
                self.positions[place] = 0
                self._fleet.nodes[place].told_time(last, sent)
        if code >= 1:
            self.fences[place] = fence
            self.deadlines[place] = max(self.deadlines[place], deadline_of(sent, ms - ask.grace_ms))
            self.is_wanted = self.is_wanted or code == 2
        else:
            self.fences[place] = fence
            self.deadlines[place] = -inf
            self.dues_ms[place] = ms
        return code

    def pushed(self, place: int, fence: int, sent: float) -> None:
        """A server pushed its vote; the place in its queue was last asked for at `sent`."""
        if fence > self.fences[place]:  # else it belongs to an earlier life of the ticket
            self.fences[place] = fence
            self.deadlines[place] = deadline_of(sent, self.ask.lease_ms)
            self.positions[place] = 0

    def granted(self, fence: int, moment: float) -> list[int]:
        """Whose votes count at this moment, and have at least this fence."""
        return [
            place
            for place, deadline in enumerate(self.deadlines)
            if deadline > moment and self.fences[place] >= fence and self._fleet.is_counted(place, moment)
        ]

    def sure_until(self, fence: int, moment: float) -> float:
        """Until when a majority has voted for it; -inf when there is none."""
        ends = sorted((self.deadlines[place] for place in self.granted(fence, moment)), reverse=True)
        majority = self._fleet.majority
        return ends[majority - 1] if len(ends) >= majority else -inf

    def where(self, moment: float) -> tuple[str, ...]:
        """The servers whose votes count at this moment."""
        return tuple(self._fleet.nodes[place].where for place in self.granted(0, moment))

    def leaves(self, places: list[int], lines: Sequence[object], by: float) -> list[tuple[int, Call]]:
        """The requests that take the votes back."""
        return [
            (place, Call(leave_of(self.ask, self.is_unsure(place, lines)), (self.tickets[place],), by))
            for place in places
        ]

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
