"""Several holds, all or none, without a deadlock whatever order they are named in.

All are asked for in one trip by requests that do not wait. If one of them is taken, what was granted before it (in the
order of their keys, the same for everybody) is kept, what was granted after it is left, and the rest is waited for one
by one in that order. So whoever waits holds only names that come before the one it waits for, and nobody can wait in a
circle. Sending waiting requests for all at once would deadlock even in this order: they arrive together, but places in
different queues are not taken together.

Names that are free and alike are taken and given back by one script for all of them: see group.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lockfast.errors import LockfastError, NotAcquired, Refused, Unreachable
from lockfast.flows import admission, ending, group
from lockfast.flows.copying import copies, shortage
from lockfast.flows.effects import Call, CallMany, backoff

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lockfast.flows.admission import Held
    from lockfast.flows.asks import Ask
    from lockfast.flows.effects import Env, Flow
    from lockfast.flows.group import Asks, Holder
    from lockfast.grants import Hold

    Asked = tuple[Call, float]  # the request that takes all of them, and when it was sent


def acquire(
    asks: Asks, wait_s: float | None, env: Env, holder: Holder, stem: str = "", asked: Asked | None = None
) -> Flow[list[Hold]]:
    """Hold everything that is asked for, in the order it was named. Raises as admission.acquire does.

    Whatever it raises, nothing of it stays held: when it is NotAcquired nothing is any more, otherwise the keeper
    sees to it. stem, asked: what their first tickets begin with, and the first request, for a driver that has sent it
    before it started the flow.
    """
    started = env.now() if asked is None else asked[1]
    holds: dict[Ask, Hold] = {}
    stem = stem or holder.new_ticket()
    sent = asks.tickets(stem)  # tickets that may be under way
    try:
        if env.fleet is None:
            yield from _ask_once(asks, stem, asked, sent, holds, env, holder)
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


def _ask_once(
    asks: Asks,
    stem: str,
    asked: Asked | None,
    sent: dict[Ask, str],
    holds: dict[Ask, Hold],
    env: Env,
    holder: Holder,
) -> Flow[None]:
    """One trip for all, tried again with the same tickets if it is not answered.

    `holds` gets what can be kept; what was granted behind the first that was taken is left.
    """
    sent_at = env.now() if asked is None else asked[1]
    gives_up_at = sent_at + env.timeout_s
    failures = 0
    unsure = False  # a request went out and was never answered: it may still run, later than a leave
    while True:
        by = min(sent_at + env.attempt_s, gives_up_at)
        wanted = copies(env.replicas, by - sent_at, min(ask.lease_ms for ask in asks.in_order))
        copied: int | LockfastError = 0
        try:
            take = None
            if not failures:
                take = asks.take(stem, env, by) if asked is None else asked[0]
            replies: Any = 0
            if take is not None:
                take.copies = wanted
                replies = yield take
                if wanted is not None:
                    replies, copied = replies
            if replies:  # the fence of all of them
                replies = [replies] * len(asks.in_order)
            else:
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
            sent_at = env.now()
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
    moment = env.now()
    give = asks.give_each(holds, env, moment + env.attempt_s) if asks is not None else None
    if give is not None and group.begin(holds, keeper, moment):
        yield from finish(holds, give, None, keeper, env)
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
    except BaseException:
        group.leave_to(keeper, begun)
        raise
    if begun:
        yield from finish(begun, None, failure, keeper, env)
    elif failure is not None:
        raise failure


def finish(
    begun: Sequence[Hold], give: Call | None, failure: LockfastError | None, keeper: ending.Keeps, env: Env
) -> Flow[None]:
    """The rest of a release. give: the request for all of them at once. failure: what to raise at the end."""
    try:
        if give is not None and (yield give) == 1:
            replies = [1] * len(begun)
        else:
            by = env.now() + env.attempt_s
            calls = [Call(admission.leave_of(hold.ask, hold.unsure), (hold.ticket,), by) for hold in begun]
            replies = yield CallMany(calls, by)
    except GeneratorExit:
        raise
    except BaseException:
        group.leave_to(keeper, begun)
        raise
    for hold, reply in zip(begun, replies, strict=True):
        if isinstance(reply, LockfastError):
            group.leave_to(keeper, [hold])
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
