"""Hosts with several addresses, some of them dead, and servers that say nothing: one time-out covers it all."""

from __future__ import annotations

import socket
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest

from kit.servers import wait_until
from lockfast import Unreachable
from lockfast.clock import now

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kit.servers import Server
    from kit.sides import Side

pytestmark = pytest.mark.slow

NAME = "many.example"


@pytest.fixture
def dead() -> Iterator[int]:
    """A port at which every connection hangs, as behind a firewall: its queue is full, and nobody takes from it."""
    with ExitStack() as stack:
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
        port: int = listener.getsockname()[1]

        def is_full() -> bool:
            one = stack.enter_context(socket.socket())
            one.settimeout(0.05)
            try:
                one.connect(("127.0.0.1", port))
            except TimeoutError:
                return True
            return False

        wait_until(is_full, what="no room for another")
        yield port


def resolve(monkeypatch: pytest.MonkeyPatch, *ports: int) -> str:
    """Let a name have as many addresses as there are ports. Returns the URL."""
    ask = socket.getaddrinfo

    def answer(host: str, *details: Any, **more: Any) -> list[Any]:
        if host != NAME:
            return ask(host, *details, **more)
        if more.get("flags") == socket.AI_NUMERICHOST:
            raise socket.gaierror("this is a name")
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", each)) for each in ports]

    monkeypatch.setattr(socket, "getaddrinfo", answer)
    return f"redis://{NAME}:6379"


def test_dead_addresses_of_a_host_share_one_time_out(side: Side, dead: int, monkeypatch: pytest.MonkeyPatch) -> None:
    with side.client(resolve(monkeypatch, dead, dead, dead, dead), timeout=1) as lf:
        began = now()
        with pytest.raises(Unreachable):
            lf.lock("name", wait=0).acquire()
        assert now() - began < 1.4


@pytest.mark.parametrize("before", [1, 3])
def test_address_that_answers_is_found_behind_dead_ones(
    side: Side, server: Server, dead: int, monkeypatch: pytest.MonkeyPatch, before: int
) -> None:
    with side.client(resolve(monkeypatch, *[dead] * before, server.port)) as lf:
        began = now()
        lf.lock("name", wait=0).acquire().release()
        assert now() - began < 0.9, "at the first try, with time left for the request"


def test_server_that_never_shakes_hands_costs_no_more_than_the_time_out(side: Side) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        for timeout in (0.4, 1.2):
            began = now()
            with (
                side.client(f"rediss://127.0.0.1:{silent.getsockname()[1]}", timeout=timeout) as lf,
                pytest.raises(Unreachable),
            ):
                lf.lock("name", wait=0).acquire()
            assert now() - began < timeout + 0.3
