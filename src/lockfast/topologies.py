"""What shape of servers a caller means: one server, or a majority of several. Addresses are read by endpoints.py."""

from __future__ import annotations

import os
import re
import warnings
from typing import TYPE_CHECKING

from lockfast import endpoints

if TYPE_CHECKING:
    from lockfast.endpoints import Endpoint

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


Topology = endpoints.Endpoint | Quorum


def find(server: object) -> Topology:
    """The servers that a caller means. Raises TypeError or ValueError, with no secret in the message."""
    if server is None:
        server = os.environ.get("LOCKFAST_URL") or None
    if isinstance(server, str):
        urls = _NEXT_URL.split(server.strip())
        server = urls if len(urls) > 1 else server
    if isinstance(server, (list, tuple)):
        return _quorum(list(server))
    return endpoints.find(server)


def _quorum(servers: list[object]) -> Topology:
    if not servers:
        raise ValueError("name at least one server")
    if len(servers) == 1:
        return find(servers[0])
    found = [find(_named(server)) for server in servers]
    nodes = tuple([node for node in found if isinstance(node, endpoints.Endpoint) and node.resolve is None])
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


def _named(server: object) -> object:
    if server is None or server == "":
        raise TypeError(
            "each of several servers must be named by a URL or a client: the embedded one is not independent"
        )
    return server
