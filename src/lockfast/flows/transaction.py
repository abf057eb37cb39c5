"""An optimistic transaction: WATCH, let the caller read and queue, MULTI … EXEC; again when another was faster.

What it keeps true:
- EXEC goes out on the connection that has watched since before the first read, or not at all (`Pipeline.same`).
- Once the server may have got EXEC it is not sent again: a lost reply is OutcomeUnknown. Until then nothing has been
  written, and what fails is tried again within the caller's bounds.
- A connection that watches or is owed a reply goes back to no pool; the drivers see to that (`plain.is_clean`).
- The lock of an escalated transaction only keeps others that escalate out of its way. WATCH stays the guard: against
  those that write without the lock, and for when the lock is lost.
"""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, Any, Protocol

from lockfast.errors import (
    Conflict,
    LeaseLost,
    LockfastError,
    Misused,
    NotAcquired,
    OutcomeUnknown,
    PartlyWritten,
    Refused,
    Unreachable,
)
from lockfast.flows.attempt import Attempt, raise_if_passing
from lockfast.flows.effects import Sleep
from lockfast.flows.plain import Do, Pipeline, checked, step_after
from lockfast.transactions import Outcome

if TYPE_CHECKING:
    from collections.abc import Callable

    from lockfast.flows.plain import Env, Flow, Words
    from lockfast.transactions import Plan

    Call = Callable[[Callable[[Flow[Any]], Any]], Any]

FIRST_DELAY_S = 0.002  # doubled with every conflict; the pause is anything from nothing to that
LONGEST_DELAY_S = 0.25
LEASE_S = 10.0  # of the lock: how long others that escalate are held up by one that died with it, at most


class Acts(Protocol):
    """What the public side does for this flow; each answer is the `call` of a Do."""

    def body(self, attempt: Attempt) -> Call:
        """Call the caller's function."""
        ...

    def take(self, wait_s: float | None) -> Call:
        """Take the lock on all keys. Answers what `give_back` wants."""
        ...

    def give_back(self, grants: Any) -> Call:
        """Release it."""
        ...


class _State:
    """How far a transaction has come."""

    __slots__ = ("attempts", "conflicts", "ends_at", "escalated", "failures", "grants", "silent_since", "started")

    def __init__(self, plan: Plan, env: Env) -> None:
        self.attempts = self.conflicts = 0
        self.failures = 0  # since a server was last heard of
        self.started = env.now()
        self.ends_at = inf if plan.wait_s is None else self.started + plan.wait_s
        self.silent_since: float | None = None  # when the first of the WATCHes that failed in a row was sent
        self.escalated = False
        self.grants: Any = None


def run(plan: Plan, acts: Acts, env: Env) -> Flow[Outcome[Any]]:
    """Try until it is written. Raises Conflict, OutcomeUnknown, Unreachable, Refused, and what the function raises."""
    state = _State(plan, env)
    try:
        while True:
            result = yield from _attempt(plan, state, acts, env)
            if isinstance(result, Outcome):
                break
            yield _pause(plan, state, result, env)
    except GeneratorExit:
        raise
    except BaseException:
        yield from _give_back(state, acts)
        raise
    try:
        yield from _give_back(state, acts)
    except GeneratorExit:
        raise
    except BaseException as struck:
        if result.replies:
            struck.add_note("lockfast: the transaction was written")
        raise
    return result


def _attempt(plan: Plan, state: _State, acts: Acts, env: Env) -> Flow[Outcome[Any] | Unreachable | None]:
    """One attempt. None: another was faster. Unreachable: nothing was written, and it may be tried again."""
    sent = env.now()
    try:
        if state.grants is None and plan.escalate is not None and state.conflicts >= plan.escalate:
            yield from _escalate(plan, state, acts, env)
            sent = env.now()
        yield from _watch(plan, state, env)
    except Unreachable as failure:
        if state.silent_since is None:
            state.silent_since = sent
        return failure
    state.silent_since = None
    state.attempts += 1
    attempt = Attempt(plan.keys, state.attempts, state.conflicts, env)
    try:
        value = yield Do(acts.body(attempt))
    except GeneratorExit:
        raise
    except BaseException as error:
        attempt.end()
        if isinstance(error, Exception):  # cancelled, interrupted: the connection is closed, which is quicker
            yield from _unwatch(env)
        if error is attempt.failure:
            return attempt.failure
        raise
    attempt.end()
    replies: tuple[Any, ...] = ()
    if not attempt.writes or attempt.failure is not None:
        yield from _unwatch(env)
        if attempt.writes:
            return attempt.failure
    else:
        committed = yield from _commit(attempt.writes, state, env)
        if not isinstance(committed, tuple):
            return committed
        replies = committed
    return Outcome(value, replies, state.attempts, state.conflicts, state.escalated)


def _watch(plan: Plan, state: _State, env: Env) -> Flow[None]:
    commands: list[Words] = [("WATCH", *plan.keys)]
    if not state.attempts:
        # For an account that may not MULTI, what follows it would run by itself, unguarded: find out before. And
        # DISCARD ends whatever a connection out of the pool might still watch.
        commands = [("MULTI",), ("DISCARD",), *commands]
    replies = yield Pipeline(commands, env.now() + env.timeout_s / 2, private=True)
    for reply in replies:
        raise_if_passing(reply)
        checked(reply)


def _unwatch(env: Env) -> Flow[None]:
    """Make the connection fit for others, if it is still there."""
    try:
        yield Pipeline([("UNWATCH",)], env.now() + env.timeout_s / 2, private=True, same=True)
    except LockfastError:
        pass  # it is closed then, which ends a WATCH as well


def _commit(writes: list[Words], state: _State, env: Env) -> Flow[tuple[Any, ...] | Unreachable | None]:
    """MULTI, the writes, EXEC. Their replies; None when another was faster; Unreachable when it surely did not run."""
    try:
        replies = yield Pipeline([("MULTI",), *writes, ("EXEC",)], env.now() + env.timeout_s, private=True, same=True)
    except GeneratorExit:
        raise
    except (Unreachable, Misused) as failure:
        cause = failure.__cause__ if isinstance(failure, Misused) else failure  # closed with the request on its way?
        if isinstance(cause, Unreachable) and cause.sent:
            raise OutcomeUnknown(
                f"EXEC was sent and not answered ({failure}): it was written, or was not, or still will be; look before"
                " you do it again",
                attempts=state.attempts,
                conflicts=state.conflicts,
            ) from failure
        if isinstance(failure, Unreachable):
            return failure
        raise
    except BaseException as struck:
        struck.add_note("lockfast: EXEC may have been sent: the transaction was written, or was not")
        raise
    multi, *queued, executed = replies
    if isinstance(multi, Exception):
        raise PartlyWritten(f"MULTI was refused ({multi}), what was queued ran by itself", replies=tuple(queued))
    if isinstance(executed, Exception):
        words, reason = _first_error(writes, queued) or (("EXEC",), executed)
        try:
            raise_if_passing(reason)
        except Unreachable as passing:
            return passing
        step = step_after(str(reason))
        code = "NOPERM" if step else str(reason).partition(" ")[0]
        raise Refused(f"the server refuses {words[0]!r}, nothing was written: {reason}{step}", code=code)
    if executed is None:
        state.conflicts += 1
        state.failures = 0
        return None
    failed = _first_error(writes, executed)
    if failed is not None:
        words, reason = failed
        raise PartlyWritten(
            f"{words[0]!r} failed, the other commands were carried out: {reason}",
            code=str(reason).partition(" ")[0],
            replies=tuple(executed),
        )
    return tuple(executed)


def _first_error(writes: list[Words], replies: list[Any]) -> tuple[Words, Exception] | None:
    for words, reply in zip(writes, replies, strict=True):
        if isinstance(reply, Exception):
            return words, reply
    return None


def _pause(plan: Plan, state: _State, failure: Unreachable | None, env: Env) -> Sleep:
    """How long to wait before the next attempt. Raises what the transaction ends with when there is to be none."""
    moment, ends_at = env.now(), state.ends_at
    if failure is not None:
        state.failures += 1
        if state.silent_since is not None:
            ends_at = min(ends_at, state.silent_since + env.timeout_s)
        if state.attempts >= plan.attempts or moment >= ends_at:
            raise Unreachable(f"{failure} (nothing was written)", sent=False) from failure
        # The first retry is immediate: a connection that was closed says nothing about the server.
        longest_s = 0.0 if state.failures < 2 else min(LONGEST_DELAY_S, 0.01 * 2 ** min(state.failures, 9))
    else:
        if state.attempts >= plan.attempts or moment >= ends_at:
            raise _conflict(plan, state, env)
        longest_s = min(LONGEST_DELAY_S, FIRST_DELAY_S * 2 ** min(state.conflicts, 9))
        if state.conflicts == plan.escalate:
            longest_s = 0.0  # the lock is waited for instead; after that, those who write without it are made room for
    return Sleep(min(longest_s * env.jitter(), ends_at - moment))


def _conflict(plan: Plan, state: _State, env: Env, is_locked_out: bool = False) -> Conflict:
    waited_s = env.now() - state.started
    step = "try later" if plan.escalate is not None else "try later, or let it escalate"
    told = f"others were faster {state.conflicts} times in {waited_s:.3f} s"
    if is_locked_out:
        before = f" after others were faster {state.conflicts} times" if state.conflicts else ""
        keys = ", ".join([repr(key) for key in plan.keys])
        told = f"the lock that transactions take on {keys} was not to be had in {waited_s:.3f} s{before}"
    return Conflict(
        f"{told}, nothing was written: {step}",
        attempts=state.attempts,
        conflicts=state.conflicts,
        waited_s=waited_s,
        escalated=state.escalated,
    )


def _escalate(plan: Plan, state: _State, acts: Acts, env: Env) -> Flow[None]:
    left_s = None if state.ends_at == inf else max(state.ends_at - env.now(), 0.0)
    try:
        state.grants = yield Do(acts.take(left_s))
    except NotAcquired as busy:
        raise _conflict(plan, state, env, is_locked_out=True) from busy
    except LeaseLost:
        return  # of one key, while the others were waited for; WATCH guards this attempt, the next asks again
    state.escalated = True


def _give_back(state: _State, acts: Acts) -> Flow[None]:
    grants, state.grants = state.grants, None
    if grants is None:
        return
    try:
        yield Do(acts.give_back(grants))
    except LockfastError:
        pass  # lost, which did no harm, or not confirmed: the keeper goes on, and the lease ends it
