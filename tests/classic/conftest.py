"""Clients of the classics, on both sides; and the five servers that Redlock wants."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import pytest

from kit.servers import Server
from kit.sides import AsyncioSide, Side, Twin
from lockfast.classic import Client
from lockfast.classic.aio import Client as AsyncioClient

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@pytest.fixture
def make_client(side: Side) -> Callable[..., Client]:
    """Makes clients of one side: `make_client(url, timeout=0.2)`. They are closed with the side."""

    def make(servers: Any = None, **options: Any) -> Client:
        made: Any
        if isinstance(side, AsyncioSide):

            async def begin() -> AsyncioClient:
                return AsyncioClient(servers, **options)

            made = Twin(side, side.run(begin()))
        else:
            made = Client(servers, **options)
        side._clients.append(made)
        return cast("Client", made)

    return make


@pytest.fixture
def client(make_client: Callable[..., Client], server: Server) -> Client:
    """A client; the test runs on both sides and on both kinds of server."""
    return make_client(server.url)


@pytest.fixture
def other(make_client: Callable[..., Client], server: Server) -> Client:
    """Another client of the same server."""
    return make_client(server.url)


@pytest.fixture(scope="module")
def five() -> Iterator[list[Server]]:
    """Five servers that know nothing of each other."""
    servers = [Server("valkey") for _ in range(5)]
    try:
        for server in servers:
            server.start()
        yield servers
    finally:
        for server in servers:
            server.close()


@pytest.fixture
def nodes(five: list[Server]) -> Iterator[list[Server]]:
    """The five servers, running and empty. A test may pause them, not kill them."""
    for server in five:
        server.command("FLUSHALL")
    yield five
    for server in five:
        server.resume()
