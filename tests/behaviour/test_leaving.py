"""Whoever stops waiting leaves the queue: by time, by cancellation, by Ctrl-C."""

from __future__ import annotations

import asyncio
import signal
import threading
from typing import TYPE_CHECKING

import pytest

from behaviour.queueing import holder, queued, wait_queued, waiting
from kit.servers import wait_until
from lockfast import Lockfast as SyncLockfast
from lockfast import NotAcquired
from lockfast.aio import Lockfast as AsyncioLockfast

if TYPE_CHECKING:
    from kit.servers import Server
    from kit.sides import AsyncioSide, Side
    from lockfast.sync import Lockfast


def test_timed_out_waiter_leaves_and_those_behind_it_move_up(
    side: Side, lf: Lockfast, other: Lockfast, name: str
) -> None:
    first = lf.lock(name).acquire()
    impatient = waiting(side, lf, other.lock(name), name, 1, wait=0.2)
    patient = waiting(side, lf, other.lock(name), name, 2)
    ticket = queued(lf, name)[1]
    assert isinstance(impatient.error(), NotAcquired)
    assert queued(lf, name) == [ticket]
    first.release()
    patient.result().release()


def test_many_that_time_out_together_leave_nothing(side: Side, lf: Lockfast, other: Lockfast, name: str) -> None:
    with lf.lock(name) as grant:
        spawned = [side.spawn(other.lock(name).acquire, wait=0.1) for _ in range(10)]
        assert all(isinstance(one.error(), NotAcquired) for one in spawned)
        assert queued(lf, name) == []
        assert holder(lf, name) == grant.ticket


def test_cancelled_task_leaves_the_queue_and_the_next_is_served(
    aside: AsyncioSide, server: Server, lf: Lockfast, name: str
) -> None:
    async def run() -> None:
        async with AsyncioLockfast(server.url) as client, AsyncioLockfast(server.url) as looking:
            first = await client.lock(name).acquire()
            tasks = []
            for count in (1, 2):
                tasks.append(asyncio.create_task(client.lock(name).acquire()))
                while len((await looking.inspect(name)).waiters) < count:
                    await asyncio.sleep(0.002)
            ticket = (await looking.inspect(name)).waiters[1].ticket
            tasks[0].cancel()
            with pytest.raises(asyncio.CancelledError):
                await tasks[0]
            while [waiter.ticket for waiter in (await looking.inspect(name)).waiters] != [ticket]:
                await asyncio.sleep(0.002)
            await first.release()
            await (await tasks[1]).release()

    aside.run(run())
    assert holder(lf, name) is None
    assert queued(lf, name) == []


def test_tasks_cancelled_at_any_moment_leave_nothing(
    aside: AsyncioSide, server: Server, lf: Lockfast, name: str
) -> None:
    async def run() -> None:
        async with AsyncioLockfast(server.url) as client:
            for turns in range(40):
                tasks = [asyncio.create_task(client.lock(name).acquire()) for _ in range(3)]
                for _ in range(turns):
                    await asyncio.sleep(0)
                for task in tasks:
                    task.cancel()
                ends = await asyncio.gather(*tasks, return_exceptions=True)
                for end in ends:
                    if not isinstance(end, BaseException):
                        await end.release()
                    else:
                        assert isinstance(end, asyncio.CancelledError)
            await (await client.lock(name).acquire(wait=5)).release()

    aside.run(run())
    wait_until(lambda: holder(lf, name) is None and queued(lf, name) == [], timeout_s=2, what="nothing held or queued")


def test_timeout_of_asyncio_around_an_acquire_leaves_nothing(
    aside: AsyncioSide, server: Server, lf: Lockfast, name: str
) -> None:
    async def run() -> None:
        async with AsyncioLockfast(server.url) as client:
            async with asyncio.timeout(0.05):
                await client.lock(name).acquire()

    with lf.lock(name):
        with pytest.raises(TimeoutError) as caught:
            aside.run(run())
        assert not isinstance(caught.value, NotAcquired)
        wait_queued(lf, name, 0)


# Ctrl-C may strike inside Python's own socket constructor; such a socket is closed by the garbage collector.
@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
def test_ctrl_c_while_waiting_leaves_the_queue(server: Server, name: str) -> None:
    with SyncLockfast(server.url) as lf, SyncLockfast(server.url) as looking, lf.lock(name) as grant:
        main = threading.main_thread().ident
        assert main is not None

        def interrupt() -> None:
            wait_queued(looking, name)
            signal.pthread_kill(main, signal.SIGINT)

        helper = threading.Thread(target=interrupt)
        helper.start()
        with pytest.raises(KeyboardInterrupt):
            lf.lock(name).acquire(wait=20)
        helper.join()
        assert queued(lf, name) == []
        assert holder(lf, name) == grant.ticket


def test_ctrl_c_in_the_body_gives_the_lock_back(lf: Lockfast, name: str) -> None:
    with pytest.raises(KeyboardInterrupt), lf.lock(name):
        raise KeyboardInterrupt
    assert holder(lf, name) is None
