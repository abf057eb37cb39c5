"""Elections in worlds drawn from seeds: one leads at a time, only leaders are heard, observers end with the truth."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from lockfast import check, names
from lockfast.errors import LockfastError, Unreachable
from lockfast.flows import election
from lockfast.flows.election import Candidacy, Leader
from lockfast.sim.driving import Run, Work
from lockfast.sim.holding import Section, TellingHold, _release, believe
from lockfast.sim.tasks import Cancelled
from sim.gathering import Book, Visitor, is_found, made
from sim.gathering import play as play_all

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from lockfast.flows.admission import Held
    from lockfast.flows.asks import Ask
    from lockfast.grants import Hold
    from lockfast.sim.client import Client
    from lockfast.sim.swarm import Visit
    from sim.gathering import Steps

NAME = "n1"
SOON_S = 4.0  # a heartbeat is every two seconds, and connections have to be made anew
SMALL: dict[str, Any] = {"safety_s": 2.0, "visits": 2, "leases_s": (0.3, 1.0)}
MESSAGES = ("slow", "lost", "reset", "answer slow", "answer lost", "answer reset", "cut up", "freeze")


class Seen(Book):
    """What each observer has seen, and who leads in truth."""

    def __init__(self, run: Any) -> None:
        super().__init__(run)
        self.observers: dict[str, list[Leader | None]] = {}
        self.leaderships = 0

    def judge(self) -> None:
        world = self.run.world
        leaders = {event.fence: event.ticket for event in world.history if event.what == "held"}
        history = list(world.history)
        verdicts = check.all(history, gap_s=self.run.gap_s() + 1.0, slack_s=self.run.slack_s())
        self.found += [f"{name}: {verdict.why}" for name, verdict in verdicts.items() if verdict.bad]
        self.converge()
        for name, seen in self.observers.items():
            said: dict[int, int] = {}
            for leader in seen:
                if leader is None:
                    continue
                who, _, number = leader.value.partition("#")
                holder = leaders.get(leader.fence, "final.1").rpartition(".")[0]
                if who != holder:
                    self.found.append(f"{name} saw {leader.value}, and the leader was {holder}")
                if int(number or -1) < said.get(leader.fence, 0):
                    self.found.append(f"{name} saw {leader.value!r} after {said.get(leader.fence)}")
                said[leader.fence] = int(number or -1)

    def converge(self) -> None:
        """In the quiet one more leads, says something else, and dies: all who observe see just that."""
        world = self.run.world
        final = world.add_client("final", [self.run.node])
        task = final.start(self._lead, "final")
        world.run(world.now + SOON_S)
        self._expect("final#0")
        assert task.done
        final.start(lambda client: self._say(client, task.result()), "says more")
        world.run(world.now + SOON_S)
        self._expect("final#1")
        final.crash()
        world.run(world.now + 3.0 + SOON_S)
        self._expect(None)

    def _lead(self, client: Client) -> Steps:
        candidacy = Candidacy(made(NAME), 3.0, "final#0")
        return (yield Run(election.campaign(candidacy, None, client.env, Campaigns(client, lambda _: None))))

    def _say(self, client: Client, hold: Hold) -> Steps:
        yield Run(election.proclaim(hold, "final#1", client.env))

    def _expect(self, value: str | None) -> None:
        alive = [name for name in self.observers if not self.run.world.clients[name].dead]
        for name in alive:
            last = self.observers[name][-1]
            if (last.value if last else None) != value:
                self.found.append(f"{name} sees {last} at the end, not {value}")


class Campaigns:
    """Makes holds of what a campaign was granted, as the public classes do, and tells the history."""

    def __init__(self, client: Client, begun: Callable[[Section], None]) -> None:
        self.client = client
        self.keeper = self
        self.about: dict[str, Any] = {}
        self._begun = begun

    def new_ticket(self) -> str:
        ticket = self.client.new_id()
        self.about = {"name": NAME, "ticket": ticket, "client": self.client.name, "weight": 1, "limit": 1}
        self.client.world.record("asked", **self.about)
        return ticket

    def keep(self, ask: Ask, ticket: str, held: Held) -> Hold:
        hold = TellingHold(ask, ticket, held, self.client.era, True)
        section = Section(self.client, hold)
        believe(section, self.about)
        self.client.keeper.watch(hold)
        self._begun(section)
        return hold

    def unwatch(self, hold: Hold) -> None:
        if not hold.why_lost:  # it is being given back
            self.client.world.record("leaving", fence=hold.fence, **self.about)
        self.client.keeper.unwatch(hold)

    def unwatch_all(self, holds: Sequence[Hold]) -> None:
        for hold in holds:
            self.unwatch(hold)

    def finish(self, hold: Hold) -> None:
        self.client.keeper.finish(hold)


class Candidate(Visitor):
    """Each leads now and then, and says things; and each client observes all the time."""

    book_of = Seen

    def __init__(self, run: Any, client: Client, visits: tuple[Visit, ...]) -> None:
        super().__init__(run, client, visits)
        # One client less than there are: the simulator's time goes into them.
        if client.name not in self.book.observers and client.name[0] != "a":
            self.book.observers[client.name] = []
            client.start(self._observe, "observer")

    def _observe(self, client: Client) -> Steps:
        seen = self.book.observers[client.name]
        ticket, last = client.new_id(), election.UNSEEN
        while True:
            try:
                last = yield Run(
                    election.next_change(names.watched(made(NAME)), ticket, last, lambda: False, client.env)
                )
                seen.append(last)
            except Unreachable:
                yield Work(0.1)

    def turn(self, client: Client, visit: Visit, number: int) -> Steps:
        yield from self._lead(client, visit.lease_s, visit.wait_s, visit.work_s)

    def last_turn(self, client: Client) -> Steps:
        yield from self._lead(client, 0.3, None, 0.05)

    def _lead(self, client: Client, lease_s: float, wait_s: float | None, work_s: float) -> Steps:
        sections: list[Section] = []
        campaigns = Campaigns(client, sections.append)
        candidacy = Candidacy(made(NAME), lease_s, f"{client.name}#0")
        try:
            yield Run(election.campaign(candidacy, wait_s, client.env, campaigns))
        except (LockfastError, Cancelled) as failure:
            if not sections or sections[-1].hold.ticket != campaigns.about["ticket"]:
                client.world.record("failed", note=type(failure).__name__, **campaigns.about)
            if isinstance(failure, Cancelled):
                raise
            return
        section = sections[-1]
        self.book.leaderships += 1
        struck: BaseException | None = None
        try:
            for number in (1, 2):
                yield section.work(work_s / 2)
                if section.hold.held():
                    yield Run(election.proclaim(section.hold, f"{client.name}#{number}", client.env))
        except (LockfastError, Cancelled) as failure:
            struck = failure
        yield from _release(section, campaigns.about, struck)
        if isinstance(struck, Cancelled):
            raise struck
        yield Run(election.farewell(section.hold, client.env))


def play(seed: int, choices: dict[str, Any]) -> Any:
    return play_all(Candidate, seed, choices)


@pytest.mark.slow
def test_elections_break_no_promise() -> None:
    books = [play(seed, SMALL | {"clients": 2 + seed % 2}) for seed in range(300)]
    found = [f"seed {book.run.plan.seed}: {why}" for book in books for why in book.found]
    assert not found, "\n".join(found[:20])
    assert sum(book.leaderships for book in books) > 3 * len(books)
    seen = [leader for book in books for states in book.observers.values() for leader in states]
    assert len(seen) > 5 * len(books)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("edit", "choices"),
    [
        pytest.param(
            ("lua/proclaim.lua", "if holder ~= ARGV[4] or fence ~= tonumber(ARGV[3]) or holder_end <= now then",
             "if holder == '-' then"),
            {"kinds": MESSAGES, "faults": 30},
            id="who no longer leads is heard",
        ),
        pytest.param(
            ("lua/proclaim.lua", "if tonumber(ARGV[2]) >= tonumber(number ~= '' and number or 0) then", "if true then"),
            {"kinds": ("slow", "answer slow"), "faults": 30, "work": "short", "leases_s": (3.0,), "timeout_s": 0.2},
            id="what is said first is heard last",
        ),
        pytest.param(
            ("flows/watching.py", "yield Wait(ticket, min(beat, until), name)", "yield Wait(ticket, until, name)"),
            {"kinds": ("push lost", "push reset", "pause"), "faults": 20},
            id="no heartbeat",
        ),
        pytest.param(
            ("lua/observe.lua", "or holder_end <= now then return {0, 0, 0, ''} end", "then return {0, 0, 0, ''} end"),
            {},
            id="a dead leader is seen",
        ),
    ],
)  # fmt: skip
def test_a_planted_bug_is_found(edit: tuple[str, str, str], choices: dict[str, Any], request: Any) -> None:
    assert is_found(Candidate, edit, choices), request.node.name
