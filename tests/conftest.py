"""Fixtures for all tests: servers, the proxy, the two sides, names. What they give is described in `kit`."""

from __future__ import annotations

import itertools
import os
import re
from math import inf
from typing import TYPE_CHECKING, cast

import pytest

from kit.postgres import Postgres, postgres_programs
from kit.proxy import Proxy
from kit.servers import Kind, Server, close_guard, faketime_library, more_servers, server_binary
from kit.sides import Side, make_side
from lockfast.flows import swapping

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kit.proxy import ProxyFor
    from kit.servers import FreshServer

_counter = itertools.count(1)
_MORE = [name for name in more_servers() if name not in ("valkey", "redis")]


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Tests that need what is not installed are skipped by name; LOCKFAST_CI_STRICT=1 makes them fail."""
    missing = []
    if item.get_closest_marker("needs_redis") and not server_binary("redis"):
        missing.append("redis-server")
    if item.get_closest_marker("needs_faketime") and not faketime_library():
        missing.append("libfaketime")
    if item.get_closest_marker("needs_postgres") and not postgres_programs():
        missing.append("postgresql")
    if not missing:
        return
    reason = f"{' and '.join(missing)} not installed (apt-get install {' '.join(missing)})"
    if os.environ.get("LOCKFAST_CI_STRICT"):
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason)


@pytest.fixture(scope="session", autouse=True)
def _no_server_outlives_the_tests() -> Iterator[None]:
    yield
    close_guard()


@pytest.fixture(autouse=True)
def _releases_by_script(monkeypatch: pytest.MonkeyPatch) -> None:
    """In this process every release is the script, so that tests which lose or count a request know which one it is.

    Those of the other way (flows/swapping.py) switch it on; clients in processes of their own use both, as they come.
    """
    monkeypatch.setattr(swapping, "AFTER_S", inf)


@pytest.fixture(scope="session")
def valkey_server() -> Iterator[Server]:
    """The Valkey that tests share. Tests that kill, freeze or reconfigure a server take `fresh_server`."""
    with Server("valkey") as server:
        yield server


@pytest.fixture(scope="session")
def redis_server() -> Iterator[Server]:
    """The Redis that tests share; mark the test `needs_redis`."""
    with Server("redis") as server:
        yield server


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    """The PostgreSQL that tests share; mark the test `needs_postgres`."""
    with Postgres() as server:
        yield server


@pytest.fixture(scope="session")
def more_running() -> Iterator[dict[str, Server]]:
    """The servers of LOCKFAST_TEST_SERVERS that tests share, started when they are asked for."""
    running: dict[str, Server] = {}
    yield running
    for server in running.values():
        server.close()


@pytest.fixture(params=["valkey", pytest.param("redis", marks=pytest.mark.needs_redis), *_MORE])
def server_kind(request: pytest.FixtureRequest) -> Kind:
    """Runs the test once for each kind of server: `fresh_server(server_kind)`."""
    return cast("Kind", request.param)


@pytest.fixture
def server(request: pytest.FixtureRequest, server_kind: Kind) -> Server:
    """A shared server, empty; the test runs on Valkey and on Redis."""
    shared: Server
    if server_kind in ("valkey", "redis"):
        shared = request.getfixturevalue(f"{server_kind}_server")
    else:
        running: dict[str, Server] = request.getfixturevalue("more_running")
        if server_kind not in running:
            running[server_kind] = Server(server_kind)
        shared = running[server_kind]
    if not shared.running:  # An earlier test broke the rule above; it should not break this one too.
        shared.start()
    shared.resume()
    shared.command("FLUSHALL")
    return shared


@pytest.fixture
def fresh_server() -> Iterator[FreshServer]:
    """Starts servers that the test may kill and reconfigure: `fresh_server("redis", appendonly=True)`."""
    started: list[Server] = []

    def start(kind: Kind = "valkey", **options: object) -> Server:
        server = Server(kind, **options)  # type: ignore[arg-type]
        started.append(server)
        return server.start()

    yield start
    for server in started:
        server.close()


@pytest.fixture
def faketime_server() -> Iterator[Server]:
    """A Valkey whose clock the test moves by `clock_shift(-100)`. Mark the test `needs_faketime`."""
    with Server("valkey", faketime=True) as server:
        yield server


@pytest.fixture
def proxy_for() -> Iterator[ProxyFor]:
    """Puts proxies in front of servers of the test's choice: `proxy_for(fresh_server(appendonly=True))`."""
    made: list[Proxy] = []

    def make(server: Server) -> Proxy:
        made.append(Proxy(server))
        return made[-1]

    yield make
    for proxy in made:
        proxy.close()


@pytest.fixture
def proxy(server: Server, proxy_for: ProxyFor) -> Proxy:
    """A proxy in front of `server`, the one that the test gets by that name too."""
    return proxy_for(server)


@pytest.fixture(params=["threads", "asyncio"])
def side(request: pytest.FixtureRequest) -> Iterator[Side]:
    """Runs the test on both sides: `with side.client(server.url) as lf, lf.lock(name) as grant: ...`"""
    side = make_side(request.param)
    yield side
    side.close()


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    """A lock name that no other test uses."""
    return f"{re.sub(r'[^a-z0-9]+', '-', request.node.name.lower()).strip('-')}-{next(_counter)}"
