"""What an attack on the classics found once, and must not find again."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from kit.servers import wait_until
from lockfast.classic import CountingSemaphore, GetSetLock, OptimisticLock, Redlock, SetNxPxLock
from lockfast.errors import Refused, Unreachable

if TYPE_CHECKING:
    from collections.abc import Callable

    from kit.servers import FreshServer, Server
    from lockfast.classic import Client


def test_transaction_that_is_left_open_takes_nobody_elses_command(
    fresh_server: FreshServer, make_client: Callable[..., Client], name: str
) -> None:
    """Without EXEC the MULTI stays open; what others sent on that connection was queued, and taken for success."""
    server = fresh_server("valkey", extra=("--rename-command", "EXEC", ""))
    client = make_client(server.url)
    with pytest.raises(Refused):
        client.acquire(CountingSemaphore(name, 1))
    lock = SetNxPxLock(name, acquire_timeout=0)
    taken = client.acquire(lock)
    assert taken is not None
    assert server.command("GET", lock.key) == taken.token.encode()


def test_request_that_fills_the_buffers_of_a_hung_server_comes_back(
    fresh_server: FreshServer, make_client: Callable[..., Client]
) -> None:
    server = fresh_server("valkey")
    client = make_client(server.url, timeout=0.5)
    update = OptimisticLock("value", acquire_timeout=1)
    assert client.update(update, lambda _value: "small") is not None

    def grow(_value: bytes | None) -> bytes:
        server.pause()
        return b"x" * 30_000_000

    try:
        started = time.monotonic()
        with pytest.raises(Unreachable):
            client.update(update, grow)
        assert time.monotonic() - started < 6
    finally:
        server.resume()


def test_redlock_runs_nothing_where_the_database_is_refused(
    make_client: Callable[..., Client], valkey_server: Server, name: str
) -> None:
    valkey_server.reset_stats()
    client = make_client(f"redis://127.0.0.1:{valkey_server.port}/99")
    with pytest.raises(Refused):
        client.acquire(Redlock(name, acquire_timeout=0))
    assert valkey_server.command("EXISTS", name) == 0
    assert "set" not in valkey_server.stats()


def test_getset_refuses_a_value_that_is_no_time(make_client: Callable[..., Client], server: Server, name: str) -> None:
    lock = GetSetLock(name)
    server.command("SET", lock.key, "somebody else's")
    with pytest.raises(Refused, match="which is no time"):
        make_client(server.url).acquire(lock)
    assert server.command("GET", lock.key) == b"somebody else's"


def test_release_reaches_a_node_that_only_pauses_its_clients(
    fresh_server: FreshServer, make_client: Callable[..., Client]
) -> None:
    nodes = [fresh_server("valkey") for _ in range(3)]
    client = make_client([node.url for node in nodes])
    lock = Redlock("name", node_timeout=0.1, acquire_timeout=0)
    nodes[0].command("CLIENT", "PAUSE", "600", "ALL")
    taken = client.acquire(lock)
    assert taken is not None
    assert client.release(lock, taken)
    wait_until(lambda: all(node.command("EXISTS", "name") == 0 for node in nodes), what="released everywhere")
