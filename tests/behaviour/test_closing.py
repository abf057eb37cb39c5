"""The end of a client: what is held is given back, what waits is told, and nothing is left."""

from __future__ import annotations

import asyncio
import gc
import threading
from typing import TYPE_CHECKING, Any

import pytest

from behaviour.queueing import PATIENCE_S, holder, queued, wait_queued, waiting
from kit.leaks import no_leaks
from kit.servers import wait_until
from lockfast import LeaseLost, Misused, NotHeld
from lockfast.aio import Lockfast as AsyncioLockfast

if TYPE_CHECKING:
    from kit.servers import Server
    from kit.sides import AsyncioSide, Side
    from lockfast.sync import Lockfast


@pytest.mark.parametrize("options", [{}, {"renew": False}, {"on_lost": print}])
def test_close_gives_back_what_is_held(
    side: Side, server: Server, other: Lockfast, name: str, options: dict[str, Any]
) -> None:
    told: list[Any] = []
    if "on_lost" in options:
        options = {"on_lost": told.append}
    lf = side.client(server.url)
    grant = lf.lock(name, lease=60, **options).acquire()
    assert grant.held
    lf.close()
    assert holder(other, name) is None
    assert (grant.held, grant.lost, told) == (False, False, [])


def test_close_hands_over_to_whoever_waits(side: Side, server: Server, other: Lockfast, name: str) -> None:
    lf = side.client(server.url)
    grant = lf.lock(name, lease=60).acquire()
    spawned = waiting(side, other, other.lock(name), name)
    assert grant.held
    lf.close()
    spawned.result(PATIENCE_S).release()


def test_client_as_a_context_manager_closes_itself(side: Side, server: Server, other: Lockfast, name: str) -> None:
    with side.client(server.url) as lf:
        grant = lf.lock(name).acquire()
        assert grant.held
    assert holder(other, name) is None
    with pytest.raises(Misused):
        lf.lock(name).acquire()


def test_nothing_is_connected_before_the_first_use_and_nothing_after_close(
    side: Side, server: Server, name: str
) -> None:
    wait_until(lambda: server.connections() == 0, what="connections of earlier tests to end")
    with no_leaks():
        lf = side.client(server.url)
        lock = lf.lock(name, lease=0.5)
        assert server.connections() == 0
        with lock:
            spawned = side.spawn(lock.acquire, wait=5)
            wait_queued(lf, name)
            assert 0 < server.connections() <= 5
        spawned.result().release()
        lf.close()
        wait_until(lambda: server.connections() == 0, what="connections to end")
        del spawned


def test_close_twice_is_fine(side: Side, server: Server, name: str) -> None:
    lf = side.client(server.url)
    with lf.lock(name):
        pass
    lf.close()
    lf.close()
    side.client(server.url).close()


def test_acquires_that_wait_elsewhere_are_told_and_leave_the_queue(
    side: Side, server: Server, other: Lockfast, name: str
) -> None:
    lf = side.client(server.url)
    with other.lock(name) as grant:
        spawned = [side.spawn(lf.lock(name).acquire) for _ in range(4)]
        wait_queued(other, name, 4)
        lf.close()
        assert [type(one.error(PATIENCE_S)) for one in spawned] == [Misused] * 4
        wait_queued(other, name, 0)
        assert holder(other, name) == grant.ticket
    wait_until(lambda: server.connections() <= 2, what="only the other client to be connected")


def test_closing_the_holder_lets_none_of_its_own_waiters_in(
    side: Side, server: Server, other: Lockfast, name: str
) -> None:
    """They could never give it back: the hold is released after they have left the queue."""
    lf = side.client(server.url)
    held = lf.lock(name).acquire()
    spawned = [side.spawn(lf.lock(name).acquire) for _ in range(3)]
    wait_queued(other, name, 3)
    lf.close()
    assert [type(one.error(PATIENCE_S)) for one in spawned] == [Misused] * 3
    assert not held.held
    assert holder(other, name) is None
    wait_queued(other, name, 0)


def test_acquires_in_any_state_are_told_and_leave_the_queue(
    side: Side, server: Server, other: Lockfast, name: str
) -> None:
    """Not all have a place yet: some are connecting, asking, or subscribing when the client is closed."""
    with other.lock(name) as grant:
        for pause_s in (0, 0.001, 0.002, 0.004, 0.008):
            lf = side.client(server.url)
            spawned = [side.spawn(lf.lock(name).acquire) for _ in range(6)]
            threading.Event().wait(pause_s)
            lf.close()
            assert {type(one.error(PATIENCE_S)) for one in spawned} == {Misused}
        wait_queued(other, name, 0)
        assert holder(other, name) == grant.ticket
    wait_until(lambda: server.connections() <= 2, what="only the other client to be connected")


def test_close_at_any_turn_of_the_loop_tells_everybody_and_leaves_no_connection(
    aside: AsyncioSide, server: Server, name: str
) -> None:
    async def run() -> None:
        async with AsyncioLockfast(server.url) as other, other.lock(name) as grant:
            before = server.connections()
            for turns in range(40):
                lf = AsyncioLockfast(server.url)
                tasks = [asyncio.create_task(lf.lock(name).acquire()) for _ in range(3)]
                for _ in range(turns):
                    await asyncio.sleep(0)
                await lf.aclose()
                async with asyncio.timeout(PATIENCE_S):
                    ends = await asyncio.gather(*tasks, return_exceptions=True)
                assert {type(end) for end in ends} == {Misused}, f"closed after {turns} turns"
            seen = await other.inspect(name)
            assert [waiter.ticket for waiter in seen.waiters] == []
            assert [holder.ticket for holder in seen.holders] == [grant.ticket]
            for _ in range(100):
                if server.connections() == before:
                    break
                await asyncio.sleep(0.01)
            assert server.connections() == before, "connections were left open, or opened, after aclose()"

    aside.run(run())


def test_closed_client_says_so(side: Side, server: Server, name: str) -> None:
    before = server.connections()
    lf = side.client(server.url)
    lock = lf.lock(name)
    grant = lock.acquire()
    lf.close()
    for act in (
        lock.acquire,
        lock.try_acquire,
        lock.__enter__,
        lambda: lf.lock(name).acquire(wait=5),
        lambda: lf.inspect(name),
        lf.names,
        lambda: lf.break_lock(name, reason="test"),
    ):
        with pytest.raises(Misused, match="closed"):
            act()
    with pytest.raises((NotHeld, Misused)):
        grant.release()
    with pytest.raises((NotHeld, Misused)):
        grant.extend()
    assert server.command("KEYS", "*:queue") == []
    wait_until(lambda: server.connections() <= before, what="no connection of a closed client")


def test_client_that_was_closed_unused_says_so_too(side: Side, server: Server, name: str) -> None:
    lf = side.client(server.url)
    lf.close()
    with pytest.raises(Misused, match="closed"):
        lf.lock(name).acquire()


def test_block_whose_client_is_closed_inside_ends_quietly(
    side: Side, server: Server, other: Lockfast, name: str
) -> None:
    lf = side.client(server.url)
    with lf.lock(name):
        lf.close()
        assert holder(other, name) is None


def test_close_after_a_loss_leaves_the_new_holder_alone(side: Side, server: Server, other: Lockfast, name: str) -> None:
    lf = side.client(server.url)
    old = lf.lock(name, lease=0.1, renew=False).acquire()
    assert old.wait_lost(PATIENCE_S)
    with other.lock(name, wait=PATIENCE_S) as new:
        lf.close()
        assert holder(other, name) == new.ticket


# Event loops


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning", "ignore::ResourceWarning")
def test_client_belongs_to_the_loop_that_used_it_first(server: Server, name: str) -> None:
    lf = AsyncioLockfast(server.url)

    async def use() -> None:
        async with lf.lock(name):
            pass

    async def use_everything() -> None:
        for act in (
            lf.lock(name).acquire,
            lf.lock(name).try_acquire,
            lf.lock(name).__aenter__,
            lambda: lf.inspect(name),
            lf.names,
            lambda: lf.break_lock(name, reason="test"),
        ):
            with pytest.raises(Misused, match="loop"):
                await act()

    first, second = asyncio.new_event_loop(), asyncio.new_event_loop()
    first.run_until_complete(use())
    second.run_until_complete(use_everything())
    first.run_until_complete(use())  # where it belongs, it goes on
    server.command("CLIENT", "KILL", "TYPE", "normal")
    first.run_until_complete(asyncio.sleep(0.02))
    first.close()
    with pytest.raises(Misused, match="closed"):
        second.run_until_complete(use())
    second.close()
    gc.collect()


def test_client_may_be_made_outside_of_any_loop(server: Server, name: str) -> None:
    lf = AsyncioLockfast(server.url)

    async def use() -> None:
        async with lf, lf.lock(name) as grant:
            assert grant.held

    asyncio.run(use())


def test_use_outside_of_a_loop_is_an_error_of_asyncio_not_a_hang(server: Server) -> None:
    lf = AsyncioLockfast(server.url)
    acquire = lf.lock("x").acquire()
    with pytest.raises(RuntimeError, match="no running event loop"):
        acquire.send(None)
    acquire.close()


def test_loop_that_ends_with_a_waiting_acquire_leaves_no_place(server: Server, aside: AsyncioSide, name: str) -> None:
    async def run() -> None:
        async with AsyncioLockfast(server.url) as lf:
            asyncio.get_running_loop().create_task(lf.lock(name).acquire())
            while not (await lf.inspect(name)).waiters:
                await asyncio.sleep(0.002)
            # The end of asyncio.run cancels what still runs; the client's block ends here before that.

    async def hold() -> Any:
        client = AsyncioLockfast(server.url)
        return client, await client.lock(name).acquire()

    client, grant = aside.run(hold())

    def complain(_: object, context: dict[str, Any]) -> None:
        assert isinstance(context.get("exception"), Misused), context

    async def quiet() -> None:
        asyncio.get_running_loop().set_exception_handler(complain)
        await run()

    asyncio.run(quiet())
    assert aside.run(client.inspect(name)).waiters == ()
    aside.run(grant.release())
    aside.run(client.aclose())


@pytest.mark.parametrize("cause", ["flush", "end"])
def test_close_does_not_raise_for_what_was_lost(side: Side, server: Server, name: str, cause: str) -> None:
    lf = side.client(server.url)
    grant = lf.lock(name, lease=0.1 if cause == "end" else 30, renew=cause == "flush").acquire()
    if cause == "flush":
        server.command("FLUSHALL")
    else:
        assert grant.wait_lost(PATIENCE_S)
    lf.close()
    with pytest.raises((NotHeld, LeaseLost)):
        grant.check()
    assert queued(side.client(server.url), name) == []
