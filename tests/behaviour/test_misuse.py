"""Misuse of each primitive that its own file does not have: a clear error, and nothing is lost by it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from kit.sides import AsyncioSide
from lockfast import Misused, NotAcquired, NotHeld, Refused
from lockfast.aio import Lockfast as AsyncioLockfast
from lockfast.sync import Lockfast as ThreadsLockfast

if TYPE_CHECKING:
    from kit.servers import Server
    from kit.sides import Side
    from lockfast.sync import Lockfast


def bare(thing: Any) -> Any:
    """What the test's wrapper stands for, to be handed to the library."""
    return getattr(thing, "twin_of", thing)


def wrapped(side: Side, made: Any) -> Any:
    return side.wrap(made) if isinstance(side, AsyncioSide) else made


def holders(lf: Lockfast, name: str) -> list[str]:
    return [holder.ticket for holder in lf.inspect(name).holders]


def test_read_given_back_twice_counts_once(side: Side, lf: Lockfast, other: Lockfast, name: str) -> None:
    first = wrapped(side, lf.rwlock(name).read()).acquire()
    second = wrapped(side, other.rwlock(name).read()).acquire()
    first.release()
    with pytest.raises(NotHeld, match=name):
        first.release()
    assert holders(lf, name) == [second.ticket]
    second.release()


def test_write_given_back_twice_takes_nothing_from_the_next(
    side: Side, lf: Lockfast, other: Lockfast, name: str
) -> None:
    first = wrapped(side, lf.rwlock(name).write()).acquire()
    first.downgrade()
    first.release()
    second = wrapped(side, other.rwlock(name).write()).acquire()
    with pytest.raises(NotHeld, match=name):
        first.release()
    with pytest.raises(Misused, match="only the writer"):  # it had become a reader before
        first.downgrade()
    assert holders(lf, name) == [second.ticket]
    second.release()


def test_reentrant_lock_of_a_name_in_use_as_something_else_is_refused(
    side: Side, lf: Lockfast, other: Lockfast, name: str
) -> None:
    with other.semaphore(name, limit=2) as grant:
        with pytest.raises(Refused, match="semaphore with limit 2"):
            lf.rlock(name).try_acquire()
        assert holders(other, name) == [grant.ticket]
    held = wrapped(side, other.rwlock(name).read()).acquire()
    with pytest.raises(Refused, match="read/write lock"):
        lf.rlock(name).try_acquire()
    assert holders(other, name) == [held.ticket]
    held.release()
    lf.rlock(name).acquire(wait=0).release()


@pytest.mark.parametrize("limit", [0, -3, True, "2", 10**9])
def test_semaphore_with_a_limit_that_cannot_be_is_refused_before_anything_is_sent(
    server: Server, lf: Lockfast, name: str, limit: Any
) -> None:
    with pytest.raises((TypeError, ValueError), match=f"limit.*{limit!r}"):
        lf.semaphore(name, limit=limit)
    assert server.command("DBSIZE") == 0


def test_several_that_are_not_got_are_not_held_when_the_caller_hears_of_it(
    lf: Lockfast, other: Lockfast, name: str
) -> None:
    names = [f"{name}-{letter}" for letter in "abc"]
    lf.locks(*names).acquire().release()
    for taken in names:
        with other.lock(taken):
            assert lf.locks(*names).try_acquire() is None
            assert [bool(holders(other, each)) for each in names] == [each == taken for each in names]
            with pytest.raises(NotAcquired, match=taken):
                lf.locks(*names).acquire(wait=0.02)
            assert [bool(holders(other, each)) for each in names] == [each == taken for each in names]


@pytest.mark.parametrize("taken_as", ["semaphore", "rwlock"])
def test_several_of_mismatched_kinds_are_refused_and_none_is_held(
    side: Side, lf: Lockfast, other: Lockfast, name: str, taken_as: str
) -> None:
    one = other.semaphore(f"{name}-b", limit=2) if taken_as == "semaphore" else other.rwlock(f"{name}-b").read()
    grant = wrapped(side, bare(one)).acquire()
    lf.locks(f"{name}-a", f"{name}-c").acquire().release()
    with pytest.raises(Refused, match="in use as"):
        lf.locks(f"{name}-a", f"{name}-b", f"{name}-c", wait=5).acquire()
    assert holders(other, f"{name}-b") == [grant.ticket]
    other.locks(f"{name}-a", f"{name}-c", wait=5).acquire().release()
    grant.release()


def test_reader_that_wants_to_write_among_several_is_refused_at_once(server: Server, name: str) -> None:
    with ThreadsLockfast(server.url) as lf:
        rw = lf.rwlock(f"{name}-b")
        with rw.read() as grant:
            with pytest.raises(Misused, match="release the read first"):
                lf.locks(f"{name}-a", rw.write()).acquire()
            assert holders(lf, f"{name}-a") == []
            assert holders(lf, f"{name}-b") == [grant.ticket]
        with lf.locks(f"{name}-a", rw.read()), pytest.raises(Misused, match="release the read first"):
            rw.write().acquire()
        lf.locks(f"{name}-a", rw.write()).acquire(wait=0).release()


def test_several_after_the_server_closed_every_connection_are_had_all_the_same(
    server: Server, lf: Lockfast, name: str
) -> None:
    names = [f"{name}-{letter}" for letter in "abc"]
    for _ in range(2):
        lf.locks(*names).acquire().release()
    server.command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
    grants = lf.locks(*names).try_acquire()
    assert grants is not None
    assert all(len(holders(lf, each)) == 1 for each in names)
    grants.release()
    assert not any(holders(lf, each) for each in names)


def test_part_of_a_thing_that_is_no_name_is_refused_before_anything_is_sent(server: Server, lf: Lockfast) -> None:
    for parts in ((), ("",), ("cart", ""), ("cart", None), ("cart", b"x"), ("cart", 1.5), ("cart", "a\0b")):
        with pytest.raises((TypeError, ValueError)):
            lf.lock(*parts)
    assert server.command("DBSIZE") == 0


def test_names_that_look_the_same_in_print_are_not_the_same(server: Server, name: str) -> None:
    with ThreadsLockfast(server.url) as lf, ThreadsLockfast(server.url) as other:
        with lf.rlock(name, "7"):
            elsewhere = other.lock(f"{name}|7").acquire(wait=0)
            assert lf.rlock(f"{name}|7").try_acquire() is None, "entered what another holds"
            elsewhere.release()
        with lf.locks(lf.lock(name, "7"), lf.lock(f"{name}|7")) as grants:
            assert len(grants) == 2
        with lf.rwlock(name, "7").read():
            lf.rwlock(f"{name}|7").write().acquire(wait=0).release()


def test_tasks_do_not_enter_a_name_that_only_looks_like_theirs(aside: AsyncioSide, server: Server, name: str) -> None:
    async def work() -> None:
        async with AsyncioLockfast(server.url) as lf, AsyncioLockfast(server.url) as other, lf.rlock(name, "7"):
            async with other.lock(f"{name}|7"):
                assert await lf.rlock(f"{name}|7").try_acquire() is None
            async with lf.rwlock(name, "8").read(), lf.rwlock(f"{name}|8").write():
                pass

    aside.run(work())


def test_refusal_says_which_name_it_is_about_and_what_would_help(lf: Lockfast, other: Lockfast, name: str) -> None:
    permit = lf.semaphore(name, limit=2).acquire()
    with pytest.raises(Refused, match=f"'{name}' is in use as a semaphore with limit 2: choose another name"):
        other.lock(name).try_acquire()
    with pytest.raises(Refused, match=f"'{name}' is in use as a semaphore with limit 2: name that limit"):
        other.semaphore(name, limit=3).try_acquire()
    with pytest.raises(Refused, match=f"'{name}' has a limit of 2"):
        other.semaphore(name, permits=3).try_acquire()
    permit.release()


def test_several_of_which_one_is_refused_hold_nothing_when_they_say_so(
    lf: Lockfast, other: Lockfast, name: str
) -> None:
    permit = lf.semaphore(f"{name}-1", limit=2).acquire()
    for names in ((f"{name}-0", f"{name}-1", f"{name}-9"), (f"{name}-1", f"{name}-9")):
        with pytest.raises(Refused, match=f"{name}-1"):
            other.locks(*names).acquire()
        assert [lf.inspect(each).holders for each in names if not each.endswith("1")] == [()] * (len(names) - 1)
    permit.release()
