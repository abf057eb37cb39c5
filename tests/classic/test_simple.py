"""Rows 2 and 3: SETNX, and SETNX with EXPIRE."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pytest

from classic.meddling import Died, Meddled, die
from kit.servers import wait_until
from lockfast.classic import Client, SimpleLock, TimeoutLock

if TYPE_CHECKING:
    from kit.servers import Server
    from kit.sides import Side

LOCKS = [SimpleLock, TimeoutLock]


def held(server: Server, name: str) -> Any:
    return server.command("GET", f"lock:{name}")


@pytest.mark.parametrize("kind", LOCKS)
def test_one_has_it_until_it_is_given_back(kind: Any, server: Server, client: Client, other: Client, name: str) -> None:
    lock = kind(name, acquire_timeout=0)
    taken = client.acquire(lock)
    assert taken is not None
    assert held(server, name) == taken.token.encode()
    assert len(bytes.fromhex(taken.token)) == 20
    assert other.acquire(lock) is None
    assert client.release(lock, taken)
    assert held(server, name) is None
    again = other.acquire(lock)
    assert again is not None
    assert again.token != taken.token


def test_simple_lock_has_no_end(server: Server, client: Client, name: str) -> None:
    taken = client.acquire(SimpleLock(name))
    assert taken is not None
    assert taken.valid_s == float("inf")
    assert server.command("TTL", f"lock:{name}") == -1


@pytest.mark.parametrize("kind", LOCKS)
def test_who_waits_gets_it_after_the_release(
    kind: Any, side: Side, server: Server, client: Client, other: Client, name: str
) -> None:
    lock = kind(name)
    taken = client.acquire(lock)
    assert taken is not None
    server.reset_stats()
    waiting = side.spawn(other.acquire, lock)
    wait_until(lambda: server.stats().get("setnx", 0) > 3, what="asked several times")
    assert client.release(lock, taken)
    next_one = waiting.result()
    assert next_one is not None
    assert next_one.attempts > 3
    assert held(server, name) == next_one.token.encode()


@pytest.mark.parametrize("kind", LOCKS)
def test_waiting_ends_with_the_acquire_timeout(kind: Any, client: Client, other: Client, name: str) -> None:
    assert client.acquire(kind(name)) is not None
    started = time.monotonic()
    assert other.acquire(kind(name, acquire_timeout=0.1)) is None
    assert 0.1 <= time.monotonic() - started < 1.0


@pytest.mark.parametrize("kind", LOCKS)
def test_checked_release_leaves_what_is_not_ours_alone(kind: Any, server: Server, client: Client, name: str) -> None:
    lock = kind(name)
    taken = client.acquire(lock)
    assert taken is not None
    server.command("SET", f"lock:{name}", "another")
    assert client.release(lock, taken) is False
    assert held(server, name) == b"another"
    server.command("DEL", f"lock:{name}")
    assert client.release(lock, taken) is False


@pytest.mark.parametrize("kind", LOCKS)
def test_release_looks_again_when_the_key_changed_and_is_still_ours(
    kind: Any, server: Server, client: Client, name: str
) -> None:
    lock = kind(name)
    taken = client.acquire(lock)
    assert taken is not None
    server.reset_stats()
    touched = Meddled(lock, "MULTI", lambda: server.command("EXPIRE", f"lock:{name}", 50))
    assert client.release(touched, taken) is True
    assert held(server, name) is None
    assert server.stats()["watch"] == 2


@pytest.mark.parametrize("kind", LOCKS)
def test_release_finds_that_the_key_passed_to_another_at_the_last_moment(
    kind: Any, server: Server, client: Client, name: str
) -> None:
    lock = kind(name)
    taken = client.acquire(lock)
    assert taken is not None
    stolen = Meddled(lock, "MULTI", lambda: server.command("SET", f"lock:{name}", "another"))
    assert client.release(stolen, taken) is False
    assert held(server, name) == b"another"


def test_time_out_is_rounded_up_to_whole_seconds(server: Server, client: Client, name: str) -> None:
    taken = client.acquire(TimeoutLock(name, lock_timeout=1.2))
    assert taken is not None
    assert taken.valid_s == 2
    assert 1500 < server.command("PTTL", f"lock:{name}") <= 2000


def die_before_expire(client: Client, name: str) -> None:
    with pytest.raises(Died):
        client.acquire(Meddled(TimeoutLock(name), "EXPIRE", die))


@pytest.mark.parametrize(("repair", "mends"), [("missing", True), ("falsy", False), ("inverted", True)])
def test_contender_that_finds_no_ttl_sets_one(
    repair: Any, mends: bool, server: Server, client: Client, other: Client, name: str
) -> None:
    die_before_expire(client, name)
    assert server.command("TTL", f"lock:{name}") == -1
    assert other.acquire(TimeoutLock(name, acquire_timeout=0, lock_timeout=3, repair=repair)) is None
    assert (2000 < server.command("PTTL", f"lock:{name}") <= 3000) is mends


def test_mended_lock_ends_and_the_contender_has_it(
    side: Side, server: Server, client: Client, other: Client, name: str
) -> None:
    die_before_expire(client, name)
    waiting = side.spawn(other.acquire, TimeoutLock(name, acquire_timeout=20))
    wait_until(lambda: server.command("PTTL", f"lock:{name}") > 0, what="mended")
    server.command("PEXPIRE", f"lock:{name}", 1)  # ten seconds have passed
    taken = waiting.result()
    assert taken is not None
    assert held(server, name) == taken.token.encode()
    assert 9000 < server.command("PTTL", f"lock:{name}") <= 10_000


@pytest.mark.parametrize(
    ("repair", "ttl_ms", "prolongs"),
    [
        ("missing", 60_000, False),
        ("missing", 400, False),
        ("falsy", 60_000, False),
        ("falsy", 400, True),  # TTL rounds to 0, which is as false as None once was
        ("inverted", 60_000, True),
        ("inverted", 400, False),
    ],
)
def test_which_contenders_prolong_a_lock_that_has_a_ttl(
    repair: Any, ttl_ms: int, prolongs: bool, server: Server, client: Client, name: str
) -> None:
    server.command("SET", f"lock:{name}", "another", "PX", ttl_ms)
    assert client.acquire(TimeoutLock(name, acquire_timeout=0, lock_timeout=100, repair=repair)) is None
    assert (server.command("PTTL", f"lock:{name}") > 90_000) is prolongs


def test_plain_del_deletes_the_lock_of_the_next_holder(server: Server, client: Client, name: str) -> None:
    lock = TimeoutLock(name, release_by="del")
    taken = client.acquire(lock)
    assert taken is not None
    server.command("SET", f"lock:{name}", "the next holder")
    assert client.release(lock, taken) is True
    assert held(server, name) is None
    assert client.release(lock, taken) is False
