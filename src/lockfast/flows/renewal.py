"""Renew holds: one by hand, or all that are due in one trip. Loss is decided elsewhere, by the clock."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from lockfast.errors import Unreachable
from lockfast.flows.admission import deadline_of
from lockfast.flows.effects import Call, CallMany, Sleep
from lockfast.flows.scripts import RENEW

if TYPE_CHECKING:
    from lockfast.flows.effects import Env, Flow


class Due(NamedTuple):
    """A hold that wants renewal."""

    keys: tuple[str, ...]
    ticket: str
    fence: int
    lease_ms: int


def renew_all(due: list[Due], by: float, env: Env) -> Flow[list[float | BaseException]]:
    """Renew each. Answers, in order: the new deadline, 0.0 when the hold is gone, or what went wrong."""
    sent = env.now()
    calls = [Call(RENEW, hold.keys, (hold.ticket, hold.fence, hold.lease_ms), by) for hold in due]
    replies = yield CallMany(calls, by)
    answers: list[float | BaseException] = []
    for reply in replies:
        if isinstance(reply, BaseException):
            answers.append(reply)
        else:
            code, ms = reply
            answers.append(deadline_of(sent, ms) if code == 1 else 0.0)
    return answers


def renew(due: Due, by: float, env: Env) -> Flow[float]:
    """Renew one hold, trying until `by`. The new deadline, or 0.0 when it is gone; raises Unreachable, Refused."""
    failures = 0
    while True:
        sent = env.now()
        try:
            code, ms = yield Call(
                RENEW, due.keys, (due.ticket, due.fence, due.lease_ms), min(sent + env.timeout_s / 2, by)
            )
        except Unreachable:
            failures += 1
            if env.now() >= by:
                raise
            if failures > 1:
                yield Sleep(min(0.5, 0.01 * 2**failures) * (0.5 + env.jitter() / 2))
            continue
        return deadline_of(sent, ms) if code == 1 else 0.0
