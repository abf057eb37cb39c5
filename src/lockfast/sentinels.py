"""Reads sentinel:// URLs: sentinel://[user:password@]host:port,host:port/service[/db][?option=value&…]

User, password and the options that redis:// and rediss:// know are those of the master; `sentinel_username` and
`sentinel_password` are for the sentinels. sentinels:// is encrypted to both, with the same ssl_* options.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit

from lockfast.endpoints import Endpoint, Secret

if TYPE_CHECKING:
    from collections.abc import Callable

SCHEMES = {"sentinel": "redis", "sentinels": "rediss"}  # and how the URL of their master would begin
PORT = 26379


def read(url: str, read_one: Callable[[str], Endpoint]) -> Endpoint:
    """The master that a sentinel:// URL means. read_one: reads the URL of one server. Raises ValueError."""
    scheme, _, rest = url.partition("://")
    netloc = re.split("[/?#]", rest, maxsplit=1)[0]
    account, at, hosts = netloc.rpartition("@")
    path, _, query = rest[len(netloc) :].partition("?")
    service, _, db = path.strip("/").partition("/")
    if not service:
        raise ValueError("a sentinel:// URL names its master: sentinel://host:port,host:port/service")
    options = dict(parse_qsl(query, keep_blank_values=True))
    username, password = options.pop("sentinel_username", ""), options.pop("sentinel_password", "")
    # Everything but where it is can be said, and is read, as for one server.
    master = read_one(f"{SCHEMES[scheme.lower()]}://{account}{at}master/{db}?{urlencode(options)}")
    theirs: dict[str, Any] = {"username": username, "password": Secret(password) if password else None}
    sentinels = [Endpoint(host=host, port=port, tls=master.tls, **theirs) for host, port in map(_address, _each(hosts))]
    return Endpoint(
        db=master.db,
        username=master.username,
        password=master.password,
        tls=master.tls,
        sentinels=tuple(sentinels),
        service=unquote(service),
    )


def _each(hosts: str) -> list[str]:
    return [host.strip() for host in hosts.split(",")]


def _address(host: str) -> tuple[str, int]:
    try:
        split = urlsplit(f"//{host}")
        name, port = split.hostname, split.port
    except ValueError:
        name, port = None, None
    if not name:
        raise ValueError(f"{host!r} is no address of a sentinel; write sentinel://host:port,host:port/service")
    return name, port or PORT
