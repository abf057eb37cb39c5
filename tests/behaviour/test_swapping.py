"""Release by one plain command: of holds that nobody has joined, on servers that can compare before they write.

Real clients begin with it after a second, and only with holds of a few milliseconds; here they do at once and always.
"""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, Any

import pytest

from behaviour.queueing import holder, waiting
from kit.sides import AsyncioSide
from lockfast import LeaseLost
from lockfast.drivers import wire
from lockfast.flows import swapping
from lockfast.names import make

if TYPE_CHECKING:
    from collections.abc import Callable

    from kit.servers import Kind, Server
    from kit.sides import Side
    from lockfast.sync import Lockfast

    Make = Callable[[Lockfast, str], Any]


@pytest.mark.parametrize("fence", [10**15 - 1, 10**15, 1_794_985_212_798_043, 5 * 10**15 - 1, 10**16])
@pytest.mark.parametrize("owner", ["host 1", "höst 1 ein Läbel mit 100 % und €"])
@pytest.mark.parametrize("ticket", ["t", "0123456789ab.c0ffee_17.0123456789abcdef"])
def test_request_that_is_put_together_in_parts_is_the_command(fence: int, owner: str, ticket: str) -> None:
    for limit, weight in ((1, 1), (7, 3)):
        form = swapping.Swap(make("präfix", ("name", "teil {x}")), "semaphore", limit, weight, 30_000, owner)
        for _ in range(2):
            assert wire.swap(form, fence, ticket) == wire.pack(form.words(fence, ticket))


@pytest.fixture(autouse=True)
def _eager(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(swapping, "AFTER_S", -1.0)
    monkeypatch.setattr(swapping, "YOUNG_S", inf)


@pytest.fixture
def server_kind() -> Kind:
    """The one of the two that can."""
    return "valkey"


def sent(server: Server, name: str, act: Callable[[], object]) -> list[str]:
    """What the server was asked for about this name, in order: the plain command, or the script."""
    with server.wire() as wire:
        wire.call("MONITOR")
        act()
        server.command("ECHO", f"end of {name}")
        found = []
        while f"end of {name}" not in (line := wire.read()):
            if name in line and " lua] " not in line:
                found.append(line.split('"')[1])
        return [word for word in found if word != "EVAL"]  # which follows where a script was not known yet


MAKES: dict[str, Make] = {
    "lock": lambda lf, name: lf.lock(name, lease=7.5),
    "lock with a grace": lambda lf, name: lf.lock(name, lease=7.5, grace=1.2),
    "read": lambda lf, name: lf.rwlock(name).read(),
    "write": lambda lf, name: lf.rwlock(name).write(),
    "one permit of five": lambda lf, name: lf.semaphore(name, limit=5),
    "three of five": lambda lf, name: lf.semaphore(name, limit=5, permits=3),
    "all of five": lambda lf, name: lf.semaphore(name, limit=5, permits=5),
}


def made(side: Side, lf: Lockfast, name: str, kind: str) -> Any:
    """A lock of this kind, through the blocking API also where asyncio is below."""
    lock = MAKES[kind](lf, name)
    return side.wrap(lock) if isinstance(side, AsyncioSide) and kind in ("read", "write") else lock


@pytest.mark.parametrize("kind", MAKES)
def test_short_hold_of_a_calm_name_is_released_without_a_script(
    side: Side, server: Server, lf: Lockfast, name: str, kind: str
) -> None:
    lock = made(side, lf, name, kind)
    for _ in range(2):
        grant = lock.acquire()
        assert holder(lf, name) == grant.ticket
        assert sent(server, name, grant.release) == ["SET"]
        assert not lf.inspect(name).holders
        assert not grant.lost


@pytest.mark.parametrize("kind", MAKES)
def test_what_is_kept_afterwards_is_what_the_script_would_have_kept(
    side: Side, server: Server, lf: Lockfast, name: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stored() -> tuple[str, int]:
        (key,) = (key for key in server.command("KEYS", f"*{name}*") if not key.endswith(b":t"))
        return server.command("GET", key).decode(), server.command("PTTL", key)

    lock = made(side, lf, name, kind)
    lock.acquire().release()
    text, expires_ms = stored()
    monkeypatch.setattr(swapping, "is_due", lambda *_: False)
    grant = lock.acquire()
    grant.release()
    text_by_script, expires_by_script_ms = stored()
    assert text.split()[:3] == text_by_script.split()[:3]
    assert text.split()[4:] == text_by_script.split()[4:]
    assert int(text.split()[3]) < int(text_by_script.split()[3]) == grant.fence
    assert abs(expires_ms - expires_by_script_ms) < 5000


def test_fences_grow_over_both_kinds_of_release(lf: Lockfast, other: Lockfast, name: str) -> None:
    fences = []
    for i in range(20):
        with (lf if i % 3 else other).lock(name) as grant:
            fences.append(grant.fence)
    assert fences == sorted(set(fences))


def test_waiter_that_came_meanwhile_gets_the_lock_at_the_release(
    side: Side, server: Server, lf: Lockfast, other: Lockfast, name: str
) -> None:
    first = lf.lock(name).acquire()
    next_one = waiting(side, lf, other.lock(name), name, 1)
    assert sent(server, name, first.release)[:2] == ["SET", "EVALSHA"]
    grant = next_one.result(2)
    assert grant.fence > first.fence
    assert not first.lost
    grant.release()


def test_name_that_others_want_is_left_to_the_script_for_a_while(
    side: Side, server: Server, lf: Lockfast, other: Lockfast, name: str
) -> None:
    for client in (lf, other):  # one finds a waiter at its release, the other has waited
        first = lf.lock(name).acquire()
        next_one = waiting(side, lf, other.lock(name), name, 1)
        first.release()
        next_one.result(2).release()
        grant = client.lock(name).acquire()
        assert sent(server, name, grant.release) == ["EVALSHA"]


def test_others_permits_are_not_given_back_with_ones_own(lf: Lockfast, other: Lockfast, name: str) -> None:
    mine, theirs = lf.semaphore(name, limit=3).acquire(), other.semaphore(name, limit=3).acquire()
    mine.release()
    assert holder(lf, name) == theirs.ticket
    theirs.check()
    theirs.release()
    assert not lf.inspect(name).holders


def test_renewed_hold_is_released(lf: Lockfast, name: str) -> None:
    grant = lf.lock(name, lease=5).acquire()
    grant.extend(9)
    grant.release()
    assert not grant.lost
    assert not lf.inspect(name).holders


def test_hold_that_was_not_asked_for_like_that_is_released_by_the_script(
    side: Side, lf: Lockfast, other: Lockfast, name: str
) -> None:
    """A writer that became a reader, and a hold that was handed on: both are younger than what they were made of."""
    writer = made(side, lf, name, "write").acquire()
    writer.downgrade()
    writer.release()
    adopted = other.adopt(lf.lock(name).acquire().export())
    adopted.release()
    assert not writer.lost
    assert not adopted.lost
    assert not lf.inspect(name).holders


@pytest.mark.parametrize("how", ["broken", "flushed", "taken by another"])
def test_hold_that_is_gone_is_told_as_lost(server: Server, lf: Lockfast, other: Lockfast, name: str, how: str) -> None:
    grant = lf.lock(name).acquire()
    if how == "flushed":
        server.command("FLUSHALL")
    else:
        other.break_lock(name, reason="a test")
    taken = other.lock(name).acquire() if how == "taken by another" else None
    with pytest.raises(LeaseLost):
        grant.release()
    if taken is not None:
        assert holder(lf, name) == taken.ticket
        taken.release()


def test_fence_that_is_ahead_of_the_clock_is_no_obstacle(server: Server, lf: Lockfast, name: str) -> None:
    """As after a step back of the server's clock: what it keeps is then not what the client thinks."""
    lock = lf.lock(name)
    ahead = lock.acquire()
    ahead.release()
    (key,) = server.command("KEYS", f"*{name}*")
    text = server.command("GET", key).decode()
    server.command("SET", key, text.replace(str(ahead.fence), str(ahead.fence + 3_600_000_000)), "KEEPTTL")
    grant = lock.acquire()
    assert grant.fence == ahead.fence + 3_600_000_001
    grant.release()
    assert not grant.lost
    assert not lf.inspect(name).holders


@pytest.mark.parametrize("server_kind", ["redis"])
def test_server_that_cannot_is_asked_once(server: Server, lf: Lockfast, name: str) -> None:
    if server.version >= (8, 4):
        pytest.skip("this Redis can")
    first = lf.lock(name).acquire()
    assert sent(server, name, first.release) == ["SET", "EVALSHA"]
    assert not first.lost
    for _ in range(2):
        grant = lf.lock(name).acquire()
        assert sent(server, name, grant.release) == ["EVALSHA"]


def test_young_client_and_long_holds_use_the_script(
    side: Side, server: Server, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(swapping, "AFTER_S", 3600.0)
    young = side.client(server.url).lock(name).acquire()
    assert sent(server, name, young.release) == ["EVALSHA"]
    monkeypatch.setattr(swapping, "AFTER_S", -1.0)
    monkeypatch.setattr(swapping, "YOUNG_S", 0.0)
    held_for_long = side.client(server.url).lock(name).acquire()
    assert sent(server, name, held_for_long.release) == ["EVALSHA"]


def test_semaphore_whose_limit_the_caller_does_not_know_is_left_to_the_script(
    server: Server, lf: Lockfast, other: Lockfast, name: str
) -> None:
    other.semaphore(name, limit=4).acquire().release()
    grant = lf.semaphore(name).acquire()
    assert sent(server, name, grant.release) == ["EVALSHA"]
