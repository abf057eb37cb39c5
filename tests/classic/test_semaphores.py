"""Rows 8 to 11: who is in, by whose clock, in which order, and who is told that the place has gone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from classic.meddling import Died, Meddled, die
from lockfast.classic import (
    Client,
    CountingSemaphore,
    FairSemaphore,
    KeyedSemaphore,
    RaceFreeSemaphore,
    RefreshingSemaphore,
    Taken,
)

if TYPE_CHECKING:
    from kit.servers import Server
    from kit.sides import Side

ALL = [CountingSemaphore, KeyedSemaphore, FairSemaphore, RefreshingSemaphore, RaceFreeSemaphore]
FAIR = [FairSemaphore, RefreshingSemaphore, RaceFreeSemaphore]
BY_CLOCK = [CountingSemaphore, *FAIR]


def took(taken: Taken | None) -> Taken:
    assert taken is not None
    return taken


def members(server: Server, key: str) -> list[str]:
    """The members of a sorted set, by rank."""
    return [member.decode() for member in server.command("ZRANGE", f"semaphore:{key}", 0, -1)]


@pytest.mark.parametrize("kind", ALL)
def test_as_many_as_the_limit_are_in_and_the_next_is_refused_at_once(
    kind: Any, server: Server, client: Client, other: Client, name: str
) -> None:
    semaphore = kind(name, 2)
    first, second = took(client.acquire(semaphore)), took(other.acquire(semaphore))
    keys = sorted(server.command("KEYS", "*"))
    assert client.acquire(semaphore) is None
    assert sorted(server.command("KEYS", "*")) == keys
    assert other.release(semaphore, first) is True  # whoever has the note may give it back
    assert other.release(semaphore, first) is False
    third = took(client.acquire(semaphore))
    assert client.acquire(semaphore) is None
    assert len({first.token, second.token, third.token}) == 3


@pytest.mark.parametrize("kind", BY_CLOCK)
def test_refused_one_leaves_no_trace_in_the_sets(kind: Any, server: Server, client: Client, name: str) -> None:
    taken = took(client.acquire(kind(name, 1)))
    assert client.acquire(kind(name, 1)) is None
    assert members(server, name) == [taken.token]
    if kind is not CountingSemaphore:
        assert members(server, f"{name}:owner") == [taken.token]


@pytest.mark.parametrize("kind", BY_CLOCK)
def test_who_came_longer_ago_than_the_time_out_is_dropped(kind: Any, server: Server, client: Client, name: str) -> None:
    semaphore = kind(name, 1, timeout=5)
    gone = took(client.acquire(Meddled(semaphore, skew_s=-5.1)))
    taken = took(client.acquire(semaphore))
    assert members(server, name) == [taken.token]
    assert client.release(semaphore, gone) is False
    assert client.release(semaphore, taken) is True


def test_slow_clock_steals_a_place_from_the_counting_semaphore(client: Client, other: Client, name: str) -> None:
    semaphore = CountingSemaphore(name, 1)
    assert client.acquire(Meddled(semaphore, skew_s=0.5)) is not None
    assert other.acquire(semaphore) is not None


@pytest.mark.parametrize("kind", FAIR)
def test_slow_clock_steals_nothing_from_the_fair_ones(kind: Any, client: Client, other: Client, name: str) -> None:
    semaphore = kind(name, 1)
    assert client.acquire(Meddled(semaphore, skew_s=0.5)) is not None
    assert other.acquire(semaphore) is None


@pytest.mark.parametrize("kind", FAIR)
def test_clock_that_is_ahead_by_the_time_out_drops_everybody(
    kind: Any, client: Client, other: Client, name: str
) -> None:
    semaphore = kind(name, 1, timeout=2)
    assert client.acquire(semaphore) is not None
    assert other.acquire(Meddled(semaphore, skew_s=2.1)) is not None


@pytest.mark.parametrize("kind", FAIR)
def test_places_are_ranked_by_a_counter_that_also_the_refused_have_drawn_from(
    kind: Any, server: Server, client: Client, name: str
) -> None:
    first = took(client.acquire(Meddled(kind(name, 2), skew_s=1.0)))
    second = took(client.acquire(kind(name, 2)))
    assert client.acquire(kind(name, 2)) is None
    fourth = took(client.acquire(kind(name, 3)))
    scores = [
        float(server.command("ZSCORE", f"semaphore:{name}:owner", taken.token)) for taken in (first, second, fourth)
    ]
    assert scores == [1, 2, 4]
    assert members(server, f"{name}:owner") == [first.token, second.token, fourth.token]
    assert members(server, name) == [second.token, fourth.token, first.token]  # by time the first is the last


def race(server: Server, client: Client, semaphore: Any) -> list[Taken]:
    """One client draws its counter; before it takes its place, another draws, takes a place and looks."""
    with Client(server.url) as rival:
        got: list[Taken | None] = []
        got.append(client.acquire(Meddled(semaphore, "ZADD", lambda: got.append(rival.acquire(semaphore)))))
    return [taken for taken in got if taken is not None]


def test_later_counter_that_looks_first_gets_in_beside_the_earlier_one(
    server: Server, client: Client, name: str
) -> None:
    assert len(race(server, client, FairSemaphore(name, 1))) == 2


@pytest.mark.parametrize("lock", ["setnx-expire", "set-nx-px"])
def test_race_free_one_lets_only_one_of_them_in(lock: Any, server: Server, client: Client, name: str) -> None:
    assert len(race(server, client, RaceFreeSemaphore(name, 1, lock=lock))) == 1


@pytest.mark.parametrize("lock", ["setnx-expire", "set-nx-px"])
def test_inner_lock_is_given_back_whatever_happens(lock: Any, server: Server, client: Client, name: str) -> None:
    semaphore = RaceFreeSemaphore(name, 1, lock=lock)
    inner = f"lock:semaphore:{name}"
    seen: list[int] = []
    look = Meddled(semaphore, "INCR", lambda: seen.append(server.command("PTTL", inner)))
    assert client.acquire(look) is not None
    assert 9000 < seen[0] <= 10_000
    assert client.acquire(semaphore) is None
    assert server.command("EXISTS", inner) == 0
    server.command("SET", f"semaphore:{name}", "not a sorted set")
    with pytest.raises(Exception, match="WRONGTYPE"):
        client.acquire(semaphore)
    assert server.command("EXISTS", inner) == 0


@pytest.mark.parametrize("lock", ["setnx-expire", "set-nx-px"])
def test_who_does_not_get_the_inner_lock_is_refused(lock: Any, server: Server, client: Client, name: str) -> None:
    server.command("SET", f"lock:semaphore:{name}", "somebody", "PX", 60_000)
    assert client.acquire(RaceFreeSemaphore(name, 5, lock=lock)) is None
    assert server.command("KEYS", "*") == [f"lock:semaphore:{name}".encode()]


def test_refresh_keeps_a_place_beyond_its_time_out(client: Client, other: Client, name: str) -> None:
    semaphore = RefreshingSemaphore(name, 1, timeout=5)
    taken = took(client.acquire(Meddled(semaphore, skew_s=-4.9)))
    assert client.refresh(semaphore, taken) is True
    assert other.acquire(Meddled(semaphore, skew_s=2)) is None
    assert client.refresh(semaphore, taken) is True
    assert client.release(semaphore, taken) is True


def test_refresh_of_a_lost_place_says_so_and_does_not_take_it_back(
    server: Server, client: Client, other: Client, name: str
) -> None:
    semaphore = RefreshingSemaphore(name, 1, timeout=5)
    lost = took(client.acquire(Meddled(semaphore, skew_s=-5.1)))
    taken = took(other.acquire(semaphore))
    assert client.refresh(semaphore, lost) is False
    assert members(server, name) == members(server, f"{name}:owner") == [taken.token]
    assert other.refresh(semaphore, taken) is True


def test_permits_have_a_key_with_a_time_out_each(server: Server, client: Client, name: str) -> None:
    semaphore = KeyedSemaphore(name, 3, timeout=2)
    taken = [took(client.acquire(semaphore)) for _ in range(3)]
    assert [one.slot for one in taken] == [0, 1, 2]
    for one in taken:
        key = f"semaphore:{name}:{one.slot}"
        assert server.command("GET", key) == one.token.encode()
        assert 1000 < server.command("PTTL", key) <= 2000
    assert client.release(semaphore, taken[1]) is True
    assert took(client.acquire(semaphore)).slot == 1


def test_permit_left_without_a_time_out_is_mended_by_the_next_who_looks(
    server: Server, client: Client, name: str
) -> None:
    with pytest.raises(Died):
        client.acquire(Meddled(KeyedSemaphore(name, 1), "EXPIRE", die))
    assert server.command("TTL", f"semaphore:{name}:0") == -1
    assert client.acquire(KeyedSemaphore(name, 1)) is None
    assert server.command("TTL", f"semaphore:{name}:0") > 0


def test_one_that_is_held_up_on_its_way_steals_a_place_on_one_and_the_same_clock(
    server: Server, client: Client, name: str
) -> None:
    assert len(race(server, client, CountingSemaphore(name, 1))) == 2


@pytest.mark.parametrize("kind", [KeyedSemaphore, RaceFreeSemaphore])
def test_limit_holds_for_many_at_once(kind: Any, side: Side, client: Client, name: str) -> None:
    semaphore = kind(name, 3)
    tries = [side.spawn(client.acquire, semaphore) for _ in range(12)]
    inside = [taken for taken in (one.result() for one in tries) if taken is not None]
    # The race-free one refuses also those that do not get its lock in time, so it may be fewer.
    assert 1 <= len(inside) <= 3
    assert all(client.release(semaphore, taken) for taken in inside)
