"""Cases of CPython's own lock tests that the drop-ins are not asked to pass, each with its reason.

The same table stands in docs/primitives/drop-in.md; test_pages.py compares them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

INTERNALS = "looks at `_waiters` or `_value`, which are on the server here"
ZERO = "a semaphore of 0 permits: the number of permits is fixed, and nobody could ever have one"
FREE_RELEASE = "releases more than was acquired: the number of permits is fixed"
ONE_TURN = "expects the next holder within one turn of the loop: a hand-over is a round trip"
DRAINING = "asyncio lets the tasks out one by one and shows it (`draining`, `resetting`); here all are let out at once"

THREADS = {
    "Lock.test_at_fork_reinit": "`_at_fork_reinit` is for CPython's own fork handling; the client does that here",
    "Semaphore.test_release_unacquired": FREE_RELEASE,
    "Semaphore.test_repr": FREE_RELEASE,
}
ASYNCIO = {
    "Lock.test_acquire_cancel": INTERNALS,
    "Lock.test_cancel_race": INTERNALS,
    "Lock.test_cancel_release_race": ONE_TURN,
    "Lock.test_finished_waiter_cancelled": INTERNALS,
    "Semaphore.test_acquire": INTERNALS,
    "Semaphore.test_acquire_cancel": INTERNALS,
    "Semaphore.test_acquire_cancel_before_awoken": ZERO,
    "Semaphore.test_acquire_fifo_order_2": FREE_RELEASE,
    "Semaphore.test_acquire_fifo_order_3": ZERO,
    "Semaphore.test_acquire_fifo_order_4": ZERO,
    "Semaphore.test_acquire_hang": ZERO,
    "Semaphore.test_initial_value_zero": ZERO,
    "Semaphore.test_repr": INTERNALS,
    "Barrier.test_abort_barrier_when_tasks_half_draining_half_blocking": DRAINING,
    "Barrier.test_draining_state": DRAINING,
    "Barrier.test_filling_tasks_cancel_one": "a party that is cancelled breaks the barrier for the others",
    "Barrier.test_repr": DRAINING,
    "Barrier.test_reset_barrier_when_tasks_half_draining": DRAINING,
    "Barrier.test_reset_barrier_when_tasks_half_draining_half_blocking": DRAINING,
    "Barrier.test_reset_barrier_while_tasks_draining": DRAINING,
}
NEWER = {"Semaphore.test_acquire_fifo_order_4"}  # not in Python 3.11


def apply(cases: type, excluded: dict[str, str]) -> None:
    """Skip what is excluded of a class of cases, by name and with its reason. An exclusion of nothing is refused."""
    kind = cases.__name__.removeprefix("Test")
    for entry, reason in excluded.items():
        name, _, case = entry.partition(".")
        if name != kind:
            continue
        assert hasattr(cases, case) or entry in NEWER, f"{entry} is excluded, and does not exist"
        if hasattr(cases, case):
            setattr(cases, case, _skipped(reason))


def _skipped(reason: str) -> Callable[[object], None]:
    @pytest.mark.skip(reason=reason)
    def case(_: object) -> None:
        """Stands where an excluded case was."""

    return case
