"""The scripts on a shared server, with the server's clock or with one that the test moves."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from lua.scripts import Scripts

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kit.servers import Server
    from lua.scripts import Named


@pytest.fixture
def scripts(server: Server) -> Iterator[Scripts]:
    """The scripts as they are shipped; the test runs on Valkey and on Redis."""
    with Scripts(server) as made:
        yield made


@pytest.fixture
def clocked(server: Server) -> Iterator[Scripts]:
    """The scripts on a clock of the test's own: `clocked.pass_ms(30_000)`."""
    with Scripts(server, clocked=True) as made:
        yield made


@pytest.fixture
def lock(clocked: Scripts) -> Named:
    """A name with limit 1, on the test's own clock."""
    return clocked.name("lock")


@pytest.fixture
def shared(clocked: Scripts) -> Named:
    """A name with limit 4, on the test's own clock."""
    return clocked.name("shared", kind="semaphore", limit=4)
