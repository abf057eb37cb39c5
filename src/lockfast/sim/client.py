"""A client process: its clocks, its tasks, its connections, and what can happen to the whole of it.

While it is paused nothing of it runs, and what arrives waits; afterwards timers, replies and pushes come in any order,
only each connection keeps its own. A pause may also begin between two instructions (`stall`): then the world goes on
around the code that has stopped. A crash is a power cut: no clean-up runs.
"""

from __future__ import annotations

from math import inf
from random import Random
from typing import TYPE_CHECKING, Any

from lockfast.flows.effects import Env
from lockfast.grants import Era
from lockfast.names import channel
from lockfast.sim.clocks import EPOCH_S
from lockfast.sim.driving import Runner
from lockfast.sim.keeper import Keeper
from lockfast.sim.quorum import Quorum, make_fleet
from lockfast.sim.tasks import TICK_S, PowerOff, Task

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from lockfast.sim.clocks import Clock
    from lockfast.sim.faults import Counted
    from lockfast.sim.net import Connection
    from lockfast.sim.node import Node
    from lockfast.sim.world import Timer, World

PREFIX = "lockfast"


class Client:
    """One process. `env`, `era` and `keeper` are what the shipped flows and holds work with."""

    def __init__(
        self,
        world: World,
        name: str,
        servers: list[Node],
        clock: Clock,
        wall_skew_s: float,
        style: str,
        timeout_s: float,
    ) -> None:
        if clock.skew_s < 0:
            raise ValueError(f"the clock of a client counts from its start, it is never negative: {clock!r}")
        self.world = world
        self.name = name
        self.servers = servers
        self.clock = clock
        self.wall_skew_s = wall_skew_s
        self.style = style
        self.rng = Random(f"{world.seed} {name}")
        self.faults: Counted | None = None
        self.dead = False
        self.on_crash: Callable[[], None] | None = None
        self.in_any_order = False  # whether chance decides what comes first after a pause
        self._cuts: set[tuple[str, Node | None]] = set()  # which direction, and to which server: None for all
        self.connections: dict[Connection, None] = {}
        self.stuck: dict[Connection, None] = {}
        self.tasks: dict[Task, None] = {}
        self._connections_made = 0
        self._ids_made = 0
        self._paused_until = 0.0
        self._stalled = False
        self._slept_s = 0.0  # how long the machine was suspended, in all
        self._backlog: list[tuple[object, Callable[..., object], tuple[Any, ...]]] = []

        self.env = Env(self.now, self.rng.random, timeout_s)
        self.env.introduce(channel(PREFIX, name), f"{name} 1")
        self.env.swaps_from, self.env.young_s = 0.0, inf  # more holds than real clients swap
        self.era = Era(self.now)
        self.runner = Runner(self)
        self.keeper = Keeper(self)

    def join_quorum(self, node_timeout_s: float, max_lease_s: float) -> None:
        """From now on a majority of its servers decides who holds a name."""
        self.env.fleet = make_fleet(self, node_timeout_s, max_lease_s)
        self.runner.quorum = Quorum(self, self.env.fleet, PREFIX)

    # Clocks.

    def now(self) -> float:
        """The clock that deadlines are on: it drifts, and counts through pauses and suspends."""
        if self.faults is not None:
            stall_s = self.faults.of_reading()
            if stall_s and not self._stalled:
                self.stall(stall_s)
        return self.clock.read(self.world.now)

    def shown(self) -> float:
        """The same clock, as the operating system reads it for a timer."""
        return self.clock.read(self.world.now)

    def wall(self) -> float:
        """The wall clock, which may be wrong by any amount."""
        return EPOCH_S + self.wall_skew_s + self.clock.read(self.world.now)

    def jump_wall(self, by_s: float) -> None:
        """Somebody sets the wall clock."""
        self.world.say(self.name, f"its wall clock jumps by {by_s:+.3f} s")
        self.wall_skew_s += by_s

    def alarm(self, by: float, tick: bool, action: Callable[..., object], *args: Any) -> Timer:
        """Call back when the own clock shows `by`. Sleeping machines fire late by as much as they slept."""
        return self.world.at(self.clock.fires_at(by), self._fire, self._slept_s, tick, action, args)

    def _fire(self, slept_s: float, tick: bool, action: Callable[..., object], args: tuple[Any, ...]) -> None:
        missed_s = self._slept_s - slept_s
        if missed_s > 0:  # the timer's own clock stood still meanwhile
            late_s = min(missed_s, max(self._paused_until - self.world.now, 0.0) + TICK_S) if tick else missed_s
            self.world.after(late_s, self._fire, self._slept_s, tick, action, args)
        else:
            self.deliver(None, action, *args)

    # Tasks.

    def start(self, body: Callable[[Client], Generator[Any, Any, Any]], label: str = "task") -> Task:
        """Run a body beside everything else. It yields effects: those of flows, `Work` and `Run`."""
        return Task(self, self.runner.run(body(self)), label)

    def soon(self, action: Callable[..., object], *args: Any) -> None:
        """Call back in the next turn."""
        self.world.at(self.world.now, self.deliver, None, action, *args)

    def wake(self, action: Callable[..., object], serial: int) -> None:
        """Wake a task whose answer is there; sometimes the machine has others to run first."""
        late_s = self.faults.of_wake() if self.faults is not None else 0.0
        self.world.after(late_s, self.deliver, None, action, serial, True)

    def deliver(self, source: object, action: Callable[..., object], *args: Any) -> None:
        """Let something happen inside the process: now, or when it runs again. source: what keeps its own order."""
        if self.dead:
            return
        if self._stalled or self.world.now < self._paused_until:
            self._backlog.append((source, action, args))
            return
        try:
            action(*args)
        except PowerOff:
            pass  # died in mid-step

    def new_id(self) -> str:
        """A ticket or token that nobody else has, and that people can read."""
        self._ids_made += 1
        return f"{self.name}.{self._ids_made}"

    def count_connection(self) -> int:
        self._connections_made += 1
        return self._connections_made

    # What happens to it.

    def pause(self, length_s: float) -> None:
        """Stop, and go on later: SIGSTOP, a long garbage collection, a machine that swaps."""
        self.world.say(self.name, f"is paused for {length_s:.3f} s")
        self._stop_until(self.world.now + length_s)

    def suspend(self, length_s: float) -> None:
        """The lid is closed: like a pause, and timers stand still as well. The clock of deadlines counts on."""
        self.world.say(self.name, f"is suspended for {length_s:.3f} s")
        self._slept_s += length_s
        self._stop_until(self.world.now + length_s)

    def stall(self, length_s: float) -> None:
        """Stop between two instructions: whoever called this sees the world as it is afterwards."""
        self.world.say(self.name, f"stalls for {length_s:.3f} s")
        self._stalled = True
        self._paused_until = max(self._paused_until, self.world.now + length_s)
        while self.world.now < self._paused_until and not self.dead:
            self.world.pass_time(self._paused_until)
        self._stalled = False
        if self.dead:
            raise PowerOff
        self.world.at(self.world.now, self._resume)

    def _stop_until(self, moment: float) -> None:
        self._paused_until = max(self._paused_until, moment)
        self.world.at(self._paused_until, self._resume)

    def _resume(self) -> None:
        if self.dead or self._stalled or self.world.now < self._paused_until:
            return
        backlog, self._backlog = self._backlog, []
        if backlog:
            self.world.say(self.name, "goes on")
        if self.in_any_order:
            backlog = _shuffled(backlog, self.rng)
        for source, action, args in backlog:
            self.deliver(source, action, *args)

    def crash(self, power_off: bool = True) -> None:
        """Die without clean-up. power_off: the machine, so that nobody tells the servers; else only the process."""
        if self.dead:
            return
        self.world.say(self.name, "loses power" if power_off else "is killed")
        self.dead = True
        self.era.ended = True
        for connection in list(self.connections):
            if power_off:
                connection.power_off()
            else:
                connection.close()
        for task in list(self.tasks):
            task.power_off()
        self.world.record("crashed", client=self.name)
        if self.on_crash is not None:
            self.on_crash()

    def cut(self, to: str = "both", node: Node | None = None) -> None:
        """Let nothing through, in one direction or both; what is sent waits for `heal`. node: only this one's."""
        words = {"server": "its requests no longer get through", "client": "no longer hears anything"}
        where = "" if node is None else f" ({node.name})"
        self.world.say(self.name, words.get(to, "is cut off") + where)
        self._cuts.update((way, node) for way in ("server", "client") if to in (way, "both"))

    def is_cut(self, to: str, node: Node) -> bool:
        """Whether nothing gets through in this direction."""
        cuts = self._cuts
        return bool(cuts) and ((to, None) in cuts or (to, node) in cuts)

    def heal(self, node: Node | None = None) -> None:
        """Let everything through again. node: to and from there, if it was cut off from this one alone."""
        healed = {cut for cut in self._cuts if node is None or cut[1] is node}
        if not healed:
            return
        self._cuts -= healed
        self.world.say(self.name, "is connected again" + ("" if node is None else f" ({node.name})"))
        stuck, self.stuck = self.stuck, {}
        for connection in stuck:
            connection.go_on()


def _shuffled(
    backlog: list[tuple[object, Callable[..., object], tuple[Any, ...]]], rng: Random
) -> list[tuple[object, Callable[..., object], tuple[Any, ...]]]:
    """Any order, except that what came from one connection keeps its own."""
    order = list(range(len(backlog)))
    rng.shuffle(order)
    by_source: dict[object, list[int]] = {}
    for place in sorted(order):
        source = backlog[place][0]
        if source is not None:
            by_source.setdefault(source, []).append(place)
    waiting = {source: iter(places) for source, places in by_source.items()}
    return [backlog[place if backlog[place][0] is None else next(waiting[backlog[place][0]])] for place in order]
