"""A transaction stepped by hand: how long it pauses between its attempts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from lockfast.errors import Conflict
from lockfast.flows import transaction
from lockfast.flows.effects import Sleep
from lockfast.flows.plain import Do, Env, Pipeline
from lockfast.transactions import plan

if TYPE_CHECKING:
    from collections.abc import Callable

    from lockfast.flows.attempt import Attempt
    from lockfast.transactions import Plan


class Acts:
    """A function that writes one key, and a lock that is free."""

    def body(self, attempt: Attempt) -> Callable[[Any], Any]:
        return lambda _: attempt.write(("SET", "a", "1"))

    def take(self, wait_s: float | None) -> Callable[[Any], Any]:
        return lambda _: "grants"

    def give_back(self, grants: Any) -> Callable[[Any], Any]:
        return lambda _: None


def pauses(wanted: Plan) -> list[float]:
    """What lies between the attempts of a transaction that is always outrun, of those that have a pause at all."""
    flow = transaction.run(wanted, Acts(), Env(lambda: 0.0, lambda: 0.0, lambda: "", lambda: 1.0))
    found: list[float] = []
    answer: Any = None
    while True:
        try:
            wish = flow.send(answer)
        except Conflict:
            return found
        answer = None
        if isinstance(wish, Sleep):
            found.append(wish.delay_s)
        elif isinstance(wish, Do):
            answer = wish.call(lambda _: None)
        elif isinstance(wish, Pipeline):
            answer = ["OK"] * len(wish.commands)
            if wish.commands[-1] == ("EXEC",):
                answer[-1] = None  # another was faster


@pytest.mark.parametrize(
    ("escalate", "expected"),
    [
        (None, [4, 8, 16, 32, 64, 128, 250, 250, 250]),
        (4, [4, 8, 16, 0, 64, 128, 250, 250, 250]),  # once the lock is waited for instead
        (0, [4, 8, 16, 32, 64, 128, 250, 250, 250]),
    ],
)
def test_pauses_grow_also_under_the_lock(escalate: int | None, expected: list[int]) -> None:
    """Those who write without the lock are as fast as ever: going on at once would keep the server busy for nothing."""
    found = pauses(plan(print, ("a",), 10, 60, escalate))
    assert [round(pause_s * 1000) for pause_s in found] == expected
