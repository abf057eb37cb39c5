"""Transactions in worlds drawn from seeds: no update is lost or made twice, and bugs that would do so are found.

Every caller appends ids to texts, by reading and writing them. In the end each id is there once if it was told as
written, at most once if its outcome was unknown (told so, cancelled, or died), and not at all if it failed; ids of both
texts are in both or in none; and in the quiet at the end everybody gets through. What the server did is watched too: it
may refuse an EXEC only when a watched key was written after the WATCH of that attempt.
"""

from __future__ import annotations

from collections import Counter
from contextlib import contextmanager
from random import Random
from typing import TYPE_CHECKING, Any

import pytest

from lockfast.errors import LockfastError, OutcomeUnknown
from lockfast.flows import plain, transaction
from lockfast.sim import driving, runs
from lockfast.sim.client import PREFIX
from lockfast.sim.driving import Run, Work
from lockfast.sim.faults import KINDS
from lockfast.sim.swarm import plan as plan_of
from lockfast.sim.tasks import Cancelled
from lockfast.sim.transacting import Acts
from lockfast.transactions import Plan
from sim.planted import Planted, planted

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

    from lockfast.flows.attempt import Attempt
    from lockfast.sim.client import Client
    from lockfast.sim.node import Node
    from lockfast.sim.swarm import Visit

SEEDS = 300
FAULTS = tuple(kind for kind in KINDS if kind != "forget")  # a server that forgets loses updates by itself
KEYS = ("n1", "n2")


class Own(Exception):
    """What a function raises on its own account."""


class Ledger:
    """What became of every id, as its caller was told."""

    def __init__(self) -> None:
        self.keys: dict[str, tuple[str, ...]] = {}
        self.written: set[str] = set()
        self.failed: set[str] = set()
        self.stuck: list[str] = []
        self.groundless = 0
        self.told: Counter[str] = Counter()


class Eyes:
    """Watches what one server does: which EXECs it refuses, and whether it had a reason."""

    def __init__(self, node: Node, ledger: Ledger) -> None:
        self._ledger = ledger
        self._versions: Counter[str] = Counter()
        self._watched: dict[Any, dict[str, int]] = {}
        self._queued: dict[Any, set[str]] = {}
        self._execute = node.execute
        node.execute = self.execute  # type: ignore[method-assign]

    def execute(self, session: Any, args: Any, call: Any) -> Any:
        reply = self._execute(session, args, call)
        if args[0] == "WATCH":
            self._watched[session] = {key: self._versions[key] for key in args[1:]}
        elif args[0] == "MULTI":
            self._queued[session] = set()
        elif args[0] == "SET":
            self._queued[session].add(args[1])
        elif args[0] == "EXEC" and reply is None:
            if self._watched.get(session) == {key: self._versions[key] for key in self._watched.get(session, ())}:
                self._ledger.groundless += 1
        elif args[0] == "EXEC" and isinstance(reply, list):
            self._versions.update(self._queued[session])
        return reply


class Transacts(runs._Caller):
    """A caller that appends ids."""

    def turn(self, client: Client, visit: Visit, number: int) -> Generator[Any, Any, None]:
        try:
            yield from self._append(client, visit)
        except Cancelled:
            self._ledger.told["cancelled"] += 1
            raise

    def last(self, client: Client) -> Generator[Any, Any, None]:
        return self._append(client, None)

    @property
    def _ledger(self) -> Ledger:
        ledger: Ledger = self._run.ledger  # type: ignore[attr-defined]  # given to it by `play`
        return ledger

    def _append(self, client: Client, visit: Visit | None) -> Generator[Any, Any, None]:
        ledger, mine = self._ledger, client.new_id()
        chance = Random(f"{self._run.plan.seed} {mine}")
        keys = ledger.keys[mine] = chance.choice([KEYS, KEYS, ("n1",)])
        plan = Plan(keys, 1000, None, 2)
        if visit is not None:
            plan = Plan(keys, chance.choice((2, 30)), visit.wait_s, chance.choice((None, 0, 1, 3)))
        raises = visit is not None and chance.random() < 0.1
        acts = Appends(client, keys, mine, 0.0 if visit is None else min(visit.work_s, 0.3), raises)
        env = plain.Env(client.now, client.wall, client.new_id, client.rng.random, 1, client.env.timeout_s)
        try:
            outcome = yield Run(transaction.run(plan, acts, env))
        except OutcomeUnknown:
            ledger.told["unknown"] += 1
            ledger.stuck += [mine] if visit is None else []
        except (LockfastError, Own) as failure:
            ledger.failed.add(mine)
            ledger.told[type(failure).__name__] += 1
            ledger.stuck += [mine] if visit is None else []
        else:
            ledger.written.add(mine)
            ledger.told["written"] += 1
            ledger.told["conflicts"] += outcome.conflicts
            ledger.told["escalated"] += outcome.escalated
            ledger.told["tried again"] += outcome.attempts > outcome.conflicts + 1


class Appends(Acts):
    """Appends an id to each text."""

    def __init__(self, client: Client, keys: tuple[str, ...], mine: str, work_s: float, raises: bool) -> None:
        super().__init__(client, PREFIX, keys, self._append)
        self._keys = keys
        self._mine = mine
        self._work_s = work_s
        self._raises = raises

    def _append(self, attempt: Attempt) -> Generator[Any, Any, None]:
        texts = {}
        for key in self._keys:
            texts[key] = ((yield from attempt.read(("GET", key))) or b"").decode()
        yield Work(self._work_s)
        if self._raises:
            raise Own
        for key, text in texts.items():
            attempt.write(("SET", key, f"{text} {self._mine}"))


def play(seed: int, choices: dict[str, Any]) -> tuple[list[str], Counter[str]]:
    """Run the world of a seed: what is wrong with it, and what was seen in it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runs, "_Caller", Transacts)
        run = runs._Run(plan_of(seed, choices), trace=False)
        ledger = run.ledger = Ledger()  # type: ignore[attr-defined]  # for the callers
        Eyes(run.node, ledger)
        run.play()
    found = {key: (run.node.server.store.string(key.encode()) or b"").decode().split() for key in KEYS}
    problems = [f"stuck: {mine}" for mine in ledger.stuck]
    problems += ["somebody never ends"] if not all(caller.done for caller in run.callers) else []
    problems += ["groundless conflicts"] if ledger.groundless else []
    for key, ids in found.items():
        problems += [f"{mine} twice in {key}" for mine, count in Counter(ids).items() if count > 1]
        problems += [f"{mine} lost from {key}" for mine in ledger.written - set(ids) if key in ledger.keys[mine]]
        problems += [f"{mine} failed and is in {key}" for mine in ledger.failed & set(ids)]
        problems += [f"{mine} is not in all" for mine in ids for other in ledger.keys[mine] if mine not in found[other]]
    return problems, ledger.told


@pytest.mark.slow
def test_no_update_is_lost_or_made_twice() -> None:
    told: Counter[str] = Counter()
    wrong = []
    for seed in range(SEEDS):
        drawn = tuple(kind for kind in plan_of(seed).options.kinds if kind in FAULTS)
        problems, seen = play(seed, {"kinds": FAULTS if seed % 2 else drawn})
        told += seen
        wrong += [f"seed {seed}: {problem}" for problem in problems]
    assert not wrong, wrong
    assert told["written"] > 5 * SEEDS
    for what in ("conflicts", "escalated", "tried again", "unknown", "Conflict", "Unreachable", "Own", "cancelled"):
        assert told[what] > 10, (what, told)


FLOW = "flows/transaction.py"
WATCH = '[("WATCH", *plan.keys)]'
EXEC = '("EXEC",)], env.now() + env.timeout_s, private=True, same=True)'


def _bug(name: str, *edits: tuple[str, str]) -> Planted:
    return Planted(name, tuple((FLOW, old, new) for old, new in edits), frozenset(), {"kinds": FAULTS})


BUGS = [
    _bug("no WATCH", (WATCH, '[("WATCH", "nothing")]')),
    _bug("no WATCH under the lock", (WATCH, '[("WATCH", *(["nothing"] if state.grants else plan.keys))]')),
    _bug("EXEC again after a lost reply", ("isinstance(cause, Unreachable) and cause.sent", "False")),
    _bug("EXEC on another connection", (EXEC, EXEC.replace(", same=True", ""))),
    _bug("a conflict taken for success", ("if executed is None:", "if executed is None and state.conflicts < 2:"),
         ("failed = _first_error(writes, executed)", "executed = executed or []; failed = None")),
    _bug("the lock is not given back", ("yield Do(acts.give_back(grants))", "yield Sleep(0)")),
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_a_planted_bug_is_found(bug: Planted) -> None:
    def plant() -> Any:
        return planted(bug)

    find(plant, bug.choices)


@pytest.mark.slow
def test_a_pooled_connection_that_still_watches_is_found() -> None:
    """Two things are in its way: it is not pooled, and if it were, the DISCARD of a first attempt would free it."""
    no_discard = _bug("no DISCARD", ("if not state.attempts:", "if False:"))

    def end(runner: driving.Runner, frame: driving.Frame) -> None:
        if frame.ends_private:
            for connection in frame.private.values():
                runner._plain[0].give_back(connection)
        for connection in frame.unanswered:
            runner.lines[0].let_go(connection)

    @contextmanager
    def plant() -> Iterator[None]:
        with pytest.MonkeyPatch.context() as patch, planted(no_discard):
            patch.setattr(driving.Runner, "_end", end)
            yield

    find(plant, {"kinds": FAULTS, "cancel_share": 0.6}, "groundless conflicts")


def find(plant: Any, choices: dict[str, Any], problem: str = "") -> None:
    """One of the first seeds shows it, and does not without it."""
    for seed in range(60):
        with plant():
            problems, _ = play(seed, choices)
        if any(problem in one for one in problems) and not play(seed, choices)[0]:
            return
    pytest.fail("not found")
