"""What shape of servers a caller means: one server, or a majority of several. Addresses are read by endpoints.py."""

from __future__ import annotations

import os
import re
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
    raise TypeError("a majority of several servers is not supported yet: name one server")
