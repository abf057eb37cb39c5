"""Ask again and again, and wait for a push in between: what observers, latches and barriers have in common.

Their scripts can be sent any number of times with one ticket, and pushes may be lost: whoever waits asks again at every
heartbeat, after every reconnect, and at the moment that the last answer named.
"""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, Any

from lockfast.errors import Unreachable
from lockfast.flows.admission import POLL_S, SILENCE_S
from lockfast.flows.effects import Call, Listen, Sleep, Wait, backoff
from lockfast.specs import HEARTBEAT_S

if TYPE_CHECKING:
    from lockfast.flows.effects import Env, Flow, Push
    from lockfast.flows.scripts import Bound
    from lockfast.names import Name


def insist(bound: Bound, args: tuple[str | int, ...], gives_up_at: float, env: Env) -> Flow[Any]:
    """The answer to a script that may be sent twice, trying until `gives_up_at`. Raises Unreachable, Refused."""
    failures = 0
    sent = False
    while True:
        by = env.now() + env.attempt_s
        try:
            return (yield Call(bound, args, min(by, gives_up_at) if failures else by))
        except Unreachable as failure:
            sent = sent or failure.sent
            failures += 1
            if env.now() >= gives_up_at:
                raise Unreachable(str(failure), sent=sent) from failure
            yield backoff(failures, gives_up_at, env)


def patience(started: float, wait_s: float | None, env: Env) -> float:
    """Until when to try to reach a server that has been silent from now on, for somebody who waits `wait_s`."""
    silence_s = SILENCE_S if env.connected or wait_s is not None else env.timeout_s
    ends_at = inf if wait_s is None else started + max(wait_s, env.timeout_s)
    return min(ends_at, env.now() + max(silence_s, env.timeout_s))


def news(ticket: str, until: float, listening: int, name: Name, env: Env) -> Flow[Push | None]:
    """Wait for a push, until a heartbeat is due or `until`. None: ask again.

    listening: the subscription that stood when the last question was sent.
    """
    try:
        subscription = yield Listen(env.now() + env.attempt_s, name)
    except Unreachable:
        yield Sleep(0.05 + 0.1 * env.jitter())
        return None
    if subscription == 0:  # pushes are not allowed here
        yield Sleep(max(0.0, min(POLL_S * (0.5 + env.jitter()), until - env.now())))
        return None
    if subscription != listening:
        return None  # what was pushed before this subscription stood is lost
    beat = env.now() + HEARTBEAT_S * (0.75 + env.jitter() / 4)
    push: Push | None = yield Wait(ticket, min(beat, until), name)
    if push is None and env.hears(name) != subscription:
        yield Sleep(0.2 * env.jitter())  # everybody who waited on that connection asks again now: not all at once
    return push
