"""Row 4: the GETSET lock, its comparison, and what it does with clocks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from classic.meddling import Meddled
from lockfast.classic import Client, GetSetLock

if TYPE_CHECKING:
    from kit.servers import Server


def end_s(server: Server, name: str) -> float:
    return float(server.command("GET", f"lock:{name}"))


def test_value_is_the_end_by_the_clients_clock(server: Server, client: Client, other: Client, name: str) -> None:
    lock = GetSetLock(name, acquire_timeout=0)
    taken = client.acquire(Meddled(lock, skew_s=1000))
    assert taken is not None
    assert end_s(server, name) == pytest.approx(taken.at + 10, abs=1e-5)
    assert taken.at == pytest.approx(server.time_s() + 1000, abs=5)
    assert server.command("TTL", f"lock:{name}") == -1
    assert other.acquire(lock) is None
    assert end_s(server, name) == pytest.approx(taken.at + 10, abs=1e-5)  # a lock that has not ended is not touched


def test_ended_lock_is_inherited(server: Server, client: Client, name: str) -> None:
    server.command("SET", f"lock:{name}", f"{server.time_s() - 1:.6f}")
    taken = client.acquire(GetSetLock(name, acquire_timeout=0))
    assert taken is not None
    assert end_s(server, name) == pytest.approx(taken.at + 10, abs=1e-5)


def test_of_two_that_find_it_ended_one_gets_it_and_the_loser_stretches_its_time(
    server: Server, client: Client, other: Client, name: str
) -> None:
    lock = GetSetLock(name, acquire_timeout=0)
    server.command("SET", f"lock:{name}", "1.0")
    won: list[Any] = []
    with Client(server.url) as winner:
        # Both have read the ended value; the winner is the first whose GETSET is carried out.
        loser = Meddled(lock, "GETSET", lambda: won.append(winner.acquire(lock)), skew_s=5)
        assert client.acquire(loser) is None
        assert won[0] is not None
        assert end_s(server, name) == pytest.approx(won[0].at + 10 + 5, abs=2)
        assert other.acquire(lock) is None
        assert winner.release(lock, won[0])


def test_losers_getset_after_the_winners_del_locks_what_nobody_holds(server: Server, client: Client, name: str) -> None:
    lock = GetSetLock(name, acquire_timeout=0)
    server.command("SET", f"lock:{name}", "1.0")
    freed_meanwhile = Meddled(lock, "GETSET", lambda: server.command("DEL", f"lock:{name}"))
    assert client.acquire(freed_meanwhile) is None
    assert end_s(server, name) > server.time_s() + 5
    assert client.acquire(lock) is None


def test_client_whose_clock_is_ahead_takes_a_lock_that_has_not_ended(client: Client, other: Client, name: str) -> None:
    lock = GetSetLock(name, acquire_timeout=0, lock_timeout=2)
    assert client.acquire(lock) is not None
    assert other.acquire(lock) is None
    assert other.acquire(Meddled(lock, skew_s=2.1)) is not None


def test_release_within_the_time_deletes_without_a_look(server: Server, client: Client, name: str) -> None:
    lock = GetSetLock(name)
    taken = client.acquire(lock)
    assert taken is not None
    server.command("SET", f"lock:{name}", "99999999999")
    assert client.release(lock, taken) is True
    assert server.command("EXISTS", f"lock:{name}") == 0
    assert client.release(lock, taken) is False


def test_release_after_the_time_leaves_the_key_alone(server: Server, client: Client, name: str) -> None:
    lock = GetSetLock(name)
    taken = client.acquire(lock)
    assert taken is not None
    server.reset_stats()
    assert client.release(Meddled(lock, skew_s=10), taken) is False
    assert server.stats().get("del", 0) == 0
    assert server.command("EXISTS", f"lock:{name}") == 1
