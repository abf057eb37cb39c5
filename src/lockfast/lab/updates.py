"""The rows that take nothing: they read, compute, and write only if nobody else has written meanwhile.

There is no section to be judged by, so the stage looks at the commits instead: no two may be made of the same value.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lockfast import classic
from lockfast.errors import Conflict, Unreachable
from lockfast.flows import transaction
from lockfast.lab.contender import PREFIX, Contender, plain_env
from lockfast.sim.transacting import Acts
from lockfast.transactions import Plan

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from lockfast.flows.attempt import Attempt
    from lockfast.lab.contender import Shape
    from lockfast.sim.client import Client

    Change = Callable[[bytes | None], int]


@dataclass(frozen=True)
class Update(Contender):
    """Compare and set. exec_nth: which of a client's first requests is its EXEC, counted with the connect."""

    exec_nth: int = 3
    no_order: str = "it takes nothing, so nobody waits for it"  # why there is no order to cross

    def recipe(self, name: str, shape: Shape) -> classic.OptimisticLock:
        return classic.OptimisticLock(name, acquire_timeout=shape.patience_s * 4)

    def update(self, client: Client, name: str, shape: Shape, change: Change) -> Generator[Any, Any, int | None]:
        """Set the value to `change(value)`. Returns it, or None when others were always faster."""
        updated = yield from self.recipe(name, shape).update(change, plain_env(client))
        return None if updated is None else int(updated.value)


@dataclass(frozen=True)
class OwnUpdate(Update):
    """The shipped transaction. It escalates after one conflict, so that its lock has a part in the play."""

    escalate = 1

    def update(self, client: Client, name: str, shape: Shape, change: Change) -> Generator[Any, Any, int | None]:
        def body(attempt: Attempt) -> Generator[Any, Any, int]:
            value = change((yield from attempt.read(("GET", name))))
            attempt.write(("SET", name, value))
            return value

        plan = Plan((name,), 20, shape.patience_s * 4, self.escalate)
        try:
            outcome = yield from transaction.run(plan, Acts(client, PREFIX, plan.keys, body), plain_env(client))
        except (Conflict, Unreachable):
            return None  # nothing was written
        written: int = outcome.value
        return written
