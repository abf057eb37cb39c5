"""Where the server is and how to be let in: from nothing, a URL, or a redis-py or valkey-py client.

An Endpoint is plain settings; opening sockets is the drivers' work. Clients that users hand in are only read: their
address, account and TLS settings are copied, and no request ever goes through their pool or their retries.
URLs are read here and not by redis-py, so that `lockfast run` does not pay for importing it.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable

SCHEMES = {
    "redis": "tcp",
    "valkey": "tcp",
    "rediss": "tls",
    "valkeys": "tls",
    "unix": "unix",
    "redis+unix": "unix",
    "valkey+unix": "unix",
}
TLS_OPTIONS = ("ssl_ca_certs", "ssl_ca_path", "ssl_ca_data", "ssl_certfile", "ssl_keyfile", "ssl_password")
TLS_CHECKS = ("ssl_cert_reqs", "ssl_check_hostname")
# Settings of redis-py's URLs that concern its own pool, parser and retries: known, and without meaning here.
IGNORED = {
    "socket_timeout",
    "socket_connect_timeout",
    "socket_keepalive",
    "retry_on_timeout",
    "max_connections",
    "health_check_interval",
    "decode_responses",
    "encoding",
    "protocol",
    "client_name",
    "timeout",
    "lib_name",
    "lib_version",
}


class Secret:
    """A password that shows itself in no repr, log or traceback."""

    __slots__ = ("_reveal",)

    def __init__(self, reveal: str | Callable[[], str]) -> None:
        self._reveal = reveal

    def __repr__(self) -> str:
        return "Secret(***)"

    def reveal(self) -> str:
        return self._reveal if isinstance(self._reveal, str) else self._reveal()


class Endpoint:
    """One server's address, account and TLS settings.

    sentinels: who tells the address of the master of `service`; asked for every new connection (drivers/sentinel.py).
    embedded: the address comes from the embedded server, which is started when it is needed.
    """

    def __init__(
        self,
        *,
        host: str = "localhost",
        port: int = 6379,
        path: str = "",
        db: int = 0,
        username: str = "",
        password: Secret | None = None,
        tls: dict[str, Any] | None = None,
        sentinels: tuple[Endpoint, ...] = (),
        service: str = "",
        embedded: bool = False,
    ) -> None:
        self.host = host
        self.port = port
        self.path = path
        self.db = db
        self.username = username
        self.password = password
        self.tls = tls
        self.sentinels = sentinels
        self.service = service
        self.embedded = embedded
        self.spoken = False  # learned: a connection was let in, so the way of speaking is right
        self.plain = False  # learned: the server is too old for the first line of scripts; see drivers/dialect.py
        self.scout: Any = None  # what drivers/sentinel.py knows of the master
        self._context: ssl.SSLContext | None = None

    def __repr__(self) -> str:
        return f"<Endpoint {self.where}>"

    @property
    def where(self) -> str:
        """The address for messages, without any secret."""
        if self.embedded:
            return "the embedded server"
        if self.path:
            return f"unix://{self.path}?db={self.db}"
        if self.sentinels:
            hosts = ",".join(sentinel.host_and_port for sentinel in self.sentinels)
            return f"{'sentinels' if self.tls is not None else 'sentinel'}://{hosts}/{self.service}/{self.db}"
        return f"{'rediss' if self.tls is not None else 'redis'}://{self.host_and_port}/{self.db}"

    def where_at(self, address: tuple[str, int] | None) -> str:
        """The same of the server at an address that the sentinels have named, if they have: what fails is not them."""
        return self.where if address is None else f"the master {_shown(*address)} that {self.where} names"

    @property
    def host_and_port(self) -> str:
        return _shown(self.host, self.port)

    def greeting(self) -> list[tuple[str | Secret, ...]]:
        """The commands that a new connection starts with: account, database, and a name for CLIENT LIST."""
        commands: list[tuple[str | Secret, ...]] = []
        if self.password is not None:
            commands.append(("AUTH", self.username, self.password) if self.username else ("AUTH", self.password))
        if self.db:
            commands.append(("SELECT", str(self.db)))
        if self.sentinels:
            commands.append(("HELLO",))  # tells whether it is a master; unlike ROLE it is allowed to every account
        commands.append(("CLIENT", "SETNAME", "lockfast"))
        return commands

    @property
    def lets_anybody_in(self) -> bool:
        """Whether nothing in the greeting decides where a request lands and as whom; then it is not waited for."""
        return self.password is None and not self.db and not self.sentinels

    def tls_context(self) -> ssl.SSLContext | None:
        """The TLS context that the settings describe; None for plain connections."""
        if self.tls is None:
            return None
        if self._context is None:
            import ssl

            tls = self.tls
            try:
                context = ssl.create_default_context(
                    cafile=tls.get("ssl_ca_certs"), capath=tls.get("ssl_ca_path"), cadata=tls.get("ssl_ca_data")
                )
            except OSError as error:  # ssl.SSLError is one too
                given = tls.get("ssl_ca_certs") or tls.get("ssl_ca_path") or "ssl_ca_data"
                raise ValueError(f"the authority's certificate cannot be read: {given}: {error}") from error
            requirement = tls.get("ssl_cert_reqs", "required")
            unchecked = requirement in ("none", "CERT_NONE", ssl.CERT_NONE)
            context.check_hostname = not unchecked and _truth(tls.get("ssl_check_hostname", True))
            if unchecked:
                context.verify_mode = ssl.CERT_NONE
            elif requirement in ("optional", "CERT_OPTIONAL", ssl.CERT_OPTIONAL):
                context.verify_mode = ssl.CERT_OPTIONAL
            if tls.get("ssl_certfile"):
                try:
                    # Always a function: without one, OpenSSL would ask for the password at the terminal, and wait.
                    context.load_cert_chain(tls["ssl_certfile"], tls.get("ssl_keyfile"), self._key_password)
                except OSError as error:
                    files = f"{tls['ssl_certfile']}, {tls.get('ssl_keyfile')}"
                    raise ValueError(f"the client's certificate or key cannot be read: {files}: {error}") from error
            self._context = context
        return self._context

    def _key_password(self) -> str:
        assert self.tls is not None
        password: str | None = self.tls.get("ssl_password")
        if password is None:
            raise ValueError(f"the key {self.tls.get('ssl_keyfile')} is encrypted: give its password as ssl_password")
        return password


def find(server: object) -> Endpoint:
    """The endpoint that a caller means. Raises TypeError or ValueError, with no secret in the message."""
    if server is None:
        url = os.environ.get("LOCKFAST_URL")
        return _from_url(url) if url else Endpoint(embedded=True)
    if isinstance(server, str):
        return _from_url(server)
    if isinstance(server, (list, tuple)):
        raise TypeError("one server is meant here, got a list")
    return _from_client(server)


def _from_url(url: str) -> Endpoint:
    from urllib.parse import parse_qsl, unquote, urlsplit

    if url.lower().startswith(("sentinel://", "sentinels://")):
        from lockfast import sentinels

        return sentinels.read(url, _from_url)
    _refuse_several(url)
    try:
        split = urlsplit(url)
        port = split.port
    except ValueError:
        raise ValueError("the server's URL cannot be read; write redis://host:port/db") from None
    sort = SCHEMES.get(split.scheme.lower())
    if sort is None:
        raise ValueError(
            f"unknown scheme {split.scheme!r} in the server's URL; use redis://, rediss://, unix://, "
            "sentinel:// or cluster:// (or valkey://)"
        )
    options = dict(parse_qsl(split.query, keep_blank_values=True))
    db = options.pop("db", "") or ("" if sort == "unix" else split.path.strip("/")) or "0"
    if not db.isascii() or not db.isdigit():
        raise ValueError(
            "the database in the server's URL must be a number: redis://host:port/0 (write / in a password as %2F)"
        )
    username = options.pop("username", unquote(split.username or ""))
    password = options.pop("password", unquote(split.password or ""))
    tls = {key: options.pop(key) for key in (*TLS_OPTIONS, *TLS_CHECKS) if key in options}
    if tls and sort != "tls":
        raise ValueError(f"{', '.join(tls)} in the server's URL: only rediss:// and sentinels:// are encrypted")
    unknown = sorted(set(options) - IGNORED)
    if unknown:
        raise ValueError(f"unknown option {', '.join(unknown)} in the server's URL")
    settings: dict[str, Any] = {
        "db": int(db),
        "username": username,
        "password": Secret(password) if password else None,
        "tls": tls if sort == "tls" else None,
    }
    if sort == "unix":
        path = unquote(split.path)
        if split.hostname:
            raise ValueError("a unix:// URL has three slashes: unix:///path/to/socket?db=0")
        if not path:
            raise ValueError("a unix:// URL needs a path: unix:///path/to/socket?db=0")
        return Endpoint(path=path, **settings)
    return Endpoint(host=split.hostname or "localhost", port=port or 6379, **settings)


def _refuse_several(url: str) -> None:
    """Raise ValueError where commas stand behind the host: whoever writes them means more than one server."""
    scheme, _, rest = url.partition("://")
    if "," not in rest or SCHEMES.get(scheme.lower()) == "unix":
        return
    place = rest.partition("?")[0].rpartition("@")[2].rstrip()
    if place.endswith(","):
        raise ValueError("a comma ends the server's URL: name another server behind it, or leave the comma out")
    if "," in place.partition("/")[0]:
        raise ValueError(
            "commas in the server's URL: each of several servers needs a whole URL, redis://a,redis://b,redis://c"
        )


def _from_client(client: Any) -> Endpoint:
    family = type(client).__module__.partition(".")[0]
    class_name = type(client).__name__
    mro_families = {base.__module__.partition(".")[0] for base in type(client).__mro__}
    if not mro_families & {"redis", "valkey"}:
        raise TypeError(f"server must be a URL, or a client of redis-py or valkey-py, got {family}.{class_name}")
    if hasattr(client, "nodes_manager"):
        raise TypeError(f"{class_name} is a client of a cluster, and one server is meant here")
    if "Pipeline" in class_name:
        raise TypeError(f"a {class_name} queues commands; hand in the client that it was made from")
    pool = getattr(client, "connection_pool", None)
    if pool is None:
        raise TypeError(f"{class_name} has no connection pool to read the server's address from")
    given: dict[str, Any] = pool.connection_kwargs
    kind = pool.connection_class.__name__
    is_tls = "SSL" in kind or bool(given.get("ssl"))
    sentinels: tuple[Endpoint, ...] = ()
    if hasattr(pool, "sentinel_manager"):
        if not pool.is_master:
            raise TypeError(f"this {class_name} of a Sentinel asks replicas: hand in one that master_for() has made")
        sentinels = tuple(_from_client(sentinel) for sentinel in pool.sentinel_manager.sentinels)
    return Endpoint(
        host=given.get("host") or "localhost",
        port=int(given.get("port") or 6379),
        path=given.get("path") or "",
        db=int(given.get("db") or 0),
        tls=tls_of(given) if is_tls else None,
        sentinels=sentinels,
        service=str(pool.service_name) if sentinels else "",
        **account_of(given),
    )


def account_of(given: dict[str, Any]) -> dict[str, Any]:
    """User name and password out of the settings of a client."""
    password = Secret(given["password"]) if given.get("password") else None
    username = given.get("username") or ""
    provider = given.get("credential_provider")
    if provider is not None:
        # Asked anew for every connection: such credentials are usually short-lived.
        password = Secret(lambda: str(provider.get_credentials()[-1]))
        credentials = provider.get_credentials()
        username = str(credentials[0]) if len(credentials) > 1 else ""
    return {"username": username, "password": password}


def tls_of(given: dict[str, Any]) -> dict[str, Any]:
    """The TLS settings out of those of a client."""
    return {key: given[key] for key in (*TLS_OPTIONS, *TLS_CHECKS) if given.get(key) is not None}


def _shown(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _truth(value: object) -> bool:
    return value not in (False, "False", "false", "0", "no", "")
