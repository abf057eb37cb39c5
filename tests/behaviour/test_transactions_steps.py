"""The flow of a transaction stepped by hand, without a server: pauses, bounds, and what hardly ever happens."""

from __future__ import annotations

from typing import Any

import pytest

from lockfast.errors import Conflict, LeaseLost, PartlyWritten, Unreachable
from lockfast.flows import transaction
from lockfast.flows.effects import Sleep
from lockfast.flows.plain import Do, Env, Pipeline
from lockfast.transactions import Outcome, Plan


class Scene:
    """A flow, the moment it is, and what it asks for. Its function writes one thing."""

    def __init__(self, plan: Plan) -> None:
        self.now = 100.0
        env = Env(lambda: self.now, lambda: 0.0, lambda: "", lambda: 0.5, timeout_s=2.0)
        self.flow = transaction.run(plan, self, env)
        self.effect: Any = next(self.flow)

    def body(self, attempt: Any) -> Any:
        def call(_: Any) -> str:
            attempt.write(("SET", "k", attempt.number))
            return "value"

        return call

    def take(self, wait_s: float | None) -> Any:
        return lambda _: ("take", wait_s)

    def give_back(self, grants: Any) -> Any:
        return lambda _: ("give back", grants)

    def send(self, answer: Any) -> Any:
        self.effect = self.flow.send(answer)
        return self.effect

    def throw(self, error: BaseException) -> Any:
        self.effect = self.flow.throw(error)
        return self.effect

    @property
    def commands(self) -> list[Any]:
        assert isinstance(self.effect, Pipeline)
        return [words[0] for words in self.effect.commands]

    def call(self) -> Any:
        """Do what it wants done."""
        assert isinstance(self.effect, Do)
        return self.effect.call(lambda _: None)

    def to_exec(self) -> None:
        """Through WATCH and the function, up to where it wants to commit."""
        assert self.commands[-1] == "WATCH"
        self.send([b"OK"] * len(self.commands))
        self.send(self.call())
        assert self.commands == ["MULTI", "SET", "EXEC"]


def test_pauses_grow_by_chance_also_under_the_lock_and_none_is_made_before_taking_it() -> None:
    scene = Scene(Plan(("k",), 20, None, 12))
    pauses = []
    for _ in range(12):
        scene.to_exec()
        pauses.append(scene.send([b"OK", b"QUEUED", None]).delay_s)
        scene.send(None)
    assert pauses[:4] == pytest.approx([0.002, 0.004, 0.008, 0.016])
    assert pauses[7:] == pytest.approx([0.125] * 4 + [0.0])
    assert scene.call() == ("take", None)
    scene.send("grants")
    scene.to_exec()
    assert scene.send([b"OK", b"QUEUED", None]).delay_s == pytest.approx(0.125)


def test_no_attempt_begins_after_the_wait_and_the_lock_is_waited_for_no_longer() -> None:
    scene = Scene(Plan(("k",), 20, 5.0, 1))
    scene.to_exec()
    scene.now += 1.0
    scene.send([b"OK", b"QUEUED", None])
    scene.send(None)
    assert scene.call() == ("take", 4.0)
    scene.send("grants")
    scene.to_exec()
    scene.now += 5.0
    scene.send([b"OK", b"QUEUED", None])
    assert scene.call() == ("give back", "grants")
    with pytest.raises(Conflict, match=r"2 times in 6\.000 s"):
        scene.send(None)


def test_pause_ends_with_the_wait() -> None:
    scene = Scene(Plan(("k",), 20, 5.0, None))
    scene.to_exec()
    scene.now += 4.9999
    assert scene.send([b"OK", b"QUEUED", None]).delay_s == pytest.approx(0.0001)


def test_lock_that_is_lost_while_it_is_taken_is_asked_for_again() -> None:
    scene = Scene(Plan(("k",), 20, None, 0))
    assert scene.call() == ("take", None)
    scene.throw(LeaseLost("lost"))
    scene.to_exec()
    scene.send([b"OK", b"QUEUED", None])
    scene.send(None)
    assert scene.call() == ("take", None)


def test_lock_that_cannot_be_asked_for_is_tried_again_until_the_time_out() -> None:
    scene = Scene(Plan(("k",), 20, None, 0))
    assert scene.throw(Unreachable("reset")).delay_s == 0.0
    assert isinstance(scene.send(None), Do)
    assert isinstance(scene.throw(Unreachable("reset")), Sleep)
    scene.send(None)
    scene.now += 2.0
    with pytest.raises(Unreachable, match="nothing was written") as failure:
        scene.throw(Unreachable("reset"))
    assert failure.value.sent is False


def test_multi_that_is_refused_after_all_is_told_as_what_it_is() -> None:
    scene = Scene(Plan(("k",), 20, None, None))
    scene.to_exec()
    with pytest.raises(PartlyWritten, match="ran by itself") as partly:
        scene.send([Exception("NOPERM"), b"OK", Exception("ERR EXEC without MULTI")])
    assert partly.value.replies == (b"OK",)


def test_release_that_is_not_confirmed_does_not_hide_the_outcome() -> None:
    scene = Scene(Plan(("k",), 20, None, 0))
    scene.send("grants")
    scene.to_exec()
    assert isinstance(scene.send([b"OK", b"QUEUED", [b"OK"]]), Do)
    with pytest.raises(StopIteration) as stop:
        scene.throw(Unreachable("gone"))
    assert stop.value.value == Outcome("value", (b"OK",), 1, 0, True)


def test_interrupted_release_tells_that_it_was_written() -> None:
    scene = Scene(Plan(("k",), 20, None, 0))
    scene.send("grants")
    scene.to_exec()
    scene.send([b"OK", b"QUEUED", [b"OK"]])
    with pytest.raises(KeyboardInterrupt) as interrupt:
        scene.throw(KeyboardInterrupt())
    assert "was written" in interrupt.value.__notes__[0]


def test_power_cut_asks_for_nothing_more() -> None:
    scene = Scene(Plan(("k",), 20, None, 0))
    scene.send("grants")
    scene.flow.close()
