"""Acquire and leave: one ticket's way through the queue, whatever the primitive.

What this file keeps true (the server's part is in lua/):
- A deadline counts from before the request that earned it was sent, less a margin for clocks that tick differently.
- A pushed grant is believed only if its fence is newer than the name's fence in the last answered `admit`;
  an older one belongs to an earlier life of the ticket.
- While an acquire still tries, it sends no `leave`; once a `leave` was sent, the ticket is never sent again.
- However an acquire ends without a grant, a `leave` follows the last request that may have reached the server.
- Where replicas are asked for, a grant counts only if enough of them have a write that came with it or after it, on
  the connection of that write: the `admit` that granted it, or a renewal of what was granted by others' requests.
"""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING

from lockfast.errors import Deadlock, LockfastError, NotAcquired, Refused, Unreachable
from lockfast.flows.copying import copies, shortage
from lockfast.flows.effects import Call, Listen, Push, Sleep, Wait, backoff
from lockfast.flows.scripts import LEAVE, RENEW, Bound
from lockfast.specs import HEARTBEAT_S

if TYPE_CHECKING:
    from lockfast.flows.asks import Ask
    from lockfast.flows.detection import Watch
    from lockfast.flows.effects import Env, Flow
    from lockfast.names import Name

MARGIN_RATIO = 0.99  # clocks of client and server may differ in rate by 1 %
SURE_S_PER_MS = MARGIN_RATIO / 1000
MARGIN_S = 0.002  # and the server counts in whole milliseconds
SILENCE_S = 30.0  # how long an acquire with patience tolerates a server that does not answer
UNDO_S = 0.25  # how long the end of an acquire waits for its `leave` to be confirmed; the lease covers the rest
# A ticket that was given up with a request still under way stays refused at least this long, whatever lease it had:
# abandoned connections stay open for a minute, so that is how late the request may come.
TOMBSTONE_MS = 60_000
POLL_S = 0.25  # how often to ask where pushes are not allowed


# A hold as the server gave it: fence, until when it is sure, and whether an `admit` of it may still be under way.
Held = tuple[int, float, bool]


def deadline_of(sent: float, ms_left: float) -> float:
    """Until when a hold is sure that had `ms_left` when a request sent at `sent` was answered."""
    return sent + ms_left * SURE_S_PER_MS - MARGIN_S


def at_once(ask: Ask, reply: object, sent: float, env: Env) -> Held | None:
    """What `acquire` would return for the reply to its first request, if that grants the whole lease; else None.

    Nearly every acquire ends like this, so drivers look here first and need not start the flow.
    """
    if type(reply) is int:
        deadline = sent + ask.lease_ms * SURE_S_PER_MS - MARGIN_S  # as deadline_of, without the call
        if deadline - env.now() >= ask.lease_s / 2:
            env.seen.learn(ask.name.shown, reply)
            return reply, deadline, False
    return None


def acquire(ask: Ask, ticket: str, wait_s: float | None, env: Env, asked_at: float | None = None) -> Flow[Held]:
    """Hold what is asked for, waiting in the queue up to `wait_s` seconds (None: as long as it takes; 0: ask once).

    asked_at: when the first request was sent, for a driver that did so before it started the flow.
    Raises NotAcquired, Unreachable, Refused or Deadlock; however it ends without a hold, nothing stays queued.
    """
    name = ask.name
    started = sent = heard_at = env.now() if asked_at is None else asked_at
    ends_at = inf if wait_s is None else started + wait_s
    unsure = False  # an admit went out and was never answered: it may still run, later than a leave
    reached = False  # the server may know the ticket
    failures = 0
    watch = _watch(started, env) if ask.detect else None
    try:
        while True:
            listening = env.hears(name)
            by = sent + env.attempt_s
            if failures:
                by = min(by, give_up_at(started, heard_at, wait_s, env))
            wanted = copies(env.replicas, by - sent, ask.lease_ms)
            try:
                reply = yield Call(ask.admit(env, wait_s), (env.seen.get(name.shown, 0), ticket), by, copies=wanted)
            except Unreachable as failure:
                unsure = unsure or failure.sent
                failures += 1
                gives_up_at = give_up_at(started, heard_at, wait_s, env)
                if env.now() >= gives_up_at:
                    raise
                yield backoff(failures, gives_up_at, env)
                sent = env.now()
                continue
            heard_at = env.now()
            reached = True
            failures = 0
            proven = wanted is None
            if wanted is not None:
                reply, copied = reply
                proven = type(reply) is int  # an older hold was written by another request, maybe on another connection
                short = shortage(name.shown, copied, wanted)
                if proven and short is not None:
                    raise short

            code, fence, ms, position = (1, reply, ask.lease_ms + ask.grace_ms, 0) if type(reply) is int else reply
            if code == 1:
                env.seen.learn(name.shown, fence)
                # Never more than was asked for: a server whose clock stepped back sees more left than there is.
                deadline = deadline_of(sent, min(ms - ask.grace_ms, ask.lease_ms))
                if deadline - heard_at < ask.lease_s / 2 or not proven:
                    deadline = yield from _top_up(ask, ticket, fence, deadline, env)
                    heard_at = env.now()
                if deadline > heard_at:
                    return fence, deadline, unsure
                sent = env.now()
                continue
            if code == -1:
                raise Refused(f"{name.shown!r}: this acquire was broken by an operator", code="BROKEN")
            ask.meet_others(heard_at)
            if position == 0 or heard_at >= ends_at:
                raise NotAcquired(busy(name.shown, wait_s), name=name.shown, waited_s=wait_s or 0.0)

            asks_by = ends_at if watch is None else (yield from watch.look(ask, ticket, ends_at, env))
            push = yield from wait_for_push(name, ticket, position, ms, asks_by, listening, env)
            if push is not None:
                kind, number = push
                if kind == "refused":
                    raise Refused(f"{name.shown!r}: it wants {ask.weight}, the limit is {number} now", code="LIMIT")
                if number > fence:
                    env.seen.learn(name.shown, number)
                    deadline = deadline_of(sent, ask.lease_ms)
                    moment = env.now()
                    if deadline - moment < ask.lease_s / 2 or env.replicas:
                        deadline = yield from _top_up(ask, ticket, number, deadline, env)
                        moment = env.now()
                    if deadline > moment:
                        return number, deadline, unsure
            sent = env.now()
    except GeneratorExit:
        raise  # the process died here; nobody is left to tidy up
    except BaseException as reason:
        # A caller that asked once and was told "busy" has left nothing behind.
        if (reached or unsure or not isinstance(reason, LockfastError)) and not (
            wait_s == 0 and not unsure and isinstance(reason, NotAcquired)
        ):
            # What was thrown in may have struck with the request on its way: only an answer makes it sure.
            unsure = unsure or not isinstance(reason, (NotAcquired, Deadlock))
            try:
                yield Call(leave_of(ask, unsure), (ticket,), env.now() + UNDO_S, behind=True)
            except LockfastError:
                pass  # the place ends by itself in seconds, a hold with its lease
        raise


def _watch(started: float, env: Env) -> Watch:
    from lockfast.flows import detection  # only where it is asked for: most programs start faster without

    return detection.Watch(started, env)


def wait_for_push(
    name: Name, ticket: str, position: int, ms: int, ends_at: float, listening: int, env: Env
) -> Flow[Push | None]:
    """Wait for the push; None when it is time to ask again."""
    try:
        subscription = yield Listen(env.now() + env.attempt_s, name, env.place)
    except Unreachable:
        yield Sleep(0.05 + 0.1 * env.jitter())
        return None
    if subscription == 0:
        yield Sleep(max(0.0, min(POLL_S * (0.5 + env.jitter()), ends_at - env.now())))
        return None
    if subscription != listening:
        return None  # what was pushed before this subscription stood is lost: ask again
    until = env.now() + HEARTBEAT_S * (0.75 + env.jitter() / 4)
    if position == 1:  # only the first in the queue watches the end of the holder's lease
        until = min(until, env.now() + ms / 1000 + 0.003)
    push: Push | None = yield Wait(ticket, min(until, ends_at), name, env.place)
    if push is None and env.hears(name) != subscription:
        yield Sleep(0.2 * env.jitter())  # everybody who waited on that connection asks again now: not all at once
    return push


def _top_up(ask: Ask, ticket: str, fence: int, deadline: float, env: Env) -> Flow[float]:
    """A hold with less than half its lease to go is renewed before it is handed out: its deadline, -inf when gone.

    So is one that replicas must have: without an answer to that it is not believed, and asked for again.
    """
    sent = env.now()
    wanted = copies(env.replicas, env.attempt_s, ask.lease_ms)
    try:
        bound = Bound(RENEW, ask.name, (ask.lease_ms + ask.grace_ms, 0, ""))
        reply = yield Call(bound, (fence, ticket), sent + env.attempt_s, copies=wanted)
    except Unreachable:
        if wanted is None:
            return deadline
        yield backoff(2, inf, env)
        return -inf
    (code, ms), copied = (reply, 0) if wanted is None else reply
    short = shortage(ask.name.shown, copied, wanted)
    if code and short is not None:
        raise short
    return deadline_of(sent, min(ms - ask.grace_ms, ask.lease_ms)) if code else -inf


def give_up_at(started: float, heard_at: float, wait_s: float | None, env: Env) -> float:
    """When to stop trying to reach the server."""
    # Somebody who never reached it and named no patience most likely has the wrong address: tell them soon.
    silence_s = SILENCE_S if env.connected or wait_s is not None else env.timeout_s
    patience_s = inf if wait_s is None else max(wait_s, env.timeout_s)
    return min(started + patience_s, heard_at + max(silence_s, env.timeout_s))


def busy(name: str, wait_s: float | None) -> str:
    """What is said when somebody else has it."""
    if not wait_s:
        return f"{name!r} is held by another"
    return f"{name!r} was held by others for the {wait_s:g} s that the caller was willing to wait"


def leave_of(ask: Ask, unsure: bool) -> Bound:
    return Bound(LEAVE, ask.name, (max(ask.lease_ms + ask.grace_ms, TOMBSTONE_MS), 1, "")) if unsure else ask.leave


def leave(
    ask: Ask, ticket: str, unsure: bool, env: Env, sent_before: bool, patience_s: float | None = None
) -> Flow[bool]:
    """Give a hold back and hand it on. True when it stood until now; retried within the client's time-out.

    sent_before: a `leave` of this ticket may have run already, so finding nothing is a success too. patience_s: give up
    after this, instead of the client's time-out.
    """
    started = env.now()
    gives_up_at = started + (env.timeout_s if patience_s is None else patience_s)
    by = min(started + env.attempt_s, gives_up_at)
    bound = leave_of(ask, unsure)
    failures = 0
    while True:
        try:
            found = yield Call(bound, (ticket,), by)
        except Unreachable as failure:
            sent_before = sent_before or failure.sent
            failures += 1
            if env.now() >= gives_up_at:
                raise Unreachable(f"{failure} (release of {ask.name.shown!r})", sent=sent_before) from failure
            yield backoff(failures, gives_up_at, env)
            by = min(env.now() + env.attempt_s, gives_up_at)
            continue
        return found == 1 or sent_before
