"""What the objects with the shapes of `asyncio` add to CPython's own tests: plain releases, losses, cancellations."""

from __future__ import annotations

import asyncio
import inspect
from typing import TYPE_CHECKING, Any

import pytest

from kit.servers import wait_until
from lockfast import LeaseLost, Misused
from lockfast import Lockfast as ThreadsLockfast
from lockfast.aio import Lockfast
from lockfast.compat import tasks

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator

    from kit.proxy import ProxyFor
    from kit.servers import Server


@pytest.fixture
def spy(valkey_server: Server) -> Iterator[ThreadsLockfast]:
    """Looks at the server and breaks locks, from outside of the loop."""
    with ThreadsLockfast(valkey_server.url) as made:
        yield made


def run(url: str, work: Callable[[Lockfast], Coroutine[Any, Any, None]], **options: Any) -> list[dict[str, Any]]:
    """Runs the work with a client. Returns what the loop's exception handler was told."""
    told: list[dict[str, Any]] = []

    async def main() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context))
        async with Lockfast(url, **options) as lf:
            await work(lf)

    asyncio.run(main())
    return told


def test_plain_release_is_sent_before_the_next_acquire(valkey_server: Server, name: str) -> None:
    async def work(lf: Lockfast) -> None:
        lock = tasks.Lock(lf, name)
        for _ in range(20):
            assert await asyncio.wait_for(lock.acquire(), 5)
            lock.release()
            assert not lock.locked()

    assert run(valkey_server.url, work) == []


def test_acquire_that_follows_a_plain_release_does_not_overtake_it(
    valkey_server: Server, proxy_for: ProxyFor, name: str
) -> None:
    proxy = proxy_for(valkey_server)

    async def work(lf: Lockfast) -> None:
        lock = tasks.Lock(lf, name)
        await lock.acquire()
        lock.release()
        await lock.acquire()
        admit, leave, again = [request.arguments[0] for request in proxy.seen("EVALSHA", containing=name)]
        assert admit == again != leave
        lock.release()

    assert run(proxy.url, work) == []


def test_plain_releases_hand_over_in_the_order_of_waiting(valkey_server: Server, name: str) -> None:
    async def work(lf: Lockfast) -> None:
        lock, came = tasks.Lock(lf, name), []

        async def enter(number: int) -> None:
            await lock.acquire()
            came.append(number)
            lock.release()

        await lock.acquire()
        waiting = []
        for number in range(5):
            waiting.append(asyncio.create_task(enter(number)))
            while (await lf.inspect(name)).queue_length <= number:
                await asyncio.sleep(0.001)
        lock.release()
        await asyncio.gather(*waiting)
        assert came == [0, 1, 2, 3, 4]

    assert run(valkey_server.url, work) == []


def test_release_that_was_not_sent_yet_is_sent_by_closing_the_client(
    valkey_server: Server, spy: ThreadsLockfast, name: str
) -> None:
    async def work(lf: Lockfast) -> None:
        lock = tasks.Lock(lf, name)
        await lock.acquire()
        lock.release()

    assert run(valkey_server.url, work) == []
    assert not spy.inspect(name).holders


def test_cancelled_acquire_leaves_nothing_and_the_next_is_served(valkey_server: Server, name: str) -> None:
    async def work(lf: Lockfast) -> None:
        lock = tasks.Lock(lf, name)
        await lock.acquire()
        second, third = asyncio.create_task(lock.acquire()), asyncio.create_task(lock.acquire())
        while (await lf.inspect(name)).queue_length < 2:
            await asyncio.sleep(0.001)
        second.cancel()
        lock.release()
        assert await asyncio.wait_for(third, 5)
        with pytest.raises(asyncio.CancelledError):
            await second
        lock.release()
        await lock.acquire()
        lock.release()
        assert not lock.locked()

    assert run(valkey_server.url, work) == []


def test_acquires_that_are_cancelled_at_any_turn_leave_nothing(
    valkey_server: Server, spy: ThreadsLockfast, name: str
) -> None:
    async def work(lf: Lockfast) -> None:
        semaphore = tasks.Semaphore(lf, name, 2)
        for turns in range(30):
            acquiring = asyncio.create_task(semaphore.acquire())
            for _ in range(turns):
                await asyncio.sleep(0)
            acquiring.cancel()
            try:
                await acquiring
            except asyncio.CancelledError:
                continue
            semaphore.release()
        await asyncio.wait_for(semaphore.acquire(), 5)
        await asyncio.wait_for(semaphore.acquire(), 5)
        semaphore.release()
        semaphore.release()

    assert run(valkey_server.url, work) == []
    assert not spy.inspect(name).holders


def test_loss_that_is_known_is_raised_by_the_plain_release(
    valkey_server: Server, spy: ThreadsLockfast, name: str
) -> None:
    async def work(lf: Lockfast) -> None:
        lost = asyncio.Event()
        lock = tasks.Lock(lf, name, lease=0.3, on_lost=lambda grant: lost.set())
        await lock.acquire()
        spy.break_lock(name, reason="a test")
        await asyncio.wait_for(lost.wait(), 5)
        with pytest.raises(LeaseLost):
            lock.release()
        await lock.acquire()
        lock.release()

    assert run(valkey_server.url, work) == []


def test_loss_that_the_server_tells_goes_to_the_exception_handler(
    valkey_server: Server, spy: ThreadsLockfast, name: str
) -> None:
    async def work(lf: Lockfast) -> None:
        lock = tasks.Lock(lf, name)
        await lock.acquire()
        spy.break_lock(name, reason="a test")
        lock.release()
        await lock.acquire()  # behind that release
        lock.release()

    told = run(valkey_server.url, work)
    assert [type(context["exception"]) for context in told] == [LeaseLost]
    assert "lost before it was released" in told[0]["message"]


def test_block_waits_for_its_release_and_raises_the_loss(
    valkey_server: Server, spy: ThreadsLockfast, name: str
) -> None:
    async def work(lf: Lockfast) -> None:
        lock = tasks.Lock(lf, name)
        async with lock:
            assert lock.locked()
        assert not spy.inspect(name).holders
        with pytest.raises(LeaseLost):
            async with lock:
                spy.break_lock(name, reason="a test")
        with pytest.raises(ZeroDivisionError):
            async with lock:
                spy.break_lock(name, reason="a test")
                raise ZeroDivisionError

    assert run(valkey_server.url, work) == []


@pytest.mark.slow
def test_release_that_is_not_confirmed_is_finished_behind_the_scenes(
    valkey_server: Server, proxy_for: ProxyFor, spy: ThreadsLockfast, name: str
) -> None:
    proxy = proxy_for(valkey_server)

    async def work(lf: Lockfast) -> None:
        lock = tasks.Lock(lf, name)
        await lock.acquire()
        proxy.refuse()
        proxy.cut_all()
        lock.release()
        await asyncio.sleep(0.4)  # longer than the time-out of the client
        proxy.heal()
        proxy.accept()
        await asyncio.to_thread(wait_until, lambda: not spy.inspect(name).holders, what="released after all")

    assert run(proxy.url, work, timeout=0.3) == []


def test_release_outside_of_a_loop_takes_nothing(valkey_server: Server, name: str) -> None:
    async def work(lf: Lockfast) -> None:
        lock = tasks.Lock(lf, name)
        await lock.acquire()
        with pytest.raises(RuntimeError, match="loop"):
            await asyncio.to_thread(lock.release)
        assert lock.locked()
        lock.release()

    assert run(valkey_server.url, work) == []


@pytest.mark.parametrize("kind", ["Lock", "Semaphore", "BoundedSemaphore", "Barrier"])
def test_call_shapes_are_those_of_asyncio(kind: str) -> None:
    mine, theirs = getattr(tasks, kind), getattr(asyncio, kind)
    for name in dir(theirs):
        if name.startswith("_") and name not in ("__init__", "__aenter__", "__aexit__"):
            continue
        here, there = inspect.getattr_static(mine, name), inspect.getattr_static(theirs, name)
        assert type(here) is type(there), name
        if not inspect.isfunction(there):
            continue
        assert inspect.iscoroutinefunction(here) is inspect.iscoroutinefunction(there), name
        if name == "__aexit__":
            continue
        parameters = dict(inspect.signature(here).parameters)
        for own in ("lf", "name", "lease", "on_lost"):
            parameters.pop(own, None)
        expected = inspect.signature(there).parameters
        assert [(p.name, p.default) for p in parameters.values()] == [(p.name, p.default) for p in expected.values()]


def test_release_in_another_loop_is_refused_and_takes_nothing(valkey_server: Server, name: str) -> None:
    with asyncio.Runner() as runner:
        lf = Lockfast(valkey_server.url)
        lock = tasks.Lock(lf, name)
        runner.run(lock.acquire())

        async def release() -> None:
            lock.release()

        with pytest.raises(Misused, match="another event loop"):
            asyncio.run(release())
        assert lock.locked()
        runner.run(release())
        runner.run(lf.aclose())
