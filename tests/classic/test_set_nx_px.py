"""Rows 5, 6 and 7: SET NX PX, its blind twin, a lock per part; and redis-py's Lock on the same keys."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import redis

from kit.servers import wait_until
from lockfast.classic import BlindDelLock, Client, FineGrainedLock, SetNxPxLock

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kit.servers import Server
    from kit.sides import Side


@pytest.fixture
def redis_py(server: Server) -> Iterator[redis.Redis]:
    with redis.Redis(port=server.port) as made:
        yield made


def expired(server: Server, key: str) -> None:
    wait_until(lambda: not server.command("EXISTS", key), what=f"{key} has expired")


def test_key_has_the_token_and_the_lease(server: Server, client: Client, other: Client, name: str) -> None:
    lock = SetNxPxLock(name, lease=1.5, acquire_timeout=0)
    taken = client.acquire(lock)
    assert taken is not None
    assert (taken.valid_s, taken.attempts) == (1.5, 1)
    assert server.command("GET", name) == taken.token.encode()
    assert 1000 < server.command("PTTL", name) <= 1500
    assert other.acquire(lock) is None
    assert client.release(lock, taken) is True
    assert client.release(lock, taken) is False


def test_ex_counts_whole_seconds(server: Server, client: Client, name: str) -> None:
    taken = client.acquire(SetNxPxLock(name, lease=2.5, unit="EX"))
    assert taken is not None
    assert taken.valid_s == 3
    assert 2500 < server.command("PTTL", name) <= 3000


def test_xx_takes_over_what_somebody_has_and_nothing_else(
    server: Server, client: Client, other: Client, name: str
) -> None:
    takeover = SetNxPxLock(name, only_if="XX", acquire_timeout=0)
    assert client.acquire(takeover) is None
    first = other.acquire(SetNxPxLock(name))
    second = client.acquire(takeover)
    assert first is not None
    assert second is not None
    assert server.command("GET", name) == second.token.encode()
    assert other.release(SetNxPxLock(name), first) is False


def test_who_waits_gets_it_when_the_lease_of_a_dead_holder_ends(client: Client, other: Client, name: str) -> None:
    assert client.acquire(SetNxPxLock(name, lease=0.1)) is not None
    taken = other.acquire(SetNxPxLock(name, retry_delay=0.02))
    assert taken is not None
    assert taken.attempts > 1


@pytest.mark.parametrize(("kind", "deletes"), [(SetNxPxLock, False), (FineGrainedLock, False), (BlindDelLock, True)])
def test_late_release_leaves_the_next_holders_lock_alone_unless_it_is_blind(
    kind: Any, deletes: bool, server: Server, client: Client, other: Client, name: str
) -> None:
    parts = (name, "part") if kind is FineGrainedLock else (name,)
    late = client.acquire(kind(*parts, lease=0.01))
    assert late is not None
    expired(server, ":".join(parts))
    lock = kind(*parts)
    taken = other.acquire(lock)
    assert taken is not None
    assert client.release(lock, late) is deletes
    assert other.release(lock, taken) is not deletes


def test_parts_are_locked_one_by_one(server: Server, client: Client, other: Client, name: str) -> None:
    one = FineGrainedLock(name, "one", acquire_timeout=0)
    two = FineGrainedLock(name, "two", acquire_timeout=0)
    taken = client.acquire(one)
    assert taken is not None
    assert server.command("GET", f"{name}:one") == taken.token.encode()
    assert other.acquire(one) is None
    assert other.acquire(two) is not None


def test_crossed_order_of_two_parts_waits_until_patience_ends(
    side: Side, client: Client, other: Client, name: str
) -> None:
    one = FineGrainedLock(name, "one", acquire_timeout=0.1)
    two = FineGrainedLock(name, "two", acquire_timeout=0.1)
    assert client.acquire(one) is not None
    assert other.acquire(two) is not None
    crossed = side.spawn(client.acquire, two)
    assert other.acquire(one) is None
    assert crossed.result() is None


def test_redis_py_and_we_keep_each_other_out(redis_py: redis.Redis, client: Client, name: str) -> None:
    ours = SetNxPxLock(name, acquire_timeout=0)
    theirs = redis_py.lock(name, timeout=5, blocking=False)
    assert theirs.acquire()
    assert client.acquire(ours) is None
    theirs.release()
    taken = client.acquire(ours)
    assert taken is not None
    assert not theirs.acquire()
    assert client.release(ours, taken) is True
    assert theirs.acquire()
    theirs.release()


def test_redis_py_waits_for_us_and_we_wait_for_it(side: Side, redis_py: redis.Redis, client: Client, name: str) -> None:
    ours = SetNxPxLock(name, retry_delay=0.02)
    theirs = redis_py.lock(name, timeout=5, sleep=0.02, thread_local=False)
    taken = client.acquire(ours)
    assert taken is not None
    they_wait = side.spawn(theirs.acquire, blocking_timeout=10)
    assert client.release(ours, taken)
    assert they_wait.result() is True
    we_wait = side.spawn(client.acquire, ours)
    theirs.release()
    assert we_wait.result() is not None


def test_neither_releases_the_others_lock(server: Server, redis_py: redis.Redis, client: Client, name: str) -> None:
    theirs = redis_py.lock(name, timeout=0.01, blocking=False)
    assert theirs.acquire()
    expired(server, name)
    taken = client.acquire(SetNxPxLock(name))
    assert taken is not None
    with pytest.raises(redis.exceptions.LockNotOwnedError):
        theirs.release()
    assert server.command("GET", name) == taken.token.encode()
    assert client.release(SetNxPxLock(name), taken)

    late = client.acquire(SetNxPxLock(name, lease=0.01))
    assert late is not None
    expired(server, name)
    theirs = redis_py.lock(name, timeout=5, blocking=False)
    assert theirs.acquire()
    assert client.release(SetNxPxLock(name), late) is False
    assert theirs.owned()
    theirs.release()


def test_prefix_meets_redis_py_under_its_full_name(redis_py: redis.Redis, client: Client, name: str) -> None:
    theirs = redis_py.lock(f"app:{name}", timeout=5, blocking=False)
    assert theirs.acquire()
    assert client.acquire(SetNxPxLock(name, prefix="app:", acquire_timeout=0)) is None
    assert client.acquire(SetNxPxLock(name, acquire_timeout=0)) is not None
    theirs.release()
