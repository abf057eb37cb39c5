"""Fleets of independent masters: shared ones for quiet tests, and others for tests that kill and freeze."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import pytest

from kit.proxy import Proxy
from kit.quorum import Masters

if TYPE_CHECKING:
    from collections.abc import Iterator


class StartMasters(Protocol):
    """Starts masters that the test may kill: `start_masters(5)`."""

    def __call__(self, count: int, **options: object) -> Masters: ...


class Proxied:
    """Masters with a proxy in front of each."""

    def __init__(self, masters: Masters) -> None:
        self.masters = masters
        self.proxies = [Proxy(server) for server in masters]

    @property
    def urls(self) -> list[str]:
        return [proxy.url for proxy in self.proxies]

    def at(self, where: str) -> int:
        """The place of the server that a client calls by this address."""
        return next(place for place, proxy in enumerate(self.proxies) if f":{proxy.port}/" in where)

    def close(self) -> None:
        for proxy in self.proxies:
            proxy.close()


@pytest.fixture(scope="session")
def shared_trio() -> Iterator[Masters]:
    with Masters(3, appendonly=True) as masters:
        yield masters


@pytest.fixture(scope="session")
def shared_five() -> Iterator[Masters]:
    with Masters(5, appendonly=True) as masters:
        yield masters


@pytest.fixture
def trio(shared_trio: Masters) -> Iterator[Masters]:
    """Three masters that keep their memory, so that they count at once. Freeze them, but do not empty them."""
    yield shared_trio
    shared_trio.heal()


@pytest.fixture
def five(shared_five: Masters) -> Iterator[Masters]:
    """Five, as `trio`."""
    yield shared_five
    shared_five.heal()


@pytest.fixture
def start_masters() -> Iterator[StartMasters]:
    started: list[Masters] = []

    def start(count: int, **options: object) -> Masters:
        started.append(Masters(count, **options))  # type: ignore[arg-type]
        return started[-1].start()

    yield start
    for masters in started:
        masters.close()


@pytest.fixture
def proxied_trio(trio: Masters) -> Iterator[Proxied]:
    proxied = Proxied(trio)
    yield proxied
    proxied.close()


@pytest.fixture
def proxied_five(five: Masters) -> Iterator[Proxied]:
    proxied = Proxied(five)
    yield proxied
    proxied.close()
