"""A world: one heap of events in virtual time, one source of chance, and everything that happens written down.

Nothing in here or above reads a real clock, and every random number comes from the seed: the same seed, with the
same things asked of the world, gives the same trace, byte for byte. A world made by hand does nothing by chance;
whoever wants chance (sim/swarm.py) plans it and asks for it.
"""

from __future__ import annotations

import logging
from heapq import heappop, heappush
from random import Random
from typing import TYPE_CHECKING, Any

from lockfast.check.history import Event
from lockfast.sim.client import Client
from lockfast.sim.clocks import Clock
from lockfast.sim.node import Node

if TYPE_CHECKING:
    from collections.abc import Callable

MAX_STEPS = 2_000_000  # a run that needs more than this goes round in circles


class Timer:
    """Something that will happen, unless it is called off."""

    __slots__ = ("action", "args")

    def __init__(self, action: Callable[..., object] | None, args: tuple[Any, ...]) -> None:
        self.action = action
        self.args = args

    def cancel(self) -> None:
        self.action = None
        self.args = ()


class World:
    """Virtual time in true seconds, and who lives in it.

    quiet: keep no trace, which makes long runs of many seeds faster; the history is always kept.
    """

    def __init__(self, seed: int = 0, quiet: bool = False) -> None:
        self.seed = seed
        self.rng = Random(seed)
        self.now = 0.0
        self.steps = 0
        self.script_runs = 0
        self.trace: list[str] = []
        self.tells = not quiet
        self.history: list[Event] = []
        self.servers: dict[str, Node] = {}
        self.clients: dict[str, Client] = {}
        # How long a message is on its way: least, and up to how much more by chance.
        self.latency_s = 0.0005
        self.spread_s = 0.0
        self._heap: list[tuple[float, int, Timer]] = []
        self._made = 0

    def add_server(self, name: str, clock: Clock | None = None) -> Node:
        """A server that is up and empty."""
        if name in self.servers:
            raise ValueError(f"there is a server {name!r} already")
        node = self.servers[name] = Node(self, name, clock or Clock())
        return node

    def add_client(
        self,
        name: str,
        servers: list[Node],
        clock: Clock | None = None,
        wall_skew_s: float = 0.0,
        style: str = "threads",
        timeout_s: float = 2.0,
    ) -> Client:
        """A client process. style: "threads" or "asyncio", which treat their connections differently."""
        if name in self.clients:
            raise ValueError(f"there is a client {name!r} already")
        client = Client(self, name, servers, clock or Clock(), wall_skew_s, style, timeout_s)
        self.clients[name] = client
        return client

    def at(self, seconds: float, action: Callable[..., object], *args: Any) -> Timer:
        """Do something at a moment of true time; at once, after what is due, if that has passed."""
        timer = Timer(action, args)
        self._made += 1
        heappush(self._heap, (max(seconds, self.now), self._made, timer))
        return timer

    def after(self, delay_s: float, action: Callable[..., object], *args: Any) -> Timer:
        """Do something a while from now."""
        return self.at(self.now + delay_s, action, *args)

    def run(self, until: float) -> None:
        """Let time pass, up to and including `until`. What a client's code raises by mistake comes out here."""
        log = logging.getLogger("lockfast")
        was_disabled, log.disabled = log.disabled, True  # virtual renewals that fail are no news for the real log
        try:
            self.pass_time(until)
        finally:
            log.disabled = was_disabled

    def pass_time(self, until: float) -> None:
        """The loop itself. Also entered from within: by a client that stalls between two of its instructions."""
        heap = self._heap
        while heap and heap[0][0] <= until:
            self.now, _, timer = heappop(heap)
            if timer.action is not None:
                self.steps += 1
                if self.steps > MAX_STEPS:
                    raise RuntimeError(f"no end after {MAX_STEPS} steps, at {self.now:.6f} s")
                timer.action(*timer.args)
        if self.now < until:
            self.now = until

    def delay(self) -> float:
        """How long the next message is on its way."""
        return self.latency_s + self.spread_s * self.rng.random() ** 3 if self.spread_s else self.latency_s

    def say(self, who: str, words: str) -> None:
        """Write a line of the trace."""
        if self.tells:
            self.trace.append(f"{self.now:9.3f}  {who:<5} {words}")

    def record(self, what: str, **about: Any) -> None:
        """Add to the history that the checkers read."""
        about.setdefault("name", "")
        about.setdefault("ticket", "")
        self.history.append(Event(at=self.now, what=what, **about))
