"""asyncio tasks are cancelled at any moment: nothing is left behind, and the shared connection stays in step."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING, Any

import pytest

from kit.sides import AsyncioSide, Side
from lockfast.aio import Grant, Lockfast
from lockfast.errors import Misused, NotHeld, Unreachable

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterator

    from faults.conftest import Eyes
    from kit.proxy import Proxy
    from kit.servers import Server


@pytest.fixture
def loop() -> Iterator[AsyncioSide]:
    """An event loop; its close fails the test if tasks are left or the loop complained."""
    side = AsyncioSide()
    yield side
    side.close()


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
def test_storm_of_cancelled_acquires_leaks_nothing(
    proxy: Proxy, eyes: Eyes, loop: AsyncioSide, name: str, seed: int
) -> None:
    """F35: 700 acquires on 12 names, each cancelled at a random moment of its life, over a slow line."""
    rng = random.Random(seed)
    names = [f"{name}-{number}" for number in range(12)]
    outcomes = {"cancelled": 0, "acquired": 0}

    async def one(lf: Lockfast) -> None:
        held = asyncio.create_task(lf.lock(rng.choice(names), lease=60).acquire(wait=rng.choice([0.5, 5, None])))
        await asyncio.sleep(rng.random() * 0.035)
        held.cancel()
        try:
            grant = await held
        except asyncio.CancelledError:
            outcomes["cancelled"] += 1
        else:  # it had been granted before the cancellation came
            outcomes["acquired"] += 1
            grant.check()
            await grant.release()

    async def storm() -> None:
        async with Lockfast(proxy.url, timeout=10) as lf:
            await (await lf.lock("warm-up").acquire()).release()
            for _ in range(14):
                await asyncio.gather(*[one(lf) for _ in range(50)])
            await all_in_step(lf)
            for each in names:
                await asyncio.to_thread(eyes.wait_free, each)

    async def all_in_step(lf: Lockfast) -> None:
        """Every task gets the reply to its own request, and not that of one that was cancelled before it."""
        fresh = [f"{name}-after-{number}" for number in range(30)]
        grants = await asyncio.gather(*[lf.lock(each, lease=60).acquire(wait=5) for each in fresh])
        for each, grant in zip(fresh, grants, strict=True):
            (holder,) = (await lf.inspect(each)).holders
            assert (holder.ticket, holder.fence) == (grant.ticket, grant.fence)
        await asyncio.gather(*[grant.release() for grant in grants])

    slow = proxy.when("EVALSHA", times=None).delay_reply(0.01)
    loop.run(storm())
    slow.cancel()
    assert eyes.client.names() == []
    assert outcomes["cancelled"] >= 400, outcomes


@pytest.mark.parametrize("stage", ["request", "reply"])
def test_acquire_cancelled_on_its_way_is_undone(
    proxy: Proxy, eyes: Eyes, loop: AsyncioSide, name: str, stage: str
) -> None:
    """F35: cancelled with the request or the reply under way; the undoing `leave` comes behind it."""

    async def cancelled() -> None:
        async with Lockfast(proxy.url, timeout=10) as lf:
            await (await lf.lock("warm-up").acquire()).release()
            when = proxy.when("EVALSHA", containing=name)
            late = when.delay_request() if stage == "request" else when.delay_reply()
            task = asyncio.create_task(lf.lock(name, lease=60).acquire())
            await asyncio.to_thread(late.wait_hit)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            late.let_go()

    loop.run(cancelled())
    assert eyes.is_free(name)


def test_wait_for_with_a_time_out_leaves_nothing(server: Server, eyes: Eyes, loop: AsyncioSide, name: str) -> None:
    """F35, F37: asyncio's own time-outs around ours."""

    async def timed_out() -> None:
        async with Lockfast(server.url) as lf, lf.lock(name, lease=60):
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(lf.lock(name).acquire(), 0.05)
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.05), lf.lock(name):
                    pytest.fail("never entered")
            assert not (await lf.inspect(name)).waiters

    loop.run(timed_out())
    assert eyes.is_free(name)


@pytest.mark.slow
def test_cancelled_release_can_be_called_again_without_a_false_alarm(
    proxy: Proxy, eyes: Eyes, loop: AsyncioSide, name: str
) -> None:
    """F36: whether the first one was sent, answered or finished in the background, the second is a success."""

    async def release_twice(lf: Lockfast, number: int) -> None:
        grant = await lf.lock(f"{name}-{number}", lease=60).acquire()
        releasing = asyncio.create_task(grant.release())
        await asyncio.sleep(number % 12 * 0.002)
        was_cancelled = releasing.cancel()
        try:
            await releasing
        except asyncio.CancelledError:
            assert was_cancelled
            await grant.release()
        assert not grant.lost
        with pytest.raises(NotHeld):
            await grant.release()

    async def storm() -> None:
        async with Lockfast(proxy.url, timeout=10) as lf:
            await (await lf.lock("warm-up").acquire()).release()
            for first in range(0, 120, 24):
                await asyncio.gather(*[release_twice(lf, number) for number in range(first, first + 24)])

    proxy.when("EVALSHA", times=None).delay_reply(0.01)
    loop.run(storm())
    assert eyes.client.names() == []


def test_cancelled_release_is_finished_in_the_background(
    proxy: Proxy, eyes: Eyes, loop: AsyncioSide, name: str
) -> None:
    """F36: nobody calls again: the hold does not last until its lease ends."""

    async def give_up() -> None:
        async with Lockfast(proxy.url, timeout=10) as lf:
            grant = await lf.lock(name, lease=60).acquire()
            lost = proxy.when("EVALSHA", containing=grant.ticket).cut_request()
            releasing = asyncio.create_task(grant.release())
            await asyncio.sleep(0)
            releasing.cancel()
            with pytest.raises(asyncio.CancelledError):
                await releasing
            await asyncio.to_thread(eyes.wait_free, name)
            assert lost.hits <= 1

    loop.run(give_up())


@pytest.mark.slow
def test_cancelled_waiter_leaves_the_queue_and_the_next_is_woken(
    server: Server, eyes: Eyes, loop: AsyncioSide, name: str
) -> None:
    """F37: also when the cancelled one has just been granted the lock and does not know it yet."""

    async def queue() -> None:
        async with Lockfast(server.url) as lf:
            for granted_first in (False, True):
                grant = await lf.lock(name, lease=60).acquire(wait=5)
                tasks: list[asyncio.Task[Grant]] = []
                for count in (1, 2):
                    tasks.append(asyncio.create_task(lf.lock(name, lease=60).acquire(wait=20)))
                    await asyncio.to_thread(eyes.wait_waiting, name, count)
                first, second = tasks
                if granted_first:
                    releasing = asyncio.create_task(grant.release())
                    await asyncio.sleep(0)
                    first.cancel()
                    await releasing
                else:
                    first.cancel()
                    await asyncio.to_thread(eyes.wait_waiting, name, 1)
                    await grant.release()
                with pytest.raises(asyncio.CancelledError):
                    await first
                after = await asyncio.wait_for(second, 2)
                await after.release()

    loop.run(queue())
    assert eyes.is_free(name)


def test_client_of_a_loop_that_has_ended_says_so(server: Server, name: str) -> None:
    """F38: asyncio.run twice with one client."""
    kept: list[Lockfast] = []

    async def first() -> None:
        async with Lockfast(server.url) as lf, lf.lock(name):
            kept.append(lf)

    async def second() -> None:
        (lf,) = kept
        for work in (lf.lock(name).acquire(), lf.lock(name).try_acquire(), lf.inspect(name), lf.names()):
            await misused(work)

    async def misused(work: Coroutine[Any, Any, Any]) -> None:
        with pytest.raises(Misused, match="loop"):
            await work

    asyncio.run(first())
    asyncio.run(second())


def test_client_of_another_running_loop_says_so(server: Server, loop: AsyncioSide, name: str) -> None:
    """F38: one client, two loops in two threads; the hold in the first is not harmed."""
    other = AsyncioSide()
    with loop.client(server.url) as twin:
        lf: Lockfast = twin.twin_of  # type: ignore[attr-defined]  # a Twin, which stands for the client
        grant = loop.run(lf.lock(name, lease=30).acquire())
        for work in (lf.lock(name).acquire(), grant.release(), grant.extend(), lf.aclose()):
            with pytest.raises(Misused, match="loop"):
                other.run(work)
        grant.check()
        loop.run(grant.release())
    other.close()


def test_closed_client_says_so(server: Server, side: Side, name: str) -> None:
    """F38"""
    lf = side.client(server.url)
    with lf.lock(name):
        pass
    lf.close()
    lf.close()
    for attempt in (lf.lock(name).acquire, lf.lock(name).try_acquire, lambda: lf.inspect(name)):
        with pytest.raises(Misused, match="closed"):
            attempt()


def test_close_wakes_waiters_and_gives_everything_back(server: Server, side: Side, eyes: Eyes, name: str) -> None:
    """F38: acquires that wait in other threads or tasks end with a clear error, and leave the queue."""
    with side.client(server.url) as other:
        held = other.lock(name, lease=30).acquire()
        lf = side.client(server.url)
        kept = lf.lock(name, "kept", lease=30).acquire()
        waiting = side.spawn(lf.lock(name, lease=30).acquire)
        eyes.wait_waiting(name)
        lf.close()
        assert isinstance(waiting.error(10), Misused | Unreachable)
        assert eyes.waiting(name) == 0
        assert not eyes.client.inspect(name, "kept").holders
        assert not kept.held
        held.release()
