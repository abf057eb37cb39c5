"""Several asks as one: their order, and the two scripts by which free names are taken and given back all at once.

Names of one kind, limit and lease that are free and wanted whole are taken by one script for all (`admit_all`), which
changes nothing when one of them is not that simple, and given back by another. Neither is a second protocol: they do
what `admit` and `leave` would do for each. A driver may send these requests by itself, and needs the flow, that of
several.py, only if `at_once` or `end` has no use for the reply.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from lockfast.flows.admission import MARGIN_S, SURE_S_PER_MS
from lockfast.flows.effects import Call
from lockfast.flows.scripts import ADMIT_ALL, LEAVE_ALL, Bound
from lockfast.grants import HELD, LEAVING, RELEASED
from lockfast.names import Names

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from lockfast.flows.admission import Held
    from lockfast.flows.asks import Ask
    from lockfast.flows.effects import Env
    from lockfast.flows.ending import Keeps
    from lockfast.grants import Hold

MOST_AT_ONCE = 100  # names that one script takes: it keeps the server from everything else meanwhile


def tally(count: int) -> list[str]:
    """What the tickets of so many names have behind their stem, as admit_all.lua spells it."""
    return ["-" + "i" * (place + 1) for place in range(count)]


class Asks:
    """Several asks, in the one order in which everybody asks and waits: that of their keys."""

    __slots__ = ("_give", "_me", "_names", "_take", "_use", "in_order", "marks", "named", "order", "shown", "simple")

    def __init__(self, asks: Sequence[Ask]) -> None:
        self.order = sorted(range(len(asks)), key=lambda place: asks[place].name.keys[0])
        self.in_order = [asks[place] for place in self.order]
        first = asks[0]
        alike = all(_what(ask) == _what(first) for ask in asks)
        self.simple = alike and first.weight == first.limit and len(asks) <= MOST_AT_ONCE
        self.marks = tally(len(asks)) if self.simple else [f"-{place}" for place in range(len(asks))]
        marked = dict(zip(self.in_order, self.marks, strict=True))
        self.named = [(ask, marked[ask]) for ask in asks]  # each with what its first ticket ends with
        self.shown = [ask.name.shown for ask in asks]
        self._names = Names(ask.name for ask in self.in_order)
        self._use = f"{first.kind} {first.limit}"
        self._me: tuple[str, str] | None = None
        self._take = self._give = Bound(LEAVE_ALL, self._names, (self._use,))

    def tickets(self, stem: str) -> dict[Ask, str]:
        """The tickets by which they are asked for at first, in order."""
        return {ask: stem + mark for ask, mark in zip(self.in_order, self.marks, strict=True)}

    def take(self, stem: str, env: Env, by: float) -> Call | None:
        """The request that takes all of them at once; None when the server would say that it is not that simple."""
        if not self.simple or env.sharded or env.fleet is not None:
            return None
        try:
            seen = max(map(env.seen.__getitem__, self.shown))
        except KeyError:
            return None  # never used, as far as this client knows: then the server has no state of it
        if self._me is not env.me:  # a forked child is another
            ask = self.in_order[0]
            self._take = Bound(ADMIT_ALL, self._names, (self._use, ask.lease_ms + ask.grace_ms, env.owner))
            self._me = env.me  # last: another thread that sees it finds the binding in place
        return Call(self._take, (seen, stem), by)

    def give(self, stem: str, fence: int, by: float) -> Call:
        """The request that gives back what `take` has taken."""
        return Call(self._give, (fence, stem), by)

    def give_each(self, holds: Sequence[Hold], env: Env, by: float) -> Call | None:
        """The same for names that were granted one by one; None unless that was by the tickets they had at first.

        holds: in the order they were named.
        """
        if not self.simple or env.sharded or env.fleet is not None or len(holds) != len(self.named):
            return None
        stem = holds[0].ticket.rpartition("-")[0]
        for hold, (_, mark) in zip(holds, self.named, strict=True):
            if hold.ticket != stem + mark or hold.unsure:
                return None
        return Call(self._give, (" ".join([str(holds[place].fence) for place in self.order]), stem), by)


def _what(ask: Ask) -> tuple[str | int, ...]:
    return ask.kind, ask.limit, ask.weight, ask.lease_ms, ask.grace_ms


class Holder(Protocol):
    """What flows of several names need of a client besides its requests."""

    @property
    def keeper(self) -> Keeps: ...

    def new_ticket(self) -> str: ...

    def keep(self, ask: Ask, ticket: str, held: Held) -> Hold:
        """Make a hold of what was granted, and renew it from now on: waiting for the others may take long."""
        ...


def at_once(asks: Asks, reply: Any, sent: float, env: Env) -> Held | None:
    """What is held of each, if the reply to `take` grants all of them with the whole lease; else None.

    See admission.at_once.
    """
    if type(reply) is not int or not reply:
        return None
    ask = asks.in_order[0]
    deadline = sent + ask.lease_ms * SURE_S_PER_MS - MARGIN_S
    if deadline - env.now() < ask.lease_s / 2:
        return None
    env.seen.learn_all(asks.shown, reply)
    return reply, deadline, False


def begin(holds: Sequence[Hold], keeper: Keeps, moment: float) -> bool:
    """Decide to give all of them back, as ending.begin does for one. False, and nothing is done, unless all are sure.

    moment: what time it is.
    """
    era = holds[0].era
    if era.ended:
        return False
    begun: Sequence[Hold] = ()
    listeners: list[Callable[[], object]] = []
    try:
        with era.mutex:
            for hold in holds:
                if hold.state is not HELD or moment >= hold.deadline:
                    return False
            begun = holds
            for hold in holds:
                hold.state = LEAVING
                hold.leaving = 1  # while it is held, nobody gives it back
                if hold.on_end:
                    listeners += hold.on_end
                    hold.on_end = ()
        for listener in listeners:
            listener()
        keeper.unwatch_all(holds)
    except BaseException:  # Ctrl-C
        leave_to(keeper, begun)
        raise
    return True


def leave_to(keeper: Keeps, begun: Sequence[Hold]) -> None:
    """Whoever was giving these back has been interrupted, or got no answer: the keeper goes on with it."""
    for hold in begun:
        hold.stop_leaving(sent=True)
        keeper.finish(hold)


def end(holds: Sequence[Hold], reply: Any) -> bool | None:
    """The reply to `give` has come. True when all of them stood until now, and are over; else None."""
    if reply != 1:
        return None
    with holds[0].era.mutex:
        for hold in holds:  # as Hold.end_leave does for one that stood
            hold.state = RELEASED
            hold.told = hold.left = True
            if hold.leaving:
                hold.leaving -= 1
    return True
