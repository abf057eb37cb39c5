"""Barriers in worlds drawn from seeds: nobody passes before all have come, and all of a generation pass, or none."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from lockfast.errors import BrokenBarrier, LockfastError, Unreachable
from lockfast.flows import barrier
from lockfast.flows.barrier import BarrierSpec
from lockfast.flows.scripts import BARRIER
from lockfast.sim.driving import Run, Work
from lockfast.sim.tasks import Cancelled
from sim.gathering import Book, Visitor, all_of, is_found, made

if TYPE_CHECKING:
    from lockfast.flows.effects import Call
    from lockfast.sim.client import Client
    from lockfast.sim.swarm import Visit
    from sim.gathering import Steps

LEASE_S = 1.0
MESSAGES = ("answer lost", "answer slow", "answer reset", "lost", "slow", "push lost", "push reset")
SLIPS_AWAY = """
  if is_here then
    redis.call('ZREM', KEYS[6], ticket .. ' ' .. ARGV[4])
    forget_place(ticket)
  elseif"""
DEATHS = ("crash", "kill", "pause", "suspend", "cut up")


class Trip(NamedTuple):
    """One generation that all parties came to."""

    at: float
    generation: str
    tickets: frozenset[str]


class Meetings(Book):
    """Who was at the barrier after every script, and when it tripped."""

    def __init__(self, run: Any) -> None:
        super().__init__(run)
        self.here: dict[str, tuple[str, set[str]]] = {}  # by name: the generation, and who waits in it
        self.heard: dict[str, float] = {}  # by ticket: when the server last heard of it
        self.trips: list[Trip] = []
        self.outcomes: dict[str, tuple[float, str, int]] = {}  # by ticket: when, what, index
        kinds = {fault.kind for fault in run.plan.faults}
        self.times_are_true = not kinds & {"clock back", "clock ahead"}

    def after(self, call: Call) -> None:
        state = self.stored(call.bound.name)
        if call.bound.script is not BARRIER or state is None or ":" not in state[7]:
            return
        name, generation, first = call.bound.name.shown, state[3], state[7].split(":")[1]
        verb, ticket = call.args[0], str(call.args[-1])
        places = self.run.node.server.store.sorted(call.bound.name.keys[1].encode())
        here = {member.decode() for _, member in places.order} if places is not None else set()
        before, waited = self.here.get(name, ("", set()))
        self.here[name] = (generation, here)
        if verb == "arrive":
            if before not in ("", generation) and first != generation:
                self._trip(Trip(self.now, before, frozenset(waited | {ticket})), int(state[2]))
            self.heard[ticket] = self.now

    def _trip(self, trip: Trip, parties: int) -> None:
        if len(trip.tickets) != parties:
            self.found.append(f"{len(trip.tickets)} of {parties} parties were let go")
        for other in self.trips:
            if other.tickets & trip.tickets:
                self.found.append(f"{other.tickets & trip.tickets} tripped twice")
        for ticket in trip.tickets:
            silent_s = trip.at - self.heard.get(ticket, trip.at)
            if self.times_are_true and silent_s > LEASE_S * 1.02 + 0.01:
                self.found.append(f"{ticket} was counted, and had not been heard of for {silent_s:.3f} s")
        self.trips.append(trip)

    def judge(self) -> None:
        of = {ticket: trip for trip in self.trips for ticket in trip.tickets}
        forgot = [event.at for event in self.run.world.history if event.what == "server_lost_memory"]
        for ticket, (at, what, _) in self.outcomes.items():
            trip = of.get(ticket)
            if what == "passed" and (trip is None or trip.at > at):
                self.found.append(f"{ticket} passed before all had come")
            if what == "BrokenBarrier" and trip and not any(trip.at < moment < at for moment in forgot):
                self.found.append(f"{ticket} was told that its generation was broken, and all had come")
        for trip in self.trips:
            told = [self.outcomes[ticket] for ticket in trip.tickets if ticket in self.outcomes]
            indexes = [index for _, what, index in told if what == "passed"]
            if len(indexes) != len(set(indexes)):
                self.found.append(f"indexes {indexes} in one generation")


class Parties(Visitor):
    """Each comes to the barrier again and again, and mends it when it is broken."""

    book_of = Meetings

    def turn(self, client: Client, visit: Visit, number: int) -> Steps:
        book: Meetings = self.book
        spec = BarrierSpec(made("step"), max(2, book.callers - 1), LEASE_S)
        yield from self.meet(client, spec, min(visit.wait_s or 2.0, 3.0))

    def meet(self, client: Client, spec: BarrierSpec, wait_s: float | None) -> Steps:
        ticket, book, world = client.new_id(), self.book, client.world
        try:
            index = yield Run(barrier.wait(spec, ticket, wait_s, client.env))
        except (LockfastError, Cancelled) as failure:
            book.outcomes[ticket] = (world.now, type(failure).__name__, 0)
            if isinstance(failure, Cancelled):
                raise
            if isinstance(failure, BrokenBarrier):
                yield from self.mend(client, spec)
            return False
        book.outcomes[ticket] = (world.now, "passed", index)
        return True

    def mend(self, client: Client, spec: BarrierSpec) -> Steps:
        try:
            yield Work(0.2 * client.rng.random())
            is_broken, _ = yield Run(barrier.look(spec, client.new_id(), client.env))
            if is_broken:
                yield Run(barrier.reset(spec, client.new_id(), client.env))
        except Unreachable:
            pass  # somebody else will

    def last_turn(self, client: Client) -> Steps:
        spec = BarrierSpec(made("last"), self.book.callers, LEASE_S)
        while not (yield from self.meet(client, spec, None)):
            yield Work(0.5 * client.rng.random())


@pytest.mark.slow
def test_barriers_break_no_promise() -> None:
    books = all_of(Parties, range(300), {"cancel_share": 0.2})
    trips = sum(len(book.trips) for book in books)
    assert trips > 1.5 * len(books)
    ends = [what for book in books for _, what, _ in book.outcomes.values()]
    assert ends.count("BrokenBarrier") > len(books) / 2
    assert ends.count("passed") > 4 * len(books)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("edit", "choices"),
    [
        pytest.param(
            ("lua/barrier.lua", "if waiting < limit then", "if waiting < limit - 1 then"),
            {"clients": 4},
            id="it trips one too early",
        ),
        pytest.param(
            ("lua/barrier.lua", "if redis.call('ZSCORE', KEYS[5], ticket) then", "if false then"),
            {"kinds": MESSAGES, "faults": 30, "visits": 8},
            id="a second send arrives anew",
        ),
        pytest.param(
            ("lua/barrier.lua", "string.format('passed %d %d', i - 1, tripped)", "nil"),
            {"kinds": MESSAGES, "faults": 30, "visits": 8},
            id="who learns late is told that it is broken",
        ),
        pytest.param(
            ("lua/barrier.lua", "~= ticket then is_dead = true end", "~= ticket then is_dead = false end"),
            {"kinds": DEATHS, "faults": 10},
            id="the dead are counted",
        ),
        pytest.param(
            ("lua/barrier.lua", "is_over_now(ticket) -- an earlier", "-- an earlier"),
            {"kinds": MESSAGES, "faults": 30, "visits": 8},
            id="a late request arrives after all",
        ),
        pytest.param(
            ("lua/barrier.lua", "if is_here then fall_apart() elseif", SLIPS_AWAY),
            {"waits_s": (0.05, 0.5, 3.0), "visits": 5},
            id="who leaves does not break it",
        ),
    ],
)  # fmt: skip
def test_a_planted_bug_is_found(edit: tuple[str, str, str], choices: dict[str, Any], request: Any) -> None:
    assert is_found(Parties, edit, choices), request.node.name
