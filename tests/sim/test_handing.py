"""Holds that are exported and adopted, bounded, or have a grace, in worlds drawn from seeds; and planted bugs."""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import TYPE_CHECKING, Any

import pytest

from lockfast import names
from lockfast.errors import LockfastError
from lockfast.flows import asks, handing
from lockfast.sim import runs
from lockfast.sim.client import PREFIX
from lockfast.sim.driving import Run, Work
from lockfast.sim.holding import hold
from lockfast.sim.runs import run_seed
from lockfast.sim.tasks import Cancelled
from sim.planted import RENEW, Planted, planted
from sim.playing import callers

if TYPE_CHECKING:
    from collections.abc import Generator

    from lockfast.flows.asks import Ask
    from lockfast.sim.client import Client
    from lockfast.sim.holding import Section
    from lockfast.sim.runs import Result
    from lockfast.sim.swarm import Visit

SEEDS = range(300)


class HandsOn(runs._Caller):
    """A caller that mostly exports what it holds; other clients adopt it, sometimes two of them the same text."""

    def _body(self, visit: Visit) -> Any:
        work = super()._body(visit)

        def body(section: Section) -> Generator[Any, Any, None]:
            chance = Random(section.hold.ticket)
            yield Work(visit.work_s / 2)
            if chance.random() < 0.3 or not section.hold.held():
                yield from work(section)
                return
            held, client = section.hold, section.client
            about = _about(client, held.ask, held.ticket)
            if held.unsure:  # it goes over to another ticket of this client, on its way out
                client.world.record("leaving", fence=held.fence, **about)
            text = yield Run(handing.export(held, PREFIX, client.new_id(), client.env))
            client.keeper.unwatch(held)
            client.world.record("left", fence=held.fence, **about)
            others = [one for one in client.world.clients.values() if not one.dead]
            for adopter in chance.sample(others, min(len(others), chance.choice((0, 1, 1, 2)))):
                adopter.start(lambda adopter: self._adopt(adopter, text, visit, chance), "adopter")

        return body

    def _adopt(self, client: Client, text: str, visit: Visit, chance: Random) -> Generator[Any, Any, None]:
        yield Work(visit.lease_s * 1.4 * chance.random())
        told = handing.read(text, PREFIX)
        ask = told.ask_for(names.make(PREFIX, told.parts), 0, 0)
        heir = client.new_id()
        try:
            work = super()._body(visit)
            yield from hold(client, ask, 0, work, True, heir, Run(handing.adopt(told, ask, heir, client.env)))
        except (Cancelled, LockfastError):
            pass


def _about(client: Client, ask: Ask, ticket: str) -> dict[str, Any]:
    return {"name": ask.name.shown, "ticket": ticket, "client": client.name, "weight": ask.weight, "limit": ask.limit}


class Graceful(runs._Caller):
    """A caller whose locks stay closed for a while when it does not give them back."""

    def _ask(self, visit: Visit) -> Ask:
        key = (visit.name, visit.lease_s, visit.weight)
        made = names.make(PREFIX, (visit.name,))
        return self._asks.setdefault(key, asks.lock(made, visit.lease_s, visit.lease_s / 2))


class Bounded(runs._Caller):
    """A caller whose holds end after a lease and a half, however often they are renewed."""

    def _body(self, visit: Visit) -> Any:
        work = super()._body(visit)

        def body(section: Section) -> Generator[Any, Any, None]:
            if section.hold.held():
                section.hold.end_after(visit.lease_s * 1.5)
                ends_at = section.client.shown() + visit.lease_s * 1.5
                yield from work(section)
                assert section.client.shown() <= ends_at + 1e-6 or not section.hold.held()

        return body


def counts(results: list[Result]) -> Counter[str]:
    return Counter(event.note or event.what for result in results for event in result.history)


def failures(results: list[Result]) -> str:
    return "\n".join(f"seed {one.seed}: {', '.join(one.failed)}" for one in results if one.failed)


@pytest.mark.slow
@pytest.mark.parametrize("limit", [1, 3])
def test_holds_that_are_handed_on_break_no_promise(limit: int) -> None:
    seeds = SEEDS if limit == 1 else range(100)
    with callers(HandsOn):
        results = [run_seed(seed, {"limit": limit}) for seed in seeds]
    assert not failures(results), failures(results)
    seen = counts(results)
    assert seen["handed on"] > len(results) / 2
    assert seen["LeaseLost"] > len(results) / 10, "hardly any text was adopted twice or too late"


@pytest.mark.slow
@pytest.mark.parametrize("kind", [Graceful, Bounded])
def test_holds_with_a_grace_or_a_bound_break_no_promise(kind: type[runs._Caller]) -> None:
    with callers(kind):
        results = [run_seed(seed) for seed in SEEDS]
    assert not failures(results), failures(results)
    assert counts(results)["held"] > 3 * len(results)


HANDING = "flows/handing.py"
OVERLAP = frozenset({"exclusion", "deadline_before_takeover"})
BUSY = {"work": "short", "waits_s": (None,), "renew_share": 1.0}
BUGS = [
    Planted("adopted twice", ((RENEW, "if heir ~= '' then holder = heir end", ""),), OVERLAP, BUSY),
    Planted(
        "believed before it is renewed",
        ((HANDING, "if code else 0.0", "if code else env.now() + ask.lease_s"),),
        OVERLAP,
        BUSY,
    ),
    Planted(
        "an adoption revives what has ended",
        ((RENEW, "or holder_end <= now then return {0, 0} end", "then return {0, 0} end"),),
        OVERLAP | {"no_resumption"},
        BUSY | {"leases_s": (0.1,)},
    ),
]


@pytest.mark.slow
@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_a_planted_bug_is_found(bug: Planted) -> None:
    with callers(HandsOn):
        for seed in range(300):
            with planted(bug):
                found = bug.caught_by & set(run_seed(seed, bug.choices).failed)
            if found and not bug.caught_by & set(run_seed(seed, bug.choices).failed):
                return
    pytest.fail(f"{bug.name} was not found")
