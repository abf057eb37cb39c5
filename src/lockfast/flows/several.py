"""Several holds, all or none, without a deadlock whatever order they are named in.

All are asked for in one trip by requests that do not wait. If one of them is taken, what was granted before it (in the
order of their keys, the same for everybody) is kept, what was granted after it is left, and the rest is waited for one
by one in that order. So whoever waits holds only names that come before the one it waits for, and nobody can wait in a
circle. Sending waiting requests for all at once would deadlock even in this order: they arrive together, but places in
different queues are not taken together.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from lockfast.errors import LeaseLost, LockfastError, NotAcquired, Unreachable
from lockfast.flows import admission, ending
from lockfast.flows.effects import Call, CallMany

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lockfast.flows.admission import Held
    from lockfast.flows.asks import Ask
    from lockfast.flows.effects import Env, Flow
    from lockfast.grants import Hold


class Holder(Protocol):
    """What this flow needs of a client besides its requests."""

    def new_ticket(self) -> str: ...

    def keep(self, ask: Ask, ticket: str, held: Held) -> Hold:
        """Make a hold of what was granted, and renew it from now on: waiting for the others may take long."""
        ...

    def give_back(self, hold: Hold) -> None:
        """See to it that the server hears of the end of this hold, in the background."""
        ...


def in_order(asks: Sequence[Ask]) -> list[int]:
    """The one order in which everybody waits: by key."""
    return sorted(range(len(asks)), key=lambda place: asks[place].name.keys[0])


def acquire(asks: Sequence[Ask], wait_s: float | None, env: Env, holder: Holder) -> Flow[list[Hold]]:
    """Hold everything that is asked for. Raises as admission.acquire does, and then nothing of it is held."""
    started = env.now()
    order = in_order(asks)
    holds: dict[int, Hold] = {}
    sent = {place: holder.new_ticket() for place in order}  # tickets that may be under way
    try:
        yield from _ask_once(asks, order, sent, holds, env, holder)
        for place in order:
            if place in holds:
                continue
            ask = asks[place]
            if wait_s == 0:
                raise NotAcquired(f"{ask.name.shown!r} is held by another", name=ask.name.shown)
            left_s = None if wait_s is None else max(wait_s - (env.now() - started), 0.0)
            ticket = holder.new_ticket()
            held = yield from admission.acquire(ask, ticket, left_s, env)
            holds[place] = holder.keep(ask, ticket, held)
        for hold in holds.values():
            hold.check()  # the first may have been lost while the last was waited for
        return [holds[place] for place in range(len(asks))]
    except GeneratorExit:
        raise  # the process died here; nobody is left to tidy up
    except BaseException:
        for place, ticket in sent.items():
            _give_up(asks[place], ticket, True, env, holder)
        for hold in holds.values():
            holder.give_back(hold)
        raise


def _ask_once(
    asks: Sequence[Ask], order: list[int], sent: dict[int, str], holds: dict[int, Hold], env: Env, holder: Holder
) -> Flow[None]:
    """One trip for all. `holds` gets what can be kept; what was granted behind the first that was taken is given up."""
    sent_at = env.now()
    by = sent_at + env.attempt_s
    calls = [
        Call(asks[place].admit(env, 0.0), (env.seen.get(asks[place].name.shown, 0), sent[place]), by) for place in order
    ]
    replies = yield CallMany(calls, by)
    refusal: BaseException | None = None
    in_a_row = True
    for place, reply in zip(order, replies, strict=True):
        ask = asks[place]
        if isinstance(reply, BaseException):
            refusal = refusal or reply
            if not isinstance(reply, Unreachable):
                del sent[place]  # refused: nothing of it is there
            continue
        ticket = sent.pop(place)
        held = admission.at_once(ask, reply, sent_at, env)
        if held is not None and in_a_row:
            holds[place] = holder.keep(ask, ticket, held)
        else:
            in_a_row = False
            if type(reply) is int:
                _give_up(ask, ticket, False, env, holder)
    if refusal is not None:
        raise refusal


def _give_up(ask: Ask, ticket: str, unsure: bool, env: Env, holder: Holder) -> None:
    """Leave what may be held; unsure: a request for it may still be under way."""
    holder.give_back(holder.keep(ask, ticket, (0, env.now() + ask.lease_s, unsure)))


def release(holds: Sequence[Hold], keeper: ending.Keeps, env: Env) -> Flow[None]:
    """Give all of them back in one trip. Raises LeaseLost when one had gone; what is not confirmed is tried again."""
    begun = []
    failure: LockfastError | None = None
    for hold in holds:
        try:
            if ending.begin(hold, keeper):
                begun.append(hold)
        except LockfastError as error:  # given back elsewhere in this very moment: the others still have to be
            failure = failure or error
    if not begun:
        if failure is not None:
            raise failure
        return
    by = env.now() + env.attempt_s
    calls = [Call(admission.leave_of(hold.ask, hold.unsure), (hold.ticket,), by) for hold in begun]
    try:
        replies = yield CallMany(calls, by)
    except GeneratorExit:
        raise
    except BaseException:
        for hold in begun:
            hold.stop_leaving(sent=True)
            keeper.finish(hold)
        raise
    for hold, reply in zip(begun, replies, strict=True):
        if isinstance(reply, LockfastError):
            hold.stop_leaving(sent=True)
            keeper.finish(hold)
            failure = failure or reply
            continue
        try:
            ending.end(hold, stood=reply == 1)
        except LeaseLost as loss:
            failure = loss
    if failure is not None:
        raise failure
