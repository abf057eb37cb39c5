"""Several holds, all or none, without a deadlock whatever order they are named in.

All are asked for in one trip by requests that do not wait. If one of them is taken, what was granted before it (in the
order of their keys, the same for everybody) is kept, what was granted after it is left, and the rest is waited for one
by one in that order. So whoever waits holds only names that come before the one it waits for, and nobody can wait in a
circle. Sending waiting requests for all at once would deadlock even in this order: they arrive together, but places in
different queues are not taken together.

Names that are free and wanted whole are taken by one script for all of them (`admit_all`), which changes nothing when
one of them is not that simple, and given back by another. Neither is a second protocol: they do what `admit` and
`leave` would do for each.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from lockfast.errors import LockfastError, NotAcquired, Refused, Unreachable
from lockfast.flows import admission, ending
from lockfast.flows.copying import copies, shortage
from lockfast.flows.effects import Call, CallMany, backoff
from lockfast.flows.scripts import ADMIT_ALL, LEAVE_ALL, Bound
from lockfast.names import Names

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lockfast.flows.admission import Held
    from lockfast.flows.asks import Ask
    from lockfast.flows.effects import Env, Flow
    from lockfast.grants import Hold

MOST_AT_ONCE = 100  # names that one script takes: it keeps the server from everything else meanwhile


class Asks:
    """Several asks, in the one order in which everybody asks and waits: that of their keys."""

    __slots__ = ("_give", "_take", "in_order", "order", "simple")

    def __init__(self, asks: Sequence[Ask]) -> None:
        self.order = sorted(range(len(asks)), key=lambda place: asks[place].name.keys[0])
        self.in_order = [asks[place] for place in self.order]
        self.simple = len(asks) <= MOST_AT_ONCE and all(ask.weight == ask.limit for ask in asks)
        names = Names(ask.name for ask in self.in_order)
        self._take = Bound(ADMIT_ALL, names)
        self._give = Bound(LEAVE_ALL, names)

    def take(self, tickets: dict[Ask, str], env: Env, by: float) -> Call | None:
        """The request that takes all of them at once; None when the server would say that it is not that simple."""
        if not self.simple or env.sharded:
            return None
        args: list[str | int] = [env.owner]
        for ask in self.in_order:
            seen = env.seen.get(ask.name.shown, 0)
            if not seen:
                return None  # never used, as far as this client knows: then the server has no state of it
            args += (f"{ask.kind} {ask.limit}", ask.lease_ms + ask.grace_ms, seen, tickets[ask])
        return Call(self._take, tuple(args), by)

    def give(self, holds: dict[Ask, Hold], env: Env, by: float) -> Call | None:
        """The request that gives all of them back at once; None unless that is simple."""
        if not self.simple or env.sharded or len(holds) < len(self.in_order):
            return None
        tickets = []
        for ask in self.in_order:
            hold = holds.get(ask)
            if hold is None or hold.unsure or hold.leave_sent:
                return None
            tickets.append(hold.ticket)
        return Call(self._give, tuple(tickets), by)


class Holder(Protocol):
    """What this flow needs of a client besides its requests."""

    @property
    def keeper(self) -> ending.Keeps: ...

    def new_ticket(self) -> str: ...

    def keep(self, ask: Ask, ticket: str, held: Held) -> Hold:
        """Make a hold of what was granted, and renew it from now on: waiting for the others may take long."""
        ...


def acquire(asks: Asks, wait_s: float | None, env: Env, holder: Holder) -> Flow[list[Hold]]:
    """Hold everything that is asked for, in the order it was named. Raises as admission.acquire does.

    Whatever it raises, nothing of it stays held: when it is NotAcquired nothing is any more, otherwise the keeper
    sees to it.
    """
    started = env.now()
    holds: dict[Ask, Hold] = {}
    stem = holder.new_ticket()
    sent = {ask: f"{stem}-{place}" for place, ask in enumerate(asks.in_order)}  # tickets that may be under way
    try:
        if env.fleet is None:
            yield from _ask_once(asks, sent, holds, env, holder)
        else:
            sent.clear()  # one after the other: each is a majority's to give
        for ask in asks.in_order:
            if ask in holds:
                continue
            # With replicas it may have been granted, and given back for want of proof.
            if wait_s == 0 and env.fleet is None and not env.replicas:
                raise NotAcquired(admission.busy(ask.name.shown, 0.0), name=ask.name.shown)
            left_s = None if wait_s is None else max(wait_s - (env.now() - started), 0.0)
            ticket = holder.new_ticket()
            try:
                held = yield from _acquire_one(ask, ticket, left_s, env)
            except NotAcquired as failure:
                words = admission.busy(ask.name.shown, wait_s)
                raise NotAcquired(words, name=ask.name.shown, waited_s=wait_s or 0.0) from failure
            holds[ask] = holder.keep(ask, ticket, held)
        for hold in holds.values():
            hold.check()  # the first may have been lost while the last was waited for
        found: list[Hold | None] = [None] * len(asks.order)
        for place, ask in zip(asks.order, asks.in_order, strict=True):
            found[place] = holds[ask]
        return found  # type: ignore[return-value]  # every place is filled: `order` has each of them
    except GeneratorExit:
        raise  # the process died here; nobody is left to tidy up
    except (NotAcquired, Refused):
        yield from _drop(list(holds.values()), holder.keeper, env)
        raise
    except BaseException:
        for ask, ticket in sent.items():
            give_back(holder.keep(ask, ticket, _unknown(ask, True, env)), holder.keeper)
        for hold in holds.values():
            give_back(hold, holder.keeper)
        raise


def _acquire_one(ask: Ask, ticket: str, wait_s: float | None, env: Env) -> Flow[Held]:
    if env.fleet is None:
        return (yield from admission.acquire(ask, ticket, wait_s, env))
    from lockfast.flows import quorum  # only where there is one

    return (yield from quorum.acquire(ask, ticket, wait_s, env))


def _ask_once(asks: Asks, sent: dict[Ask, str], holds: dict[Ask, Hold], env: Env, holder: Holder) -> Flow[None]:
    """One trip for all, tried again with the same tickets if it is not answered.

    `holds` gets what can be kept; what was granted behind the first that was taken is left.
    """
    gives_up_at = env.now() + env.timeout_s
    failures = 0
    unsure = False  # a request went out and was never answered: it may still run, later than a leave
    while True:
        sent_at = env.now()
        by = min(sent_at + env.attempt_s, gives_up_at)
        wanted = copies(env.replicas, by - sent_at, min(ask.lease_ms for ask in asks.in_order))
        copied: int | LockfastError = 0
        try:
            take = asks.take(sent, env, by) if not failures else None
            replies: Any = 0
            if take is not None:
                take.copies = wanted
                replies = yield take
                if wanted is not None:
                    replies, copied = replies
            if replies == 0:
                calls = [
                    Call(ask.admit(env, 0.0), (env.seen.get(ask.name.shown, 0), sent[ask]), by) for ask in asks.in_order
                ]
                replies = yield CallMany(calls, by, wanted)
                if wanted is not None:
                    replies, copied = replies
            unanswered = [reply for reply in replies if isinstance(reply, Unreachable)]
            if unanswered:  # in a cluster some may have been sent, and others not
                raise Unreachable(str(unanswered[0]), sent=any(one.sent for one in unanswered))
        except Unreachable as failure:
            unsure = unsure or failure.sent
            failures += 1
            if env.now() >= gives_up_at:
                raise
            yield backoff(failures, gives_up_at, env)
            continue
        break
    refusal: BaseException | None = None
    spare: list[Hold] = []
    in_a_row = True
    for ask, reply in zip(asks.in_order, replies, strict=True):
        ticket = sent.pop(ask)
        if isinstance(reply, BaseException):
            refusal = refusal or reply
            continue
        held = _held(ask, reply, sent_at, unsure, env)
        short = shortage(ask.name.shown, copied, wanted)
        if held is not None and short is not None:
            refusal = refusal or short
            in_a_row = False
        if held is not None and in_a_row:
            holds[ask] = holder.keep(ask, ticket, held)
            continue
        in_a_row = False
        if held is not None or unsure or _is_granted(reply):
            spare.append(holder.keep(ask, ticket, held or _unknown(ask, unsure, env)))
    yield from _drop(spare, holder.keeper, env)
    if refusal is not None:
        raise refusal


def _held(ask: Ask, reply: Any, sent_at: float, unsure: bool, env: Env) -> Held | None:
    """The hold that a reply grants, if that is for long enough to be handed out."""
    if not unsure:
        return admission.at_once(ask, reply, sent_at, env)
    code, fence, ms, _ = (1, reply, ask.lease_ms + ask.grace_ms, 0) if isinstance(reply, int) else reply
    deadline = admission.deadline_of(sent_at, min(ms - ask.grace_ms, ask.lease_ms))
    if env.replicas and not isinstance(reply, int):
        return None  # it was written by an earlier request: what replicas have of that is not known
    if code != 1 or deadline - env.now() < ask.lease_s / 2:
        return None
    env.seen.learn(ask.name.shown, fence)
    return fence, deadline, True


def _is_granted(reply: Any) -> bool:
    return isinstance(reply, int) or (isinstance(reply, list) and reply[0] == 1)


def _unknown(ask: Ask, unsure: bool, env: Env) -> Held:
    """A hold of which nothing is known but that it may be there, to be given back."""
    return 0, env.now() + ask.lease_s, unsure


def give_back(hold: Hold, keeper: ending.Keeps) -> None:
    """See to it that the server hears of the end of this hold, in the background."""
    try:
        if ending.begin(hold, keeper):
            keeper.finish(hold)
    except LockfastError:
        pass  # it has ended by itself


def _drop(holds: Sequence[Hold], keeper: ending.Keeps, env: Env) -> Flow[None]:
    """Give back what is of no use. If that is not confirmed, the keeper goes on with it."""
    try:
        yield from release(holds, keeper, env)
    except LockfastError:
        pass


def release(holds: Sequence[Hold], keeper: ending.Keeps, env: Env, asks: Asks | None = None) -> Flow[None]:
    """Give all of them back in one trip. Raises LeaseLost when one had gone; what is not confirmed is tried again.

    asks: what they were acquired by.
    """
    if env.fleet is not None:
        yield from _release_each(holds, keeper, env)
        return
    begun: list[Hold] = []
    failure: LockfastError | None = None
    try:
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
        give = asks.give({hold.ask: hold for hold in begun}, env, by) if asks is not None else None
        if give is not None and (yield give) == 1:
            replies = [1] * len(begun)
        else:
            calls = [Call(admission.leave_of(hold.ask, hold.unsure), (hold.ticket,), by) for hold in begun]
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
        except LockfastError as loss:
            failure = loss
    if failure is not None:
        raise failure


def _release_each(holds: Sequence[Hold], keeper: ending.Keeps, env: Env) -> Flow[None]:
    """The same where a majority decides, one after the other."""
    failure: LockfastError | None = None
    for place, hold in enumerate(holds):
        try:
            yield from ending.release(hold, keeper, env)
        except GeneratorExit:
            raise
        except LockfastError as error:
            if isinstance(error, Unreachable):
                keeper.finish(hold)
            failure = failure or error
        except BaseException:
            for other in holds[place + 1 :]:
                give_back(other, keeper)
            raise
    if failure is not None:
        raise failure
