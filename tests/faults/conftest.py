"""Fixtures of the fault tests: actors, and a pair of eyes that does not go through the proxy."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Protocol

import pytest

from faults.actors import Actor
from kit.servers import wait_until
from lockfast.sync import Lockfast

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kit.servers import Server
    from lockfast.snapshots import Snapshot


class StartActor(Protocol):
    """Starts a process with a client: `start_actor("asyncio", server.url)`."""

    def __call__(self, side_name: str, url: str, *, env: dict[str, str] | None = None, **options: object) -> Actor: ...


class Eyes:
    """Reads what one server knows, on a connection of its own."""

    def __init__(self, server: Server) -> None:
        self.client = Lockfast(server.unix_url, timeout=10.0)

    def look(self, name: str) -> Snapshot:
        return self.client.inspect(name)

    def holder(self, name: str) -> str:
        """The ticket that holds the name, "" when none does."""
        holders = self.look(name).holders
        assert len(holders) <= 1
        return holders[0].ticket if holders else ""

    def waiting(self, name: str) -> int:
        return len(self.look(name).waiters)

    def wait_waiting(self, name: str, count: int = 1) -> None:
        wait_until(lambda: self.waiting(name) == count, timeout_s=20, what=f"{count} waiters")

    def is_free(self, name: str) -> bool:
        """Nobody holds it, nobody waits for it."""
        seen = self.look(name)
        return not seen.holders and not seen.waiters

    def wait_free(self, name: str, timeout_s: float = 5.0) -> None:
        wait_until(lambda: self.is_free(name), timeout_s=timeout_s, what=f"{name} free")


class EyesOn(Protocol):
    """Eyes on a server of the test's choice: `eyes_on(server).is_free(name)`."""

    def __call__(self, server: Server) -> Eyes: ...


@pytest.fixture
def start_actor() -> Iterator[StartActor]:
    with ExitStack() as started:

        def start(side_name: str, url: str, *, env: dict[str, str] | None = None, **options: object) -> Actor:
            return started.enter_context(Actor(side_name, url, env=env, **options))

        yield start


@pytest.fixture
def eyes_on() -> Iterator[EyesOn]:
    made: dict[int, Eyes] = {}

    def on(server: Server) -> Eyes:
        if id(server) not in made:
            made[id(server)] = Eyes(server)
        return made[id(server)]

    yield on
    for eyes in made.values():
        eyes.client.close()


@pytest.fixture
def eyes(server: Server, eyes_on: EyesOn) -> Eyes:
    """Eyes on `server`."""
    return eyes_on(server)
