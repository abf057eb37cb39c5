"""Topologies for tests: shared by what leaves them whole, and fresh ones for what breaks them."""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING, Protocol

import pytest

from kit.cluster import Cluster
from kit.proxy import Proxy
from kit.quorum import Masters
from kit.sentinels import Sentinels
from kit.servers import Server
from kit.sides import make_side

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from kit.servers import Kind
    from kit.sides import Side
    from lockfast.sync import Lockfast


@pytest.fixture(scope="session")
def shared_sentinels() -> Iterator[Sentinels]:
    with Sentinels() as group:
        yield group


@pytest.fixture
def sentinels(shared_sentinels: Sentinels) -> Sentinels:
    """A Valkey master with one replica and three sentinels, whole and empty."""
    shared_sentinels.heal()
    return shared_sentinels


@pytest.fixture
def threads() -> Iterator[Side]:
    """One side, for what is the same on both and takes long."""
    side = make_side("threads")
    yield side
    side.close()


@pytest.fixture(scope="session")
def valkey_cluster() -> Iterator[Cluster]:
    """Three masters and three replicas that tests share: nothing of it is killed, frozen, or left half moved."""
    with Cluster("valkey") as cluster:
        yield cluster


@pytest.fixture(scope="session")
def redis_cluster() -> Iterator[Cluster]:
    """Three masters of Redis; mark the test `needs_redis`."""
    with Cluster("redis", replicas=False) as cluster:
        yield cluster


@pytest.fixture
def cluster(request: pytest.FixtureRequest, server_kind: Kind) -> Cluster:
    """A shared cluster; the test runs on Valkey and on Redis."""
    shared: Cluster = request.getfixturevalue(f"{server_kind}_cluster")
    return shared


@pytest.fixture
def fresh_cluster() -> Iterator[Cluster]:
    """A cluster of Valkey that the test may break."""
    with Cluster("valkey") as cluster:
        yield cluster


@pytest.fixture
def lf(side: Side, cluster: Cluster) -> Lockfast:
    """A client; the test runs on both sides and both kinds of server."""
    return side.client(cluster.url)


@pytest.fixture
def other(side: Side, cluster: Cluster) -> Lockfast:
    """Another client of the same cluster."""
    return side.client(cluster.url)


_users = count(1)


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


def _in_use(masters: Masters) -> None:
    """Let them know what the first client would have told them, so that tests may begin with one that is frozen."""
    for server in masters:
        server.command("SET", "lockfast:quorum", 60_000)


@pytest.fixture(scope="session")
def shared_trio() -> Iterator[Masters]:
    with Masters(3, appendonly=True) as masters:
        _in_use(masters)
        yield masters


@pytest.fixture(scope="session")
def shared_five() -> Iterator[Masters]:
    with Masters(5, appendonly=True) as masters:
        _in_use(masters)
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
def short(name: str) -> str:
    """A prefix of the test's own: a quorum's max_lease is stored under it."""
    return f"p{name.rpartition('-')[2]}"


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


# Servers and accounts for the doctor.


@pytest.fixture(scope="module")
def sick() -> Iterator[Server]:
    """A Valkey that tests reconfigure; `configure` mends it after each."""
    with Server("valkey") as server:
        yield server


@pytest.fixture
def configure(sick: Server) -> Iterator[Callable[..., None]]:
    """CONFIG SET for one test."""
    before: dict[str, bytes] = {}

    def change(**settings: str) -> None:
        for name, value in settings.items():
            name = name.replace("_", "-")
            before.setdefault(name, sick.command("CONFIG", "GET", name)[1])
            sick.command("CONFIG", "SET", name, value)

    sick.command("FLUSHALL")
    yield change
    for name, value in before.items():
        sick.command("CONFIG", "SET", name, value)


@pytest.fixture
def account(server: Server) -> Iterator[Callable[..., str]]:
    """The URL of a new account with these rules besides everything."""
    made: list[str] = []

    def make(*rules: str) -> str:
        made.append(f"clerk{next(_users)}")
        server.command("ACL", "SETUSER", made[-1], "on", ">hunter2", "~*", "&*", "+@all", *rules)
        return server.url.replace("://", f"://{made[-1]}:hunter2@")

    yield make
    for user in made:
        server.command("ACL", "DELUSER", user)
