"""Checkers against chance: runs that are right, the same runs spoiled, a slow checker that is plainly right; speed."""

from __future__ import annotations

import random
import time
from collections import Counter
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest

from check.made import crash, ev, run
from lockfast import check

if TYPE_CHECKING:
    from collections.abc import Callable

    from lockfast.check import Event, History

SEEDS = range(60)


@pytest.mark.parametrize("seed", range(0, 60, 20))
def test_a_lock_that_is_right_passes_every_checker(seed: int) -> None:
    for each in range(seed, seed + 20):
        verdicts = check.all(run(each, 300))
        assert verdicts.keys() == check.CHECKERS.keys()
        assert verdicts.pop("readers_writers").status == "unknown"
        assert {name: str(verdict) for name, verdict in verdicts.items() if not verdict.ok} == {}


# --- the same runs, spoiled; None when there is nothing in the run to spoil


def handovers(history: History) -> list[str]:
    """Tickets whose release let another in at once."""
    return [one.ticket for one, other in pairwise(history) if (one.what, other.what) == ("let_go", "held")]


def release_unknown_to_its_holder(history: list[Event], rng: random.Random) -> list[Event] | None:
    tickets = handovers(history)
    if not tickets:
        return None
    ticket = rng.choice(tickets)
    return [event for event in history if event.ticket != ticket or event.what not in ("leaving", "left")]


def fence_from_a_lost_counter(history: list[Event], rng: random.Random) -> list[Event] | None:
    second = [event for event in history if event.what == "held"][3:]
    if not second:
        return None
    victim = rng.choice(second)
    if not any(event.what == "held" and event.name == victim.name and event.at < victim.at for event in history):
        return None
    return [replace(event, fence=1) if event.ticket == victim.ticket and event.fence else event for event in history]


def barging(history: list[Event], rng: random.Random) -> list[Event] | None:
    """Two neighbours in a queue who both came to hold change places."""
    held = {event.ticket for event in history if event.what == "held"}
    queued = [event for event in history if event.what == "queued" and event.ticket in held]
    begun = {event.ticket: event.at for event in history if event.what == "held"}
    for name in sorted({event.name for event in queued}):
        for one, other in pairwise([event for event in queued if event.name == name]):
            if other.at < begun[one.ticket]:
                swap = {one.ticket: other.ticket, other.ticket: one.ticket}
                late = {"held", "granted", "renewed", "prolonged", "leaving", "let_go", "left"}
                return [replace(e, ticket=swap.get(e.ticket, e.ticket)) if e.what in late else e for e in history]
    return None


def forgotten_in_the_queue(history: list[Event], rng: random.Random) -> list[Event] | None:
    """Somebody took a place, and nobody ever heard of it again."""
    crashed = {event.client for event in history if event.what == "crashed"}
    queued = [e.ticket for e in history if e.what == "queued" and e.client not in crashed]
    if not queued:
        return None
    ticket = rng.choice(queued)
    return [event for event in history if event.ticket != ticket or event.what in ("asked", "queued")]


def loss_that_is_not_final(history: list[Event], rng: random.Random) -> list[Event] | None:
    renewed = [number for number, event in enumerate(history) if event.what == "renewed"]
    if not renewed:
        return None
    number = rng.choice(renewed)
    loss = replace(history[number - 1], what="lost", until=0.0)
    return [*history[: number - 1], loss, *history[number - 1 :]]


def keeper_of_the_dead(history: list[Event], rng: random.Random) -> list[Event] | None:
    """A crashed holder's lease is prolonged by nobody, twice."""
    for number, event in enumerate(history):
        if event.what == "expired":
            held = next(e for e in reversed(history[:number]) if e.what in ("held", "prolonged"))
            more = [
                replace(held, at=event.at, what="prolonged", ticket=event.ticket, name=event.name, until=event.at + 99)
            ]
            return [*history[:number], *more, replace(history[-1], at=event.at + 60)]
    return None


SPOILED = {
    release_unknown_to_its_holder: {"exclusion", "permits", "deadline_before_takeover"},
    fence_from_a_lost_counter: {"fences_grow"},
    barging: {"fifo"},
    forgotten_in_the_queue: {"not_stuck"},
    loss_that_is_not_final: {"no_resumption"},
    keeper_of_the_dead: {"no_orphan"},
}


@pytest.mark.parametrize("spoil", SPOILED, ids=lambda spoil: spoil.__name__)
def test_a_spoiled_run_is_caught_every_time(spoil: Callable[..., list[Event] | None]) -> None:
    caught: Counter[str] = Counter()
    tried = 0
    for seed in SEEDS:
        history = spoil(list(run(seed, 300)), random.Random(seed))
        if history is None:
            continue
        tried += 1
        caught.update(name for name, verdict in check.all(history).items() if verdict.bad)
    assert tried >= 10
    assert {name: caught[name] for name in SPOILED[spoil]} == dict.fromkeys(SPOILED[spoil], tried)


# --- exclusion and permits against a checker that looks at every moment


def chance(seed: int) -> list[Event]:
    """Anything at all that clients might tell, on few moments, so that many things happen at once."""
    rng = random.Random(seed)
    shape = rng.choice([(1,), (1,), (3,), (2, 4)])
    tickets = "abcdefgh"[: rng.randrange(2, 9)]
    ask = {
        each: {"weight": rng.randrange(1, 3) if shape != (1,) else 1, "limit": rng.choice(shape)} for each in tickets
    }
    history: list[Event] = []
    granted: set[str] = set()
    for at in sorted(rng.randrange(30) for _ in range(rng.randrange(3, 24))):
        ticket = rng.choice(tickets)
        what = rng.choice(["granted", "granted", "renewed", "leaving", "lost", "crashed"])
        if what == "crashed":
            history.append(crash(at, ticket.upper()))
        elif what != "renewed" or ticket in granted:
            until = float(at + rng.randrange(-1, 9)) or -1.0 if what in ("granted", "renewed") else 0.0
            history.append(ev(at, what, ticket, until, **ask[ticket]))
            granted |= {ticket} if what == "granted" else set()
    return history


def believed(history: History, ticket: str, moment: float) -> bool:
    """Whether a ticket believes at a moment, by going through its life from the start."""
    until, left = -1.0, False
    for event in history:
        if event.at > moment or ticket not in (event.ticket, event.client.lower()):
            continue
        if event.what == "granted" or (event.what == "renewed" and (event.at <= until or not left)):
            until, left = max(until, event.until), False
        elif event.what in ("leaving", "lost", "crashed"):
            until, left = -1.0, left or event.what == "leaving"
    return moment < until


def too_many_at(history: History, moment: float) -> tuple[bool, bool]:
    """Whether exclusion, and whether permits, are violated at a moment."""
    asks = {event.ticket: event for event in history if event.what == "granted"}
    inside = [asks[ticket] for ticket in asks if believed(history, ticket, moment)]
    locks = [event for event in inside if event.limit == 1]
    crowded = bool(inside) and sum(event.weight for event in inside) > min(event.limit for event in inside)
    return len(locks) > 1, crowded


def test_exclusion_and_permits_agree_with_a_look_at_every_moment() -> None:
    seen: Counter[tuple[str, str]] = Counter()
    for seed in range(2500):
        history = chance(seed)
        moments = [at + half for at in {event.at for event in history} for half in (0.0, 0.5)]
        found = [too_many_at(history, moment) for moment in moments]
        exclusion, permits = check.exclusion(history), check.permits(history)
        assert exclusion.bad == any(each[0] for each in found), f"seed {seed}: {exclusion}"
        assert permits.bad == any(each[1] for each in found), f"seed {seed}: {permits}"
        seen[exclusion.status, permits.status] += 1
    assert all(seen[pair] > 100 for pair in [("ok", "ok"), ("violated", "violated"), ("unknown", "violated")]), seen


# --- speed


def test_a_long_history_is_judged_in_well_under_a_second() -> None:
    history = run(1, 10_000)
    start = time.process_time()
    check.all(history)
    assert time.process_time() - start < 0.5


def test_many_holders_at_once_do_not_make_it_slow() -> None:
    """Two thousand readers who overlap, and an excuse for every writer beside them."""
    limit = 1 << 20
    readers = [ev(n, "granted", f"r{n}", 1e6, fence=n + 1, limit=limit) for n in range(2000)]
    writers = [ev(6000 + n, "granted", f"w{n}", 1e6, fence=6000 + n, limit=limit, weight=limit) for n in range(10)]
    losses = [check.server_lost_memory(6000 + n - 0.5) for n in range(10)]
    history = sorted(readers + writers + losses, key=lambda event: event.at)
    start = time.process_time()
    assert check.readers_writers(history).excused
    assert not check.all(history)["permits"].bad
    assert time.process_time() - start < 1.0


def test_small_histories_are_judged_fast_enough_for_every_seed() -> None:
    histories = [run(seed, 300) for seed in range(100)]
    start = time.process_time()
    for history in histories:
        check.all(history)
    assert time.process_time() - start < 0.5, "a tenth of a second is usual"
