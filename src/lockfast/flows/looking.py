"""The reading side: which names are in use, who holds one, and taking one away on purpose."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from lockfast import names, snapshots
from lockfast.errors import NotHeld, Refused, Unreachable
from lockfast.flows.admission import TOMBSTONE_MS
from lockfast.flows.effects import Call, Command, backoff
from lockfast.flows.scripts import INSPECT, LEAVE, Bound

if TYPE_CHECKING:
    from collections.abc import Callable

    from lockfast.flows.effects import Env, Flow
    from lockfast.names import Name
    from lockfast.snapshots import Snapshot

R = TypeVar("R")
MAX_SCANS = 1_000_000


def inspect(name: Name, env: Env) -> Flow[Snapshot]:
    """Holders and waiters of one name."""
    reply = yield from _ask(partial(Call, Bound(INSPECT, name), (snapshots.MAX_WAITERS,)), env)
    return snapshots.read(name, reply)


def _ask(question: Callable[[float], Call | Command], env: Env) -> Flow[Any]:
    """The answer to what may be asked twice."""

    def attempt(by: float) -> Flow[Any]:
        return (yield question(by))

    return (yield from patiently(attempt, env))


def patiently(attempt: Callable[[float], Flow[R]], env: Env) -> Flow[R]:
    """What an attempt comes to that may be made again: as often as it takes, within the client's time-out.

    A slot that is being moved, a server that restarts, a master whose replica has yet to follow: all that passes.
    """
    gives_up_at = env.now() + env.timeout_s
    failures = 0
    sent = False
    while True:
        try:
            return (yield from attempt(min(env.now() + env.attempt_s, gives_up_at)))
        except Unreachable as failure:
            failures += 1
            sent = sent or failure.sent
            is_needed = failures < 2 or not env.enough()  # one failure says nothing of the server: see backoff
            if is_needed:
                yield backoff(failures, gives_up_at, env)
            if not is_needed or env.now() >= gives_up_at:
                raise Unreachable(str(failure), sent=sent) from failure


def in_use(prefix: str, env: Env) -> Flow[list[names.Parts]]:
    """The parts of every name with a holder or a waiter, sorted. Looks at all keys, without blocking the server."""
    return sorted((yield from busy(prefix, env)))


def busy(prefix: str, env: Env) -> Flow[dict[names.Parts, Snapshot]]:
    """Every name with a holder or a waiter, by its parts, as it was when its turn came."""
    found: dict[names.Parts, Snapshot] = {}
    cursor = b"0"
    for _ in range(MAX_SCANS):
        scan = ("SCAN", cursor, "MATCH", names.scan_pattern(prefix), "COUNT", 500)
        cursor, keys = yield from _ask(partial(Command, scan), env)
        for key in keys:
            parts = names.parts_of_key(prefix, key.decode(errors="replace"))
            if parts is not None and parts not in found:
                try:
                    seen = yield from inspect(names.make(prefix, parts), env)
                except (Refused, ValueError):
                    continue  # somebody else's key under our prefix
                if seen.holders or seen.waiters:
                    found[parts] = seen
        if cursor == b"0":
            break
    return found


def break_lock(name: Name, reason: str, env: Env) -> Flow[Snapshot]:
    """Take the name from its holders, and record who did it and why. Raises NotHeld when nobody holds it."""
    before = yield from inspect(name, env)
    if not before.holders:
        raise NotHeld(f"{name.shown!r} is held by nobody: there is nothing to break")
    by = "/".join(env.owner.split(" ")[:2])
    holders = before.holders
    fences = {holder.fence for holder in holders}
    while holders:  # ends when none of these grants stands: no new ones are added
        missed = False
        for holder in holders:
            refused_ms = max(TOMBSTONE_MS, round(holder.lease_left * 1000))
            bound = Bound(LEAVE, name, (refused_ms, 1, f"{by} {reason}"))
            found = yield from _ask(partial(Call, bound, (holder.ticket,)), env)
            missed = missed or found != 1
        # One that was not there has left, by an earlier copy of this request maybe, whose reply was lost. Or it was
        # handed on in this moment: the same hold by another ticket.
        after = (yield from inspect(name, env)) if missed else before._replace(holders=())
        holders = tuple(holder for holder in after.holders if holder.fence in fences)
    return before
