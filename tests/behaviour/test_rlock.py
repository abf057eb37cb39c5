"""Re-entrant locks: by thread, or by task, with one fence and a counted release."""

from __future__ import annotations

import asyncio
import gc
import threading
from typing import TYPE_CHECKING

import pytest

from kit.servers import wait_until
from lockfast import LeaseLost, NotHeld
from lockfast.aio import Lockfast as AsyncioLockfast
from lockfast.sync import Lockfast

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kit.servers import Server
    from kit.sides import AsyncioSide


@pytest.fixture
def lf(server: Server) -> Iterator[Lockfast]:
    with Lockfast(server.url) as made:
        yield made


@pytest.fixture
def other(server: Server) -> Iterator[Lockfast]:
    with Lockfast(server.url) as made:
        yield made


def test_thread_that_holds_it_enters_again_with_the_same_fence(lf: Lockfast, other: Lockfast, name: str) -> None:
    lock = lf.rlock(name)
    with lock as outer, lock as inner, lf.rlock(name) as third:
        assert outer.fence == inner.fence == third.fence
        assert other.lock(name).try_acquire() is None
    assert other.lock(name).try_acquire() is not None


def test_it_is_given_back_with_the_last_release(lf: Lockfast, other: Lockfast, name: str) -> None:
    first, second = lf.rlock(name).acquire(), lf.rlock(name).acquire()
    first.release()
    assert second.held
    assert other.lock(name).try_acquire() is None
    second.release()
    with other.lock(name, wait=0):
        pass


def test_more_releases_than_entries_are_refused(lf: Lockfast, name: str) -> None:
    first, second = lf.rlock(name).acquire(), lf.rlock(name).acquire()
    second.release()
    with pytest.raises(NotHeld):
        second.release()
    assert first.held
    first.release()
    with pytest.raises(NotHeld):
        first.release()


def test_another_thread_waits(lf: Lockfast, name: str) -> None:
    results: list[object] = []
    with lf.rlock(name):
        thread = threading.Thread(target=lambda: results.append(lf.rlock(name).try_acquire()))
        thread.start()
        thread.join()
    assert results == [None]


def test_another_client_of_the_same_thread_is_another_owner(lf: Lockfast, other: Lockfast, name: str) -> None:
    with lf.rlock(name):
        assert other.rlock(name).try_acquire() is None


def test_plain_lock_of_the_same_name_is_excluded(lf: Lockfast, name: str) -> None:
    with lf.rlock(name):
        assert lf.lock(name).try_acquire() is None


def test_after_the_loss_entering_again_says_so(lf: Lockfast, other: Lockfast, name: str) -> None:
    outer = lf.rlock(name).acquire()
    other.break_lock(name, reason="a test")
    with pytest.raises(LeaseLost):
        outer.extend()
    with pytest.raises(LeaseLost):
        lf.rlock(name).acquire()
    with pytest.raises(LeaseLost):
        outer.release()
    lf.rlock(name).acquire(wait=0).release()


def test_entry_that_was_released_and_dropped_does_not_end_the_hold(lf: Lockfast, other: Lockfast, name: str) -> None:
    outer = lf.rlock(name, lease=1).acquire()
    lf.rlock(name).acquire().release()
    gc.collect()
    assert not outer._hold.orphaned
    assert outer.held
    assert other.lock(name).try_acquire() is None
    outer.release()


@pytest.mark.slow
def test_entries_that_nobody_can_release_are_given_back(lf: Lockfast, other: Lockfast, name: str) -> None:
    outer, inner = lf.rlock(name).acquire(), lf.rlock(name).acquire()
    del inner
    gc.collect()
    assert outer.held
    del outer
    gc.collect()
    wait_until(lambda: not other.inspect(name).holders, what="given back", timeout_s=10)


def test_body_may_release_its_entry_by_itself(lf: Lockfast, other: Lockfast, name: str) -> None:
    with lf.rlock(name) as outer:
        with lf.rlock(name) as inner:
            inner.release()
        assert outer.held
    assert not other.inspect(name).holders


def test_many_threads_each_enter_twice(lf: Lockfast, name: str) -> None:
    inside: list[int] = []

    def work() -> None:
        for _ in range(10):
            with lf.rlock(name) as outer, lf.rlock(name) as inner:
                assert outer.fence == inner.fence
                assert not inside
                inside.append(1)
                inside.pop()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert not any(thread.is_alive() for thread in threads)


def test_task_that_holds_it_enters_again_and_other_tasks_are_other_owners(
    aside: AsyncioSide, server: Server, name: str
) -> None:
    async def work() -> None:
        async with AsyncioLockfast(server.url) as lf:
            async with lf.rlock(name) as outer, lf.rlock(name) as inner:
                assert outer.fence == inner.fence
                # A task that is begun here inherits the context, and still is somebody else.
                assert await asyncio.create_task(lf.rlock(name).try_acquire()) is None
                await inner.release()
                assert outer.held
                with pytest.raises(NotHeld):
                    await inner.release()
            assert (await lf.inspect(name)).holders == ()

    aside.run(work())


@pytest.mark.slow
def test_loss_cancels_the_bodies_of_a_task_and_is_told(aside: AsyncioSide, server: Server, name: str) -> None:
    async def work() -> None:
        async with AsyncioLockfast(server.url) as lf, AsyncioLockfast(server.url) as other:
            with pytest.raises(LeaseLost):
                async with lf.rlock(name, lease=0.5), lf.rlock(name, lease=0.5):
                    await other.break_lock(name, reason="a test")
                    await asyncio.sleep(10)

    aside.run(work())


def test_names_that_only_look_alike_are_not_entered_again(lf: Lockfast, other: Lockfast, name: str) -> None:
    taken = other.lock(f"{name}|b").acquire()
    with lf.rlock(name, "b"):
        assert lf.rlock(f"{name}|b").try_acquire() is None
    taken.release()
