"""Latches in worlds drawn from seeds: nobody passes before zero, and nothing is counted twice."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from lockfast.errors import LockfastError, Unreachable
from lockfast.flows import latch
from lockfast.flows.latch import LatchSpec
from lockfast.flows.scripts import LATCH
from lockfast.sim.driving import Run, Work
from sim.gathering import Book, Visitor, all_of, is_found, made

if TYPE_CHECKING:
    from lockfast.flows.effects import Call
    from lockfast.sim.client import Client
    from lockfast.sim.swarm import Visit
    from sim.gathering import Steps

WATCHING = "flows/watching.py"
MESSAGES = ("answer lost", "answer slow", "answer reset", "lost", "slow", "push lost", "push reset")


class Counts(Book):
    """What each latch was at after every script."""

    def __init__(self, run: Any) -> None:
        super().__init__(run)
        self.left: dict[str, tuple[str, int]] = {}  # by name: which latch, and what is left
        self.counted: dict[tuple[str, str], set[str]] = {}  # by name and latch
        self.opened: dict[str, float] = {}
        self.passed = self.counts = 0

    def after(self, call: Call) -> None:
        state = self.stored(call.bound.name)
        if call.bound.script is not LATCH or state is None or not state[7].startswith("left:"):
            return
        name, fence, left = call.bound.name.shown, state[3], int(state[7][5:])
        before = self.left.get(name, ("", 0))
        was = before[1] if before[0] == fence else int(state[2])
        self.left[name] = (fence, left)
        if left < was:
            ticket = str(call.args[-1])
            tickets = self.counted.setdefault((name, fence), set())
            if ticket in tickets:
                self.found.append(f"{ticket} was counted twice")
            tickets.add(ticket)
            self.counts += 1
        if left == 0:
            self.opened.setdefault(name, self.now)

    def was_counted(self, name: str, ticket: str) -> bool:
        return any(ticket in tickets for (of, _), tickets in self.counted.items() if of == name)


class Workers(Visitor):
    """Each counts every latch down, and waits for it."""

    book_of = Counts

    def turn(self, client: Client, visit: Visit, number: int) -> Steps:
        book: Counts = self.book
        spec = LatchSpec(made(f"l{number}"), max(book.callers, 2), 60)
        ticket = client.new_id()
        try:
            yield Run(latch.count_down(spec, ticket, 1, client.env))
            if not book.was_counted(spec.name.shown, ticket) and spec.name.shown not in book.opened:
                book.found.append(f"{ticket} was told that it was counted")
        except Unreachable as failure:
            if not failure.sent and book.was_counted(spec.name.shown, ticket):
                book.found.append(f"{ticket} was told that it was certainly not counted")
        try:
            yield Run(latch.wait(spec, client.new_id(), visit.wait_s or 3.0, client.env))
        except LockfastError:
            return
        self.pass_by(spec)

    def pass_by(self, spec: LatchSpec) -> None:
        self.book.passed += 1
        if spec.name.shown not in self.book.opened:
            self.book.found.append(f"somebody passed {spec.name.shown} before it was at zero")

    def last_turn(self, client: Client) -> Steps:
        spec = LatchSpec(made("last"), self.book.callers, 60)
        word = latch.ticket_of(client.new_id())  # the same one, however often it has to ask
        while True:
            try:
                yield Run(latch.count_down(spec, word, 1, client.env))
                yield Run(latch.wait(spec, client.new_id(), None, client.env))
                break
            except Unreachable:
                yield Work(0.1)
        self.pass_by(spec)


@pytest.mark.slow
def test_latches_break_no_promise() -> None:
    books = all_of(Workers, range(300), {})
    assert sum(book.passed for book in books) > 4 * len(books)
    assert sum(book.counts for book in books) > 6 * len(books)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("edit", "choices"),
    [
        pytest.param(
            ("lua/latch.lua", "redis.call('HEXISTS', KEYS[3], ticket) == 0", "true"),
            {"kinds": MESSAGES, "faults": 20},
            id="a second send counts again",
        ),
        pytest.param(
            ("lua/latch.lua", "if left == 0 then -- from", "if left <= 1 then -- from"),
            {},
            id="it opens at one",
        ),
        pytest.param(
            (WATCHING, "yield Wait(ticket, min(beat, until), name)", "yield Wait(ticket, until, name)"),
            {"kinds": ("push lost", "push reset", "pause"), "faults": 20, "waits_s": (8.0,)},
            id="no heartbeat",
        ),
    ],
)
def test_a_planted_bug_is_found(edit: tuple[str, str, str], choices: dict[str, Any], request: Any) -> None:
    assert is_found(Workers, edit, choices), request.node.name
