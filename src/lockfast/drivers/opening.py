"""The driver for the servers that a caller means: one place where topologies are told apart."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lockfast import names, specs, topologies

if TYPE_CHECKING:
    from lockfast.drivers.aio import Asyncio
    from lockfast.drivers.threads import Threads


class Given:
    """The settings of a client, as its caller gave them. Raises TypeError or ValueError for what cannot work."""

    __slots__ = ("label", "max_lease_s", "node_timeout_s", "prefix", "replicas", "timeout_s", "topology")

    def __init__(
        self,
        server: object,
        timeout: object,
        prefix: str,
        label: object,
        replicas: object,
        max_lease: object,
        node_timeout: object,
    ) -> None:
        self.prefix = names.check_prefix(prefix)
        self.timeout_s = specs.timeout_seconds(timeout)
        self.label = specs.label_text(label)
        self.replicas = specs.replica_count(replicas)
        self.topology = topology = topologies.find(server)
        if self.replicas and isinstance(topology, (topologies.Quorum, topologies.Cluster)):
            raise ValueError("replicas= is for one server or a sentinel:// service: name one of these, or leave it out")
        is_quorum = isinstance(topology, topologies.Quorum)
        if (max_lease is not None or node_timeout is not None) and not is_quorum:
            raise ValueError("max_lease and node_timeout are for a majority of several servers: name more than one")
        self.max_lease_s = None if max_lease is None else specs.max_lease_seconds(max_lease)
        self.node_timeout_s = 0.0
        # Certificates that cannot be read are a mistake of the caller, and told at once.
        if isinstance(topology, topologies.Quorum):
            for endpoint in topology.nodes:
                try:
                    endpoint.tls_context()
                except ValueError as error:
                    raise ValueError(f"{endpoint.where}: {error}") from error
        else:
            topology.tls_context()
        if isinstance(topology, topologies.Quorum):
            self.node_timeout_s = specs.node_timeout_seconds(node_timeout, topology.is_local, self.timeout_s)


def threads(given: Given) -> Threads:
    """A driver for threads. Nothing is connected yet."""
    if isinstance(given.topology, topologies.Quorum):
        from lockfast.drivers.quorum_threads import QuorumThreads

        return QuorumThreads(
            given.topology, given.timeout_s, given.prefix, given.label, given.node_timeout_s, given.max_lease_s
        )
    from lockfast.drivers.threads import Threads

    if isinstance(given.topology, topologies.Cluster):
        from lockfast.drivers.cluster_threads import ClusterThreads

        return ClusterThreads(given.topology, given.timeout_s, given.prefix, given.label)
    driver = Threads(given.topology, given.timeout_s, given.prefix, given.label)
    driver.env.replicas = given.replicas
    return driver


def asyncio(given: Given) -> Asyncio:
    """A driver for asyncio. Nothing is connected yet."""
    if isinstance(given.topology, topologies.Quorum):
        from lockfast.drivers.quorum_aio import QuorumAsyncio

        return QuorumAsyncio(
            given.topology, given.timeout_s, given.prefix, given.label, given.node_timeout_s, given.max_lease_s
        )
    from lockfast.drivers.aio import Asyncio

    if isinstance(given.topology, topologies.Cluster):
        from lockfast.drivers.cluster_aio import ClusterAsyncio

        return ClusterAsyncio(given.topology, given.timeout_s, given.prefix, given.label)
    driver = Asyncio(given.topology, given.timeout_s, given.prefix, given.label)
    driver.env.replicas = given.replicas
    return driver
