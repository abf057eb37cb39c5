"""Which servers a URL means, and in what shape."""

from __future__ import annotations

import os
from typing import NamedTuple

from lockfast import endpoints, topologies
from lockfast.endpoints import Endpoint


class Shape(NamedTuple):
    """kind: one, quorum, sentinel or cluster. nodes: the servers that the URL names (for sentinel, the Sentinels).

    like: account, database and TLS settings for servers that those name.
    """

    kind: str
    nodes: tuple[Endpoint, ...]
    service: str = ""
    like: Endpoint | None = None

    def at(self, host: str, port: int) -> Endpoint:
        """The server at an address that a Sentinel or a cluster node told."""
        like = self.like or self.nodes[0]
        return Endpoint(host=host, port=port, db=like.db, username=like.username, password=like.password, tls=like.tls)


def read(url: str | None) -> Shape:
    """What a URL means; None: LOCKFAST_URL, else the embedded server. Raises ValueError, with no secret in it."""
    url = url or os.environ.get("LOCKFAST_URL") or None
    if url is None:
        return Shape("one", (endpoints.find(None),))
    urls = topologies.urls_of(url)
    if len(urls) > 1:  # not by topologies.find(), which refuses what is to be judged here
        shapes = [read(one) for one in urls]
        if any(shape.kind != "one" for shape in shapes):
            raise ValueError("the nodes of a quorum are single servers: redis://, rediss:// or unix://")
        return Shape("quorum", tuple(shape.nodes[0] for shape in shapes))
    found = topologies.find(urls[0])
    assert isinstance(found, Endpoint)
    if isinstance(found, topologies.Cluster):
        meant = Shape("cluster", (), like=found)
        # Not by found.at(), which reads the certificates: whether they can be read is to be judged, too.
        return meant._replace(nodes=tuple(meant.at(*seed) for seed in found.seeds))
    if found.sentinels:
        return Shape("sentinel", tuple(found.sentinels), found.service, found)
    return Shape("one", (found,))
