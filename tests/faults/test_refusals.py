"""The server says no: the caller hears its words at the acquire, and nothing that is not ours is touched."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from kit.resp import ServerError
from kit.servers import wait_until
from lockfast.clock import now
from lockfast.errors import Refused, Unreachable

if TYPE_CHECKING:
    from collections.abc import Callable

    from faults.conftest import Eyes, EyesOn
    from kit.proxy import Proxy, ProxyFor
    from kit.servers import FreshServer, Kind, Server
    from kit.sides import Side


@pytest.mark.slow
def test_replica_refuses_by_its_name(fresh_server: FreshServer, server_kind: Kind, side: Side) -> None:
    """F13: READONLY: a stale primary is an error of its own, not a "busy"."""
    server = fresh_server(server_kind)
    with side.client(server.url) as lf:
        grant = lf.lock("held", lease=30).acquire()
        primary = fresh_server(server_kind)
        server.command("REPLICAOF", "127.0.0.1", primary.port)
        for attempt in (lf.lock("name").try_acquire, lf.lock("name", wait=5).acquire, grant.extend):
            with pytest.raises(Refused, match="primary") as caught:
                attempt()
            assert caught.value.code == "READONLY"


@pytest.mark.slow
def test_full_server_refuses_acquires_and_lets_go(
    fresh_server: FreshServer, server_kind: Kind, proxy_for: ProxyFor, side: Side, eyes_on: EyesOn
) -> None:
    """F21: OOM. Nothing new is taken, be the name known or not; what is held is renewed, released, handed over."""
    server = fresh_server(server_kind, maxmemory="100mb")
    eyes, proxy = eyes_on(server), proxy_for(server)
    with side.client(server.url) as lf, side.client(proxy.url) as other:
        with lf.lock("known", lease=30):
            pass
        kept = lf.lock("kept", lease=0.6).acquire()
        released = lf.lock("released", lease=30).acquire()
        handed_over = lf.lock("handed over", lease=30).acquire()
        waiting = side.spawn(other.lock("handed over", lease=30).acquire, wait=20)
        wait_settled(proxy)
        server.command("CONFIG", "SET", "maxmemory", "1")
        handed_over.release()  # while the waiter needs no heartbeat, which would be refused like an acquire
        after = waiting.result()
        after.extend()
        after.release()
        with pytest.raises(ServerError, match="OOM"):
            server.command("SET", "key", "value")
        wrong = []
        for name in ("known", "unknown"):
            for attempt in (lf.lock(name, lease=30).try_acquire, lf.lock(name, lease=30, wait=5).acquire):
                with pytest.raises(Refused) as refusal:
                    attempt()
                if refusal.value.code != "OOM":
                    wrong.append(f"{name}: {refusal.value}")
        before = kept.deadline
        kept.extend()
        wait_until(lambda: kept.deadline > before + 0.3, what="renewed by the keeper")
        released.release()
        assert eyes.is_free("released")
        kept.check()
        kept.release()
        assert eyes.is_free("kept")
        assert not wrong, wrong


def wait_settled(proxy: Proxy) -> None:
    """The waiter behind the proxy is subscribed and has asked again since: now it only waits."""
    mark = proxy.wait_for("SUBSCRIBE").number
    proxy.wait_until(lambda: any(asked.answered for asked in proxy.seen("EVALSHA", since=mark)))


@pytest.mark.slow
def test_full_server_does_not_lose_the_queue_of_a_dead_holder(
    fresh_server: FreshServer, server_kind: Kind, proxy_for: ProxyFor, side: Side, eyes_on: EyesOn
) -> None:
    """F21: at maxmemory a lease ends unreleased; whoever is told "granted" must hold it by the server's book too."""
    server = fresh_server(server_kind, maxmemory="100mb")
    proxy = proxy_for(server)
    with side.client(server.url) as dead, side.client(proxy.url) as lf:
        gone = dead.lock("name", lease=1.0, renew=False).acquire()
        waiting = side.spawn(lf.lock("name", lease=30).acquire, wait=20)
        wait_settled(proxy)
        server.command("CONFIG", "SET", "maxmemory", "1")
        error = waiting.error()
        if error is None:
            assert not gone.held
            assert eyes_on(server).holder("name") == waiting.result().ticket
        else:
            assert isinstance(error, Refused)


@pytest.mark.parametrize(
    "words",
    [
        b"-MISCONF Errors writing to the AOF file: No space left on device\r\n",
        b"-NOREPLICAS Not enough good replicas to write.\r\n",
        b"-ERR something nobody has thought of\r\n",
    ],
)
def test_error_of_the_server_is_told_in_its_words(
    proxy: Proxy, side: Side, eyes: Eyes, name: str, words: bytes
) -> None:
    """F22"""
    text = words[1:-2].decode()
    with side.client(proxy.url) as lf:
        proxy.when("EVALSHA", containing=name).inject_reply(words)
        with pytest.raises(Refused, match=text) as caught:
            lf.lock(name).acquire(wait=5)
        assert caught.value.code == text.split()[0]
        with lf.lock(name) as grant:
            proxy.when("EVALSHA", containing=grant.ticket).inject_reply(words)
            with pytest.raises(Refused, match=text):
                grant.release()
            assert not grant.lost
            grant.release()
        assert eyes.is_free(name)


RIGHTS = {
    "no scripts": ("~*", "&*", "+@all", "-eval", "-evalsha"),
    "other keys": ("~elsewhere:*", "&*", "+@all"),
    "no writes": ("%R~*", "&*", "+@all"),
}


@pytest.mark.parametrize("rights", RIGHTS.values(), ids=RIGHTS.keys())
def test_account_that_may_not_lock_is_refused_at_the_acquire(
    fresh_server: FreshServer, server_kind: Kind, side: Side, rights: tuple[str, ...]
) -> None:
    """F23: at the acquire, and not first at the release."""
    server = fresh_server(server_kind)
    if server.version < (7,) and rights == RIGHTS["no writes"]:
        pytest.skip("this server knows no rights to read only")
    with side.client(server.url) as lf, lf.lock("warm-up"):
        pass
    server.command("ACL", "SETUSER", "limited", "on", ">secret", *rights)
    with side.client(server.url.replace("//", "//limited:secret@")) as lf:
        for attempt in (lf.lock("name").try_acquire, lf.lock("name", wait=5).acquire):
            with pytest.raises(Refused, match=r"(?i)noperm|permission|ACL"):
                attempt()
    assert server.command("EXISTS", "lockfast:{name}") == 0


@pytest.mark.slow
def test_account_without_channels_gets_in_by_asking_again(
    fresh_server: FreshServer, server_kind: Kind, side: Side, eyes_on: EyesOn
) -> None:
    """F23: no right to subscribe or publish: holders and waiters of such an account still take turns."""
    server = fresh_server(server_kind)
    server.command("ACL", "SETUSER", "deaf", "on", ">secret", "~lockfast:*", "resetchannels", "+@all")
    url = server.url.replace("//", "//deaf:secret@")
    with side.client(url) as lf, side.client(url) as other, side.client(server.url) as hearing:
        for waiter in (other, hearing):
            grant = lf.lock("name", lease=30).acquire(wait=10)
            waiting = side.spawn(waiter.lock("name", lease=30).acquire, wait=20)
            eyes_on(server).wait_waiting("name")
            released_at = now()
            grant.release()
            after = waiting.result()
            assert now() - released_at < 3
            assert after.fence > grant.fence
            after.release()


@pytest.mark.parametrize(
    "put",
    [
        ("RPUSH", "element"),
        ("SET", "a string of somebody else"),
        ("SET", "1 lock"),
        ("SET", ""),
        ("SET", "2 lock 1 5 0 0 0 0 - 0 0 0 "),
    ],
    ids=" ".join,
)
def test_foreign_value_at_the_key_is_refused_and_never_touched(
    server: Server, side: Side, name: str, put: tuple[str, str]
) -> None:
    """F26, F27: another type, a string that is no state of ours, a format of the future."""
    key = f"lockfast:{{{name}}}"
    server.command(put[0], key, put[1])
    before = server.command("DUMP", key)
    with side.client(server.url) as lf:
        for attempt in (lf.lock(name).try_acquire, lf.lock(name, wait=5).acquire):
            began = now()
            with pytest.raises(Refused):
                attempt()
            assert now() - began < 2
        with pytest.raises(Refused):
            lf.inspect(name)
        assert lf.names() == []
    assert server.command("DUMP", key) == before
    assert server.command("PTTL", key) == -1


def test_foreign_value_that_replaces_a_hold_is_never_touched(server: Server, side: Side, name: str) -> None:
    """F27: somebody overwrites the key under a holder: it is told, and the value stays."""
    key = f"lockfast:{{{name}}}"
    with side.client(server.url) as lf:
        grant = lf.lock(name, lease=30).acquire()
        server.command("SET", key, "mine now")
        attempts: list[Callable[[], None]] = [grant.extend, grant.release]
        for attempt in attempts:
            with pytest.raises(Refused):
                attempt()
    assert server.command("GET", key) == b"mine now"


@pytest.mark.slow
def test_full_house_is_told_inside_the_deadline(fresh_server: FreshServer, server_kind: Kind, side: Side) -> None:
    """F63: maxclients. An error in time; when somebody leaves, the same client gets in."""
    server = fresh_server(server_kind)
    with side.client(server.url, timeout=0.6) as lf:
        crowd = [server.wire() for _ in range(5)]
        for wire in crowd:
            wire.call("PING")
        crowd[0].call("CONFIG", "SET", "maxclients", "1")
        began = now()
        for attempt in (lf.lock("name").try_acquire, lf.lock("name", wait=0.5).acquire, lf.lock("name").acquire):
            with pytest.raises(Unreachable):
                attempt()
        assert now() - began < 3 * 0.6 + 2
        waiting = side.spawn(lf.lock("name").acquire, wait=20)
        crowd[0].call("CONFIG", "SET", "maxclients", "100")
        waiting.result().release()
        for wire in crowd:
            wire.close()
