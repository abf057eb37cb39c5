"""Small worlds for elections, latches and barriers: the clients, faults and quiet of `sim.runs`, with other callers.

What the server did is read from what it stores after every script (`Book`); what callers saw they tell the book
themselves. Each test judges the two against each other.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from lockfast import names
from lockfast.errors import LockfastError
from lockfast.flows import latch, scripts
from lockfast.flows.latch import LatchSpec
from lockfast.sim import runs
from lockfast.sim.client import PREFIX
from lockfast.sim.driving import Run, Work
from lockfast.sim.swarm import plan as plan_of
from sim.planted import SOURCE, _swap_module

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator

    from lockfast.flows.effects import Call
    from lockfast.names import Name
    from lockfast.sim.client import Client
    from lockfast.sim.swarm import Visit

    Steps = Generator[Any, Any, Any]

SCRIPTS = (scripts.PROCLAIM, scripts.OBSERVE, scripts.LATCH, scripts.BARRIER)


class Book:
    """What happened in one run. found: what should not have."""

    def __init__(self, run: Any) -> None:
        self.run = run
        self.callers = run.plan.options.clients * run.plan.options.threads_of
        self.found: list[str] = []
        watch = run.node.watch
        seen = watch.after

        def after(call: Call) -> None:
            seen(call)
            self.after(call)

        watch.after = after

    @property
    def now(self) -> float:
        return float(self.run.world.now)

    def after(self, call: Call) -> None:
        """A script has run."""

    def stored(self, name: Name) -> list[str] | None:
        """The fields of the name's state, if there is one."""
        raw = self.run.node.server.store.string(name.keys[0].encode())
        return None if raw is None else raw.decode().split(" ", 10)

    def judge(self) -> None:
        """Add to `found`, when all is over."""


class Visitor(runs._Caller):
    """A caller that does something else than to lock. `turn` for each visit, `last_turn` in the quiet."""

    book_of: Callable[[Any], Book]

    def __init__(self, run: Any, client: Client, visits: tuple[Visit, ...]) -> None:
        super().__init__(run, client, visits)
        if "book" not in vars(run):
            run.book = type(self).book_of(run)
        self.book: Any = run.book

    def turn(self, client: Client, visit: Visit, number: int) -> Steps:
        raise NotImplementedError

    def last(self, client: Client) -> Steps:
        yield from reached(client)
        yield from self.last_turn(client)

    def last_turn(self, client: Client) -> Steps:
        raise NotImplementedError


def reached(client: Client) -> Steps:
    """Until the server answers: connections that broke unnoticed are noticed here."""
    spec = LatchSpec(made("reached"), 1, 60)
    while True:
        try:
            return (yield Run(latch.count(spec, client.new_id(), client.env)))
        except LockfastError:
            yield Work(0.1)


def made(name: str) -> Name:
    return names.make(PREFIX, (name,))


def play(kind: type[Visitor], seed: int, choices: dict[str, Any]) -> Any:
    """The book of one run; whoever did not come to an end is in it."""
    small = {"clients": 2 + seed % 3, "threads_of": 1, "safety_s": 4.0, "visits": 3} | choices
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runs, "_Caller", kind)
        run = runs._Run(plan_of(seed, small), False)
        run.play()
    book = run.book  # type: ignore[attr-defined]
    if run.away or not all(caller.done for caller in run.callers):
        book.found.append("somebody still waits at the end")
    book.judge()
    return book


def all_of(kind: type[Visitor], seeds: range, choices: dict[str, Any]) -> list[Any]:
    """The books of many runs, in which nothing is found."""
    books = [play(kind, seed, choices) for seed in seeds]
    found = [f"seed {book.run.plan.seed}: {why}" for book in books for why in book.found]
    assert not found, "\n".join(found[:20])
    return books


def is_found(kind: type[Visitor], edit: tuple[str, str, str], choices: dict[str, Any], seeds: int = 200) -> bool:
    """Whether a bug is found: in some run with it, and not in the same run without."""
    for seed in range(seeds):
        with edited(*edit):
            found = play(kind, seed, choices).found
        if found:
            return not play(kind, seed, choices).found
    return False


@contextmanager
def edited(path: str, old: str, new: str) -> Iterator[None]:
    """Let a file of the package say something else for a while."""
    text = (SOURCE / path).read_text()
    assert old in text, f"{path} no longer has {old!r}"
    if path.endswith(".py"):
        put_back = _swap_module(path, text.replace(old, new))
        try:
            yield
        finally:
            put_back()
        return
    before = [(script, script.text, script.sha, script.packed) for script in SCRIPTS]
    for script in SCRIPTS:
        script._text, script._sha, script.packed = script.text.replace(old, new), "", ""
    try:
        yield
    finally:
        for script, *fields in before:
            script._text, script._sha, script.packed = fields
