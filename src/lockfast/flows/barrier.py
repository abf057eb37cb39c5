"""A cyclic barrier: parties that wait for each other, generation by generation.

The last one to arrive lets all of them go, inside the script. A generation ends once, tripped or broken, and what the
server says about one that is over stays true however late it is asked: so a push needs no second trip, and a party that
learns late that all had arrived passes.
"""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING

from lockfast import names
from lockfast.errors import BrokenBarrier, LockfastError, NotAcquired
from lockfast.flows.admission import TOMBSTONE_MS, UNDO_S
from lockfast.flows.effects import Call
from lockfast.flows.scripts import BARRIER, Bound
from lockfast.flows.watching import insist, news, patience
from lockfast.specs import lease_seconds, party_count

if TYPE_CHECKING:
    from lockfast.flows.effects import Env, Flow
    from lockfast.names import Name

TRIPPED = 1
BROKEN = -1
UNSURE = 0
UNKNOWN = 0  # stands for a generation


class BarrierSpec:
    """A name, a number of parties and how long one that waits is believed in without a sign of it."""

    __slots__ = ("lease_s", "name", "parties")

    def __init__(self, name: Name, parties: object, lease: object) -> None:
        self.name = names.watched(name)
        self.parties = party_count(parties)
        self.lease_s = lease_seconds(lease)

    def bound(self, env: Env) -> Bound:
        # A request of a ticket may come as late as its flow tries, and an abandoned connection stays open, at most.
        over_ms = TOMBSTONE_MS + round(env.timeout_s * 1000)
        me = (env.channel(self.name), env.owner)
        return Bound(BARRIER, self.name, (self.parties, round(self.lease_s * 1000), over_ms, *me))

    def broken(self) -> BrokenBarrier:
        shown = self.name.shown
        return BrokenBarrier(f"{shown!r} is broken: not all parties will come; reset() it, or give up", name=shown)


def wait(spec: BarrierSpec, ticket: str, wait_s: float | None, env: Env) -> Flow[int]:
    """Arrive, and wait until all parties have. Returns how many had arrived before.

    Raises BrokenBarrier; NotAcquired when the wait is over, and Unreachable: the barrier is broken then for the others.
    """
    started = env.now()
    ends_at = inf if wait_s is None else started + wait_s
    generation: int = UNKNOWN
    index = 0
    has_left = False
    try:
        while True:
            listening = env.hears(spec.name)
            asked_at = env.now()
            args = ("arrive", generation, ticket)
            code, told, number, ms = yield from insist(spec.bound(env), args, patience(started, wait_s, env), env)
            if code == TRIPPED:
                return int(number) if generation == UNKNOWN else index
            if code == BROKEN:
                raise spec.broken()
            generation, index = int(told), int(number)
            if env.now() >= ends_at:
                left = yield from _leave(spec, generation, ticket, env)
                if left == TRIPPED:
                    return index  # in the last moment
                has_left = left == BROKEN
                raise NotAcquired(_alone(spec, wait_s), name=spec.name.shown, waited_s=wait_s or 0.0)
            # Its own place must not end, and it looks after the others' at the moment when the first of them would.
            until = min(ends_at, asked_at + spec.lease_s / 3, env.now() + ms / 1000 + 0.003)
            push = yield from news(ticket, until, listening, spec.name, env)
            if push is not None and push.number == generation:
                if push.kind == "tripped":
                    return index
                raise spec.broken()
    except GeneratorExit:
        raise  # the process died here; nobody is left to tidy up
    except BrokenBarrier:
        raise  # nothing of it is there any more
    except BaseException:
        if not has_left:
            undo = Call(spec.bound(env), ("leave", generation, ticket), env.now() + UNDO_S, behind=True)
            try:
                yield undo
            except LockfastError:
                pass  # its place ends with the lease, and breaks the barrier then
        raise


def _leave(spec: BarrierSpec, generation: int, ticket: str, env: Env) -> Flow[int]:
    """Wait no longer, and tell the others. TRIPPED when all have come before that, UNSURE when nobody answers."""
    try:
        by = env.now() + env.timeout_s
        code, *_ = yield from insist(spec.bound(env), ("leave", generation, ticket), by, env)
    except LockfastError:
        return UNSURE
    return int(code)


def abort(spec: BarrierSpec, ticket: str, env: Env) -> Flow[None]:
    """Break it for all who wait and all who come."""
    yield from _act(spec, "abort", ticket, env)


def reset(spec: BarrierSpec, ticket: str, env: Env) -> Flow[None]:
    """Make it whole and empty. Who waits at this moment is told that it is broken."""
    yield from _act(spec, "reset", ticket, env)


def look(spec: BarrierSpec, ticket: str, env: Env) -> Flow[tuple[bool, int]]:
    """Whether it is broken, and how many wait."""
    return (yield from _act(spec, "look", ticket, env))


def _act(spec: BarrierSpec, verb: str, ticket: str, env: Env) -> Flow[tuple[bool, int]]:
    by = env.now() + env.timeout_s
    code, _, number, _ = yield from insist(spec.bound(env), (verb, UNKNOWN, ticket), by, env)
    return code == BROKEN, int(number)


def _alone(spec: BarrierSpec, wait_s: float | None) -> str:
    words = f"{spec.name.shown!r}: not all of the {spec.parties} parties came within {wait_s:g} s"
    return f"{words}; the barrier is broken now"
