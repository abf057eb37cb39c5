"""The driver for the servers that a caller means: one place where topologies are told apart."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lockfast import names, specs, topologies
from lockfast.endpoints import Endpoint

if TYPE_CHECKING:
    from lockfast.drivers.aio import Asyncio
    from lockfast.drivers.threads import Threads


def threads(server: object, timeout: object, prefix: str, label: object) -> Threads:
    """A driver for threads. Nothing is connected yet. Raises TypeError or ValueError for what cannot work."""
    from lockfast.drivers.threads import Threads

    names.check_prefix(prefix)
    topology = topologies.find(server)
    assert isinstance(topology, Endpoint)
    if isinstance(topology, topologies.Cluster):
        from lockfast.drivers.cluster_threads import ClusterThreads

        return ClusterThreads(topology, specs.timeout_seconds(timeout), prefix, specs.label_text(label))
    return Threads(topology, specs.timeout_seconds(timeout), prefix, specs.label_text(label))


def asyncio(server: object, timeout: object, prefix: str, label: object) -> Asyncio:
    """A driver for asyncio; the rest as for threads."""
    from lockfast.drivers.aio import Asyncio

    names.check_prefix(prefix)
    topology = topologies.find(server)
    assert isinstance(topology, Endpoint)
    if isinstance(topology, topologies.Cluster):
        from lockfast.drivers.cluster_aio import ClusterAsyncio

        return ClusterAsyncio(topology, specs.timeout_seconds(timeout), prefix, specs.label_text(label))
    return Asyncio(topology, specs.timeout_seconds(timeout), prefix, specs.label_text(label))
