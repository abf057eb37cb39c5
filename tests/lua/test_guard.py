"""`guard`: it writes only by a ticket and a fence that stand, and once."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest

from kit.resp import ServerError
from lockfast.flows.scripts import GUARD
from lua.scripts import header_of

if TYPE_CHECKING:
    from lua.scripts import Named, Scripts

RAN = "lockfast:{x}:ran:1"


def guard(name: Named, ticket: str, fence: int, *commands: tuple[str, ...], ran: str = RAN) -> Any:
    """Run the script on the test's own clock."""
    text = name.scripts.spoken(GUARD.text)
    assert "redis.call('TIME')" in text
    clock = divmod(name.scripts.clock_us, 1_000_000)
    text = text.replace("redis.call('TIME')", f"{{'{clock[0]}', '{clock[1]}'}}")
    words: list[str | int] = []
    for command in commands:
        words += [len(command), *command]
    keys = (*name.keys, ran, "a", "n")
    return name.scripts.wire.call("EVAL", text, len(keys), *keys, fence, ticket, 60_000, *words)


def count(name: Named) -> int:
    return int(name.scripts.wire.call("GET", "n") or 0)


INCR = ("INCR", "n")
NOT_RUN = [0, []]


def test_holder_writes_and_nobody_else(lock: Named) -> None:
    held = lock.admit("a")
    lock.admit("b")
    before = lock.everything()
    assert guard(lock, "b", held.fence, INCR, ran="r1") == NOT_RUN
    assert guard(lock, "nobody", held.fence, INCR, ran="r2") == NOT_RUN
    assert guard(lock, "-", held.fence, INCR, ran="r3") == NOT_RUN
    assert count(lock) == 0
    assert guard(lock, "a", held.fence, INCR, INCR, ran="r4") == [1, [1, 2]]
    assert lock.everything() == before, "a guard changes nothing of the name"


def test_name_that_nobody_holds_guards_nothing(lock: Named) -> None:
    assert guard(lock, "a", 1, INCR) == NOT_RUN
    held = lock.admit("a")
    lock.leave("a")
    assert guard(lock, "a", held.fence, INCR) == NOT_RUN
    assert guard(lock, "-", held.fence, INCR) == NOT_RUN
    assert count(lock) == 0


def test_end_of_the_lease_counts_although_nobody_has_swept_it(lock: Named, shared: Named) -> None:
    for name, weight in ((lock, 1), (shared, 2)):
        held = name.admit("a", lease=1000, weight=weight)
        name.scripts.pass_ms(999)
        assert guard(name, "a", held.fence, INCR, ran="r1" + name.kind)[0] == 1
        name.scripts.pass_ms(1)
        assert guard(name, "a", held.fence, INCR, ran="r2" + name.kind) == NOT_RUN
    assert count(lock) == 2


def test_ticket_granted_again_does_not_stand_by_its_older_fence(lock: Named, shared: Named) -> None:
    for name in (lock, shared):
        old = name.admit("a", lease=1000)
        name.scripts.pass_ms(1000)
        new = name.admit("a")
        assert new.fence > old.fence
        assert guard(name, "a", old.fence, INCR) == NOT_RUN
        assert guard(name, "a", new.fence, INCR, ran="r" + name.kind)[0] == 1


def test_shared_holders_stand_each_by_their_own_fence(shared: Named) -> None:
    fences = {ticket: shared.admit(ticket).fence for ticket in "abc"}
    for ticket, fence in fences.items():
        assert guard(shared, ticket, fence, INCR, ran=f"r{ticket}")[0] == 1
        assert guard(shared, ticket, fence + 1, INCR, ran="r") == NOT_RUN
    assert guard(shared, "a", fences["b"], INCR, ran="r") == NOT_RUN
    shared.leave("b")
    assert guard(shared, "b", fences["b"], INCR, ran="r") == NOT_RUN
    assert count(shared) == 3


def test_whole_of_a_semaphore_stands_when_a_resize_has_made_it_a_part(shared: Named) -> None:
    held = shared.admit("a", weight=4)
    shared.resize(6)
    assert guard(shared, "a", held.fence, INCR)[0] == 1


def test_same_guard_again_runs_nothing_and_answers_as_before(lock: Named) -> None:
    held = lock.admit("a")
    commands = (INCR, ("GET", "no"), ("SET", "a", "1"), ("MGET", "n", "no"), ("INCR", "n"))
    first = guard(lock, "a", held.fence, *commands)
    assert first == [1, [1, None, "OK", [b"1", None], 2]]
    assert guard(lock, "a", held.fence, *commands) == first
    lock.leave("a")
    assert guard(lock, "a", held.fence, *commands) == first, "it ran while the hold stood, and that is what counts"
    assert count(lock) == 2


def test_failed_command_stops_no_other_and_is_remembered_as_failed(lock: Named) -> None:
    held = lock.admit("a")
    lock.scripts.wire.call("RPUSH", "a", "x")
    for _ in range(2):
        code, replies = guard(lock, "a", held.fence, INCR, ("INCR", "a"), INCR)
        assert code == 1
        assert (replies[0], replies[2]) == (1, 2)
        assert isinstance(replies[1], ServerError)
        assert "WRONGTYPE" in str(replies[1])
    assert count(lock) == 2


def test_replies_that_were_too_large_to_keep_are_told_as_such(lock: Named) -> None:
    held = lock.admit("a")
    lock.scripts.wire.call("SET", "a", "x" * 4096)
    assert guard(lock, "a", held.fence, INCR, ("GET", "a")) == [1, [1, b"x" * 4096]]
    assert guard(lock, "a", held.fence, INCR, ("GET", "a")) == [2, []]
    assert count(lock) == 1


def test_foreign_value_at_the_key_is_refused(lock: Named) -> None:
    lock.scripts.wire.call("SET", lock.keys[0], "something else")
    with pytest.raises(ServerError, match="LOCKFASTFORMAT"):
        guard(lock, "a", 1, INCR)
    assert count(lock) == 0


def test_header_says_what_the_script_uses(scripts: Scripts) -> None:
    header = header_of("guard")
    body = GUARD.text.removeprefix(header)
    assert header.startswith("#!lua\n"), "no flag: a full server refuses it"
    assert "Returns" in header
    assert "KEYS[1..5]" in header
    assert set(re.findall(r"KEYS\[(\d)\]", re.sub(r"--.*", "", body))) == set("123456")
    assert set(re.findall(r"ARGV\[(\d)\]", body)) == {"1", "2", "3"}
    assert re.findall(r"ARGV\[(\d)\]", header) == ["1", "2", "3"]
    if scripts.spoken(GUARD.text) == GUARD.text:
        assert scripts.wire.call("SCRIPT", "LOAD", GUARD.text).decode() == GUARD.sha
