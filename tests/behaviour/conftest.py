"""Clients for behaviour tests: one and another of the same side, and the asyncio side by itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from kit.sides import AsyncioSide

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kit.servers import Server
    from kit.sides import Side
    from lockfast.sync import Lockfast


@pytest.fixture
def lf(side: Side, server: Server) -> Lockfast:
    """A client; the test runs on both sides and both kinds of server."""
    return side.client(server.url)


@pytest.fixture
def other(side: Side, server: Server) -> Lockfast:
    """Another client of the same server."""
    return side.client(server.url)


@pytest.fixture
def aside() -> Iterator[AsyncioSide]:
    """The asyncio side alone, for tests of tasks and loops: `aside.run(coroutine)`."""
    side = AsyncioSide()
    yield side
    side.close()
