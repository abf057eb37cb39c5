"""Which servers a URL means, and in what shape. The one place here that reads the URLs of several servers."""

from __future__ import annotations

import os
import re
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

from lockfast import endpoints
from lockfast.endpoints import Endpoint, Secret

_NEXT_URL = re.compile(r"[\s,]+(?=[A-Za-z+]+://)")
_PLAIN = {"sentinel": "redis", "sentinels": "rediss", "cluster": "redis", "clusters": "rediss"}
SENTINEL_PORT = 26379


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
    urls = _NEXT_URL.split(url.strip())
    if len(urls) > 1:
        shapes = [read(one) for one in urls]
        if any(shape.kind != "one" for shape in shapes):
            raise ValueError("the nodes of a quorum are single servers: redis://, rediss:// or unix://")
        return Shape("quorum", tuple(shape.nodes[0] for shape in shapes))
    scheme = url.strip().partition("://")[0].lower()
    return _several(url.strip(), scheme) if scheme in _PLAIN else Shape("one", (endpoints.find(url.strip()),))


def _several(url: str, scheme: str) -> Shape:
    """sentinel://[user:password@]h1:p,h2:p/service[/db][?options] and cluster://[user:password@]h1:p,h2:p[?options]"""
    kind = scheme.removesuffix("s")
    try:
        split = urlsplit(url)
    except ValueError:  # its words may hold the password
        raise ValueError(f"the {kind}:// URL cannot be read; write {kind}://h1:port,h2:port") from None
    userinfo, at, hosts = split.netloc.rpartition("@")
    service, _, db = split.path.strip("/").partition("/") if kind == "sentinel" else ("", "", "")
    if kind == "sentinel" and not service:
        raise ValueError("a sentinel:// URL names the service: sentinel://h1:26379,h2:26379/mymaster")
    options = [option for option in split.query.split("&") if option]
    own = dict(option.split("=", 1) for option in options if option.startswith("sentinel_") and "=" in option)
    query = "&".join(option for option in options if not option.startswith("sentinel_"))
    made = [
        endpoints.find(f"{_PLAIN[scheme]}://{userinfo}{at}{host}/{db}" + (f"?{query}" if query else ""))
        for host in hosts.split(",")
        if host
    ]
    if not made:
        raise ValueError(f"a {kind}:// URL names at least one host")
    if kind == "cluster":
        return Shape(kind, tuple(made), like=made[0])
    like = made[0]
    password = own.get("sentinel_password")
    sentinels = [
        Endpoint(
            host=one.host,
            port=one.port if ":" in host.rpartition("]")[2] else SENTINEL_PORT,
            username=unquote(own.get("sentinel_username", "")),
            password=Secret(unquote(password)) if password else None,
            tls=one.tls,
        )
        for host, one in zip([host for host in hosts.split(",") if host], made, strict=True)
    ]
    return Shape(kind, tuple(sentinels), service, like)
