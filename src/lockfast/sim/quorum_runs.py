"""What a run over several servers needs beside sim/runs.py: servers with a history of their own, and who judges it.

The history that the checkers read leaves out what single servers do: none of them decides. That one forgets is no
excuse either. Each server keeps what happened to its own votes, so that it can be seen that none is left behind.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lockfast import check
from lockfast.check.endings import PLACE_S
from lockfast.check.history import Event
from lockfast.check.verdicts import OK, unknown, violated
from lockfast.flows.introduction import mark_key
from lockfast.sim.client import PREFIX
from lockfast.sim.clocks import Clock

if TYPE_CHECKING:
    from lockfast.check import History, Verdict
    from lockfast.sim.node import Node
    from lockfast.sim.swarm import Plan, ServerPlan
    from lockfast.sim.world import World

# Faults that delay, but lose nothing on the way: behind these a `leave` always arrives.
HARMLESS = frozenset({"answer slow", "push slow", "push lost", "push reset", "late", "stall", "pause"})


def add_server(world: World, plan: ServerPlan) -> Node:
    """A server as it is planned."""
    node = world.add_server(plan.name, Clock(plan.skew_s, plan.rate))
    node.server.keeps = plan.keeps
    node.server.begin(node.server.run_id, plan.up_s)
    if plan.keeps:  # as it comes back from an earlier run, which counted
        node.server.store.put(mark_key(PREFIX).encode(), b"earlier 0")
    node.history = []

    def record(what: str, **about: Any) -> None:
        about.setdefault("name", "")
        about.setdefault("ticket", "")
        node.history.append(Event(at=world.now, what=what, **about))

    node.record = record
    return node


def fences_grow(history: History) -> Verdict:
    """The same as check.fences_grow for whoever holds alone; those who share may have the same fence here."""
    alone = [event for event in history if event.weight >= event.limit or event.what not in ("granted", "renewed")]
    return check.fences_grow(alone)


def no_orphan(world: World, plan: Plan, slack_s: float) -> Verdict:
    """Whether every server forgot in time the votes of whoever failed, left or crashed.

    A place in a queue whose `leave` was lost ends by itself, a vote with its lease. Where nothing can be lost, both are
    taken back.
    """
    gone: dict[tuple[str, str], Event] = {}
    crashes: dict[str, Event] = {}
    for event in world.history:
        key = (event.name, event.ticket)
        if event.what in ("failed", "left"):
            gone.setdefault(key, event)
        elif event.what == "crashed":
            crashes[event.client] = event
    if any(event.what == "server_clock_jumped" for event in world.history):
        return unknown("server_clock_jumped")
    options = plan.options
    # Connections on which an answer takes longer than clients wait are given up.
    hasty = 2 * (options.latency_s + options.spread_s) > min(options.node_timeout_s, options.timeout_s / 2)
    lossy = hasty or bool(crashes) or not {fault.kind for fault in plan.faults} <= HARMLESS
    for node in world.servers.values():
        reading = check.read([*node.history, Event(world.now, "end", "", "")])
        for name, named in reading.names.items():
            for tenure in named.tenures:
                ticket = tenure.event.ticket.partition("~")[0]
                ended = gone.get((name, ticket)) or crashes.get(tenure.event.client)
                if ended is None:
                    continue
                allowed_s = slack_s + (PLACE_S + options.max_lease_s if lossy else 0.0)
                end = min(tenure.end, world.now)
                if end > ended.at + allowed_s:
                    why = f"{name}: {ticket} {ended.what} at {ended.at:.6f}, {node.name} kept its vote until {end:.6f}"
                    return violated(why, ended, tenure.event)
    return OK
