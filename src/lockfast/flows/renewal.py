"""Renew holds: one by hand, or all that are due in one trip."""

from __future__ import annotations

from math import ceil
from typing import TYPE_CHECKING

from lockfast.errors import LockfastError, Refused, Unreachable
from lockfast.flows import asks
from lockfast.flows.admission import MARGIN_RATIO, MARGIN_S, deadline_of
from lockfast.flows.copying import copies, shortage
from lockfast.flows.effects import Call, CallMany, backoff
from lockfast.flows.scripts import RENEW, Bound

if TYPE_CHECKING:
    from lockfast.flows.effects import Env, Flow
    from lockfast.grants import Hold

AS_IT_IS = 0  # stands for a weight: no change
WANTED = 2  # answered instead of 1: it is renewed, and somebody asks for it
GONE = "the server no longer knows it (broken, flushed, or restarted empty)"


def renew_all(due: list[Hold], env: Env) -> Flow[list[Hold]]:
    """Renew each hold, all in one trip, and tell it what came of it. Returns those that were not answered.

    One that too few replicas have is not renewed: it is tried again until its deadline.
    """
    if env.fleet is not None:
        from lockfast.flows import quorum_holds  # only where there is one

        return (yield from quorum_holds.renew_all(due, env))
    sent = env.now()
    by = max(sent + 0.05, min(sent + env.attempt_s, *(hold.deadline for hold in due)))
    wanted = copies(env.replicas, by - sent, min(hold.lease_ms for hold in due))
    copied: int | LockfastError = 0
    try:
        replies = yield CallMany([call(hold, sent, by) for hold in due], by, wanted)
        if wanted is not None:
            replies, copied = replies
    except (Unreachable, Refused) as failure:  # refused for all of them: the account was turned down
        replies = [failure] * len(due)
    unanswered = []
    for hold, reply in zip(due, replies, strict=True):
        short = shortage(hold.ask.name.shown, copied, wanted)
        if isinstance(reply, BaseException):
            hold.renewal_failed(reply)
            unanswered.append(hold)
        elif short is not None and reply[0] != 0:
            hold.renewal_failed(short)
            unanswered.append(hold)
            if reply[0] == WANTED:
                hold.revoke()
        else:
            settle(hold, sent, *reply)
    return unanswered


def downgrade(hold: Hold, by: object, env: Env) -> Flow[None]:
    """Make a writer a reader, with nobody in between, in the thread or task `by`. Raises what `extend` raises.

    It counts as a reader before anybody is asked: a server may have let other readers in though its answer was lost, or
    not waited for. Servers that have not heard of it are told by the next renewal.
    """
    hold.by = by
    hold.ask = asks.read(hold.ask.name, hold.ask.lease_s, hold.ask.grace_ms / 1000)
    hold.is_lowering = True
    yield from extend(hold, hold.lease_ms, env)
    hold.is_lowering = False


def extend(hold: Hold, lease_ms: int, env: Env, heir: str = "") -> Flow[None]:
    """Renew one hold now, trying as long as it is sure. Raises LeaseLost, NotHeld, Unreachable, Refused.

    heir: the ticket that has the hold from now on.
    """
    if env.fleet is not None:
        from lockfast.flows import quorum_holds

        yield from quorum_holds.extend(hold, lease_ms, env)
        return
    hold.check()
    hold.lease_ms = lease_ms
    gives_up_at = min(env.now() + env.timeout_s, hold.deadline)
    failures = 0
    short: LockfastError | None = None
    while True:
        sent = env.now()
        by = min(sent + env.attempt_s, gives_up_at)
        wanted = copies(env.replicas, by - sent, lease_ms)
        try:
            renew = call(hold, sent, by, heir)
            renew.copies = wanted
            reply = yield renew
            (code, ms), copied = (reply, 0) if wanted is None else reply
            short = shortage(hold.ask.name.shown, copied, wanted) if code else None
        except Unreachable as failure:
            if not isinstance(short, Refused):  # which tells more than that the last try had no time left
                short = failure
        if short is not None:
            failures += 1
            if env.now() >= gives_up_at:
                hold.check()  # if it is over by now, that is what the caller must hear
                raise short
            yield backoff(failures, gives_up_at, env)
            continue
        settle(hold, sent, code, ms)
        hold.check()
        return


def call(hold: Hold, moment: float, by: float, heir: str = "") -> Call:
    """The request that renews a hold: for its lease, or for what is left of the time that it may last in all.

    It names the weight, for a server that has not heard of a downgrade: what is more than that goes to whoever waits.
    """
    lease_ms = hold.lease_ms
    if hold.max_hold_s is not None:
        lease_ms = bounded(lease_ms, hold.ends_at - moment)
    bound = Bound(RENEW, hold.ask.name, (lease_ms + hold.ask.grace_ms, hold.ask.weight, heir))
    return Call(bound, (hold.fence, hold.ticket), by)


def bounded(lease_ms: int, left_s: float) -> int:
    """The lease to ask for when the hold may last only `left_s` more."""
    # As much more than is left as the margin takes away again, so that the hold is sure until just then.
    return min(lease_ms, max(ceil((left_s + MARGIN_S) / MARGIN_RATIO * 1000), 1))


def settle(hold: Hold, sent: float, code: int, ms: int) -> None:
    """Tell a hold what came of its renewal."""
    if code == 0:
        hold.lose(GONE)
        return
    hold.renewed(deadline_of(sent, min(ms - hold.ask.grace_ms, hold.lease_ms)))
    if hold.is_failing:
        hold.renewal_worked()
    if code == WANTED:
        hold.revoke()
