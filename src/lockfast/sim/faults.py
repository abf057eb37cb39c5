"""What can go wrong, as a plain list: every fault of a run is planned before it starts.

So a run is told by its seed and its list of faults, and a run that fails can be tried again with fewer of them.
Some faults strike at a moment of true time; others strike the nth message, push, wake-up or look at the clock of one
client, so that they hit the narrow places however the rest of the run goes. A client may be paused or die either way:
at a moment, or when its nth message has just been sent.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from lockfast.sim.node import Node
    from lockfast.sim.world import World

# By what they count. "stall": the process stops at its nth look at the clock; "late": one of its tasks is woken late.
OF_REQUESTS = ("slow", "lost", "reset", "answer slow", "answer lost", "answer reset")
OF_PUSHES = ("push slow", "push lost", "push reset")
OF_READINGS = ("stall",)
OF_WAKES = ("late",)
COUNTED = OF_REQUESTS + OF_PUSHES + OF_READINGS + OF_WAKES
AFTER_REQUESTS = ("pause", "crash", "kill")
OF_CLIENTS = ("pause", "suspend", "cut up", "cut down", "cut", "crash", "kill")
OF_SERVERS = ("freeze", "restart", "power cut", "forget", "flush scripts", "clock back", "clock ahead")
KINDS = COUNTED + OF_CLIENTS + OF_SERVERS
# Of several servers: nothing gets through between one client and one of them ("a-s2"); one loses power and its memory.
OF_LINKS = ("part", "part up", "part down")
OF_SEVERAL = (*OF_LINKS, "blackout")


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault. `nth` says when, if it is not 0, else `at` (true seconds); `length_s` how long, or how far a jump."""

    kind: str
    who: str
    at: float = 0.0
    nth: int = 0
    length_s: float = 0.0

    def __post_init__(self) -> None:
        if self.kind not in KINDS and self.kind not in OF_SEVERAL:
            raise ValueError(f"unknown fault {self.kind!r}: one of {', '.join(KINDS + OF_SEVERAL)}")
        if (self.kind in COUNTED and self.nth < 1) or (self.nth and self.kind not in COUNTED + AFTER_REQUESTS):
            raise ValueError(f"{self.kind!r} strikes {'the nth time' if self.kind in COUNTED else 'at a moment'}")

    def __str__(self) -> str:
        when = f"nth {self.nth}" if self.nth else f"at {self.at:.3f}"
        return f"{self.kind} ({self.who}, {when}" + (f", {self.length_s:.3f} s)" if self.length_s else ")")


class Counted:
    """The faults of one client that strike by count."""

    __slots__ = (
        "_pushes",
        "_pushes_due",
        "_readings",
        "_readings_due",
        "_requests",
        "_requests_due",
        "_wakes",
        "_wakes_due",
    )

    def __init__(self, faults: Iterable[Fault]) -> None:
        mine = [fault for fault in faults if fault.nth]
        self._requests_due = {fault.nth: fault for fault in mine if fault.kind in OF_REQUESTS + AFTER_REQUESTS}
        self._pushes_due = {fault.nth: fault for fault in mine if fault.kind in OF_PUSHES}
        self._readings_due = {fault.nth: fault.length_s for fault in mine if fault.kind in OF_READINGS}
        self._wakes_due = {fault.nth: fault.length_s for fault in mine if fault.kind in OF_WAKES}
        self._requests = self._pushes = self._readings = self._wakes = 0

    def of_request(self) -> Fault | None:
        self._requests += 1
        return self._requests_due.get(self._requests)

    def of_push(self) -> Fault | None:
        self._pushes += 1
        return self._pushes_due.get(self._pushes)

    def of_reading(self) -> float:
        self._readings += 1
        return self._readings_due.get(self._readings, 0.0)

    def of_wake(self) -> float:
        self._wakes += 1
        return self._wakes_due.get(self._wakes, 0.0)


def schedule(world: World, faults: Iterable[Fault]) -> None:
    """Let the faults that have a moment strike then. Those of a client that is gone by then do nothing."""
    for fault in faults:
        if not fault.nth:
            world.at(fault.at, strike, world, fault)


def strike(world: World, fault: Fault) -> None:
    """Do it now."""
    kind, length_s = fault.kind, fault.length_s
    if kind in OF_LINKS:
        _part(world, fault)
        return
    if kind in OF_SERVERS or kind == "blackout":
        node = world.servers[fault.who]
        if kind == "freeze":
            node.freeze(length_s)
        elif kind == "flush scripts":
            node.flush_scripts()
        elif kind == "clock back":
            node.jump_clock(-length_s)
        elif kind == "clock ahead":
            node.jump_clock(length_s)
        elif node.up:
            node.crash(power_off=kind in ("power cut", "blackout"))
            world.after(length_s, _come_back, node, kind not in ("forget", "blackout"))
        return
    client = world.clients.get(fault.who)
    if client is None or client.dead:
        return
    if kind == "pause":
        client.pause(length_s)
    elif kind == "suspend":
        client.suspend(length_s)
    elif kind in ("crash", "kill"):
        client.crash(power_off=kind == "crash")
    else:
        client.cut({"cut up": "server", "cut down": "client", "cut": "both"}[kind])
        world.after(length_s, client.heal)


def _part(world: World, fault: Fault) -> None:
    who, _, where = fault.who.partition("-")
    client, node = world.clients.get(who), world.servers[where]
    if client is not None and not client.dead:
        client.cut({"part up": "server", "part down": "client", "part": "both"}[fault.kind], node)
        world.after(fault.length_s, client.heal, node)


def _come_back(node: Node, memory: bool) -> None:
    if not node.up:  # the quiet began before its time
        node.restart(memory)
