"""The reading side: who holds what, who waits, and taking a lock away on purpose."""

from __future__ import annotations

import json
import os
import socket
from typing import TYPE_CHECKING

import pytest

from behaviour.queueing import PATIENCE_S, holder, queued, waiting
from kit.servers import wait_until
from lockfast import LeaseLost, NotHeld, Refused
from lua.scripts import Scripts

if TYPE_CHECKING:
    from kit.servers import FreshServer, Kind, Server
    from kit.sides import Side
    from lockfast.sync import Lockfast

# Every one of these is another name than every other.
DIFFERENT: list[tuple[str, ...]] = [
    ("a",),
    ("a", "b"),
    ("a|b",),
    ("a%7Cb",),
    ("a%257Cb",),
    ("a", "b", "c"),
    ("a|b", "c"),
    ("a", "b|c"),
    ("{a}",),
    ("{a}b",),
    ("a}",),
    ("{",),
    ("}{",),
    ("%",),
    ("100%",),
    ("%41",),
    ("A",),
    (" a",),
    ("a ",),
    ("a b",),
    ("ä",),
    ("a\u0308",),  # looks the same as the one before
    ("漢字🔒",),
    ("a\nb",),
    ("a\r\nb",),
    ("a\tb",),
    ("\x7f",),
    (":queue",),
    ("a}:queue",),
    ("*",),
    ("1",),
    ("-",),
]


def test_different_names_are_different_locks_and_are_listed_as_they_were_given(lf: Lockfast) -> None:
    grants = [lf.lock(*parts, wait=0).acquire() for parts in DIFFERENT]
    assert lf.names() == sorted(DIFFERENT)
    for parts, grant in zip(DIFFERENT, grants, strict=True):
        assert holder_of(lf, parts) == grant.ticket
        grant.release()
    assert lf.names() == []


def holder_of(lf: Lockfast, parts: tuple[str, ...]) -> str:
    (held,) = lf.inspect(*parts).holders
    return held.ticket


def test_part_that_is_a_number_is_the_same_as_its_text(lf: Lockfast, name: str) -> None:
    with lf.lock(name, 42):
        assert lf.lock(name, "42").try_acquire() is None
        assert lf.names() == [(name, "42")]


def test_longest_name_works(lf: Lockfast) -> None:
    long = "n" * 1024
    with lf.lock(long):
        assert lf.names() == [(long,)]


def test_inspect_tells_who_holds_since_when_and_who_waits_in_order(
    side: Side, server: Server, lf: Lockfast, name: str
) -> None:
    labelled = side.client(server.url, label="nightly report, 100 % ü")
    grant = labelled.lock(name, lease=20).acquire()
    spawned = [waiting(side, lf, lf.lock(name), name, count) for count in (1, 2)]
    seen = lf.inspect(name)
    (held,) = seen.holders
    assert (seen.name, seen.kind, seen.limit, seen.fence) == (name, "lock", 1, grant.fence)
    assert (held.ticket, held.fence, held.weight) == (grant.ticket, grant.fence, 1)
    assert held.owner == (socket.gethostname().replace(" ", "_"), os.getpid(), "nightly report, 100 % ü")
    assert server.time_s() - PATIENCE_S < held.since <= server.time_s()
    assert 0 < held.lease_left <= 20
    assert [waiter.owner.pid for waiter in seen.waiters] == [os.getpid()] * 2
    assert all(0 < waiter.place_left <= 10 for waiter in seen.waiters)
    assert seen.waiters[0].since <= seen.waiters[1].since <= seen.at
    assert seen.queue_length == 2
    assert seen.broken is None
    as_text = json.loads(json.dumps(seen.as_dict()))
    assert as_text["holders"][0]["owner"]["label"] == "nightly report, 100 % ü"
    assert [waiter["ticket"] for waiter in as_text["waiters"]] == queued(lf, name)
    grant.release()
    for one in spawned:
        one.result().release()


def test_inspect_of_a_name_that_was_never_used_is_empty_and_creates_nothing(
    server: Server, lf: Lockfast, name: str
) -> None:
    seen = lf.inspect(name)
    assert (seen.kind, seen.fence, seen.holders, seen.waiters, seen.broken) == ("", 0, (), (), None)
    assert lf.names() == []
    assert server.command("DBSIZE") == 0


def test_inspect_leaves_out_a_waiter_whose_entry_was_deleted_by_hand(server: Server, lf: Lockfast, name: str) -> None:
    with Scripts(server) as scripts:
        scripts.name(name).admit("holder")
        scripts.name(name).admit("waiter")
    server.command("DEL", f"lockfast:{{{name}}}:entries")
    seen = lf.inspect(name)
    assert (seen.waiters, seen.queue_length) == ((), 1)
    assert [held.ticket for held in seen.holders] == ["holder"]


def test_inspect_shows_no_hold_whose_lease_has_ended(server: Server, lf: Lockfast, name: str) -> None:
    with Scripts(server) as scripts:
        scripts.name(name).admit("dead", lease=50)
    lf.lock(name, wait=PATIENCE_S).acquire().release()
    assert lf.inspect(name).holders == ()
    assert lf.names() == []


def test_names_passes_over_what_others_keep_under_the_same_prefix(server: Server, lf: Lockfast, name: str) -> None:
    for key in (
        b"lockfast:{}",
        b"lockfast:{a|}",
        b"lockfast:{%00}",
        b"lockfast:{\xff}",
        b"lockfast:{" + b"n" * 5000 + b"}",
    ):
        server.command("SET", key, "theirs")
    server.command("RPUSH", "lockfast:{list}", "theirs")
    server.command("SET", "lockfast:{text}", "theirs")
    with lf.lock(name):
        assert lf.names() == [(name,)]


def test_name_with_foreign_content_is_refused_and_left_alone(server: Server, lf: Lockfast, name: str) -> None:
    key = f"lockfast:{{{name}}}"
    server.command("SET", key, "theirs")
    for act in (
        lambda: lf.lock(name).acquire(wait=5),
        lambda: lf.lock(name).try_acquire(),
        lambda: lf.inspect(name),
        lambda: lf.break_lock(name, reason="test"),
    ):
        with pytest.raises(Refused) as caught:
            act()
        assert caught.value.code == "FORMAT"
    assert server.command("GET", key) == b"theirs"
    server.command("DEL", key)
    server.command("RPUSH", key, "theirs")
    with pytest.raises(Refused) as caught:
        lf.lock(name).acquire(wait=5)
    assert caught.value.code == "WRONGTYPE"


def test_break_takes_the_lock_away_and_gives_it_to_the_next(
    side: Side, lf: Lockfast, other: Lockfast, name: str
) -> None:
    stuck = lf.lock(name, lease=0.4).acquire()
    spawned = waiting(side, lf, other.lock(name), name)
    before = other.break_lock(name, reason="it was stuck: 100 %, ü")
    assert [held.ticket for held in before.holders] == [stuck.ticket]
    assert len(before.waiters) == 1
    following = spawned.result()
    assert following.fence > stuck.fence
    assert stuck.wait_lost(PATIENCE_S), "told at the next renewal"
    with pytest.raises(LeaseLost):
        stuck.release()
    assert holder(lf, name) == following.ticket
    broken = lf.inspect(name).broken
    assert broken is not None
    assert broken.reason == "it was stuck: 100 %, ü"
    assert str(os.getpid()) in broken.by
    assert abs(broken.at - before.at) < PATIENCE_S
    following.release()


def test_holder_of_a_broken_lock_cannot_extend_it(lf: Lockfast, other: Lockfast, name: str) -> None:
    grant = lf.lock(name).acquire()
    other.break_lock(name, reason="test")
    with pytest.raises(LeaseLost):
        grant.extend()
    assert grant.lost
    assert holder(lf, name) is None


def test_break_of_a_free_lock_is_not_held(lf: Lockfast, name: str) -> None:
    with pytest.raises(NotHeld, match=name):
        lf.break_lock(name, reason="test")
    assert lf.inspect(name).broken is None


def test_record_of_a_break_expires(server: Server, lf: Lockfast, name: str) -> None:
    lf.lock(name, renew=False).acquire()
    lf.break_lock(name, reason="test")
    keys = server.command("KEYS", "*")
    assert len(keys) >= 2
    assert all(0 < server.command("TTL", key) <= 86400 + 90 for key in keys)


def test_looking_works_although_idle_connections_were_closed(
    fresh_server: FreshServer, server_kind: Kind, side: Side
) -> None:
    server = fresh_server(server_kind)
    for url in (server.url, f"redis://127.0.0.1:{server.port}"):
        with side.client(url) as lf:
            lf.inspect("name")
            server.command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
            assert lf.inspect("name").holders == ()
            server.command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
            assert lf.names() == []


def test_names_are_listed_although_many_idle_connections_were_closed(
    fresh_server: FreshServer, server_kind: Kind, side: Side
) -> None:
    server = fresh_server(server_kind)
    with side.client(server.url, timeout=1) as lf:
        server.command("CLIENT", "PAUSE", 60_000, "WRITE")
        taking = [side.spawn(lf.lock("name", number, wait=20).acquire) for number in range(8)]
        connections = 8 if side.name == "threads" else 1  # tasks share one
        wait_until(lambda: int(server.info("clients")["connected_clients"]) > connections, what="all are connected")
        server.command("CLIENT", "UNPAUSE")
        grants = [each.result() for each in taking]
        server.command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
        assert len(lf.names()) == 8
        for grant in grants:
            grant.release()
