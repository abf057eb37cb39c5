"""A count-down latch: closed until it has been counted down to zero, open from then on."""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING

from lockfast import names
from lockfast.errors import LockfastError, NotAcquired, Refused
from lockfast.flows.admission import UNDO_S
from lockfast.flows.asks import PLACE_MS
from lockfast.flows.effects import Call
from lockfast.flows.scripts import LATCH, Bound
from lockfast.flows.watching import insist, news, patience
from lockfast.specs import latch_count, latch_lease_seconds

if TYPE_CHECKING:
    from lockfast.flows.effects import Env, Flow
    from lockfast.names import Name

NOT_DOWN = 0
NO_PLACE = 0
MAX_ONCE = 200


class LatchSpec:
    """A name, a count and how long it is kept: all that its users have in common."""

    __slots__ = ("count", "lease_ms", "name")

    def __init__(self, name: Name, count: object, lease: object) -> None:
        self.name = names.watched(name)
        self.count = latch_count(count)
        self.lease_ms = round(latch_lease_seconds(lease) * 1000)

    def bound(self, env: Env) -> Bound:
        return Bound(LATCH, self.name, (self.count, self.lease_ms, env.channel(self.name), env.owner))


def ticket_of(once: object) -> str:
    """The ticket of everybody who counts down with this word."""
    if not isinstance(once, str):
        raise TypeError(f"once must be a str, got {once!r}")
    if not 1 <= len(once) <= MAX_ONCE:
        raise ValueError(f"once may have 1 to {MAX_ONCE} characters, got {once[:80]!r}")
    return f"once.{once.encode(errors='surrogatepass').hex()}"


def count_down(spec: LatchSpec, ticket: str, down: int, env: Env) -> Flow[int]:
    """Count down, once for the ticket however often it is sent. Returns what is left. Raises Unreachable, Refused."""
    left, _ = yield from insist(spec.bound(env), (down, NO_PLACE, ticket), env.now() + env.timeout_s, env)
    return int(left)


def count(spec: LatchSpec, ticket: str, env: Env) -> Flow[int]:
    """What is left to count."""
    return (yield from count_down(spec, ticket, NOT_DOWN, env))


def wait(spec: LatchSpec, ticket: str, wait_s: float | None, env: Env) -> Flow[None]:
    """Wait until it is open. Raises NotAcquired, Unreachable or Refused; however it ends, nobody stays waiting."""
    started = env.now()
    ends_at = inf if wait_s is None else started + wait_s
    place_ms = NO_PLACE if wait_s == 0 else PLACE_MS
    which = 0
    try:
        while True:
            listening = env.hears(spec.name)
            gives_up_at = patience(started, wait_s, env)
            left, fence = yield from insist(spec.bound(env), (NOT_DOWN, place_ms, ticket), gives_up_at, env)
            if left == 0:
                return
            if which not in (0, fence):
                raise Refused(
                    f"{spec.name.shown!r}: the server has forgotten what was counted (it was emptied, or nobody used "
                    "the latch for its lease): begin again, all of you",
                    code="FORGOTTEN",
                )
            which = fence
            if env.now() >= ends_at:
                words = f"{spec.name.shown!r}: {left} of {spec.count} were left to count when the wait was over"
                raise NotAcquired(words, name=spec.name.shown, waited_s=wait_s or 0.0)
            push = yield from news(ticket, ends_at, listening, spec.name, env)
            if push is not None and push.kind == "open" and push.number == which:
                return
    except GeneratorExit:
        raise  # the process died here; nobody is left to tidy up
    except BaseException:
        if place_ms:
            undo = Call(spec.bound(env), (NOT_DOWN, NO_PLACE, ticket), env.now() + UNDO_S, behind=True)
            try:
                yield undo
            except LockfastError:
                pass  # the place ends by itself in seconds
        raise
