"""Deadlock detection by one waiter, for acquires with `detect=True`. What a deadlock is, is in waitfor.py.

A waiter that has waited for a while announces what it waits for under the name of its agent, and looks: who holds what
I wait for, what do they wait for, and so on. That is three small requests a second in an ordinary wait, whatever the
length of the queue. Only when this leads back to a name that was seen already are whole queues read. Announcements are
only signposts: what counts is what the names themselves say, in two looks. So one that is lost, old or missing can
hide a deadlock for a while, but not make one up; it is not taken back, it expires.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lockfast import names, snapshots, waitfor
from lockfast.errors import Deadlock, Unreachable
from lockfast.flows.effects import Call, CallMany, Command
from lockfast.flows.scripts import INSPECT, Bound
from lockfast.specs import PLACE_S

if TYPE_CHECKING:
    from collections.abc import Collection

    from lockfast.flows.asks import Ask
    from lockfast.flows.effects import Env, Flow
    from lockfast.waitfor import Cycle, Found

FIRST_LOOK_S = 0.75  # most waits are over before; they pay nothing
LOOK_EVERY_S = 1.0
MAX_LOOK_S = 2.5  # well below the life of a place, which is not renewed during a look
MIN_LOOK_S = 0.1  # a wait that is over sooner needs no look
MAX_NAMES = 200  # in one look
MAX_AGENTS = 2000
ANNOUNCED_MS = round(PLACE_S * 1000)
INSTEAD = {"lock": ", or use an rlock", "semaphore": ", or take all permits with one acquire"}


class Watch:
    """What one waiter that detects deadlocks remembers from look to look."""

    __slots__ = ("_due", "_sightings")

    def __init__(self, started: float, env: Env) -> None:
        self._due = started + FIRST_LOOK_S + env.jitter() / 4
        self._sightings = waitfor.Sightings()

    def look(self, ask: Ask, ticket: str, ends_at: float, env: Env) -> Flow[float]:
        """Look, if it is time. Returns when to look again. Raises Deadlock if this waiter is the one to give up.

        ends_at: when the wait is over. A server that does not answer is left to the next heartbeat. Raises Refused when
        looking is not allowed.
        """
        if env.now() < self._due:
            return min(self._due, ends_at)
        left_s = ends_at - env.now()
        if left_s < MIN_LOOK_S:
            return ends_at
        try:
            cycle = yield from _find(ask, ticket, self._sightings, _Time(min(left_s, MAX_LOOK_S), env))
        except Unreachable:
            cycle = ()
        if cycle:
            raise Deadlock(_told(cycle, ask), name=ask.name.shown, cycle=cycle)
        self._due = env.now() + LOOK_EVERY_S * (0.75 + env.jitter() / 4)
        return min(self._due, ends_at)


class _Time:
    """How long a look may take: each request as long as any, and all of them together `all_s`."""

    __slots__ = ("_ends_at", "_env")

    def __init__(self, all_s: float, env: Env) -> None:
        self._env = env
        self._ends_at = env.now() + all_s

    def by(self) -> float:
        """When to stop waiting for the reply to a request that is sent now."""
        return min(self._env.now() + self._env.attempt_s, self._ends_at)


def _find(ask: Ask, ticket: str, sightings: waitfor.Sightings, time: _Time) -> Flow[Cycle]:
    """The cycle that this waiter should end by giving up; empty if there is none, or another should."""
    prefix, printed = names.spelled(ask.name)
    me = waitfor.agent_of(ticket)
    announcement = ("SET", names.waits_key(prefix, me), f"{ticket} {printed}", "PX", ANNOUNCED_MS)
    yield Command(announcement, time.by())
    waits = {me: printed}
    reached = yield from _follow(prefix, printed, waits, time)
    found = (yield from inspect_all(prefix, reached, snapshots.MAX_WAITERS, time.by())) if reached else {}
    deadlocks = waitfor.Deadlocks(sightings.confirm(found))
    group = deadlocks.group_of(me)
    if not group:
        return ()
    yield from _learn(prefix, group, waits, time)
    victim = deadlocks.victim(group, lambda agent: bool(waits[agent]))
    return deadlocks.cycle(me) if victim == me else ()


def _follow(prefix: str, printed: str, waits: dict[str, str], time: _Time) -> Flow[list[str]]:
    """Every name that is reached from this one, by its holders and what they wait for; none if no way leads back.

    waits: what agents are known to wait for; those on the way are added.
    """
    reached = {printed}
    leads_back = False
    nearest = [printed]
    while nearest:  # ends: every round reaches new names, up to MAX_NAMES
        found = yield from inspect_all(prefix, nearest, 1, time.by())
        agents = {waitfor.agent_of(holder.ticket) for one in found.values() for holder in one.holders}
        leads_back = leads_back or any(waits.get(agent) for agent in agents)
        if len(waits) + len(agents) > MAX_AGENTS:
            break
        learned = set((yield from _learn(prefix, agents, waits, time)))
        leads_back = leads_back or not reached.isdisjoint(learned)
        nearest = sorted(learned - reached)[: MAX_NAMES - len(reached)]
        reached.update(nearest)
    return sorted(reached) if leads_back else []


def _learn(prefix: str, agents: Collection[str], waits: dict[str, str], time: _Time) -> Flow[list[str]]:
    """Add to `waits` what these agents have announced; "" for those that have not. Returns the names that are new."""
    asked = sorted(set(agents) - waits.keys())
    if not asked:
        return []
    replies = yield Command(("MGET", *(names.waits_key(prefix, agent) for agent in asked)), time.by())
    texts = [(reply or b"").decode(errors="replace").partition(" ")[2] for reply in replies]
    waits.update(zip(asked, texts, strict=True))
    return [text for text in texts if text]


def inspect_all(prefix: str, printed: Collection[str], max_waiters: int, by: float) -> Flow[Found]:
    """Holders and waiters of several names, in one trip; without those that cannot be read."""
    made = {}
    for one in printed:
        try:
            made[one] = names.make(prefix, names.split(one))
        except ValueError:
            continue  # no name: this was written by somebody else
    if not made:
        return {}
    replies = yield CallMany([Call(Bound(INSPECT, name), (max_waiters,), by) for name in made.values()], by)
    found = {}
    for (one, name), reply in zip(made.items(), replies, strict=True):
        if isinstance(reply, Unreachable):
            raise reply
        if not isinstance(reply, BaseException):
            found[one] = snapshots.read(name, reply)
    return found


def _told(cycle: Cycle, ask: Ask) -> str:
    if len(cycle) == 1:
        return f"deadlock: {waitfor.words(cycle)}, itself: release it first{INSTEAD.get(ask.kind, '')}"
    return f"deadlock: {waitfor.words(cycle)}: release what you hold, and start again"
