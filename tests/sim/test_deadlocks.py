"""Crossed locks in worlds drawn from seeds: with detection everybody is served in the end, and nobody is told of a
deadlock that there was not, or that another should have been told of.

Callers take two or three locks in any order, one inside the other, and start again when they are told. The judge knows
what the server had in store at the moment the last look began: it reads the history, not the library's own graph.
"""

from __future__ import annotations

from contextlib import contextmanager
from random import Random
from typing import TYPE_CHECKING, Any

import pytest

from lockfast import names
from lockfast.flows.asks import Ask
from lockfast.flows.effects import Command
from lockfast.sim import runs
from lockfast.sim.client import PREFIX
from lockfast.sim.commands import COMMANDS
from lockfast.sim.driving import Runner, Work
from lockfast.sim.holding import hold
from lockfast.sim.keyspace import Keyspace
from lockfast.sim.runs import run_seed
from sim.planted import Planted, planted

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

    from kit.servers import Server
    from lockfast.check import Event
    from lockfast.sim.client import Client
    from lockfast.sim.holding import Section
    from lockfast.sim.runs import Result
    from lockfast.sim.swarm import Visit

NAMES = ("n1", "n2", "n3")
HEARD_S = 3.0  # who has been dead for longer cannot have been heard of between two looks
CROSSING: dict[str, Any] = {"clients": 4, "threads_of": 1, "renew_share": 1.0, "leases_s": (1.0, 3.0), "visits": 4}


DETECTION, WAITFOR = "flows/detection.py", "waitfor.py"
ONCE = """\
    if ticket not in ANNOUNCED:
        ANNOUNCED.add(ticket)
        yield Command(announcement, time.by())
"""


class Crosses(runs._Caller):
    """A caller that takes some of the locks, in any order, until it has had all of them at once."""

    notes: Notes
    client_name = ""
    hold_s = 0.3

    def visit_all(self, client: Client) -> Generator[Any, Any, None]:
        self.notes.arrived.append(self)
        self.client_name = client.name
        self._chance = Random(f"{client.world.seed} {client.name}")
        self._tickets = 0
        for visit in self._visits:
            if self._run.is_quiet:
                break
            yield Work(visit.think_s / 4)
            yield from self._cross(client, visit)
        while not self._run.is_quiet:
            yield Work(0.5)
        while not (yield from self._cross(client, runs.LAST)):
            yield Work(self._chance.random())
        self.notes.served.append(self)

    def _cross(self, client: Client, visit: Visit) -> Generator[Any, Any, bool]:
        return (yield from self._nest(client, visit, self._chance.sample(NAMES, self._chance.choice((2, 2, 3)))))

    def _nest(self, client: Client, visit: Visit, wanted: list[str]) -> Generator[Any, Any, bool]:
        served = False

        def body(section: Section) -> Generator[Any, Any, None]:
            nonlocal served
            yield Work(self._chance.random() * self.hold_s)
            served = len(wanted) == 1 or (yield from self._nest(client, visit, wanted[1:]))

        self._tickets += 1
        ticket = f"{client.name}.{client.name}_1.{self._tickets}"
        ask = Ask(names.make(PREFIX, (wanted[0],)), "lock", 1, 1, visit.lease_s)
        ask.detect = True
        held = yield from hold(client, ask, visit.wait_s, body, ticket=ticket)
        return held and served


class Slow(Crosses):
    """Some keep what they have for longer than an announcement lives."""

    hold_s = 10.0


class Notes:
    """What happened in one run, beside its history."""

    def __init__(self) -> None:
        self.arrived: list[Crosses] = []
        self.served: list[Crosses] = []
        self.looks: dict[str, float] = {}  # ticket -> when its last look began


@contextmanager
def crossing(kind: type[Crosses]) -> Iterator[Notes]:
    """A run with such callers."""
    notes = Notes()

    class Noted(kind):  # type: ignore[misc, valid-type]
        def __init__(self, *args: Any) -> None:
            super().__init__(*args)
            self.notes = notes

    perform = Runner._perform

    def noted(self: Runner, effect: Any, frame: Any) -> Any:
        if type(effect) is Command and effect.args[0] == "SET":  # an announcement: a look begins
            notes.looks[str(effect.args[2]).partition(" ")[0]] = self.client.world.now
        return perform(self, effect, frame)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runs, "_Caller", Noted)
        patch.setattr(Runner, "_perform", noted)
        yield notes


def play(seed: int, kind: type[Crosses] = Crosses, **choices: Any) -> tuple[Result, Notes]:
    with crossing(kind) as notes:
        return run_seed(seed, CROSSING | choices), notes


def judge(result: Result, notes: Notes) -> list[str]:
    """All that is wrong with a run."""
    found = [f"{name}: {result.verdicts[name].why}" for name in result.failed]
    crashed = {event.client: event.at for event in result.history if event.what == "crashed"}
    waiting = [one.client_name for one in notes.arrived if one not in notes.served and one.client_name not in crashed]
    found += [f"never served: {', '.join(waiting)}"] if waiting else []
    told = [event for event in result.history if event.what == "failed" and event.note == "Deadlock"]
    for event in told:
        began = notes.looks[event.ticket]
        circle = circle_of(event.ticket, [one for one in result.history if one.at <= began])
        if not circle:
            found.append(f"no deadlock of {event.ticket} at {began:.3f}, told at {event.at:.3f}")
            continue
        dead = [one for _, one, _ in circle if crashed.get(one.partition(".")[0], began) < began - HEARD_S]
        if dead:
            found.append(f"dead: {event.ticket} was told of {', '.join(dead)} at {event.at:.3f}")
        since = next(at for at, ticket, _ in circle if ticket == event.ticket)
        youngest_at, youngest, _ = max(circle)
        # The server counts in whole milliseconds, and by its own clock.
        if youngest_at > since + 0.002 and not any("clock" in fault.kind for fault in result.plan.faults):
            found.append(f"{event.ticket} was told at {event.at:.3f}, {youngest} is younger")
    return found


Place = tuple[float, str, str]  # since, ticket, name


def circle_of(ticket: str, history: list[Event]) -> list[Place]:
    """The places that were a circle with that of this ticket when the history ends."""
    holder: dict[str, str] = {}
    place: dict[str, Place] = {}  # by agent
    for event in history:
        agent = event.ticket.rpartition(".")[0]
        if event.what == "queued":
            place[agent] = (event.at, event.ticket, event.name)
        elif event.what in ("held", "unqueued", "place_ended") and place.get(agent, (0, ""))[1] == event.ticket:
            del place[agent]
        if event.what == "held":
            holder[event.name] = agent
        elif event.what in ("let_go", "expired") and holder.get(event.name) == agent:
            del holder[event.name]
        elif event.what == "server_lost_memory":
            holder.clear()
            place.clear()
    me = ticket.rpartition(".")[0]
    circle: list[Place] = []
    agent = me
    while agent in place and len(circle) <= len(place):
        circle.append(place[agent])
        agent = holder.get(place[agent][2], "")
        if agent == me:
            return circle
    return []


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_everybody_is_served_and_nobody_is_told_without_reason_whatever_fails() -> None:
    found, deadlocks = [], 0
    for seed in range(300):
        result, notes = play(seed)
        found += [f"seed {seed}: {what}" for what in judge(result, notes)]
        deadlocks += sum(event.note == "Deadlock" for event in result.history)
    assert not found, "\n".join(found)
    assert deadlocks > 300


def test_simulated_mget_answers_as_servers_do(server: Server) -> None:
    """Scripts do not use it, so the comparison of scripts leaves it out."""
    db = Keyspace()
    for words in (["SET", "text", "a"], ["HSET", "hash", "f", "v"], ["MGET", "text", "none", "hash", "text"]):
        real = server.command(*words)
        simulated = COMMANDS[words[0].encode()].run(db, [word.encode() for word in words[1:]])
    assert simulated == real == [b"a", None, None, b"a"]


BUGS = [
    Planted(
        "one look is enough",
        ((DETECTION, "waitfor.Deadlocks(sightings.confirm(found))", "waitfor.Deadlocks(found)"),),
        frozenset({"dead: ", "no deadlock"}),
        {"kinds": ("crash", "kill"), "faults": 8, "leases_s": (10.0,), "safety_s": 16.0},
    ),
    Planted(
        "everybody in the circle gives up",
        ((DETECTION, "if victim == me else ()", "if victim else ()"),),
        frozenset({"younger"}),
    ),
    Planted(
        "the eldest gives up",
        ((WAITFOR, "key=self._age, reverse=True", "key=self._age"),),
        frozenset({"younger"}),
    ),
    Planted(
        "nobody gives up",
        ((DETECTION, "if victim == me else ()", "if victim != me and not group else ()"),),
        frozenset({"never served"}),
    ),
    Planted(
        "announced once only",
        (
            (DETECTION, "class Watch:", "ANNOUNCED: set[str] = set()\n\n\nclass Watch:"),
            (DETECTION, "    yield Command(announcement, time.by())\n", ONCE),
        ),
        frozenset({"never served"}),
        {"faults": 0, "safety_s": 16.0},
    ),
]


@pytest.mark.slow
@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_a_planted_bug_is_found(bug: Planted) -> None:
    kind = Slow if "safety_s" in bug.choices else Crosses  # there is time for it
    for seed in range(200):
        with planted(bug):
            found = caught(bug, seed, kind)
        if found and not caught(bug, seed, kind):
            return
    pytest.fail(f"{bug.name} was not found")


def caught(bug: Planted, seed: int, kind: type[Crosses]) -> bool:
    """Whether the judge says what it should of such a bug."""
    found = judge(*play(seed, kind, **bug.choices))
    return any(word in one for one in found for word in bug.caught_by)
