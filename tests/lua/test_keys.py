"""What a name leaves on the server: five keys with one hash tag, each with an end, and only states that are known."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from kit.resp import ServerError
from lua.scripts import DAY_MS, LEASE_MS, Scripts

if TYPE_CHECKING:
    from kit.servers import Server
    from lua.scripts import Named


def use_all_five_keys(name: Named) -> None:
    name.admit("a")
    name.admit("b", weight=4)
    name.leave("nobody")


@pytest.mark.parametrize("part", ["plain", "{a}b", "a}b{c", "ü 漢", "a|b", "50%", "\r\n", "}{"])
def test_all_keys_of_a_name_share_one_hash_tag_and_expire(scripts: Scripts, part: str) -> None:
    name = scripts.name(part, "x", kind="semaphore", limit=4)
    use_all_five_keys(name)
    assert scripts.wire.call("EXISTS", *name.keys) == 5
    tags = set()
    for key in name.keys:
        found = re.search(r"\{([^}]+)\}", key)  # as a cluster reads it: from the first { to the first } after it
        assert found is not None
        assert "{" not in found[1]
        tags.add(found[1])
        assert 0 < scripts.wire.call("PTTL", key) <= DAY_MS + LEASE_MS
    assert len(tags) == 1


def test_no_key_ends_before_a_lease_that_stands_in_it(scripts: Scripts) -> None:
    week_ms = 7 * DAY_MS
    name = scripts.name("n", kind="semaphore", limit=4)
    name.admit("a", lease=week_ms)
    name.admit("short", lease=1000)
    name.admit("b", weight=3, lease=week_ms)
    for i in (0, 1, 2, 3):
        assert scripts.wire.call("PTTL", name.keys[i]) >= week_ms, name.keys[i]
    name.leave("b")
    name.leave("short")
    for i in (0, 2, 3):
        assert scripts.wire.call("PTTL", name.keys[i]) >= week_ms, name.keys[i]


def test_renewal_raises_the_end_of_all_keys_that_hold_the_lease(scripts: Scripts) -> None:
    week_ms = 7 * DAY_MS
    name = scripts.name("n", kind="semaphore", limit=4)
    held = name.admit("a", lease=1000)
    name.admit("b", lease=1000)
    name.renew("a", held.fence, week_ms)
    for i in (0, 2, 3):
        assert scripts.wire.call("PTTL", name.keys[i]) >= week_ms, name.keys[i]


def test_release_and_short_leases_after_a_long_one_leave_the_fence_a_day(scripts: Scripts) -> None:
    name = scripts.name("n")
    name.admit("a", lease=7 * DAY_MS)
    name.leave("a")
    name.admit("b", lease=1000)
    name.leave("b")
    name.leave("stranger")
    assert scripts.wire.call("PTTL", name.keys[0]) >= DAY_MS


def test_fence_from_the_future_is_remembered_until_a_day_after_it(scripts: Scripts) -> None:
    name = scripts.name("n")
    ahead_us = 10 * DAY_MS * 1000
    name.admit("a", seen=scripts.clock_us + ahead_us)
    name.leave("a")
    assert scripts.wire.call("PTTL", name.keys[0]) >= 11 * DAY_MS - 60_000


def test_tombstones_expire_with_the_last_of_them(scripts: Scripts) -> None:
    name = scripts.name("n")
    name.leave("a", lease=5000)
    assert 4000 < scripts.wire.call("PTTL", name.keys[4]) <= 5000
    name.leave("b", lease=60_000)
    name.leave("c", lease=1000)
    assert 59_000 < scripts.wire.call("PTTL", name.keys[4]) <= 60_000


@pytest.mark.parametrize(
    "text",
    ["", "hello", "a newer format", "1 lock 1 5 0 0 0", "9" * 100, "1 lock x 5 0 0 0 0 - 0 0 0 "],
)
def test_text_that_is_no_state_we_know_is_refused_and_never_touched(scripts: Scripts, text: str) -> None:
    name = scripts.name("n")
    if text == "a newer format":
        name.admit("a")
        name.leave("a")
        assert name.state.startswith("1 ")
        text = "2" + name.state[1:]
    scripts.wire.call("SET", name.keys[0], text)
    for ask in (
        lambda: name.admit("a"),
        lambda: name.admit("a", place=0),
        lambda: name.leave("a"),
        lambda: name.leave("a", unsure=True),
        lambda: name.renew("a", 1),
        name.inspect,
    ):
        with pytest.raises(ServerError, match="LOCKFASTFORMAT"):
            ask()
    assert scripts.wire.call("GET", name.keys[0]) == text.encode()
    assert scripts.wire.call("TTL", name.keys[0]) == -1
    assert scripts.wire.call("DBSIZE") == 1


def test_key_of_another_type_is_refused_and_never_touched(scripts: Scripts) -> None:
    name = scripts.name("n")
    scripts.wire.call("RPUSH", name.keys[0], "x")
    for ask in (lambda: name.admit("a"), lambda: name.leave("a"), lambda: name.renew("a", 1), name.inspect):
        with pytest.raises(ServerError, match="WRONGTYPE"):
            ask()
    assert scripts.wire.call("LRANGE", name.keys[0], 0, -1) == [b"x"]


def test_inspect_writes_nothing(scripts: Scripts) -> None:
    name = scripts.name("n", kind="semaphore", limit=4)
    use_all_five_keys(name)
    before = name.everything()
    seen = name.inspect()
    assert name.everything() == before
    assert [holder.ticket for holder in seen.holders] == ["a"]
    assert [waiter.ticket for waiter in seen.waiters] == ["b"]
    assert seen.queue_length == 1
    assert (seen.kind, seen.limit) == ("semaphore", 4)


def test_ten_thousand_names_used_once_all_have_an_end(server: Server) -> None:
    with Scripts(server) as scripts:
        wire = scripts.wire
        count = 10_000
        for start in range(0, count, 500):
            used = [scripts.name("once", str(i)) for i in range(start, start + 500)]
            for name in used:
                wire.send(*name.admit_request("t"))
                wire.send(*name.leave_request("t"))
            assert [wire.read() for _ in range(1000)][1::2] == [1] * 500
        assert wire.call("DBSIZE") == count, "one key a name, no more"
        keyspace = server.info("keyspace")["db0"]
    fields = dict(field.split("=") for field in keyspace.split(","))
    assert fields["expires"] == fields["keys"] == str(count)
    assert int(fields["avg_ttl"]) <= DAY_MS + LEASE_MS


@pytest.mark.slow
@pytest.mark.needs_faketime
def test_ten_thousand_names_used_once_leave_nothing_two_days_later(faketime_server: Server) -> None:
    with Scripts(faketime_server) as scripts:
        wire = scripts.wire
        for start in range(0, 10_000, 500):
            used = [scripts.name("once", str(i)) for i in range(start, start + 500)]
            for name in used:
                wire.send(*name.admit_request("t"))
                wire.send(*name.leave_request("t"))
            for _ in range(1000):
                wire.read()
        assert wire.call("DBSIZE") == 10_000
    faketime_server.clock_shift(2 * 86400)
    # The server deletes what has ended in small portions; a SCAN meets, and thereby deletes, every key.
    with faketime_server.wire() as wire:
        cursor = b"0"
        for _ in range(10_000):
            cursor, _keys = wire.call("SCAN", cursor, "COUNT", 1000)
            if cursor == b"0":
                break
        assert wire.call("DBSIZE") == 0
