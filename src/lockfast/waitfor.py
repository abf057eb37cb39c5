"""Who waits for whom, and who waits in a circle: deadlocks, found in snapshots. Nothing is asked or sent here.

A node is an agent: the thread or task that a ticket was made for. Who waits for nothing can finish and give back what
it holds; then the queues move, and others can finish. What is left when nobody more can is deadlocked, and it stays so
until one of them gives up. This one rule covers locks, semaphores and read/write locks (Holt, "Some deadlock properties
of computer systems", 1972). When in doubt an agent counts as one that can finish: a deadlock told of surely is one.
"""

from __future__ import annotations

from collections import Counter, deque
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from lockfast.snapshots import Owner, Snapshot, Waiter

Found = dict[str, "Snapshot"]  # by printed name


class Step(NamedTuple):
    """One waiter of a cycle, and who stands in its way: the waiter of the next step, or of the first after the last.

    agent, held_by_agent: which thread or task of its process it is. since: the server's wall clock, in seconds.
    ahead: `held_by` does not hold the name, it waits for it too, ahead in the queue, for more than there is room for.
    """

    who: Owner
    agent: str
    ticket: str
    waits_for: str
    since: float
    held_by: Owner
    held_by_agent: str
    ahead: bool

    def as_dict(self) -> dict[str, Any]:
        """The same as plain values, for JSON."""
        return {**self._asdict(), "who": self.who._asdict(), "held_by": self.held_by._asdict()}


Cycle = tuple[Step, ...]


def agent_of(ticket: str) -> str:
    """The thread or task that a ticket is for; one that does not say stands for itself alone."""
    parts = ticket.split(".")
    return parts[1] if len(parts) == 3 else ticket


def words(cycle: Cycle) -> str:
    """A cycle as one sentence."""
    told = []
    for step in cycle:
        how = "behind" if step.ahead else "held by"
        blocker = called(step.held_by, step.held_by_agent)
        told.append(f"{called(step.who, step.agent)} waits for {step.waits_for!r}, {how} {blocker}")
    return "; ".join(told)


def called(owner: Owner, agent: str) -> str:
    """An agent as people read it; the number is that of a thread or task in its process."""
    number = agent.rpartition("_")[2]
    return f"{owner.host} pid {owner.pid} #{number}"


class Place(NamedTuple):
    """Where an agent waits."""

    name: str
    waiter: Waiter


class Sightings:
    """What earlier looks saw. Every look takes time, so what one look sees may never have been true at one moment.

    What stands in a look and stood in one before has stood all the time in between (a ticket never comes back), all of
    it at once. Of a waiter it is also asked that its client was heard of in between: it has not just died or gone.
    """

    __slots__ = ("_seen",)

    def __init__(self) -> None:
        self._seen: dict[tuple[str, str], tuple[float, float]] = {}

    def confirm(self, found: Found) -> Found:
        """What of `found` has stood since an earlier look. The rest is remembered for the next."""
        seen: dict[tuple[str, str], tuple[float, float]] = {}
        stood: Found = {}
        for name, one in found.items():
            holders, waiters = [], []
            for holder in one.holders:
                now = (float(holder.fence), 0.0)
                before = self._seen.get((name, holder.ticket))
                seen[name, holder.ticket] = now
                if before == now:
                    holders.append(holder)
            for waiter in one.waiters:
                now = (waiter.since, one.at + waiter.place_left)
                before = self._seen.get((name, waiter.ticket))
                if before is None or before[0] != waiter.since:
                    seen[name, waiter.ticket] = now
                    continue
                seen[name, waiter.ticket] = before
                if abs(now[1] - before[1]) > 0.0005:  # the end of its place has moved: a heartbeat
                    waiters.append(waiter)
            stood[name] = one._replace(holders=tuple(holders), waiters=tuple(waiters))
        self._seen = seen
        return stood


class Deadlocks:
    """The deadlocks among the names of `found`. groups: the agents of each that are in each other's way."""

    __slots__ = ("_edges", "_found", "_places", "groups")

    def __init__(self, found: Mapping[str, Snapshot]) -> None:
        self._found, self._places = _latest(found)
        stuck = _stuck(self._found, set(self._places))
        rooms = {name: _room(one, stuck) for name, one in self._found.items()}
        self._edges = {agent: self._in_the_way(agent, stuck, rooms) for agent in self._places if agent in stuck}
        self.groups = _knots(self._edges)

    def group_of(self, agent: str) -> frozenset[str]:
        """The group that an agent is in; empty if it is in none."""
        return next((group for group in self.groups if agent in group), frozenset())

    def names_of(self, group: Iterable[str]) -> set[str]:
        """The names that they wait for."""
        return {self._places[agent].name for agent in group}

    def victim(self, group: frozenset[str], may_be_told: Callable[[str], bool] = lambda _: True) -> str:
        """The agent that should give up: the youngest waiter of those whose giving up sets another free.

        If no single one would, the youngest that holds something. "" when none of them may be told.
        """
        told = sorted(filter(may_be_told, group), key=self._age, reverse=True)
        used: Counter[str] = Counter()
        held: dict[str, Counter[str]] = {agent: Counter() for agent in group}
        heads: dict[str, list[tuple[str, int]]] = {}  # the first two of a queue: without one of them, who is first
        for name in self.names_of(group):
            one = self._found[name]
            for holder in one.holders:
                if (agent := agent_of(holder.ticket)) in group:
                    used[name] += holder.weight
                    held[agent][name] += holder.weight
            queue = ((agent_of(waiter.ticket), waiter.weight) for waiter in one.waiters)
            heads[name] = list(islice((place for place in queue if place[0] in group), 2))
        for agent in told:
            for name in {*held[agent], self._places[agent].name}:
                first = next((weight for other, weight in heads[name] if other != agent), None)
                if first is not None and first <= self._found[name].limit - used[name] + held[agent][name]:
                    return agent
        return next((agent for agent in told if held[agent]), told[0] if told else "")

    def cycle(self, agent: str) -> Cycle:
        """The shortest circle that an agent of a group is in, beginning with it."""
        came_from: dict[str, str] = {}
        queue = deque([agent])
        while agent not in came_from:
            at = queue.popleft()
            for following in self._edges[at]:
                if following not in came_from:
                    came_from[following] = at
                    queue.append(following)
        path = [agent]
        while (before := came_from[path[-1]]) != agent:
            path.append(before)
        path = [agent, *reversed(path[1:])]
        return tuple(self._step(one, path[(number + 1) % len(path)]) for number, one in enumerate(path))

    def _age(self, agent: str) -> tuple[float, str]:
        waiter = self._places[agent].waiter
        return waiter.since, waiter.ticket

    def _step(self, agent: str, following: str) -> Step:
        name, waiter = self._places[agent]
        one = self._found[name]
        holders = [holder.owner for holder in one.holders if agent_of(holder.ticket) == following]
        owner = holders[0] if holders else self._places[following].waiter.owner
        return Step(waiter.owner, agent, waiter.ticket, name, waiter.since, owner, following, not holders)

    def _in_the_way(self, agent: str, stuck: set[str], rooms: Mapping[str, int]) -> list[str]:
        """Whom an agent waits for: stuck holders; or, if they leave room enough, waiters ahead whom they do not."""
        name, waiter = self._places[agent]
        one, room = self._found[name], rooms[name]
        if waiter.weight > room:
            return [holder for holder in dict.fromkeys(agent_of(h.ticket) for h in one.holders) if holder in stuck]
        ahead = one.waiters[: one.waiters.index(waiter)]
        return [agent_of(other.ticket) for other in ahead if other.weight > room]


def _latest(found: Mapping[str, Snapshot]) -> tuple[Found, dict[str, Place]]:
    """Where each agent waits. It waits in one place at a time: an older one was left behind, and ends by itself."""
    places: dict[str, Place] = {}
    for name, one in found.items():
        for waiter in one.waiters:
            agent = agent_of(waiter.ticket)
            if agent not in places or places[agent].waiter.since < waiter.since:
                places[agent] = Place(name, waiter)
    current = {place.waiter.ticket for place in places.values()}
    kept = {
        name: one._replace(waiters=tuple(waiter for waiter in one.waiters if waiter.ticket in current))
        for name, one in found.items()
    }
    return kept, places


def _stuck(found: Mapping[str, Snapshot], waiting: set[str]) -> set[str]:
    """Those of the waiting who wait for ever, unless one of them gives up."""
    stuck = set(waiting)
    moved = True
    while moved:
        moved = False
        for one in found.values():
            room = _room(one, stuck)
            for waiter in one.waiters:
                if waiter.weight > room:
                    break  # nobody overtakes
                agent = agent_of(waiter.ticket)
                if agent in stuck:
                    stuck.remove(agent)
                    moved = True
    return stuck


def _room(one: Snapshot, stuck: set[str]) -> int:
    """What of the limit can be had when all have left who can."""
    return one.limit - sum(holder.weight for holder in one.holders if agent_of(holder.ticket) in stuck)


def _knots(edges: Mapping[str, list[str]]) -> list[frozenset[str]]:
    """The groups in which everybody waits for everybody, by way of others, and for nobody else.

    These are the strongly connected components that no edge leaves (Tarjan 1972, without recursion). Whoever else is
    stuck waits for one of them.
    """
    number: dict[str, int] = {}
    lowest: dict[str, int] = {}
    path: list[str] = []
    on_path: set[str] = set()
    knots = []
    for start in edges:
        if start in number:
            continue
        work = [(start, iter(edges[start]))]
        number[start] = lowest[start] = len(number)
        path.append(start)
        on_path.add(start)
        while work:
            agent, following = work[-1]
            step = next(following, None)
            if step is not None:
                if step not in number:
                    number[step] = lowest[step] = len(number)
                    path.append(step)
                    on_path.add(step)
                    work.append((step, iter(edges[step])))
                elif step in on_path:
                    lowest[agent] = min(lowest[agent], number[step])
                continue
            work.pop()
            if work:
                before = work[-1][0]
                lowest[before] = min(lowest[before], lowest[agent])
            if lowest[agent] == number[agent]:
                first = path.index(agent)
                group = frozenset(path[first:])
                on_path -= group
                del path[first:]
                if all(set(edges[member]) <= group for member in group):
                    knots.append(group)
    return knots
