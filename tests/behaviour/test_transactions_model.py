"""Interleaved transactions against a plain dict: what is read, what conflicts, and what is written, step by step."""

from __future__ import annotations

import queue
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from kit.transacting import transact
from lockfast import Conflict, Outcome

if TYPE_CHECKING:
    from kit.servers import Server
    from kit.sides import Side
    from lockfast import Transaction
    from lockfast.sync import Lockfast

PATIENCE_S = 10.0
ATTEMPTS = 2
KEYS = ["model-1", "model-2", "model-3"]
keys = st.sampled_from(KEYS)
values = st.integers(0, 99).map(lambda number: str(number).encode())


class Own(Exception):
    """What a function raises on its own account."""


class Open:
    """A transaction under way in a thread of its own; its function does what it is told, one step at a time."""

    def __init__(self, side: Side, lf: Lockfast, watched: list[str]) -> None:
        self.watched = watched
        self.attempt = 0
        self.queued: list[tuple[str, bytes | None]] = []
        self.seen: dict[str, int] = {}  # the versions of what it watches, as of its WATCH
        self._orders: queue.Queue[tuple[str, Any]] = queue.Queue()
        self._answers: queue.Queue[Any] = queue.Queue()
        options = {"attempts": ATTEMPTS, "wait": None, "escalate": None}
        self._running = side.spawn(self._run, transact, side, lf, self._body, *watched, **options)

    def _run(self, call: Any, *arguments: Any, **options: Any) -> None:
        try:
            self._answers.put(call(*arguments, **options))
        except (Conflict, Own) as error:
            self._answers.put(error)

    def _body(self, tx: Transaction) -> int:
        self._answers.put(tx.attempt)
        while True:
            do, what = self._orders.get(timeout=PATIENCE_S)
            if do == "read":
                self._answers.put(tx.read("MGET", *what))
            elif do == "set":
                tx.set(*what)
            elif do == "delete":
                tx.write("DEL", what)
            elif do == "raise":
                raise Own
            else:
                return tx.attempt

    def tell(self, do: str, what: Any = None) -> None:
        self._orders.put((do, what))

    def queue(self, key: str, value: bytes | None) -> None:
        if value is None:
            self.tell("delete", key)
        else:
            self.tell("set", (key, value))
        self.queued.append((key, value))

    def answer(self) -> Any:
        return self._answers.get(timeout=PATIENCE_S)

    def end(self) -> None:
        """Give up, wherever it is."""
        self.tell("raise")
        self._running.result(PATIENCE_S)


class Interleaved(RuleBasedStateMachine):
    """Three clients with up to one transaction each, and somebody who writes as they please."""

    side: Side
    server: Server
    clients: list[Lockfast]
    seen: Counter[str]

    def __init__(self) -> None:
        super().__init__()
        self.server.command("DEL", *KEYS)
        self.model: dict[str, bytes] = {}
        self.versions = dict.fromkeys(KEYS, 0)
        self.open: dict[int, Open] = {}

    def teardown(self) -> None:
        for one in self.open.values():
            one.end()

    @rule(key=keys, value=values)
    def write_without_a_transaction(self, key: str, value: bytes) -> None:
        self.server.command("SET", key, value)
        self._change(key, value)

    @rule(key=keys)
    def delete_without_a_transaction(self, key: str) -> None:
        self.server.command("DEL", key)
        self._change(key, None)

    @precondition(lambda self: len(self.open) < 3)
    @rule(watched=st.lists(keys, min_size=1, unique=True))
    def begin(self, watched: list[str]) -> None:
        number = min({0, 1, 2} - set(self.open))
        one = self.open[number] = Open(self.side, self.clients[number], watched)
        self._begun(one, 1)

    @precondition(lambda self: any(not one.queued for one in self.open.values()))
    @rule(data=st.data())
    def read(self, data: st.DataObject) -> None:
        one = self.open[data.draw(st.sampled_from([n for n, one in self.open.items() if not one.queued]))]
        some = data.draw(st.lists(st.sampled_from(one.watched), min_size=1))
        one.tell("read", some)
        assert one.answer() == [self.model.get(key) for key in some]

    @precondition(lambda self: self.open)
    @rule(data=st.data(), key=keys, value=st.none() | values)
    def queue(self, data: st.DataObject, key: str, value: bytes | None) -> None:
        self.open[data.draw(st.sampled_from(list(self.open)))].queue(key, value)

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def fail(self, data: st.DataObject) -> None:
        one = self.open.pop(data.draw(st.sampled_from(list(self.open))))
        one.tell("raise")
        assert isinstance(one.answer(), Own)

    @precondition(lambda self: self.open)
    @rule(data=st.data(), last=st.lists(st.tuples(keys, st.none() | values)))
    def commit(self, data: st.DataObject, last: list[tuple[str, bytes | None]]) -> None:
        number = data.draw(st.sampled_from(list(self.open)))
        one = self.open[number]
        for key, value in last:
            one.queue(key, value)
        one.tell("commit")
        collides = bool(one.queued) and any(self.versions[key] != version for key, version in one.seen.items())
        self.seen["conflict" if collides else "written" if one.queued else "looked"] += 1
        if collides and one.attempt < ATTEMPTS:
            self._begun(one, one.attempt + 1)
            return
        del self.open[number]
        told = one.answer()
        if collides:
            assert isinstance(told, Conflict)
            assert (told.attempts, told.conflicts) == (ATTEMPTS, ATTEMPTS)
            self.seen["gave up"] += 1
            return
        replies = tuple(self._change(key, value) for key, value in one.queued)
        assert told == Outcome(one.attempt, replies, one.attempt, one.attempt - 1, False)

    @invariant()
    def server_has_what_the_model_has(self) -> None:
        assert self.server.command("MGET", *KEYS) == [self.model.get(key) for key in KEYS]

    def _begun(self, one: Open, attempt: int) -> None:
        assert one.answer() == attempt
        one.attempt, one.queued = attempt, []
        one.seen = {key: self.versions[key] for key in one.watched}

    def _change(self, key: str, value: bytes | None) -> Any:
        """Do it to the model; what the server answers. To delete what is not there changes nothing."""
        before = self.model.pop(key, None)
        if value is not None or before is not None:
            self.versions[key] += 1
        if value is None:
            return int(before is not None)
        self.model[key] = value
        return b"OK"


@pytest.mark.slow
def test_interleaved_transactions_do_what_a_dict_would(side: Side, valkey_server: Server) -> None:
    clients = [side.client(valkey_server.url) for _ in range(3)]
    surroundings: dict[str, Any] = {"side": side, "server": valkey_server, "clients": clients, "seen": Counter[str]()}
    machine = type("Surrounded", (Interleaved,), surroundings)
    few = settings(max_examples=100, stateful_step_count=30, deadline=None, derandomize=True)
    run_state_machine_as_test(machine, settings=settings(few, suppress_health_check=list(HealthCheck)))
    assert min(surroundings["seen"][what] for what in ("conflict", "written", "looked")) > 3, surroundings["seen"]
