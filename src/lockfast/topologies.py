"""What shape of servers a caller means: one, a cluster, or a majority of several. Addresses: endpoints.py."""

from __future__ import annotations

import os
import re
import warnings
from typing import TYPE_CHECKING

from lockfast import endpoints
from lockfast.endpoints import Endpoint

if TYPE_CHECKING:
    from typing import Any

_NEXT_URL = re.compile(r"[\s,]+(?=[A-Za-z+]+://)")  # commas inside one URL are its own: sentinel://a,b/service


class Quorum:
    """Independent servers, of which a majority decides."""

    __slots__ = ("nodes",)

    def __init__(self, nodes: tuple[Endpoint, ...]) -> None:
        self.nodes = nodes

    @property
    def is_local(self) -> bool:
        """Whether all of them are on this host."""
        return all(node.path or node.host in ("localhost", "127.0.0.1", "::1") for node in self.nodes)

    @property
    def where(self) -> str:
        """For messages, without any secret."""
        return f"a majority of {', '.join(node.where for node in self.nodes)}"


class Cluster(Endpoint):
    """The nodes of a cluster: some to ask first, and one account and TLS setting for all of them."""

    def __init__(self, seeds: tuple[tuple[str, int], ...], **settings: Any) -> None:
        super().__init__(host=seeds[0][0], port=seeds[0][1], **settings)
        self.seeds = seeds

    @property
    def where(self) -> str:
        """For messages, without any secret."""
        nodes = ",".join(f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in self.seeds)
        return f"{'clusters' if self.tls is not None else 'cluster'}://{nodes}"

    def at(self, address: tuple[str, int]) -> Endpoint:
        """One of its nodes."""
        host, port = address
        node = Endpoint(host=host, port=port, username=self.username, password=self.password, tls=self.tls)
        node._context = self.tls_context()  # made once: reading certificates takes long
        return node


Topology = Endpoint | Quorum


def urls_of(text: str) -> list[str]:
    """The URLs in a text, with commas or blanks between them."""
    return _NEXT_URL.split(text.strip())


def find(server: object) -> Topology:
    """The servers that a caller means. Raises TypeError or ValueError, with no secret in the message."""
    if server is None:
        server = os.environ.get("LOCKFAST_URL") or None
    if isinstance(server, str):
        urls = urls_of(server)
        server = urls if len(urls) > 1 else server
    if isinstance(server, (list, tuple)):
        return _quorum(list(server))
    if isinstance(server, str) and server.lower().startswith(("cluster://", "clusters://")):
        return _cluster(server)
    if hasattr(server, "nodes_manager"):
        return _cluster_of_client(server)
    return endpoints.find(server)


def _cluster(url: str) -> Cluster:
    """What cluster://user:password@host:port,host:port?options says."""
    scheme, _, rest = url.partition("://")
    secure = scheme.lower() == "clusters"
    start, _, query = rest.partition("?")
    account, at, places = start.rpartition("@")
    places, _, db = places.partition("/")
    if db not in ("", "0"):
        raise ValueError(f"a cluster has database 0 only, got {db!r} in the server's URL: cluster://host:port")
    seeds = []
    settings: Endpoint | None = None
    for place in places.split(","):
        one = f"{'rediss' if secure else 'redis'}://{account}{at}{place.strip()}" + (f"?{query}" if query else "")
        settings = endpoints.find(one)
        if settings.db:
            raise ValueError(f"a cluster has database 0 only, got {settings.db} in the server's URL")
        seeds.append((settings.host, settings.port))
    assert settings is not None
    return Cluster(tuple(seeds), username=settings.username, password=settings.password, tls=settings.tls)


def _cluster_of_client(client: Any) -> Cluster:
    """The nodes, account and TLS settings of a RedisCluster or ValkeyCluster, for threads or asyncio."""
    nodes = list(client.nodes_manager.startup_nodes.values())
    if not nodes:
        raise TypeError(f"{type(client).__name__} names no startup node to read the cluster's address from")
    given = getattr(client.nodes_manager, "connection_kwargs", None) or getattr(client, "connection_kwargs", {})
    made = getattr(nodes[0], "connection_class", None) or given.get("connection_class")
    is_tls = bool(given.get("ssl")) or "SSL" in getattr(made, "__name__", "")
    seeds = tuple(dict.fromkeys((node.host, int(node.port)) for node in nodes))
    tls = endpoints.tls_of(given) if is_tls else None
    return Cluster(seeds, tls=tls, **endpoints.account_of(given))


def _quorum(servers: list[object]) -> Topology:
    if not servers:
        raise ValueError("name at least one server")
    if len(servers) == 1:
        return find(servers[0])
    found = [_one_of(servers, place) for place in range(len(servers))]
    nodes = tuple([node for node in found if type(node) is Endpoint and not node.sentinels])
    if len(nodes) < len(found):
        raise ValueError("a majority is of single servers: name no sentinel, cluster or list in it")
    addresses = [node.where for node in nodes]
    for address in addresses:
        if addresses.count(address) > 1:
            raise ValueError(f"{address} is named twice: it would vote twice")
    if len(nodes) == 2:
        raise ValueError("of 2 servers both would have to answer, which is less safe than 1: name 1, or 3 or 5")
    if len(nodes) % 2 == 0:
        warnings.warn(
            f"{len(nodes)} servers bear no more failures than {len(nodes) - 1}: name an odd number",
            stacklevel=5,
        )
    return Quorum(nodes)


def _one_of(servers: list[object], place: int) -> Topology:
    try:
        return find(_named(servers[place]))
    except ValueError as error:
        raise ValueError(f"server {place + 1} of {len(servers)}: {error}") from None  # whose frames have the URL


def _named(server: object) -> object:
    if server is None or server == "":
        raise TypeError(
            "each of several servers must be named by a URL or a client: the embedded one is not independent"
        )
    return server
