"""The reading side: which names are in use, who holds one, and taking one away on purpose."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from lockfast import names, snapshots
from lockfast.errors import NotHeld, Refused, Unreachable
from lockfast.flows.admission import TOMBSTONE_MS
from lockfast.flows.effects import Call, CallMany, Command, backoff
from lockfast.flows.scripts import INSPECT, LEAVE, Bound

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

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
    """Every name with a holder or a waiter, by its parts, as it was when its turn came: one trip for a page of keys."""
    found: dict[names.Parts, Snapshot] = {}
    cursor = b"0"
    for _ in range(MAX_SCANS):
        scan = ("SCAN", cursor, "MATCH", names.scan_pattern(prefix), "COUNT", 500)
        cursor, keys = yield from _ask(partial(Command, scan), env)
        page: dict[names.Parts, Name] = {}
        for key in keys:
            parts = names.parts_of_key(prefix, key.decode(errors="replace"))
            if parts is not None and parts not in found:
                try:
                    page[parts] = names.make(prefix, parts)
                except ValueError:
                    continue  # somebody else's, too
        found |= yield from _busy_of(page, env)
        if cursor == b"0":
            break
    return found


def _busy_of(page: dict[names.Parts, Name], env: Env) -> Flow[dict[names.Parts, Snapshot]]:
    """Of these names, those with a holder or a waiter."""
    if not page:
        return {}
    bound = [Bound(INSPECT, name) for name in page.values()]

    def attempt(by: float) -> Flow[list[Any]]:
        replies: list[Any] = yield CallMany([Call(each, (snapshots.MAX_WAITERS,), by) for each in bound], by)
        for reply in replies:  # in a cluster one of the slots may be on its way
            if isinstance(reply, BaseException) and not isinstance(reply, Refused):
                raise reply
        return replies

    replies = yield from patiently(attempt, env)
    found: dict[names.Parts, Snapshot] = {}
    for (parts, name), reply in zip(page.items(), replies, strict=True):
        if isinstance(reply, Refused):
            continue  # somebody else's key under our prefix
        seen = snapshots.read(name, reply)
        if seen.holders or seen.waiters:
            found[parts] = seen
    return found


def merged(found: Iterable[dict[names.Parts, Snapshot]]) -> dict[names.Parts, Snapshot]:
    """Every name that one of several servers knows, sorted, each as the one sees it that knows most of it."""
    together: dict[names.Parts, list[Snapshot]] = {}
    for one in found:
        for parts, seen in one.items():
            together.setdefault(parts, []).append(seen)
    return {parts: fullest(together[parts]) for parts in sorted(together)}


def fullest(found: Iterable[Snapshot]) -> Snapshot:
    """Of what several servers say of a name, what the one says that knows most of it: waiters queue at one of them."""
    return max(found, key=lambda seen: (len(seen.holders), seen.queue_length))


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
