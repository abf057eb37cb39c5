"""Latch, barrier and election scripts against plain models, step by step, with a clock that hypothesis moves."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from kit.resp import ServerError
from lua.gathering import LIFE_MS, OVER_MS, PLACE_MS, Gathering, Told
from lua.scripts import Scripts

if TYPE_CHECKING:
    from kit.servers import Server

STEPS = settings(
    max_examples=60,
    derandomize=True,  # a run in CI finds what the one before it found
    stateful_step_count=40,
    deadline=None,
    database=None,
    suppress_health_check=list(HealthCheck),
)
MOST_BREAKS = 8
_numbers = itertools.count()
_shared: dict[str, Any] = {}


class Machine(RuleBasedStateMachine):
    """A name of its own for every example, and a clock in ms."""

    def __init__(self) -> None:
        super().__init__()
        self.scripts: Scripts = _shared["scripts"]
        self.told: Told = _shared["told"]
        self.name = Gathering(self.scripts, f"machine-{next(_numbers)}")
        self.told.since_last()
        self.expected: set[tuple[str, str]] = set()  # pushes: word and ticket

    @property
    def now(self) -> int:
        return self.scripts.now_ms

    @rule(ms=st.sampled_from([1, 1, 300, 300, 2500, 2500, PLACE_MS - 1, PLACE_MS + 1, OVER_MS + 1]))
    def time_passes(self, ms: int) -> None:
        self.scripts.pass_ms(ms)

    @invariant()
    def those_who_wait_are_told(self) -> None:
        assert {(word, ticket) for word, ticket, _ in self.told.since_last()} == self.expected
        self.expected = set()

    def queued(self) -> set[str]:
        """Who waits, dead or alive."""
        return {ticket.decode() for ticket in self.scripts.wire.call("ZRANGE", self.name.keys[1], 0, -1)}


class LatchMachine(Machine):
    """The model: what is left, who was counted, who waits until when, and when all of it is forgotten."""

    life = 100_000

    def __init__(self) -> None:
        super().__init__()
        self.left = self.count = self.end = 0
        self.counted: set[str] = set()
        self.waiters: dict[str, int] = {}

    def ask(self, ticket: str, count: int, down: int, place: int) -> None:
        expected = self.model(ticket, count, down, place)
        try:
            answer: object = self.name.latch(ticket, count=count, down=down, place=place, life=self.life)[0]
        except ServerError as error:
            answer = str(error)
        assert answer == expected
        assert self.queued() == set(self.waiters)

    def model(self, ticket: str, count: int, down: int, place: int) -> object:
        if self.end <= self.now:
            if not down and not place:
                return count
            self.left = self.count = count
            self.counted, self.waiters = set(), {}
        elif count != self.count:
            return f"LOCKFASTKIND latch {self.count}"
        if not down and not place:
            self.waiters.pop(ticket, None)
            return self.left
        if self.left:
            self.waiters = {one: end for one, end in self.waiters.items() if end > self.now}
            if down and ticket not in self.counted:
                self.counted.add(ticket)
                self.left = max(self.left - down, 0)
                if not self.left:
                    self.expected |= {("open", one) for one in self.waiters}
                    self.waiters = {}
        self.end = max(self.end, self.now + self.life)
        if place and self.left:
            self.waiters[ticket] = self.now + place
        return self.left

    @rule(ticket=st.sampled_from(["c1", "c2", "c3", "c4", "c5"]), down=st.sampled_from([1, 1, 1, 2]))
    def count_down(self, ticket: str, down: int) -> None:
        self.ask(ticket, 3, down, 0)

    @rule(ticket=st.sampled_from(["w1", "w2", "w3"]), place=st.sampled_from([PLACE_MS, PLACE_MS, 0]))
    def wait(self, ticket: str, place: int) -> None:
        self.ask(ticket, 3, 0, place)

    @rule(down=st.sampled_from([0, 1]))
    def name_another_count(self, down: int) -> None:
        if self.end > self.now:
            self.ask("other", 4, down, 0)

    @rule()
    def be_forgotten(self) -> None:
        if not self.left:
            self.scripts.pass_ms(self.life + 1)


class BarrierMachine(Machine):
    """The model: generations by number, who waits in the last one, and how every ticket ended."""

    parties = 3

    def __init__(self) -> None:
        super().__init__()
        self.tickets = 0
        self.generation = self.first = 0
        self.real: dict[int, int] = {}  # the model's number of each generation that the server has named
        self.broken = False
        self.breaks: list[int] = []
        self.here: dict[str, int] = {}  # who waits, in order, and until when
        self.over: dict[str, tuple[int, int, int] | None] = {}  # (1, generation, index) of those who passed
        self.over_until: dict[str, int] = {}
        self.known: dict[str, tuple[int, int]] = {}  # what a party was told: the generation, for model and server

    def ask(self, verb: str, ticket: str, known: tuple[int, int] = (-1, 0)) -> tuple[int, int, int]:
        expected = self.model(verb, ticket, known[0])
        code, generation, number, _ = self.name.barrier(verb, ticket, parties=self.parties, known=known[1])
        if verb == "arrive" and code == 0:
            assert self.real.setdefault(generation, self.generation) == self.generation
            self.known[ticket] = (self.generation, generation)
        if code == 1 and known[1]:
            assert generation == known[1]
        assert (code, number if code >= 0 else 0) == (expected[0], expected[2] if code >= 0 else 0)
        assert self.queued() == set(self.here)
        return code, generation, number

    def model(self, verb: str, ticket: str, known: int) -> tuple[int, int, int]:
        for one, until in list(self.over_until.items()):
            if until <= self.now:
                del self.over_until[one], self.over[one]
        if any(end <= self.now for one, end in self.here.items() if one != ticket):
            self.fall_apart(ticket)
        if ticket in self.over:
            return self.over[ticket] or (-1, 0, 0)
        if verb == "reset":
            if self.here:
                self.fall_apart(ticket)
            self.generation += 1
            self.broken = False
            return self.end(ticket, 0)
        passed = self.first <= known < self.generation and known not in self.breaks
        if verb == "leave":
            if ticket in self.here:
                self.fall_apart(ticket)
            elif passed:
                return (1, known, 0)
            return self.end(ticket, -1)
        if verb == "look":
            return (-1 if self.broken else 0, 0, len(self.here))
        if verb == "abort":
            self.fall_apart(ticket)
            return self.end(ticket, -1)
        if ticket not in self.here:
            if passed:
                return (1, known, 0)
            if known >= 0 or self.broken:
                return self.end(ticket, -1)
        self.here[ticket] = self.now + PLACE_MS
        index = list(self.here).index(ticket)
        if len(self.here) < self.parties:
            return (0, self.generation, index)
        self.expected |= {("tripped", one) for one, end in self.here.items() if one != ticket and end > self.now}
        for place, one in enumerate(self.here):
            self.over[one], self.over_until[one] = (1, self.generation, place), self.now + OVER_MS
        self.here = {}
        self.generation += 1
        return (1, self.generation - 1, index)

    def fall_apart(self, asker: str) -> None:
        if self.broken:
            return
        self.broken = True
        self.breaks.append(self.generation)
        if len(self.breaks) > MOST_BREAKS:
            self.first = self.breaks.pop(0) + 1
        self.expected |= {("broken", one) for one, end in self.here.items() if one != asker and end > self.now}
        for one in self.here:
            self.end(one, -1)
        self.here = {}

    def end(self, ticket: str, code: int) -> tuple[int, int, int]:
        self.over[ticket], self.over_until[ticket] = None, self.now + OVER_MS
        return (code, 0, 0)

    def new(self) -> str:
        self.tickets += 1
        return f"t{self.tickets}"

    @rule()
    def arrive(self) -> None:
        self.ask("arrive", self.new())

    @rule(data=st.data(), verb=st.sampled_from(["arrive", "arrive", "arrive", "leave"]))
    def ask_again(self, data: Any, verb: str) -> None:
        if self.known:
            ticket = data.draw(st.sampled_from(sorted(self.known)))
            self.ask(verb, ticket, self.known[ticket])

    @rule(data=st.data())
    def send_the_first_request_again(self, data: Any) -> None:
        fresh = sorted(ticket for ticket in self.known if ticket in self.here or ticket in self.over)
        if fresh:
            self.ask("arrive", data.draw(st.sampled_from(fresh)))

    @rule(data=st.data(), verb=st.sampled_from(["arrive", "leave"]))
    def who_waits_asks_again(self, data: Any, verb: str) -> None:
        if self.here:
            ticket = data.draw(st.sampled_from(sorted(self.here)))
            self.ask(verb, ticket, self.known[ticket])

    @rule()
    def come_late_to_what_is_broken(self) -> None:
        """The first request of a party overtakes its retry, which was answered before a reset."""
        if self.broken:
            ticket = self.new()
            self.ask("arrive", ticket)
            self.ask("reset", self.new())
            self.ask("arrive", ticket)

    @rule()
    def all_arrive(self) -> None:
        for _ in range(self.parties):
            self.ask("arrive", self.new())

    @rule(verb=st.sampled_from(["look", "reset", "abort", "leave"]), again=st.booleans())
    def do(self, verb: str, again: bool) -> None:
        ticket = self.new()
        self.ask(verb, ticket)
        if again and verb in ("abort", "leave"):
            self.ask(verb, ticket)


class ElectionMachine(Machine):
    """The model: who holds until when, what it has said, and who observes until when."""

    lease = 5_000

    def __init__(self) -> None:
        super().__init__()
        self.held = self.scripts.name(*self.name.plain.shown.split("|"), kind="election")
        self.holder, self.end, self.fence = "", 0, 0
        self.fences = dict.fromkeys(("a", "b", "c"), 1)
        self.said: tuple[int, str] | None = None
        self.observers: dict[str, int] = {}

    def leader(self) -> tuple[int, str]:
        if not self.holder or self.end <= self.now or self.said is None:
            return (0, "")
        return (self.fence, f"host 1\t{self.said[0]} {self.said[1]}")

    def tell(self) -> None:
        self.observers = {one: end for one, end in self.observers.items() if end > self.now}
        self.expected |= {("leader", one) for one in self.observers}

    @rule(ticket=st.sampled_from(["a", "b", "c"]))
    def campaign(self, ticket: str) -> None:
        admitted = self.held.admit(ticket, lease=self.lease, place=0)
        if not self.holder or self.end <= self.now:
            assert admitted.code == 1
            self.holder, self.end, self.said = ticket, self.now + self.lease, None
            self.fence = self.fences[ticket] = admitted.fence
        assert (admitted.code == 1) is (ticket == self.holder)

    @rule(ticket=st.sampled_from(["a", "b", "c"]))
    def leave(self, ticket: str) -> None:
        if self.holder == ticket:
            assert self.held.leave(ticket) == 1
            self.holder = ""

    @rule(
        ticket=st.sampled_from(["a", "b", "c"]),
        stale=st.sampled_from([0, 0, 0, 1]),
        number=st.integers(1, 6),
        value=st.sampled_from(["x", "y z", "", "ü"]),
    )
    def proclaim(self, ticket: str, stale: int, number: int, value: str) -> None:
        self.say(ticket, self.fences[ticket] - stale, number, value)

    def say(self, ticket: str, fence: int, number: int, value: str) -> None:
        stood = self.name.proclaim(ticket, fence, value, number)
        leads = self.holder == ticket and self.end > self.now and fence == self.fence
        assert stood == (1 if leads else 0)
        if leads and (self.said is None or number >= self.said[0]):
            if self.said is None or self.said[1] != value:
                self.tell()
            self.said = (number, value)
        elif self.fence and not self.holder and fence == self.fence:
            self.tell()

    @rule(number=st.integers(1, 9), value=st.sampled_from(["x", "y z", "", "ü"]))
    def leader_says(self, number: int, value: str) -> None:
        if self.holder:
            self.say(self.holder, self.fence, number, value)

    @rule(ticket=st.sampled_from(["o1", "o2", "o3"]), watch=st.sampled_from([PLACE_MS, PLACE_MS, 0]))
    def observe(self, ticket: str, watch: int) -> None:
        fence, ms, _, text = self.name.observe(ticket, watch)
        assert (fence, text.decode()) == self.leader()
        assert ms == (self.end - self.now if self.holder and self.end > self.now else 0)
        if watch:  # and those who went without a word are forgotten
            self.observers = {one: end for one, end in self.observers.items() if end > self.now}
            self.observers[ticket] = self.now + watch
        elif self.observers.pop(ticket, None) is not None:
            self.expected.add(("over", ticket))


@pytest.mark.slow
@pytest.mark.parametrize("machine", [LatchMachine, BarrierMachine, ElectionMachine])
def test_scripts_and_model_agree(server: Server, machine: type[Machine]) -> None:
    told = Told(server)
    with Scripts(server, clocked=True) as scripts:
        _shared.update(scripts=scripts, told=told)
        run_state_machine_as_test(machine, settings=STEPS)
    told.close()


@pytest.fixture
def name(clocked: Scripts) -> Gathering:
    """A name on the test's own clock."""
    return Gathering(clocked, f"by-hand-{next(_numbers)}")


def test_latch_is_forgotten_after_its_life_and_not_before(name: Gathering) -> None:
    left, fence = name.latch("c1", count=2, down=1)
    name.scripts.pass_ms(LIFE_MS - 1)
    assert name.latch("", count=2) == [left, fence]
    assert name.latch("c2", count=2, down=1) == [0, fence]
    name.scripts.pass_ms(LIFE_MS - 1)
    assert name.latch("w", count=2, place=PLACE_MS) == [0, fence], "who finds it open uses it"
    name.scripts.pass_ms(LIFE_MS)
    again, other = name.latch("c3", count=3, down=1)
    assert (again, other > fence) == (2, True)


def test_what_was_counted_is_known_for_as_long_as_the_latch(name: Gathering) -> None:
    name.latch("c1", count=2, down=1)
    call = name.scripts.wire.call
    call("PEXPIRE", name.keys[2], 1000)
    assert name.latch("c1", count=2, down=1)[0] == 1
    assert call("PTTL", name.keys[2]) >= LIFE_MS
    assert call("PTTL", name.keys[2]) == pytest.approx(call("PTTL", name.keys[0]), abs=5000)


def test_party_that_learns_hours_later_that_all_had_come_passes(name: Gathering) -> None:
    _, generation, index, _ = name.barrier("arrive", "a", parties=2)
    assert name.barrier("arrive", "b", parties=2) == [1, generation, 1, 0]
    for later in range(10):
        name.scripts.pass_ms(3_600_000)
        name.barrier("arrive", f"c{later}", parties=2)
        name.barrier("arrive", f"d{later}", parties=2)
    code, told, _, _ = name.barrier("arrive", "a", parties=2, known=generation)
    assert (code, told, index) == (1, generation, 0)


def test_party_that_learns_hours_later_that_it_was_broken_does_not_pass(name: Gathering) -> None:
    _, generation, _, _ = name.barrier("arrive", "a", parties=2)
    for number in range(12):
        name.barrier("reset", f"r{number}", parties=2)
        name.scripts.pass_ms(3_600_000)
        name.barrier("arrive", f"b{number}", parties=2)
        name.barrier("arrive", f"c{number}", parties=2)
        assert name.barrier("arrive", "a", parties=2, known=generation)[0] == -1
        name.scripts.pass_ms(OVER_MS + 1)
        name.barrier("abort", f"x{number}", parties=2)


def test_party_of_a_barrier_that_the_server_forgot_does_not_pass(name: Gathering) -> None:
    _, generation, _, _ = name.barrier("arrive", "a", parties=2)
    name.scripts.wire.call("DEL", *name.keys)
    name.scripts.pass_ms(1)
    for ticket in ("b", "c", "d", "e"):
        name.barrier("arrive", ticket, parties=2)
    assert name.barrier("arrive", "a", parties=2, known=generation)[0] == -1


@pytest.mark.parametrize("lost", [0, 1, 5])
def test_barrier_that_lost_a_key_lets_nobody_pass_early(name: Gathering, lost: int) -> None:
    name.barrier("arrive", "a", parties=3)
    name.barrier("arrive", "b", parties=3)
    name.scripts.wire.call("DEL", name.keys[lost])
    assert name.barrier("arrive", "c", parties=3)[0] != 1


def test_places_are_never_let_in_by_an_admit_of_another_kind(name: Gathering) -> None:
    name.barrier("arrive", "a", parties=2)
    lock = name.scripts.name(name.plain.shown)
    for ms in (0, PLACE_MS + 1, 3_600_000):
        name.scripts.pass_ms(ms)
        with pytest.raises(ServerError, match="LOCKFASTKIND barrier 2"):
            lock.admit("lock")
    name.scripts.pass_ms(2 * LIFE_MS)
    assert lock.admit("lock").code == 1, "a day after its last use it is forgotten"
    assert lock.inspect().waiters == ()
