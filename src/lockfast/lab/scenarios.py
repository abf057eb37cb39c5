"""The columns of the matrix: what goes wrong, when, and to whom. Every scenario is played by every algorithm it fits.

`A` comes first and takes it; the others want it a moment later. The lease is a second unless a scenario says
otherwise, and a section is as long as the algorithm allows unless being too long is the point. Semaphores play with a
limit of 1, where one too many shows at once; only the crowd has more. Small times come from the seed.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from math import inf
from string import ascii_uppercase
from typing import TYPE_CHECKING

from lockfast.lab.contender import Shape
from lockfast.lab.model import Topic
from lockfast.lab.own import Own
from lockfast.lab.stage import NAME, OTHER, Stage
from lockfast.lab.updates import Update
from lockfast.sim.faults import Counted, Fault

if TYPE_CHECKING:
    from collections.abc import Callable

    from lockfast.lab.contender import Contender
    from lockfast.sim.client import Client
    from lockfast.sim.node import Node

SHORT = (0.0, 0.2, 0.2)
WHOLE = (0.0, 0.2, 0.2, 0.2, 0.2)  # most of a lease
LONG = (0.0, 0.5, 0.5, 0.5, 0.5, 0.5)  # two and a half leases


@dataclass(frozen=True)
class Scenario:
    """One fault. arrange: puts the players on the stage and plans what happens. end_s: when the curtain falls.

    fits: None when the fault can happen to the algorithm, otherwise the reason why it cannot.
    """

    topic: Topic
    arrange: Callable[[Stage], None]
    end_s: float = 8.0
    shape: Callable[[Contender], Shape] = lambda _row: Shape()
    fits: Callable[[Contender], str | None] = lambda _row: None

    @property
    def key(self) -> str:
        return self.topic.key


def play(scenario: Scenario, row: Contender, seed: int) -> Stage:
    """Run one seed to its end."""
    stage = Stage(row, seed, scenario.shape(row))
    scenario.arrange(stage)
    stage.run(scenario.end_s)
    return stage


def cast(
    stage: Stage,
    first: tuple[float, ...] = SHORT,
    then: tuple[float, ...] = SHORT,
    *,
    rounds: int = 1,
    tail_s: float = 0.0,
    skews_s: tuple[float, ...] = (0.0,),
    contenders: int | None = None,
) -> None:
    """The usual players: A, and B and C who come a moment later.

    A semaphore gets one contender: it fails at once where locks wait, and two that try again and again would show
    the race of the fair semaphore in every column; that has a column of its own.
    """
    if contenders is None:
        contenders = 1 if stage.row.kind == "semaphore" else 2
    stage.play("A", first, tail_s=tail_s)
    for number in range(contenders):
        at = 0.1 + 0.05 * number + 0.05 * stage.rng.random()
        skew_s = skews_s[number % len(skews_s)]
        stage.play(_name(1 + number), then, at=at, rounds=rounds, wall_skew_s=skew_s)


def _name(number: int) -> str:
    letter = ascii_uppercase[number % 26]
    return letter if number < 26 else f"{letter}{number // 26}"


def holder_dies(stage: Stage) -> None:
    cast(stage)
    stage.world.at(0.1 + 0.25 * stage.rng.random(), stage.kill, "A")


def dies_in_between(stage: Stage) -> None:
    """A dies when the first command of its acquire that changes anything has run, and before it can send another."""
    cast(stage)
    client = stage.players["A"].client
    node = stage.nodes[0]

    def strike(by: Client) -> None:
        stage.look(node, by)
        if node.server.store.data and not client.dead:
            stage.kill("A")

    node.on_executed = strike


def slow_holder(stage: Stage) -> None:
    cast(stage, first=LONG)


def late_release(stage: Stage) -> None:
    """A writes only at the start, and gives back long after its lease: what does its release do to the next holder?"""
    cast(stage, first=(0.0, 0.1), then=(0.0, 0.4, 0.4), tail_s=1.3)


def expiry_rush(stage: Stage) -> None:
    """Whoever holds it dies, and a crowd wants it when the lease ends.

    Locks are waited for from the start. A semaphore is not: its crowd comes when the places are free again.
    """
    limit = stage.shape.limit
    waits = limit == 1
    if not waits:
        stage.world.spread_s = 0.1  # fifty at once keep a network busy
    for number in range(limit):
        stage.play(_name(number), SHORT if waits else WHOLE)
        stage.world.at(0.1 if waits else 0.6, stage.kill, _name(number))
    for number in range(5 * limit):
        at = 0.1 + 0.2 * stage.rng.random() if waits else 1.8 + 0.01 * stage.rng.random()
        stage.play(_name(limit + number), (0.0, 0.15, 0.15), at=at)


def clocks_apart(stage: Stage, apart_s: float) -> None:
    """The lease is three seconds and A needs two of them; the clocks of the others are ahead or behind."""
    section = (0.0, 0.5, 0.5, 0.5, 0.5)
    skews_s = (apart_s, -apart_s) if stage.world.seed % 2 else (-apart_s, apart_s)
    cast(stage, section, section, skews_s=skews_s)
    for name, player in stage.players.items():
        skew_s = player.client.wall_skew_s
        if skew_s:
            where = "ahead" if skew_s > 0 else "behind"
            stage.tell(name, "fault", f"has a clock that is {abs(skew_s):g} s {where}")


def stretched(stage: Stage) -> None:
    """B sees that A's time is up, is held up for a moment, and sends its GETSET after C has come and gone."""
    stage.play("A", SHORT)
    stage.world.at(0.1, stage.kill, "A")
    stage.play("B", (0.0, 0.1), at=0.2)
    stage.play("C", (0.0, 0.1), at=1.1 + 0.02 * stage.rng.random())
    stage.play("D", (0.0, 0.1), at=1.55)

    def hold_up(command: str) -> None:
        if command == "GETSET":
            del stage.before_sending["B"]
            stage.world.after(0.4, stage.tell, "B", "note", "sends its GETSET: too late to win, but it is carried out")
            stage.stall("B", 0.4, "sees that A's time is up, and is held up")

    stage.before_sending["B"] = hold_up


def slow_clock(stage: Stage) -> None:
    """One contender, whose clock is half a second behind."""
    cast(stage, WHOLE, skews_s=(-0.5,), contenders=1)
    stage.tell("B", "fault", "has a clock that is half a second behind")


def reply_lost(stage: Stage) -> None:
    """What A sent first was carried out, and the answer never came. If it hears an error, it gives up."""
    cast(stage)
    stage.players["A"].gives_up = True
    # Requests are counted with the connects before them: one connect for each server, then what is sent.
    nth = stage.row.exec_nth if isinstance(stage.row, Update) else stage.row.servers + 1
    stage.players["A"].client.faults = Counted([Fault("answer lost", "A", nth=nth)])
    stage.tell("A", "fault", "will not hear the answer to its first request")


def restarts_empty(stage: Stage) -> None:
    cast(stage, first=WHOLE, rounds=2)
    stage.world.at(0.3 + 0.2 * stage.rng.random(), stage.forget, "restarts, with nothing in its memory", _restart_empty)


def _restart_empty(node: Node) -> None:
    node.restart(memory=False)


def fails_over(stage: Stage) -> None:
    """The replica that takes over had not heard of A's hold yet."""
    for node in stage.nodes:
        node.replicate()
    cast(stage, first=WHOLE, rounds=2)
    words = "is taken over by a replica that had not heard of A"
    stage.world.at(0.3 + 0.2 * stage.rng.random(), stage.forget, words, _fail_over)


def _fail_over(node: Node) -> None:
    node.fail_over()


def node_restarts_empty(stage: Stage) -> None:
    """Nodes 4 and 5 are down while A takes it. Then they come back, and node 1 restarts with nothing."""
    down = stage.nodes[3:]
    for node in down:
        stage.take_down(node, 0.3)
    cast(stage, first=WHOLE)

    def strike() -> None:
        stage.tell(stage.nodes[0].name, "fault", "restarts, with nothing in its memory")
        stage.end_standings(stage.nodes[0])
        stage.nodes[0].restart(memory=False)

    stage.world.at(0.35 + 0.1 * stage.rng.random(), strike)


def nodes_down(stage: Stage, count: int) -> None:
    """So many nodes go down, and stay down."""
    cast(stage, rounds=2)

    def strike() -> None:
        for node in stage.nodes[-count:]:
            stage.take_down(node, inf)

    stage.world.at(0.3 + 0.1 * stage.rng.random(), strike)


def cut_off(stage: Stage) -> None:
    """A loses its connection to the lock server, not to what the lock guards; it is mended three seconds later."""
    cast(stage, first=(0.0, *[0.3] * 8) if stage.row.renews else (0.0, 0.2, 0.2, 0.2), then=SHORT, rounds=7)
    client = stage.players["A"].client

    def strike() -> None:
        stage.tell("A", "fault", "is cut off from the server for 3 s")
        client.cut()
        stage.world.after(3.0, client.heal)

    stage.world.at(0.25 + 0.2 * stage.rng.random(), strike)


def paused(stage: Stage) -> None:
    """A looks, finds that all is well, and is paused before it can write: the worst moment there is."""
    cast(stage, first=(0.0, 0.3), rounds=2)
    player = stage.players["A"]

    def strike(number: int) -> None:
        if number == 1 or isinstance(stage.row, Update):
            player.before_write = lambda _number: None
            stage.stall("A", 2.5)

    player.before_write = strike


def clock_jumps(stage: Stage) -> None:
    """The clock jumps while A holds it, and a newcomer asks right afterwards."""
    cast(stage, first=WHOLE, rounds=2, contenders=0 if stage.row.kind == "semaphore" else 1)
    jumps_at = 0.35 + 0.2 * stage.rng.random()
    stage.play("D", SHORT, at=jumps_at + 0.01)

    def strike() -> None:
        for node in stage.nodes:
            stage.tell(node.name, "fault", "has its clock set ten seconds ahead")
            node.jump_clock(10.0)

    stage.world.at(jumps_at, strike)


def crossed(stage: Stage) -> None:
    """A takes one part and then the other; B takes them the other way round."""
    parts = (NAME, OTHER)
    stage.play("A", SHORT, names=parts)
    stage.play("B", SHORT, names=parts[::-1], at=0.002 * stage.rng.random())


def _locks_only(row: Contender) -> str | None:
    if row.kind == "semaphore" and not isinstance(row, Own):
        return "a semaphore never waits, so it cannot wait in a circle"
    return row.no_order if isinstance(row, Update) else None


def _several_servers(row: Contender) -> str | None:
    return None if row.servers > 1 else "it has one server"


def _getset_only(row: Contender) -> str | None:
    return None if row.key == "getset" else "there is no GETSET in it"


def _crowded(row: Contender) -> Shape:
    return Shape(limit=10 if row.kind == "semaphore" else 1)


def _three_seconds(_row: Contender) -> Shape:
    return Shape(lease_s=3.0, patience_s=10.0)


COLUMNS: tuple[Scenario, ...] = (
    Scenario(Topic("holder-dies", "holder dies", "A dies in the middle of its section."), holder_dies),
    Scenario(
        Topic("dies-in-between", "dies between two commands", "A dies right after its first command was carried out."),
        dies_in_between,
    ),
    Scenario(Topic("slow-holder", "slower than its lease", "A needs two and a half leases for its work."), slow_holder),
    Scenario(Topic("blind-release", "late release", "A gives back half a lease too late."), late_release),
    Scenario(
        Topic("expiry-rush", "a crowd at expiry", "The holders die, and a crowd waits for their leases to end."),
        expiry_rush,
        end_s=30.0,
        shape=_crowded,
    ),
    Scenario(
        Topic("clocks-0.3s", "clocks 0.3 s apart", "Clients' clocks are 0.3 s ahead and behind; the lease is 3 s."),
        partial(clocks_apart, apart_s=0.3),
        end_s=16.0,
        shape=_three_seconds,
    ),
    Scenario(
        Topic("clocks-2s", "clocks 2 s apart", "Clients' clocks are 2 s ahead and behind; the lease is 3 s."),
        partial(clocks_apart, apart_s=2.0),
        end_s=16.0,
        shape=_three_seconds,
    ),
    Scenario(
        Topic("getset-stretch", "a loser's GETSET", "A loser's GETSET is carried out all the same, and late."),
        stretched,
        fits=_getset_only,
    ),
    Scenario(Topic("slow-clock", "a slow clock steals", "A contender's clock is half a second behind."), slow_clock),
    Scenario(Topic("reply-lost", "reply lost", "A's first request was carried out, the answer was lost."), reply_lost),
    Scenario(
        Topic(
            "restart-empty", "server restarts empty", "The server, or each of the five, restarts without its memory."
        ),
        restarts_empty,
    ),
    Scenario(
        Topic("failover", "failover without the key", "A replica that had not got the key takes over, of each server."),
        fails_over,
    ),
    Scenario(
        Topic(
            "node-restart",
            "a node restarts empty",
            "Two of five nodes are down when A takes it, and come back; one of those that voted for A restarts empty.",
        ),
        node_restarts_empty,
        fits=_several_servers,
    ),
    Scenario(
        Topic("redlock-paused", "paused past its validity", "A looks at its validity, is paused past it, and writes."),
        paused,
        fits=_several_servers,
    ),
    Scenario(
        Topic("minority-down", "minority down", "Two of five nodes go down and stay down."),
        partial(nodes_down, count=2),
        fits=_several_servers,
    ),
    Scenario(
        Topic("majority-down", "majority down", "Three of five nodes go down and stay down."),
        partial(nodes_down, count=3),
        fits=_several_servers,
    ),
    Scenario(
        Topic("connection-cut", "connection cut", "A is cut off from the lock server for 3 s."), cut_off, end_s=12.0
    ),
    Scenario(Topic("paused-holder", "paused past its lease", "A looks, is paused past its lease, and writes."), paused),
    Scenario(
        Topic("clock-jump", "server clock jumps", "The clock of the server, or of all five, is set ten seconds ahead."),
        clock_jumps,
    ),
    Scenario(
        Topic("crossed-order", "crossed order", "A takes 1 then 2, B takes 2 then 1."),
        crossed,
        end_s=14.0,
        fits=_locks_only,
    ),
)
BY_KEY = {column.key: column for column in COLUMNS}
