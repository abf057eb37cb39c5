"""Topologies for tests: shared by what leaves them whole, and fresh ones for what breaks them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from kit.cluster import Cluster
from kit.sentinels import Sentinels
from kit.sides import make_side

if TYPE_CHECKING:
    from collections.abc import Iterator

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
