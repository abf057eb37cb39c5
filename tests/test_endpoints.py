"""Where the server is: every form of URL, clients of redis-py and valkey-py, and secrets that show nowhere."""

from __future__ import annotations

import ssl
import traceback
from typing import TYPE_CHECKING, Any

import pytest
import redis
import redis.asyncio
import redis.asyncio.sentinel
import redis.sentinel
import valkey
import valkey.asyncio
import valkey.sentinel

import lockfast
import lockfast.aio
from lockfast import Refused, endpoints
from lockfast.endpoints import Endpoint, find

if TYPE_CHECKING:
    from kit.servers import FreshServer, Server
    from kit.sides import Side

SECRET = "s3cr3t/pa:ss@wo%rd#ü"
ENCODED = "s3cr3t%2Fpa%3Ass%40wo%25rd%23%C3%BC"


def settings(endpoint: Endpoint) -> dict[str, Any]:
    """What differs from the defaults."""
    plain = Endpoint()
    found = {key: value for key, value in vars(endpoint).items() if value != vars(plain)[key] and key != "password"}
    if endpoint.password is not None:
        found["password"] = endpoint.password.reveal()
    return found


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("redis://", {}),
        ("redis://localhost", {}),
        ("redis://localhost:6379/0", {}),
        ("redis://cache", {"host": "cache"}),
        ("redis://cache:7000", {"host": "cache", "port": 7000}),
        ("redis://cache:7000/3", {"host": "cache", "port": 7000, "db": 3}),
        ("redis://cache/?db=3", {"host": "cache", "db": 3}),
        ("redis://cache?db=3", {"host": "cache", "db": 3}),
        ("REDIS://cache", {"host": "cache"}),
        ("valkey://cache:7000/1", {"host": "cache", "port": 7000, "db": 1}),
        ("redis://127.0.0.1:7000", {"host": "127.0.0.1", "port": 7000}),
        ("redis://[::1]:7000/2", {"host": "::1", "port": 7000, "db": 2}),
        ("redis://[fe80::1]", {"host": "fe80::1"}),
        ("redis://:pass@cache", {"host": "cache", "password": "pass"}),
        ("redis://user:pass@cache", {"host": "cache", "username": "user", "password": "pass"}),
        ("redis://us%40er:" + ENCODED + "@cache", {"host": "cache", "username": "us@er", "password": SECRET}),
        ("redis://cache?username=user&password=" + ENCODED, {"host": "cache", "username": "user", "password": SECRET}),
        ("rediss://cache", {"host": "cache", "tls": {}}),
        ("valkeys://cache:7000", {"host": "cache", "port": 7000, "tls": {}}),
        ("rediss://cache?ssl_ca_certs=/ca.pem", {"host": "cache", "tls": {"ssl_ca_certs": "/ca.pem"}}),
        ("rediss://cache?ssl_cert_reqs=none", {"host": "cache", "tls": {"ssl_cert_reqs": "none"}}),
        (
            "rediss://cache?ssl_certfile=/c&ssl_keyfile=/k&ssl_check_hostname=false",
            {"host": "cache", "tls": {"ssl_certfile": "/c", "ssl_keyfile": "/k", "ssl_check_hostname": "false"}},
        ),
        ("unix:///run/redis.sock", {"path": "/run/redis.sock"}),
        ("unix:///run/redis.sock?db=4", {"path": "/run/redis.sock", "db": 4}),
        ("unix://user:pass@/run/r.sock", {"path": "/run/r.sock", "username": "user", "password": "pass"}),
        ("unix:///run/a%20b.sock", {"path": "/run/a b.sock"}),
        ("valkey+unix:///run/v.sock", {"path": "/run/v.sock"}),
        ("redis://cache?socket_timeout=5&decode_responses=true&protocol=3", {"host": "cache"}),
    ],
)
def test_urls_are_read_as_redis_py_reads_them(url: str, expected: dict[str, Any]) -> None:
    assert settings(find(url)) == expected


@pytest.mark.parametrize(
    "url",
    [
        "",
        "cache:6379",
        "http://cache",
        "redis://cache:port",
        "redis://cache:99999",
        "redis://cache/zero",
        "redis://cache/-1",
        "redis://cache?db=x",
        "redis://cache?unknown=1",
        "redis://cache?ssl_ca_certs=/ca.pem",
        "unix://",
        "unix://run/redis.sock",
        "redis://[::1",
        "sentinel://cache",
    ],
)
def test_url_that_cannot_be_meant_is_refused(url: str) -> None:
    with pytest.raises(ValueError):
        find(url)


def test_unknown_option_is_named() -> None:
    with pytest.raises(ValueError, match="lease"):
        find("redis://cache?lease=5")


@pytest.mark.parametrize(
    "url",
    [
        "http://:topsecret@cache",
        "redis://:topsecret@cache/zero",
        "redis://:topsecret@cache:port",
        "redis://:topsecret@cache?unknown=topsecret",
        "redis://cache?password=topsecret&unknown=1",
        "redis://user:12/topsecret@cache/0",
        "redis://user:topsecret/12@cache/0",
        "unix://:topsecret@run/redis.sock",
    ],
)
def test_password_is_in_no_error(url: str) -> None:
    with pytest.raises(ValueError) as caught:
        find(url)
    assert "topsecret" not in str(caught.value)
    # All of the traceback but the source lines of this test.
    told = traceback.TracebackException.from_exception(caught.value)
    assert "topsecret" not in "".join(told.format_exception_only()) + str(told.__cause__)
    assert caught.value.__context__ is None or caught.value.__suppress_context__


def test_password_is_in_no_repr() -> None:
    for endpoint in (find(f"redis://user:{ENCODED}@cache"), find(redis.Redis("cache", password=SECRET))):
        shown = repr(endpoint) + str(endpoint) + repr(vars(endpoint)) + endpoint.where + repr(endpoint.greeting())
        assert SECRET not in shown
        assert "s3cr3t" not in shown
    for client in (lockfast.Lockfast, lockfast.aio.Lockfast):
        assert "s3cr3t" not in repr(client(f"redis://:{ENCODED}@cache"))


def test_address_is_shown_without_the_account() -> None:
    assert find("redis://user:pass@cache:7000/2").where == "redis://cache:7000/2"
    assert find("rediss://user:pass@[::1]:7000").where == "rediss://[::1]:7000/0"
    assert find("unix://user:pass@/run/r.sock?db=1").where == "unix:///run/r.sock?db=1"


def test_secret_shows_itself_in_no_text() -> None:
    secret = endpoints.Secret("topsecret")
    assert "topsecret" not in f"{secret} {secret!r} {[secret]}"
    assert secret.reveal() == "topsecret"


def test_variable_names_the_server_when_nobody_else_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCKFAST_URL", "redis://cache:7000/3")
    assert settings(find(None)) == {"host": "cache", "port": 7000, "db": 3}
    assert settings(find("redis://other")) == {"host": "other"}
    monkeypatch.setenv("LOCKFAST_URL", "")
    assert find(None).embedded
    monkeypatch.delenv("LOCKFAST_URL")
    assert find(None).embedded
    monkeypatch.setenv("LOCKFAST_URL", "http://cache")
    with pytest.raises(ValueError, match="scheme"):
        find(None)


# Clients that users have

FAMILIES: list[Any] = [redis.Redis, redis.asyncio.Redis, valkey.Valkey, valkey.asyncio.Valkey]


def named(family: Any) -> str:
    return f"{family.__module__}.{family.__name__}"


@pytest.mark.parametrize("family", FAMILIES, ids=named)
def test_settings_of_a_client_are_copied(family: Any) -> None:
    assert settings(find(family())) == {}
    made = family(host="cache", port=7000, db=3, username="user", password=SECRET)
    expected = {"host": "cache", "port": 7000, "db": 3, "username": "user", "password": SECRET}
    assert settings(find(made)) == expected
    assert settings(find(family.from_url(f"redis://user:{ENCODED}@cache:7000/3"))) == expected
    assert settings(find(family(unix_socket_path="/run/r.sock", db=1))) == {"path": "/run/r.sock", "db": 1}
    assert settings(find(family.from_url("unix:///run/r.sock?db=1"))) == {"path": "/run/r.sock", "db": 1}


@pytest.mark.parametrize("family", FAMILIES, ids=named)
def test_tls_settings_of_a_client_are_copied(family: Any) -> None:
    for client in (
        family(host="cache", ssl=True, ssl_ca_certs="/ca.pem", ssl_cert_reqs="none"),
        family.from_url("rediss://cache?ssl_ca_certs=/ca.pem&ssl_cert_reqs=none"),
    ):
        tls = find(client).tls
        assert tls is not None
        assert tls["ssl_ca_certs"] == "/ca.pem"
        assert tls["ssl_cert_reqs"] in ("none", ssl.CERT_NONE)
    assert find(family(host="cache")).tls is None


def test_tls_context_checks_unless_told_not_to() -> None:
    strict = find("rediss://cache").tls_context()
    assert strict is not None
    assert (strict.check_hostname, strict.verify_mode) == (True, ssl.CERT_REQUIRED)
    names_off = find("rediss://cache?ssl_check_hostname=false").tls_context()
    assert names_off is not None
    assert (names_off.check_hostname, names_off.verify_mode) == (False, ssl.CERT_REQUIRED)
    off = find("rediss://cache?ssl_cert_reqs=none").tls_context()
    assert off is not None
    assert (off.check_hostname, off.verify_mode) == (False, ssl.CERT_NONE)
    assert find("redis://cache").tls_context() is None


class Provider(redis.CredentialProvider):
    """Hands out a new password every time, as those of clouds do."""

    def __init__(self, *account: str) -> None:
        self.account = account
        self.asked = 0

    def get_credentials(self) -> Any:
        self.asked += 1
        return (*self.account, f"token{self.asked}")


@pytest.mark.parametrize("family", [redis.Redis, redis.asyncio.Redis], ids=named)
@pytest.mark.parametrize("account", [(), ("user",)])
def test_credential_provider_is_asked_for_every_connection(family: Any, account: tuple[str, ...]) -> None:
    provider = Provider(*account)
    endpoint = find(family(credential_provider=provider))
    assert endpoint.username == "".join(account)
    assert endpoint.password is not None
    first, second = endpoint.password.reveal(), endpoint.password.reveal()
    assert first != second
    assert "token" not in repr(endpoint)


SENTINELS = [redis.sentinel.Sentinel, redis.asyncio.sentinel.Sentinel, valkey.sentinel.Sentinel]


@pytest.mark.parametrize("family", SENTINELS, ids=named)
def test_client_of_a_sentinel_is_read_for_its_sentinels_and_its_master(family: Any) -> None:
    made = family([("one", 1), ("two", 2)], sentinel_kwargs={"password": "theirs"}, password="pass")
    endpoint = find(made.master_for("mymaster", db=2))
    assert [sentinel.host_and_port for sentinel in endpoint.sentinels] == ["one:1", "two:2"]
    assert [sentinel.password and sentinel.password.reveal() for sentinel in endpoint.sentinels] == ["theirs"] * 2
    assert (endpoint.service, endpoint.db) == ("mymaster", 2)
    assert endpoint.password is not None
    assert endpoint.password.reveal() == "pass"
    assert endpoint.where == "sentinel://one:1,two:2/mymaster/2"


def test_client_that_a_sentinel_made_for_replicas_is_refused() -> None:
    sentinel: Any = redis.sentinel.Sentinel([("127.0.0.1", 1)])  # type: ignore[no-untyped-call]
    with pytest.raises(TypeError, match="master_for"):
        find(sentinel.slave_for("mymaster"))


def test_sentinel_url_names_sentinels_master_database_and_both_accounts() -> None:
    endpoint = find(
        "sentinel://me:p%40ss@one:1,[::1]:2,three/orders%2Feu/3?sentinel_username=s&sentinel_password=t%26t&socket_timeout=1"
    )
    assert [(each.host, each.port) for each in endpoint.sentinels] == [("one", 1), ("::1", 2), ("three", 26379)]
    assert {each.username for each in endpoint.sentinels} == {"s"}
    assert [each.password and each.password.reveal() for each in endpoint.sentinels] == ["t&t"] * 3
    assert (endpoint.service, endpoint.db, endpoint.username) == ("orders/eu", 3, "me")
    assert endpoint.password is not None
    assert endpoint.password.reveal() == "p@ss"
    assert endpoint.tls is None
    assert "p@ss" not in repr(endpoint)
    assert not endpoint.lets_anybody_in, "whether it is a master is decided by the greeting"


def test_sentinels_url_is_encrypted_to_master_and_sentinels() -> None:
    endpoint = find("sentinels://one,two/orders?ssl_check_hostname=no")
    assert endpoint.tls == {"ssl_check_hostname": "no"}
    assert [each.tls for each in endpoint.sentinels] == [endpoint.tls] * 2
    assert endpoint.where == "sentinels://one:26379,two:26379/orders/0"


@pytest.mark.parametrize(
    "url",
    [
        "sentinel://one,two",
        "sentinel:///service",
        "sentinel://one,,two/service",
        "sentinel://one:port/service",
        "sentinel://one:99999/service",
        "sentinel://[::1/service",
        "sentinel://one/service/zero",
        "sentinel://one/service?ssl_ca_certs=/ca.pem",
        "redis://one?sentinel_password=x",
        "sentinel://one:p/service?sentinel_password=topsecret",
    ],
)
def test_sentinel_url_that_cannot_be_meant_is_refused(url: str) -> None:
    with pytest.raises(ValueError) as caught:
        find(url)
    assert "topsecret" not in str(caught.value)


@pytest.mark.parametrize("family", FAMILIES, ids=named)
def test_pipeline_is_refused(family: Any) -> None:
    with pytest.raises(TypeError, match="Pipeline"):
        find(family().pipeline())


@pytest.mark.parametrize("family", [redis.RedisCluster, redis.asyncio.RedisCluster, valkey.ValkeyCluster], ids=named)
def test_cluster_is_refused(family: Any) -> None:
    # A real one wants to talk to its nodes first, and its __del__ knows nothing of one that did not.
    unborn = type(family.__name__, (family,), {"__init__": lambda _: None, "__del__": lambda _: None})
    client = unborn()
    client.nodes_manager = object()
    with pytest.raises(TypeError, match="cluster"):
        find(client)


class Foreign:
    connection_pool = None


@pytest.mark.parametrize("thing", [object(), 5, b"redis://cache", {"host": "x"}, Foreign(), redis.Redis, ["redis://a"]])
def test_anything_else_is_refused(thing: object) -> None:
    with pytest.raises(TypeError):
        find(thing)


def test_subclass_of_a_client_is_a_client() -> None:
    class Own(redis.Redis):
        pass

    assert find(Own(host="cache")).host == "cache"


# On real servers


@pytest.mark.parametrize("family", FAMILIES, ids=named)
def test_locks_are_taken_with_the_settings_of_any_client(side: Side, server: Server, family: Any, name: str) -> None:
    for client in (family(port=server.port, db=2), family(unix_socket_path=server.unix_path, db=2)):
        with side.client(client) as lf, lf.lock(name) as grant:
            assert grant.held
    with server.wire() as wire:
        wire.call("SELECT", 2)
        assert wire.call("DBSIZE") == 1
        wire.call("FLUSHDB")


def test_urls_of_a_server_with_a_password(side: Side, fresh_server: FreshServer, name: str) -> None:
    server = fresh_server("valkey")
    server.command("ACL", "SETUSER", "app@user", "on", f">{SECRET}", "~lockfast:*", "&lockfast:*", "+@all")
    server.command("ACL", "SETUSER", "default", "resetpass", f">{SECRET}")
    for url in (
        f"redis://app%40user:{ENCODED}@127.0.0.1:{server.port}",
        f"redis://:{ENCODED}@127.0.0.1:{server.port}",
        f"unix://app%40user:{ENCODED}@{server.unix_path}",
    ):
        with side.client(url) as lf, lf.lock(name):
            pass
    for url in (f"redis://127.0.0.1:{server.port}", f"redis://:topsecret@127.0.0.1:{server.port}"):
        with side.client(url) as lf, pytest.raises(Refused) as caught:
            lf.lock(name).acquire(wait=2)
        assert caught.value.code in ("NOAUTH", "WRONGPASS")
        assert "topsecret" not in "".join(traceback.format_exception(caught.value))


@pytest.mark.needs_redis
def test_tls_by_url_and_by_client(side: Side, fresh_server: FreshServer, name: str) -> None:
    server = fresh_server("redis", tls="valid")
    client = redis.Redis(port=server.tls_port, ssl=True, ssl_ca_certs=server.ca_file)
    for given in (f"{server.tls_url}?ssl_ca_certs={server.ca_file}", f"{server.tls_url}?ssl_cert_reqs=none", client):
        with side.client(given) as lf, lf.lock(name) as grant:
            assert grant.held
