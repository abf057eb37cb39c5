"""What happens to a body whose lock is lost, and to the errors of a body."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

from behaviour.queueing import PATIENCE_S, holder, wait_over
from kit.servers import wait_until
from lockfast import LeaseLost
from lockfast import Lockfast as SyncLockfast
from lockfast.aio import Lockfast as AsyncioLockfast

if TYPE_CHECKING:
    from kit.servers import Server
    from kit.sides import AsyncioSide
    from lockfast.aio import Grant as AsyncioGrant
    from lockfast.sync import Lockfast


class Own(Exception):
    """The body's own error."""


@pytest.mark.parametrize("error", [Own("own"), SystemExit(3), KeyboardInterrupt("own")])
def test_error_of_the_body_comes_out_as_it_is(lf: Lockfast, name: str, error: BaseException) -> None:
    with pytest.raises(type(error)) as caught, lf.lock(name):
        raise error
    assert caught.value is error
    assert not hasattr(error, "__notes__")
    assert holder(lf, name) is None


def test_loss_is_raised_at_the_end_of_the_block(lf: Lockfast, name: str) -> None:
    with pytest.raises(LeaseLost), lf.lock(name, lease=0.1, renew=False, cancel_on_loss=False) as grant:
        wait_over(grant)


def test_error_of_the_body_is_not_replaced_by_the_loss_but_gets_a_note_of_it(lf: Lockfast, name: str) -> None:
    error = Own("own")
    with pytest.raises(Own) as caught, lf.lock(name, lease=0.1, renew=False, cancel_on_loss=False) as grant:
        wait_over(grant)
        raise error
    assert caught.value is error
    assert [note for note in error.__notes__ if "lost" in note and name in note]


def test_error_of_the_body_is_not_replaced_when_the_server_forgot_the_hold(
    server: Server, lf: Lockfast, name: str
) -> None:
    error = Own("own")
    with pytest.raises(Own) as caught, lf.lock(name) as _:
        server.command("FLUSHALL")
        raise error
    assert caught.value is error
    assert name in error.__notes__[0]


def test_lease_lost_that_the_body_found_comes_out_once(lf: Lockfast, name: str) -> None:
    with pytest.raises(LeaseLost) as caught, lf.lock(name, lease=0.1, renew=False, cancel_on_loss=False) as grant:
        wait_over(grant)
        grant.check()
    assert not hasattr(caught.value, "__notes__")


def test_on_lost_is_called_once_with_the_grant(lf: Lockfast, name: str) -> None:
    told: list[Any] = []
    grant = lf.lock(name, lease=0.1, renew=False, on_lost=told.append).acquire()
    wait_until(lambda: told, what="on_lost")
    assert (told[0].ticket, told[0].fence, told[0].lost) == (grant.ticket, grant.fence, True)
    assert grant.lost
    with pytest.raises(LeaseLost):
        told[0].check()
    with pytest.raises(LeaseLost):
        grant.release()
    assert len(told) == 1


def test_on_lost_is_called_when_the_server_forgets_the_hold(server: Server, lf: Lockfast, name: str) -> None:
    told: list[Any] = []
    grant = lf.lock(name, lease=0.3, on_lost=told.append).acquire()
    server.command("FLUSHALL")
    wait_until(lambda: told, what="on_lost")
    assert told[0].ticket == grant.ticket
    assert server.command("DBSIZE") == 0, "a renewal creates nothing"


def test_on_lost_is_not_called_for_what_was_given_back(lf: Lockfast, name: str) -> None:
    told: list[Any] = []
    grant = lf.lock(name, lease=0.1, renew=False, on_lost=told.append).acquire()
    grant.release()
    assert not grant.wait_lost(0.15)
    assert told == []


def test_on_lost_that_raises_harms_nobody(lf: Lockfast, name: str, caplog: pytest.LogCaptureFixture) -> None:
    def fail(_: object) -> None:
        raise Own("in on_lost")

    told: list[Any] = []
    first = lf.lock(name, "1", lease=0.1, renew=False, on_lost=fail).acquire()
    second = lf.lock(name, "2", lease=0.15, renew=False, on_lost=told.append).acquire()
    wait_until(lambda: told, what="on_lost of the second")
    assert first.lost
    assert second.lost
    wait_until(lambda: "in on_lost" in caplog.text, what="the log")


@pytest.mark.parametrize("client", [SyncLockfast, AsyncioLockfast])
def test_on_lost_must_be_callable(client: Any) -> None:
    with pytest.raises(TypeError, match="on_lost"):
        client("redis://localhost").lock("x", on_lost="call me")


# What only asyncio can do: end the body


def run_block(aside: AsyncioSide, server: Server, name: str, body: Any, **options: Any) -> Any:
    """Runs `body(grant)` in an `async with`, in a task of its own; returns its result and what asyncio says of it."""

    async def run() -> Any:
        async with AsyncioLockfast(server.url) as lf, lf.lock(name, lease=0.1, renew=False, **options) as grant:
            return await body(grant)

    return aside.run(run())


def test_body_is_cancelled_when_the_lock_is_lost_and_the_loss_is_raised(
    aside: AsyncioSide, server: Server, name: str
) -> None:
    seen: list[str] = []

    async def body(_: object) -> None:
        try:
            await asyncio.sleep(PATIENCE_S)
        except asyncio.CancelledError:
            seen.append("cancelled")
            raise

    start = time.monotonic()
    with pytest.raises(LeaseLost, match=name):
        run_block(aside, server, name, body)
    assert seen == ["cancelled"]
    assert time.monotonic() - start < 5


def test_task_goes_on_as_if_it_had_never_been_cancelled(aside: AsyncioSide, server: Server, name: str) -> None:
    async def run() -> int:
        async with AsyncioLockfast(server.url) as lf:
            try:
                async with lf.lock(name, lease=0.1, renew=False):
                    await asyncio.sleep(PATIENCE_S)
            except LeaseLost:
                pass
            task = asyncio.current_task()
            assert task is not None
            await asyncio.sleep(0)
            async with asyncio.timeout(5):  # would mistake a cancellation that is still counted
                await asyncio.sleep(0)
            return task.cancelling()

    assert aside.run(run()) == 0


def test_body_is_not_cancelled_when_told_not_to(aside: AsyncioSide, server: Server, name: str) -> None:
    seen: list[str] = []

    async def body(grant: Any) -> None:
        assert await grant.wait_lost(PATIENCE_S)
        await asyncio.sleep(0.01)
        seen.append("ran to its end")

    with pytest.raises(LeaseLost):
        run_block(aside, server, name, body, cancel_on_loss=False)
    assert seen == ["ran to its end"]


def test_error_that_a_cancelled_body_raises_instead_is_its_own(aside: AsyncioSide, server: Server, name: str) -> None:
    async def body(_: object) -> None:
        try:
            await asyncio.sleep(PATIENCE_S)
        except asyncio.CancelledError:
            raise Own("own") from None

    with pytest.raises(Own) as caught:
        run_block(aside, server, name, body)
    assert "lost" in caught.value.__notes__[0]


def test_cancellation_from_outside_is_not_taken_for_a_loss(aside: AsyncioSide, server: Server, name: str) -> None:
    async def run() -> bool:
        async with AsyncioLockfast(server.url) as lf:
            entered = asyncio.Event()

            async def work() -> None:
                async with lf.lock(name):
                    entered.set()
                    await asyncio.sleep(PATIENCE_S)

            task = asyncio.create_task(work())
            await entered.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert (await lf.inspect(name)).holders == ()
            return task.cancelled()

    assert aside.run(run())


def test_cancellation_from_outside_wins_over_a_loss_at_the_same_time(
    aside: AsyncioSide, server: Server, name: str
) -> None:
    async def run() -> bool:
        async with AsyncioLockfast(server.url) as lf:
            cancelled = asyncio.Event()

            async def work() -> None:
                async with lf.lock(name, lease=0.1, renew=False):
                    try:
                        await asyncio.sleep(PATIENCE_S)
                    except asyncio.CancelledError:
                        cancelled.set()
                        await asyncio.sleep(PATIENCE_S)

            task = asyncio.create_task(work())
            await cancelled.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            return task.cancelled()

    assert aside.run(run())


def test_timeout_of_asyncio_inside_the_block_is_the_bodys_own(aside: AsyncioSide, server: Server, name: str) -> None:
    async def run() -> None:
        async with AsyncioLockfast(server.url) as lf:
            with pytest.raises(TimeoutError):
                async with lf.lock(name):
                    async with asyncio.timeout(0.02):
                        await asyncio.sleep(PATIENCE_S)
            assert (await lf.inspect(name)).holders == ()

    aside.run(run())


def test_body_that_ends_in_the_moment_of_the_loss_is_told(aside: AsyncioSide, server: Server, name: str) -> None:
    async def body(grant: Any) -> None:
        time.sleep(0.12)  # The loop cannot run: the deadline passes unnoticed, and the body ends.
        assert grant is not None

    with pytest.raises(LeaseLost):
        run_block(aside, server, name, body)


def test_loss_that_another_thread_finds_first_reaches_on_lost_and_the_body(
    aside: AsyncioSide, server: Server, name: str
) -> None:
    """The body has work done in a thread, which checks its grant just when the loop has no time to."""
    told: list[str] = []

    async def run() -> None:
        async with AsyncioLockfast(server.url) as lf:
            lock = lf.lock(name, lease=0.1, renew=False, on_lost=lambda grant: told.append(grant.ticket))
            async with lock as grant:
                found: list[BaseException] = []

                def work() -> None:
                    time.sleep(0.15)
                    try:
                        grant.check()
                    except BaseException as error:
                        found.append(error)

                worker = threading.Thread(target=work)
                worker.start()
                worker.join()  # the loop stands still meanwhile
                assert [type(error) for error in found] == [LeaseLost]
                await asyncio.sleep(PATIENCE_S)

    with pytest.raises(LeaseLost):
        aside.run(run())
    assert len(told) == 1


@pytest.mark.slow
def test_slow_on_lost_of_one_hold_does_not_keep_others_from_being_renewed(server: Server, name: str) -> None:
    """For threads; in asyncio it runs in the loop, as any callback does."""
    release = threading.Event()
    with SyncLockfast(server.url) as lf:
        lost = lf.lock(name, "1", lease=0.1, renew=False, on_lost=lambda _: release.wait(PATIENCE_S)).acquire()
        kept = lf.lock(name, "2", lease=0.4).acquire()
        assert lost.wait_lost(PATIENCE_S)
        assert not kept.wait_lost(0.8)
        release.set()
        kept.release()


def test_async_on_lost_is_awaited_in_asyncio_and_refused_in_threads(server: Server, name: str) -> None:
    told: list[int] = []

    async def on_lost(grant: AsyncioGrant) -> None:
        await asyncio.sleep(0)
        told.append(grant.fence)

    async def run() -> int:
        async with AsyncioLockfast(server.url) as lf:
            grant = await lf.lock(name, lease=0.1, renew=False, on_lost=on_lost).acquire()
            assert await grant.wait_lost(5)
            while not told:
                await asyncio.sleep(0.001)
            return grant.fence

    fence = asyncio.run(run())
    assert told == [fence]
    with SyncLockfast(server.url) as lf, pytest.raises(TypeError, match="async"):
        lf.lock(name, on_lost=on_lost)  # type: ignore[arg-type]
