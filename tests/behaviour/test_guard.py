"""Guard: commands that run only while the hold stands, all at once, and once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from kit.servers import wait_until
from kit.sides import AsyncioSide
from lockfast.clock import now
from lockfast.errors import LeaseLost, Misused, NotHeld, Refused
from lockfast.flows import guarding
from lockfast.flows.scripts import GUARD

if TYPE_CHECKING:
    from kit.servers import FreshServer, Kind, Server
    from kit.sides import Side
    from lockfast.sync import Lockfast

YEAR_S = 365 * 86400


def still_believes(grant: Any) -> None:
    """Let a holder be as sure as one that was paused, and has not looked at its clock since."""
    getattr(grant, "twin_of", grant)._hold.deadline = now() + YEAR_S


def test_commands_run_in_order_and_their_replies_come_back(server: Server, lf: Lockfast, name: str) -> None:
    with lf.lock(name) as grant:
        replies = grant.guard(
            ("SET", "a", 1), ("INCR", "a"), ("GET", "a"), ("GET", "no"), ("HSET", "h", "f", b"\xff\0", "g", 0.5)
        )
        assert replies == [b"OK", 2, b"2", None, 2]
        read = grant.guard(["hgetall", "h"], ("MGET", "a", "no", "ü"))
        assert read == [[b"f", b"\xff\0", b"g", b"0.5"], [b"2", None, None]]
        grant.check()
    assert server.command("GET", "a") == b"2"


def test_gone_hold_writes_nothing_and_is_lost(server: Server, lf: Lockfast, other: Lockfast, name: str) -> None:
    grant = lf.lock(name).acquire()
    other.break_lock(name, reason="test")
    with pytest.raises(LeaseLost, match="no longer knows it") as caught:
        grant.guard(("SET", "a", 1))
    assert (caught.value.name, caught.value.fence) == (name, grant.fence)
    assert grant.lost
    assert server.command("EXISTS", "a") == 0
    with pytest.raises(LeaseLost):
        grant.guard(("SET", "a", 1))
    with pytest.raises(LeaseLost):
        grant.release()


def test_holder_that_overslept_cannot_write_although_it_believes_to_hold(
    server: Server, lf: Lockfast, other: Lockfast, name: str
) -> None:
    """Nobody has taken over yet: the end of the lease alone is what counts."""
    grant = lf.lock(name, lease=0.1, renew=False).acquire()
    still_believes(grant)
    ended_s = server.time_s() + 0.1
    wait_until(lambda: server.time_s() > ended_s, what="the lease ends at the server")
    grant.check()
    with pytest.raises(LeaseLost):
        grant.guard(("SET", "a", 1))
    assert server.command("EXISTS", "a") == 0
    with other.lock(name, wait=5) as after:
        after.guard(("SET", "a", 2))


def test_released_hold_is_refused_before_anything_is_sent(server: Server, lf: Lockfast, name: str) -> None:
    grant = lf.lock(name).acquire()
    grant.release()
    with pytest.raises(NotHeld):
        grant.guard(("SET", "a", 1))
    assert server.command("EXISTS", "a") == 0


def test_any_hold_can_guard_for_the_server_knows_whose_it_is(
    server: Server, side: Side, lf: Lockfast, name: str
) -> None:
    semaphore = lf.semaphore(name, limit=3)
    first, second = semaphore.acquire(), semaphore.acquire()
    first.guard(("INCR", "n"))
    second.guard(("INCR", "n"))
    first.release()
    second.guard(("INCR", "n"))
    lf.break_lock(name, reason="test")
    with pytest.raises(LeaseLost):
        second.guard(("INCR", "n"))
    assert server.command("GET", "n") == b"3"
    writes: Any = lf.rwlock("rw").write()
    with side.wrap(writes) if isinstance(side, AsyncioSide) else writes as write:
        write.guard(("INCR", "n"))
        write.downgrade()
        assert write.guard(("INCR", "n")) == [5]
    with lf.rlock("re") as again:
        assert again.guard(("INCR", "n")) == [6]


@pytest.mark.parametrize(
    ("commands", "complaint"),
    [
        ((), "at least one"),
        ((("SET", "a", "1"), ("NOSUCH", "a")), "no command 'NOSUCH'"),
        ((("SET", "a", "1"), ("XGROUP", "NOSUCH", "a")), "no command 'XGROUP'"),
        ((("SET", "a", "1"), ("GET",)), "wrong number of arguments for 'GET': 0"),
        ((("SET", "a", "1"), ("GET", "a", "b")), "wrong number of arguments for 'GET': 2"),
        ((("SET", "a", "1"), ("SET", "b")), "wrong number of arguments for 'SET': 1"),
        ((("SET", "a", "1"), ("MULTI",)), "'MULTI' cannot be a part"),
        ((("SET", "a", "1"), ("select", 1)), "'select' cannot be a part"),
        ((("SET", "a", "1"), ("MGET", *["k"] * guarding.MAX_WORDS)), "5000 words"),
        ((("SET", "a", "1"), ()), "words"),
    ],
)
def test_command_that_cannot_run_is_refused_up_front(
    server: Server, lf: Lockfast, name: str, commands: tuple[Any, ...], complaint: str
) -> None:
    if server.version < (7,) and "XGROUP" in complaint:
        pytest.skip("this server's table of commands does not tell subcommands")
    with lf.lock(name) as grant:
        with pytest.raises(ValueError, match=complaint):
            grant.guard(*commands)
        grant.check()
    assert server.command("EXISTS", "a") == 0


@pytest.mark.parametrize("commands", [("SET a 1",), (b"GET a",), (7,), (("SET", "a", None),), (("SET", "a", True),)])
def test_what_is_no_command_is_refused_up_front(lf: Lockfast, name: str, commands: tuple[Any, ...]) -> None:
    with lf.lock(name) as grant, pytest.raises(TypeError, match="got "):
        grant.guard(*commands)


def test_error_of_one_command_is_raised_and_the_others_have_run(server: Server, lf: Lockfast, name: str) -> None:
    server.command("RPUSH", "list", "x")
    with lf.lock(name) as grant:
        with pytest.raises(Refused, match=r"command 2 of 3 \('INCR'\) failed, the others have run: WRONGTYPE") as error:
            grant.guard(("SET", "a", 1), ("INCR", "list"), ("SET", "b", 2))
        assert error.value.code == "WRONGTYPE"
        grant.check()
    assert server.command("MGET", "a", "b") == [b"1", b"2"]


def test_longest_command_runs(lf: Lockfast, name: str) -> None:
    words = [f"k{i}" for i in range(guarding.MAX_WORDS - 1)]
    with lf.lock(name) as grant:
        (values,) = grant.guard(("MGET", *words))
    assert values == [None] * len(words)


def test_keys_of_commands_are_declared(server: Server, side: Side, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cluster routes and checks by them; SORT and its like tell only their first."""
    declared: list[bytes] = []
    found = guarding._keys

    def keys(commands: Any, env: Any) -> list[bytes]:
        declared.extend(found(commands, env))
        return declared

    monkeypatch.setattr(guarding, "_keys", keys)
    with side.client(server.url).lock(name) as grant:
        grant.guard(
            ("MSET", "a", 1, "b", 2),
            ("DEL", "c", "d"),
            ("PUBLISH", "channel", "x"),
            ("OBJECT", "ENCODING", "a"),
            ("ECHO", "e"),
            ("XGROUP", "CREATE", "stream", "g", "$", "MKSTREAM"),
            ("SET", b"\xff", 1),
        )
    assert declared == [b"a", b"b", b"c", b"d", b"stream", b"\xff"]


def test_second_guard_needs_one_trip(server: Server, lf: Lockfast, name: str) -> None:
    with lf.lock(name) as grant:
        grant.guard(("INCR", "n"))
        server.reset_stats()
        grant.guard(("incr", "n"), ("INCR", "n"))
        stats = server.stats()
        assert stats["evalsha"] == 1
        assert "command|info" not in stats


def test_replies_are_kept_for_a_minute_and_nothing_stays(server: Server, lf: Lockfast, name: str) -> None:
    with lf.lock(name) as grant:
        grant.guard(("GET", "n"))
        (kept,) = server.command("KEYS", "*:ran:*")
        assert 60_000 < server.command("PTTL", kept) <= 62_000
        assert f"{{{name}}}".encode() in kept
    assert lf.names() == []


def test_large_replies_are_not_kept(server: Server, lf: Lockfast, name: str) -> None:
    server.command("SET", "big", "x" * 5000)
    with lf.lock(name) as grant:
        assert grant.guard(("GET", "big")) == [b"x" * 5000]
    (kept,) = server.command("KEYS", "*:ran:*")
    assert server.command("GET", kept) == b""


def test_server_that_forgot_the_script_is_told_again(server: Server, lf: Lockfast, name: str) -> None:
    with lf.lock(name) as grant:
        server.command("SCRIPT", "FLUSH")
        assert grant.guard(("INCR", "n")) == [1]
        assert server.command("SCRIPT", "EXISTS", GUARD.sha) == [1 if server.version >= (7,) else 0]


def test_account_without_the_table_of_commands_is_told_what_it_lacks(
    fresh_server: FreshServer, server_kind: Kind, side: Side
) -> None:
    server = fresh_server(server_kind)
    server.command("ACL", "SETUSER", "limited", "on", ">secret", "~*", "&*", "+@all", "-command")
    lf = side.client(server.url.replace("//", "//limited:secret@"))
    with lf.lock("name") as grant, pytest.raises(Refused, match="command") as caught:
        grant.guard(("SET", "a", 1))
    assert caught.value.code == "NOPERM"
    assert server.command("EXISTS", "a") == 0


def test_keys_that_the_account_may_not_touch_are_refused_as_a_whole(
    fresh_server: FreshServer, server_kind: Kind, side: Side
) -> None:
    server = fresh_server(server_kind)
    server.command("ACL", "SETUSER", "limited", "on", ">secret", "~lockfast:*", "~mine:*", "&*", "+@all")
    lf = side.client(server.url.replace("//", "//limited:secret@"))
    with lf.lock("name") as grant:
        grant.guard(("SET", "mine:a", 1))
        with pytest.raises(Refused) as caught:
            grant.guard(("SET", "mine:a", 2), ("SET", "theirs", 2))
        assert caught.value.code == "NOPERM"
    assert server.command("MGET", "mine:a", "theirs") == [b"1", None]


@pytest.mark.slow
def test_full_server_refuses_the_whole(fresh_server: FreshServer, server_kind: Kind, side: Side) -> None:
    server = fresh_server(server_kind, maxmemory="100mb")
    lf = side.client(server.url)
    with lf.lock("name") as grant:
        grant.guard(("SET", "a", 1), ("DEL", "b"))
        server.command("CONFIG", "SET", "maxmemory", "1")
        with pytest.raises(Refused) as caught:
            grant.guard(("DEL", "a"), ("SET", "b", 1))
        assert caught.value.code == "OOM"
        grant.check()
        server.command("CONFIG", "SET", "maxmemory", "0")
    assert server.command("GET", "a") == b"1"


def test_closed_client_guards_nothing(server: Server, side: Side, name: str) -> None:
    lf = side.client(server.url)
    grant = lf.lock(name).acquire()
    lf.close()
    with pytest.raises((Misused, NotHeld)):
        grant.guard(("SET", "a", 1))
    assert server.command("EXISTS", "a") == 0
