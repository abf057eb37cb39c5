"""Guards in worlds drawn from seeds: no write lands but of a hold that stands at the server, and none lands twice.

Callers write through `guard` whenever they believe to hold. After every guard that the server has run, its memory is
looked at from outside: which writes are new, and who held the name at that moment by its own book and clock.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from lockfast.errors import LeaseLost, NotHeld, Unreachable
from lockfast.flows import guarding
from lockfast.flows.scripts import GUARD
from lockfast.sim import runs
from lockfast.sim.driving import Run, Work
from lockfast.sim.runs import run_seed
from sim.planted import STATE, Planted, planted

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

    from lockfast.flows.effects import Call
    from lockfast.sim.client import Client
    from lockfast.sim.holding import Section
    from lockfast.sim.runs import Result
    from lockfast.sim.swarm import Visit

LUA = "lua/guard.lua"
LATE = ("slow", "answer slow", "answer lost", "answer reset", "cut up", "freeze", "reset", "lost")
HINCRBY = guarding.Shape(4, 1, 1, 1, True, {})


class Book:
    """The writes of one run: which landed, when they should not have, and what their writers were told."""

    def __init__(self, run: Any) -> None:
        self._node = run.node
        self._before: dict[bytes, bytes] = {}
        self._after = self._node.watch.after
        self._node.watch.after = self.look
        self.wrong: list[str] = []
        self.landed: dict[str, int] = {}
        self.said: dict[str, str] = {}

    def look(self, call: Call) -> None:
        """A script has run."""
        self._after(call)
        if call.bound.script is not GUARD:
            return
        name = call.bound.name.shown
        writes = self._node.server.store.hash(f"log:{name}".encode()) or {}
        new = [field for field, times in writes.items() if self._before.get(field) != times]
        self._before = {**self._before, **writes}
        holders = self._node.watch._views[name].holders
        now_ms = self._node.clock.wall_us(self._node.world.now) // 1000
        for field in new:
            operation, ticket, fence = field.decode().split(" ")
            self.landed[operation] = self.landed.get(operation, 0) + 1
            standing = holders.get(ticket)
            if standing is None or standing.fence != int(fence):
                self.wrong.append(f"{operation}: {ticket} does not hold")
            elif standing.end_ms <= now_ms:
                self.wrong.append(f"{operation}: the lease of {ticket} has ended")

    def judge(self, forgot: bool) -> list[str]:
        """All that is wrong. forgot: the server lost its memory, and with it what had run."""
        wrong = list(self.wrong)
        wrong += [f"{operation}: landed {times} times" for operation, times in self.landed.items() if times > 1]
        for operation, outcome in self.said.items():
            times = self.landed.get(operation, 0)
            if (outcome == "ran" and times == 0) or (outcome == "not" and times and not forgot):
                wrong.append(f"{operation}: {outcome}, and landed {times} times")
        return wrong


class Writes(runs._Caller):
    """A caller that writes through its guard."""

    def __init__(self, run: Any, client: Client, visits: tuple[Visit, ...]) -> None:
        super().__init__(run, client, visits)
        if not hasattr(run, "book"):
            run.book = Book(run)
            BOOKS.append(run.book)
        self._book: Book = run.book
        client.env.commands[b"hincrby"] = HINCRBY

    def _body(self, visit: Visit) -> Any:
        def body(section: Section) -> Generator[Any, Any, None]:
            for share in (0.3, 0.5, 0.2):
                if section.hold.held():
                    yield from self._write(section)
                yield Work(visit.work_s * share)

        return body

    def _write(self, section: Section) -> Generator[Any, Any, None]:
        hold, client = section.hold, section.client
        operation, said = client.new_id(), self._book.said
        field = f"{operation} {hold.ticket} {hold.fence}"
        said[operation] = "unsure"  # until it is told: cancelled, or dead
        commands = guarding.prepare((("HINCRBY", f"log:{hold.ask.name.shown}", field, 1),))
        try:
            replies = yield Run(guarding.guard(hold, commands, operation, client.env))
        except (LeaseLost, NotHeld):
            said[operation] = "not"
            raise
        except Unreachable as failure:
            said[operation] = "unsure" if failure.sent else "not"
            return
        said[operation] = "ran"
        if replies != [1]:
            self._book.wrong.append(f"{operation}: answered {replies}")


BOOKS: list[Book] = []


@contextmanager
def writers() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runs, "_Caller", Writes)
        yield


def play(seed: int, choices: dict[str, Any] | None = None) -> tuple[Result, Book, list[str]]:
    """One run, its book, and what is wrong with it."""
    BOOKS.clear()
    with writers():
        result = run_seed(seed, choices)
    (book,) = BOOKS
    forgot = any(event.what == "server_lost_memory" for event in result.history)
    return result, book, book.judge(forgot)


@pytest.mark.slow
def test_only_what_stands_writes_and_once_under_all_faults() -> None:
    ran = refused = unsure = resent = 0
    for seed in range(300):
        result, book, wrong = play(seed, {"limit": 3} if seed % 4 == 3 else None)
        assert not wrong, f"seed {seed}: {wrong}"
        assert not result.failed, f"seed {seed}: {result.failed}"
        outcomes = list(book.said.values())
        ran += outcomes.count("ran")
        refused += outcomes.count("not")
        unsure += outcomes.count("unsure")
        resent += sum(book.landed.get(operation, 0) for operation, outcome in book.said.items() if outcome == "unsure")
    assert ran > 1500
    assert min(refused, unsure, resent) > 10, (ran, refused, unsure, resent)


def _bug(name: str, edit: tuple[str, str, str], **choices: Any) -> Any:
    return pytest.param(Planted(name, (edit,), frozenset(), choices), id=name)


BUGS = [
    _bug(
        "it does not look who holds",
        (STATE, "if holder == ticket then return fence == own_fence and", "if holder ~= '-' then return"),
        kinds=LATE,
        faults=30,
        renew_share=0.0,
    ),
    _bug(
        "it does not compare the fence",
        (STATE, "return fence == own_fence and holder_end > now", "return holder_end > now"),
        # A ticket has two fences when a copy of its `admit` comes after its lease: everything is late here.
        clients=1,
        threads_of=1,
        kinds=("slow",),
        faults=60,
        leases_s=(0.05,),
        renew_share=0.0,
        work="long",
        timeout_s=0.2,
        waits_s=(None,),
        longest_s=0.5,
        visits=5,
        spread_s=0.05,
    ),
    _bug(
        "it ignores the end of the lease",
        (STATE, "return fence == own_fence and holder_end > now", "return fence == own_fence"),
        kinds=LATE,
        faults=20,
        leases_s=(0.1,),
        renew_share=0.0,
        work="lease",
    ),
    _bug(
        "it does not remember that it ran",
        (LUA, "local ran = redis.call('GET', KEYS[6])", "local ran = false"),
        kinds=LATE,
        faults=20,
        leases_s=(3.0,),
    ),
    _bug(
        "it looks at the hold before it looks whether it ran",
        (LUA, "if ran then return", "if ran and string.find(redis.call('GET', KEYS[1]), ARGV[2], 1, true) then return"),
        kinds=LATE,
        faults=30,
        leases_s=(0.3,),
        timeout_s=2.0,
        renew_share=0.0,
    ),
]


@pytest.mark.slow
@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_is_found(bug: Planted) -> None:
    for seed in range(600):
        with planted(bug):
            found = play(seed, bug.choices)[2]
        if found and not play(seed, bug.choices)[2]:
            return
    pytest.fail(f"{bug.name} was not found")
