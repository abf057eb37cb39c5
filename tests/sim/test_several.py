"""Several locks at once in worlds drawn from seeds: all or none, nobody waits in a circle, nothing stays behind.

The callers are blocking code over the shipped `Locks`: each visit wants two or three of three names, in any order.
"""

from __future__ import annotations

from contextlib import ExitStack
from random import Random
from typing import TYPE_CHECKING, Any, cast

import pytest

from lockfast import together
from lockfast.errors import LockfastError
from lockfast.flows import group, scripts, several
from lockfast.flows.group import Asks, tally
from lockfast.grants import RELEASED
from lockfast.sim.runs import run_seed
from lockfast.sim.tasks import Cancelled
from lockfast.sync.several import Locks
from sim.blocking import Blocking, Driver, enter, issued, leave, telling, work
from sim.playing import callers, counts, edited, play

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lockfast.drivers.threads import Threads
    from lockfast.sim.client import Client
    from lockfast.sim.runs import Result
    from lockfast.sim.swarm import Visit
    from sim.blocking import Believed

NAMES = ("n1", "n2", "n3")
ALL = "several"  # the name under which the history tells that somebody waits for several at once
WITHOUT = "believed without holding"


@pytest.fixture(autouse=True)
def _telling() -> Iterator[None]:
    with telling():
        yield


class TakesSeveral(Blocking):
    """Wants two or three names at a time."""

    def visit(self, client: Client, visit: Visit) -> None:
        driver, world = Driver.of(client), client.world
        mark = client.new_id()
        chance = Random(mark)
        names = chance.sample(NAMES, chance.choice((2, 2, 3)))
        made = tuple(driver.lock(name, visit.lease_s, visit.renew) for name in names)
        locks = Locks(cast("Threads", driver), made, visit.wait_s)
        kept: list[str] = []
        issued()
        world.record("asked", name=ALL, ticket=mark, client=client.name, lease=visit.lease_s)
        try:
            with locks as grants:
                sections = [enter(client, grant, lock._ask) for grant, lock in zip(grants, made, strict=True)]
                kept += [grant.ticket for grant in grants]
                self._tell_the_rest(client, mark, names, kept)
                try:
                    self._write(client, sections, visit.work_s)
                finally:
                    leave(client, sections)
        except (LockfastError, Cancelled):
            self._tell_the_rest(client, mark, names, kept)
            raise
        for section, about in sections:
            if section.hold.state is RELEASED:
                world.record("left", fence=section.hold.fence, **about)

    def _write(self, client: Client, sections: list[Believed], work_s: float) -> None:
        for share in (0.4, 0.6):
            for section, about in sections:
                if section.hold.held():
                    self._run.resource.write(client, about["name"], section.hold.ticket, section.hold.fence)
            work(work_s * share)

    def _tell_the_rest(self, client: Client, mark: str, names: list[str], kept: list[str]) -> None:
        """The wait is over, and nobody is behind any ticket that was used for it and not kept."""
        client.world.record("failed", name=ALL, ticket=mark, client=client.name)
        tickets = [ticket for stem in issued() for ticket in (stem, *(stem + mark for mark in tally(3)))]
        for name in names:
            for ticket in tickets:
                if ticket not in kept:
                    client.world.record("failed", name=name, ticket=ticket, client=client.name)


def judge(result: Result) -> set[str]:
    """Who finds something to mend."""
    held = set()
    found = set(result.failed)
    for event in result.history:
        if event.what == "held":
            held.add((event.name, event.ticket))
        elif event.what == "granted" and (event.name, event.ticket) not in held:
            found.add(WITHOUT)
    return found


@pytest.mark.slow
def test_all_or_none_and_everybody_is_served_with_all_faults() -> None:
    results, found = play(TakesSeveral, {"threads_of": 1}, range(300), judge)
    assert not found, found
    happened = counts(results)
    assert happened["queued"] > 2 * len(results)
    assert happened["granted"] > 10 * len(results)


def test_without_faults_everybody_gets_all_that_they_want() -> None:
    calm = {"faults": 0, "cancel_share": 0.0, "waits_s": (None,), "leases_s": (3.0,), "spread_s": 0.001}
    results, found = play(TakesSeveral, calm | {"renew_share": 1.0, "timeout_s": 2.0}, range(10), judge)
    assert not found, found
    assert not [event for result in results for event in result.history if event.what in ("lost", "expired")]


# Bugs

CROWDED: dict[str, Any] = {"waits_s": (None,), "clients": 6, "work": "lease", "renew_share": 1.0, "faults": 0}
PATIENT: dict[str, Any] = CROWDED | {"waits_s": (0.0, 0.05, 0.1)}
SHORT: dict[str, Any] = CROWDED | {"leases_s": (0.3,), "renew_share": 0.0, "names": 1}
# Who gives back in time, by a request that comes late.
SLOW: dict[str, Any] = SHORT | {"work": "short", "faults": 20, "kinds": ("slow",), "longest_s": 1.0}
NO_NET = (together.Holder, "abandon", "self._kept", "()")  # what the flow forgets would be found by this
Edit = tuple[Any, str, str, str]
BUGS: dict[str, tuple[tuple[Edit, ...], dict[str, Any]]] = {
    "what was granted behind the first taken is kept": (
        ((several, "_ask_once", "        in_a_row = False\n", "        in_a_row = held is None\n"),),
        CROWDED,
    ),
    "waits in the order given": (
        ((Asks, "__init__", "sorted(range(len(asks)), key=lambda place: asks[place].name.keys[0])",
          "list(range(len(asks)))"),),
        CROWDED,
    ),
    "one is not left when nothing is got": (
        ((several, "acquire", "_drop(list(holds.values())", "_drop(list(holds.values())[1:]"), NO_NET),
        PATIENT,
    ),
    "what was taken at once is believed for too long": (
        ((group, "at_once", "sent + ask.lease_ms", "sent + 2 * ask.lease_ms"),),
        SHORT,
    ),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", BUGS)
def test_a_planted_bug_is_found(name: str) -> None:
    edits, choices = BUGS[name]
    with callers(TakesSeveral):
        for seed in range(200):
            with ExitStack() as planted:
                for edit in edits:
                    planted.enter_context(edited(*edit))
                found = judge(run_seed(seed, choices)) & {"not_stuck", "no_orphan", "deadline_before_takeover"}
            if found and not judge(run_seed(seed, choices)):
                return
    pytest.fail(f"{name} was not found")


SCRIPT_BUGS = {
    "all are taken although one is held": (scripts.ADMIT_ALL, "0 0 0 %- '", "0 0 0 '", SHORT),
    "all are given back whoever holds them": (
        scripts.LEAVE_ALL,
        "head .. mark .. ' ', 1, true) ~= 1",
        "'1 ') ~= 1",
        SLOW,
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", SCRIPT_BUGS)
def test_a_bug_planted_in_a_script_for_all_is_found(name: str) -> None:
    script, old, new, choices = SCRIPT_BUGS[name]
    with callers(TakesSeveral):
        for seed in range(200):
            with pytest.MonkeyPatch.context() as patch:
                assert old in script.text
                patch.setattr(script, "_text", script.text.replace(old, new))
                patch.setattr(script, "_sha", "")
                patch.setattr(script, "packed", "")
                found = judge(run_seed(seed, choices)) & {"exclusion", "deadline_before_takeover", "no_resumption"}
            if found and not judge(run_seed(seed, choices)):
                return
    pytest.fail(f"{name} was not found")
