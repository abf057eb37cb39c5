"""Semaphores and read/write locks in worlds drawn from seeds: what they promise, and that bugs in them are found.

Each primitive has 300 seeds, of two kinds of callers.
What callers do beside acquire and release (resize, downgrade) is added here to the callers of `sim.runs`. Two checks
are added to the shipped ones, on what the server did: nobody is let in beyond the limit of that moment, and nobody is
dropped before its lease has ended.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Any

import pytest

from lockfast import check, names
from lockfast.errors import LockfastError, Unreachable
from lockfast.flows import asks, renewal, scripts, sizing
from lockfast.flows.asks import READER, READERS, STORED, Ask
from lockfast.sim import runs
from lockfast.sim.client import PREFIX
from lockfast.sim.driving import Run, Work
from lockfast.sim.faults import KINDS
from lockfast.sim.runs import run_seed
from sim.planted import ADMIT, RENEW, STATE, Planted, planted
from sim.playing import callers, counts, play

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

    from lockfast.check import Event
    from lockfast.sim.client import Client
    from lockfast.sim.holding import Section
    from lockfast.sim.runs import Result
    from lockfast.sim.swarm import Visit

TOP = 4  # the highest limit that a resize sets
TICK_S = 0.002
# Where the server forgets or its clock jumps ahead no lease can hold; test_swarm has those.
FAULTS = tuple(kind for kind in KINDS if kind not in ("forget", "clock ahead"))
SEMAPHORE = {"limit": 3}
RESIZED = {"limit": TOP, "kinds": FAULTS}
READ_WRITE = {"limit": 2}  # of the weights 1 and 2 that are drawn, 2 stands for a writer


class ReadsAndWrites(runs._Caller):
    """A caller that reads or writes."""

    def _ask(self, visit: Visit) -> Ask:
        key = (visit.name, visit.lease_s, visit.weight)
        ask_for = asks.write if visit.weight == 2 else asks.read
        return self._asks.setdefault(key, ask_for(names.make(PREFIX, (visit.name,)), visit.lease_s))


class Downgrades(ReadsAndWrites):
    """A writer that becomes a reader on the way, mostly."""

    def _body(self, visit: Visit) -> Any:
        write = super()._body(visit)

        def body(section: Section) -> Generator[Any, Any, None]:
            yield from write(section)
            if section.hold.ask.weight == READERS and Random(section.hold.ticket).random() < 0.8:
                yield from _downgrade(section)
                yield Work(visit.work_s / 2)

        return body


def _downgrade(section: Section) -> Generator[Any, Any, None]:
    """As `grant.downgrade` does it. From the moment it is asked for, it believes to be a reader at least."""
    hold, client = section.hold, section.client
    if not hold.held():
        return
    about = {"name": hold.ask.name.shown, "ticket": hold.ticket, "client": client.name, "fence": hold.fence}
    client.world.record("leaving", weight=READERS, limit=READERS, **about)
    until = client.clock.true_at(hold.deadline)
    client.world.record("granted", weight=READER, limit=READERS, until=until, note="downgrade", **about)
    try:
        yield Run(renewal.downgrade(hold, None, client.env))
    except Unreachable:
        return  # to the server a writer still, or a reader already: it acts as a reader


class Resizes(runs._Caller):
    """A caller that names no limit, and sets one now and then."""

    def visit_all(self, client: Client) -> Generator[Any, Any, None]:
        for name in {visit.name for visit in self._visits} or {"n1"}:
            yield from self._resize(client, name, TOP)
        yield from super().visit_all(client)

    def _ask(self, visit: Visit) -> Ask:
        key = (visit.name, visit.lease_s, visit.weight)
        if key not in self._asks:
            made = names.make(PREFIX, (visit.name,))
            ask = self._asks[key] = Ask(made, "semaphore", STORED, visit.weight, visit.lease_s)
            ask.admit(self._client.env, None)  # bound to the stored limit; what the history tells is the highest
            ask.limit = TOP
        return self._asks[key]

    def _body(self, visit: Visit) -> Any:
        work = super()._body(visit)

        def body(section: Section) -> Generator[Any, Any, None]:
            chance = Random(section.hold.ticket)
            if chance.random() < 0.6:
                yield from self._resize(section.client, visit.name, chance.randint(1, TOP))
            yield from work(section)

        return body

    def _resize(self, client: Client, name: str, limit: int) -> Generator[Any, Any, None]:
        try:
            yield Run(sizing.resize(names.make(PREFIX, (name,)), "semaphore", limit, client.env))
        except LockfastError:
            pass  # unreachable: changed or not


def let_in_beyond_the_limit(history: tuple[Event, ...]) -> list[Event]:
    """Every `held` that made more than the limit of that moment, or a whole that was not alone."""
    standing: dict[tuple[str, str], int] = {}
    found = []
    for event in history:
        key = (event.name, event.ticket)
        if event.what in ("held", "prolonged"):
            standing[key] = event.weight
            others = [
                weight for (name, ticket), weight in standing.items() if name == event.name and (name, ticket) != key
            ]
            if event.what == "held" and sum(others) + event.weight > event.limit:
                found.append(event)
        elif event.what in ("let_go", "expired"):
            standing.pop(key, None)
        elif event.what == "server_lost_memory":
            standing.clear()
    return found


def dropped_before_their_end(history: tuple[Event, ...]) -> list[Event]:
    """Every holder whom the server forgot, without a release, while its lease ran."""
    ends: dict[tuple[str, str], float] = {}
    found = []
    for event in history:
        key = (event.name, event.ticket)
        if event.what in ("held", "prolonged"):
            ends[key] = event.until
        elif event.what == "expired" and event.at < ends.get(key, 0.0) - TICK_S:
            found.append(event)
        elif event.what == "server_lost_memory":
            ends.clear()
    return found


def judge(kind: type[runs._Caller], result: Result) -> set[str]:
    """Who finds something to mend."""
    failed = set(result.failed)
    if kind is Downgrades:
        # It takes a hold for as heavy as it began. Beliefs are told as they change, and judged by the others.
        failed.discard("deadline_before_takeover")
    if kind is Resizes and "deadline_before_takeover" in failed:
        # It takes the lowest limit that any of them was given; here the highest is what must never be passed.
        at_most = [replace(event, limit=TOP) for event in result.history]
        if not check.deadline_before_takeover(at_most).bad:
            failed.discard("deadline_before_takeover")
    if kind is not Downgrades:
        failed |= {"beyond the limit"} if let_in_beyond_the_limit(result.history) else set()
    back = any(fault.kind in ("clock back", "clock ahead") for fault in result.plan.faults)
    failed |= {"dropped early"} if not back and dropped_before_their_end(result.history) else set()
    return failed


@pytest.mark.slow
def test_weights_are_held_in_order_and_never_beyond_the_limit() -> None:
    results, found = play(runs._Caller, SEMAPHORE, range(200), partial(judge, runs._Caller))
    assert not found, found
    assert {result.verdicts[name].status for result in results for name in ("permits", "fifo")} == {"ok"}
    together = [event for result in results for event in result.history if event.what == "held" and event.weight < 3]
    assert len(together) > 3 * len(results)


@pytest.mark.slow
def test_limits_that_change_break_no_promise() -> None:
    results, found = play(Resizes, RESIZED, range(200, 300), partial(judge, Resizes))
    assert not found, found
    refused = [event for result in results for event in result.history if event.note == "Refused"]
    assert len(refused) > len(results) / 4, "hardly anybody was too heavy"
    limits = {event.limit for result in results for event in result.history if event.what == "held"}
    assert limits == {1, 2, 3, 4}
    assert counts(results)["queued"] > 2 * len(results)


@pytest.mark.slow
def test_readers_and_writers_break_no_promise() -> None:
    results, found = play(ReadsAndWrites, READ_WRITE, range(150), partial(judge, ReadsAndWrites))
    assert not found, found
    judged = [result for result in results if result.verdicts["readers_writers"].status == "ok"]
    assert len(judged) > len(results) / 2
    assert counts(results)["queued"] > 2 * len(results)


@pytest.mark.slow
def test_writers_that_become_readers_break_no_promise() -> None:
    results, found = play(Downgrades, READ_WRITE, range(150, 300), partial(judge, Downgrades))
    assert not found, found
    downgrades = [event for result in results for event in result.history if event.note == "downgrade"]
    assert len(downgrades) > len(results)


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "choices"), [(Resizes, RESIZED), (Downgrades, READ_WRITE)])
def test_clocks_hours_apart_change_nothing(kind: type[runs._Caller], choices: dict[str, Any]) -> None:
    apart = choices | {"skew_s": 6 * 3600.0}
    results, found = play(kind, apart, range(30), partial(judge, kind))
    assert not found, found
    spread_s = [max(c.skew_s for c in one.plan.clients) - min(c.skew_s for c in one.plan.clients) for one in results]
    assert sum(spread_s) / len(spread_s) > 3600


# Bugs

OVERTAKES = """\
    local ticket = redis.call('ZRANGE', KEYS[2], 0, 0)[1]
    for _, other in ipairs(redis.call('ZRANGE', KEYS[2], 0, -1)) do
      local weight = string.match(redis.call('HGET', KEYS[3], other) or '', '^%d+ (%d+) ')
      if weight and used + tonumber(weight) <= limit then ticket = other break end
    end
"""
LETS_GO_AND_COMES_BACK = """\
local ticket, lease_end, since, owner = holder, holder_end, tonumber(holder_since), holder_owner
      local own_fence = fence
      forget_holder()
      settle('')
      share(ticket, own_fence, lower, lease_end, since, owner)
"""
LOWERS = "if lowers then share_holder(lower) end"
REVOKES = "if used > limit then redis.call('DEL', KEYS[4]) used = 0 end\n"
BARGES = "if (holder == '-' or used > 0) and not redis.call('ZRANK', KEYS[2], ticket) and used"
RESIZE = "lua/resize.lua"
CROWDED = {"waits_s": (None,), "clients": 6, "work": "lease"}
MORTAL = {"kinds": ("crash", "kill"), "faults": 5}


def _bug(name: str, kind: type[runs._Caller], caught_by: str, edit: tuple[str, str, str], **choices: Any) -> Any:
    return pytest.param(kind, Planted(name, (edit,), frozenset(caught_by.split(", ")), choices), id=name)


BUGS = [
    _bug("light waiters overtake", runs._Caller, "fifo",
         (STATE, "    local ticket = redis.call('ZRANGE', KEYS[2], 0, 0)[1]\n", OVERTAKES), **SEMAPHORE, **CROWDED),
    _bug("permits of the dead never come back", runs._Caller, "not_stuck",
         (STATE, "'-inf', now, 'LIMIT', 0, SWEEP", "'-inf', 0, 'LIMIT', 0, SWEEP"), **SEMAPHORE, **MORTAL),
    _bug("a resize revokes what is beyond the limit", Resizes, "permits, dropped early",
         (RESIZE, "if waiting > 0 then", REVOKES + "if waiting > 0 then"),
         **RESIZED, **CROWDED),
    _bug("a resize forgets the holder of the whole", Resizes, "permits, dropped early",
         (RESIZE, "share_holder(used > 0 and used or before) end", "forget_holder() end"), **RESIZED, **CROWDED),
    _bug("a resize counts the holder of the whole as one", Resizes, "permits, beyond the limit",
         (RESIZE, "share_holder(used > 0 and used or before) end", "share_holder(1) end"), **RESIZED, **CROWDED),
    _bug("readers barge past a waiting writer", ReadsAndWrites, "fifo",
         (ADMIT, "if (holder == '-' or used > 0) and waiting == 0 and used", BARGES),
         **READ_WRITE, **CROWDED),
    _bug("a downgrade lets a writer in between", Downgrades, "readers_writers",
         (RENEW, LOWERS, f"if lowers then\n      {LETS_GO_AND_COMES_BACK} end"), **READ_WRITE, **CROWDED),
    _bug("a downgraded writer is not counted", Downgrades, "readers_writers",
         (RENEW, LOWERS, "if lowers then share_holder(lower) used = 0 end"), **READ_WRITE, **CROWDED),
    _bug("zombie readers stay", ReadsAndWrites, "not_stuck",
         (STATE, "'-inf', now, 'LIMIT', 0, SWEEP", "'-inf', 0, 'LIMIT', 0, SWEEP"), **READ_WRITE, **MORTAL),
]  # fmt: skip


@contextmanager
def planted_anywhere(bug: Planted) -> Iterator[None]:
    """`planted`, and the script that it does not know."""
    ((path, old, new),) = bug.edits
    if path != RESIZE:
        with planted(bug):
            yield
        return
    script = scripts.RESIZE
    before = script.text, script.sha, script.packed
    assert old in script.text, f"{bug.name}: {path} no longer has {old!r}"
    script._text, script._sha, script.packed = script.text.replace(old, new), "", ""
    try:
        yield
    finally:
        script._text, script._sha, script.packed = before


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "bug"), BUGS)
def test_a_planted_bug_is_found(kind: type[runs._Caller], bug: Planted) -> None:
    with callers(kind):
        for seed in range(200):
            with planted_anywhere(bug):
                found = judge(kind, run_seed(seed, bug.choices)) & bug.caught_by
            if found and not judge(kind, run_seed(seed, bug.choices)) & bug.caught_by:
                return
    pytest.fail(f"{bug.name} was not found")
