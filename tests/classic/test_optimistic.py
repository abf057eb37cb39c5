"""Row 1, and its comparison with row 7: WATCH on a whole hash against a lock per field."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from classic.meddling import Died, Meddled, die
from kit.servers import wait_until
from lockfast.classic import Client, FineGrainedLock, OptimisticLock

if TYPE_CHECKING:
    from kit.servers import Server
    from kit.sides import Side


def plus_one(value: bytes | None) -> int:
    return int(value or 0) + 1


def test_value_is_changed_and_a_missing_one_is_none(server: Server, client: Client, name: str) -> None:
    seen: list[bytes | None] = []

    def change(value: bytes | None) -> str:
        seen.append(value)
        return "new"

    updated = client.update(OptimisticLock(name), change)
    assert updated is not None
    assert (updated.value, updated.attempts, updated.conflicts) == ("new", 1, 0)
    assert client.update(OptimisticLock(name), change) is not None
    assert seen == [None, b"new"]
    assert server.command("GET", name) == b"new"


def test_change_by_another_in_between_is_seen_and_the_update_made_anew(
    server: Server, client: Client, name: str
) -> None:
    interrupted = Meddled(OptimisticLock(name), "MULTI", lambda: server.command("SET", name, 41))
    updated = client.update(interrupted, plus_one)
    assert updated is not None
    assert (updated.value, updated.attempts, updated.conflicts) == (42, 2, 1)
    assert server.command("GET", name) == b"42"


def test_who_is_always_too_slow_gives_up_and_has_written_nothing(server: Server, client: Client, name: str) -> None:
    recipe = OptimisticLock(name, acquire_timeout=0.05)
    outrun = Meddled(recipe, "MULTI", lambda: server.command("INCRBY", name, 1000), again=True)
    assert client.update(outrun, plus_one) is None
    assert int(server.command("GET", name)) % 1000 == 0


def test_change_that_returns_none_leaves_the_value_and_nothing_watched(
    server: Server, client: Client, name: str
) -> None:
    server.command("SET", name, "old")
    assert client.update(OptimisticLock(name), lambda _: None) is None
    assert server.command("GET", name) == b"old"
    server.command("SET", name, 1)
    # The connection is used again: had it still watched the key, this transaction would fail for the change above.
    updated = client.update(Meddled(OptimisticLock(name), "WATCH"), plus_one)
    assert updated is not None
    assert updated.conflicts == 0
    assert server.connections() == 1


def test_what_the_change_raises_comes_out_and_the_connection_is_not_kept(
    server: Server, client: Client, name: str
) -> None:
    with pytest.raises(ZeroDivisionError):
        client.update(OptimisticLock(name), lambda _: 1 // 0)
    with pytest.raises(Died):
        client.update(Meddled(OptimisticLock(name), "MULTI", die), plus_one)
    updated = client.update(OptimisticLock(name), plus_one)
    assert updated is not None
    assert server.connections() == 1


def test_no_update_is_lost_among_many(side: Side, server: Server, client: Client, name: str) -> None:
    recipe = OptimisticLock(name)

    def several() -> int:
        return sum(update.attempts for _ in range(10) if (update := client.update(recipe, plus_one)))

    attempts = [run.result() for run in [side.spawn(several) for _ in range(4)]]
    assert server.command("GET", name) == b"40"
    assert sum(attempts) >= 40


def test_watch_on_the_hash_conflicts_with_another_field_and_a_lock_per_field_does_not(
    server: Server, client: Client, name: str
) -> None:
    with Client(server.url) as neighbour:
        watched = Meddled(
            OptimisticLock(name, "mine"), "MULTI", lambda: neighbour.update(OptimisticLock(name, "theirs"), plus_one)
        )
        locked = Meddled(
            FineGrainedLock(name, "mine"), "HSET", lambda: neighbour.update(FineGrainedLock(name, "theirs"), plus_one)
        )
        by_watch = client.update(watched, plus_one)
        by_lock = client.update(locked, plus_one)
    assert by_watch is not None
    assert by_lock is not None
    assert (by_watch.value, by_watch.conflicts) == (1, 1)
    assert (by_lock.value, by_lock.conflicts) == (2, 0)
    assert server.command("HGET", name, "theirs") == b"2"


def test_update_under_a_lock_waits_for_the_same_field_and_counts_it(
    side: Side, server: Server, client: Client, other: Client, name: str
) -> None:
    lock = FineGrainedLock(name, "field", retry_delay=0.01)
    taken = other.acquire(lock)
    assert taken is not None
    assert client.update(FineGrainedLock(name, "field", acquire_timeout=0), plus_one) is None
    waiting = side.spawn(client.update, FineGrainedLock(name, "field", retry_delay=0.01), plus_one)
    server.reset_stats()
    wait_until(lambda: server.stats().get("set", 0) > 3, what="tried several times")
    assert other.release(lock, taken)
    updated = waiting.result()
    assert updated is not None
    assert updated.conflicts >= 3
    assert updated.attempts == updated.conflicts + 1
    assert server.command("EXISTS", f"{name}:field") == 0


def test_update_under_a_lock_that_fails_gives_the_lock_back(server: Server, client: Client, name: str) -> None:
    with pytest.raises(ZeroDivisionError):
        client.update(FineGrainedLock(name, "field"), lambda _: 1 // 0)
    assert client.update(FineGrainedLock(name, "field"), lambda _: None) is None
    assert server.command("EXISTS", f"{name}:field", name) == 0
