"""A server process and the machine it runs on: its clock, its crashes, and who is connected.

What it stores and runs is `sim/server.py`; this is the world around that. After every script it is looked at what
the script did to the name, for the history (`sim/watching.py`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lockfast.sim.server import Server
from lockfast.sim.watching import Watch

if TYPE_CHECKING:
    from collections.abc import Callable

    from lockfast.check.history import Event
    from lockfast.flows.effects import Call
    from lockfast.sim.client import Client
    from lockfast.sim.clocks import Clock
    from lockfast.sim.keyspace import Snapshot
    from lockfast.sim.net import Connection
    from lockfast.sim.server import Session, Word
    from lockfast.sim.world import World


class Node:
    """One server of a world."""

    def __init__(self, world: World, name: str, clock: Clock) -> None:
        self.world = world
        self.name = name
        self.clock = clock
        self.up = True
        self.silent = False  # down without a trace: nobody answers, not even to refuse
        self.frozen = False
        self.connections: dict[Connection, None] = {}
        self.stuck: dict[Connection, None] = {}
        self.on_executed: Callable[[Client], None] | None = None  # told whose requests were carried out
        self.on_script: Callable[[Call, Any], None] | None = None  # told of each that has run, and what it answered
        self.server = Server(lambda: clock.wall_us(world.now))
        self.server.begin(f"{name}.1")
        self.record: Callable[..., None] = world.record  # where it is written down what happens to names here
        self.history: list[Event] = []  # if it is written down here alone
        self.watch = Watch(self)
        self._lives = 1
        self._frozen_until = 0.0
        self._replica: Snapshot | None = None

    def execute(self, session: Session, args: tuple[Word, ...], call: Call | None) -> Any:
        """Run one command of a client."""
        reply = self.server.execute(session, args)
        if call is not None:
            self.world.script_runs += 1
            self.watch.after(call)
            if self.on_script is not None:
                self.on_script(call, reply)
        elif "IFEQ" in args:
            self.watch.after_swap(args)
        return reply

    def drop(self, connection: Connection) -> None:
        """A client has hung up."""
        self.connections.pop(connection, None)
        if connection.session is not None:
            self.server.close(connection.session)
            connection.session = None

    def freeze(self, length_s: float) -> None:
        """Stop running for a while; what arrives meanwhile runs afterwards, in any order among connections."""
        self.world.say(self.name, f"is frozen for {length_s:.3f} s")
        self.frozen = True
        self._frozen_until = max(self._frozen_until, self.world.now + length_s)
        self.world.at(self._frozen_until, self._thaw)

    def _thaw(self) -> None:
        if self.world.now >= self._frozen_until:
            self.thaw()

    def thaw(self) -> None:
        """Run again, if it was frozen."""
        if not self.frozen:
            return
        self.world.say(self.name, "runs again")
        self.frozen = False
        stuck, self.stuck = self.stuck, {}
        for connection in stuck:
            connection.go_on()

    def crash(self, power_off: bool = False) -> None:
        """Die. Clients are told by their next packet at the latest; after a power cut nobody answers them."""
        if not self.up:
            return
        self.world.say(self.name, "loses power" if power_off else "is killed")
        self.up, self.silent = False, power_off
        gone, self.connections = self.connections, {}
        for connection in gone:
            if connection.session is not None:
                self.server.close(connection.session)
                connection.session = None
            if not power_off:
                connection.reset("the server died", politely=True)  # its kernel closes them

    def restart(self, memory: bool = True) -> None:
        """Come back, with all that was stored or with nothing. Scripts are forgotten either way."""
        if self.up:
            self.crash()
        data = self.server.copy_data() if memory else None
        self._come_back(data)
        self.world.say(self.name, "is back, with its memory" if memory else "is back, empty")
        if not memory:
            self._forgot("restarted empty")

    def replicate(self) -> None:
        """The replica has caught up with this moment."""
        self._replica = self.server.copy_data()

    def fail_over(self) -> None:
        """The replica takes over, with what it had when it last caught up (nothing, if it never did)."""
        self.crash()
        self._come_back(self._replica)
        self.world.say(self.name, "is taken over by its replica")
        self._forgot("failed over to a replica that lags")

    def _come_back(self, data: Snapshot | None) -> None:
        self.server.empty()
        if data is not None:
            self.server.restore(data)
        self._lives += 1
        self.server.begin(f"{self.name}.{self._lives}")
        self.up, self.silent = True, False

    def _forgot(self, note: str) -> None:
        self.watch.forget()
        self.record("server_lost_memory", note=f"{self.name} {note}")

    def flush_scripts(self) -> None:
        """An operator's SCRIPT FLUSH."""
        if self.up:
            self.world.say(self.name, "forgets its scripts")
            session = self.server.open(lambda _message: None)
            self.server.execute(session, ("SCRIPT", "FLUSH"))
            self.server.close(session)

    def jump_clock(self, by_s: float) -> None:
        """Somebody sets its wall clock."""
        self.world.say(self.name, f"its clock jumps by {by_s:+.3f} s")
        self.clock.jump(by_s)
        self.world.record("server_clock_jumped", lease=by_s, note=self.name)
