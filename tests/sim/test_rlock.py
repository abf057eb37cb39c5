"""Re-entrant locks in worlds drawn from seeds: one hold for each thread, counted, and nobody else's.

The callers are blocking code over the shipped `RLock`: each visit enters up to three times, and works in between.
"""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, Any

import pytest

from lockfast.errors import LockfastError
from lockfast.grants import RELEASED
from lockfast.sim.runs import run_seed
from lockfast.sim.tasks import Cancelled
from lockfast.sync.rlock import ReGrant, RLock
from sim.blocking import Blocking, Driver, enter, leave, telling, work
from sim.playing import callers, counts, edited, play

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lockfast.sim.client import Client
    from lockfast.sim.runs import Result
    from lockfast.sim.swarm import Visit
    from lockfast.sync.lock import Grant

DEEPEST = 3
CROWD = {"threads_of": 2, "names": 1}


@pytest.fixture(autouse=True)
def _telling() -> Iterator[None]:
    with telling():
        yield


class ReEnters(Blocking):
    """Enters a name, and again, and again, and leaves as often."""

    def visit(self, client: Client, visit: Visit) -> None:
        driver, world = Driver.of(client), client.world
        lock = driver.rlock(visit.name, visit.lease_s, visit.renew)
        mark = client.new_id()
        depth = Random(mark).randint(1, DEEPEST)
        about = {"name": visit.name, "ticket": mark, "client": client.name}
        world.record("asked", lease=visit.lease_s, **about)
        try:
            grant = lock.acquire(wait=visit.wait_s)
        finally:
            if not client.dead:
                world.record("failed", **about)  # not under this ticket; whether it was served is told by `granted`
        believed = [enter(client, grant, lock._ask)]
        world.record("wrote", name=visit.name, ticket=grant.ticket, client=client.name, note=f"agent {id(self)}")
        entries = [grant]
        try:
            self._go_deeper(lock, entries, depth, visit.work_s)
        finally:
            leave(client, believed)
            _leave_all(entries)
        section, known = believed[0]
        if section.hold.state is RELEASED:
            world.record("left", fence=section.hold.fence, **known)

    def _go_deeper(self, lock: RLock, entries: list[Grant], depth: int, work_s: float) -> None:
        """Enter again, work, and leave once, as deep as it goes; what is left over is left by whoever called."""
        for _ in range(depth - 1):
            work(work_s / depth / 2)
            entries.append(lock.acquire(wait=0.0))
        for _ in range(depth - 1):
            work(work_s / depth / 2)
            entries.pop(0).release()  # in no special order: any of them is as good as another
        work(work_s / depth)


def _leave_all(entries: list[Grant]) -> None:
    """Every entry is left, whatever comes of the one before."""
    failure: BaseException | None = None
    while entries:
        try:
            entries.pop().release()
        except (LockfastError, Cancelled) as struck:
            failure = struck
    if failure is not None:
        raise failure


def judge(result: Result) -> set[str]:
    """Who finds something to mend."""
    found = set(result.failed)
    agents: dict[str, str] = {}
    for event in result.history:
        if event.note.startswith("agent ") and agents.setdefault(event.ticket, event.note) != event.note:
            found.add("two agents in one hold")
    return found


@pytest.mark.slow
def test_entries_are_counted_and_nobody_else_gets_in_with_all_faults() -> None:
    results, found = play(ReEnters, CROWD, range(300), judge)
    assert not found, found
    happened = counts(results)
    assert happened["queued"] > 2 * len(results)
    assert happened["left"] > 5 * len(results)


# Bugs

BUGS: dict[str, tuple[Any, str, str, str, str]] = {
    "the first release gives the hold back": (ReGrant, "_leave", "if entries.count:", "if False:", "exclusion"),
    "the last release gives nothing back": (ReGrant, "_leave", "return True", "return False", "not_stuck"),
}
LONG = CROWD | {"work": "long", "leases_s": (1.0,), "renew_share": 1.0, "faults": 0, "waits_s": (None,)}


@pytest.mark.slow
@pytest.mark.parametrize("name", BUGS)
def test_a_planted_bug_is_found(name: str) -> None:
    owner, function, old, new, caught_by = BUGS[name]
    with callers(ReEnters):
        for seed in range(100):
            with edited(owner, function, old, new):
                found = judge(run_seed(seed, LONG))
            if caught_by in found and not judge(run_seed(seed, LONG)):
                return
    pytest.fail(f"{name} was not found")


@pytest.mark.slow
def test_entries_shared_between_threads_are_found() -> None:
    same = ("threading.current_thread()", "None")
    with callers(ReEnters):
        for seed in range(100):
            with edited(RLock, "_acquire", *same), edited(RLock, "_grant", *same):
                found = judge(run_seed(seed, LONG))
            if "two agents in one hold" in found and not judge(run_seed(seed, LONG)):
                return
    pytest.fail("entries shared between threads were not found")
