"""What a task waits for in asyncio: it goes on where the reply is read, and everything else is as with a future."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from contextvars import ContextVar
from types import coroutine
from typing import Any

import pytest
import uvloop

from lockfast.drivers.reply import Reply

LOOPS = pytest.mark.parametrize("loop", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["stock", "uvloop"])
NewLoop = Callable[[], asyncio.AbstractEventLoop]
where: ContextVar[str] = ContextVar("where", default="nowhere")


@coroutine
def answer(reply: Reply) -> Generator[Reply, None, Any]:
    yield reply
    return reply.value


def run(loop: NewLoop, main: Any) -> Any:
    with asyncio.Runner(loop_factory=loop) as runner:
        return runner.run(main)


async def waiting(heard: list[object]) -> tuple[Reply, asyncio.Task[None]]:
    """A reply, and a task that waits for it and notes what came, and in which context."""
    reply = Reply(asyncio.get_running_loop(), 0.0)

    async def wait() -> None:
        where.set("the task")
        try:
            heard.append(await answer(reply))
        except BaseException as error:
            heard.append(error)
            raise
        heard.append(where.get())
        heard.append(asyncio.current_task() is task)

    task = asyncio.create_task(wait())
    await asyncio.sleep(0)
    return reply, task


@LOOPS
def test_task_goes_on_where_the_reply_is_read_in_its_own_context(loop: NewLoop) -> None:
    async def main() -> None:
        heard: list[object] = []
        reply, task = await waiting(heard)
        seen: list[list[object]] = []

        def read() -> None:  # as data_received: a callback of the loop
            reply.settle(7)
            seen.append(list(heard))

        asyncio.get_running_loop().call_soon(read)
        await task
        assert seen == [[7, "the task", True]]
        assert reply.is_done
        reply.settle(8)
        assert heard == [7, "the task", True]

    run(loop, main())


@LOOPS
def test_reply_that_is_read_in_the_middle_of_another_task_is_told_in_a_later_turn(loop: NewLoop) -> None:
    async def main() -> None:
        heard: list[object] = []
        reply, task = await waiting(heard)
        reply.settle(7)
        assert heard == [], "this task runs"
        await task
        assert heard == [7, "the task", True]

    run(loop, main())


@LOOPS
def test_cancelled_task_hears_of_that_alone(loop: NewLoop) -> None:
    async def main() -> None:
        heard: list[object] = []
        reply, task = await waiting(heard)
        assert task.cancel("enough")
        reply.settle(7)  # in the same turn
        with pytest.raises(asyncio.CancelledError):
            await task
        (error,) = heard
        assert isinstance(error, asyncio.CancelledError)
        assert error.args == ("enough",)

    run(loop, main())


@LOOPS
def test_task_that_is_cancelled_before_it_waits_does_not_wait(loop: NewLoop) -> None:
    async def main() -> None:
        reply = Reply(asyncio.get_running_loop(), 0.0)

        async def wait() -> None:
            task.cancel()
            await answer(reply)

        task = asyncio.create_task(wait())
        with pytest.raises(asyncio.CancelledError):
            await task
        assert reply.is_done

    run(loop, main())


@LOOPS
def test_failure_is_raised_where_the_task_waits_and_once(loop: NewLoop) -> None:
    async def main() -> None:
        heard: list[object] = []
        reply, task = await waiting(heard)
        assert reply.fail(ValueError("no"))
        assert not reply.fail(ValueError("again"))
        with pytest.raises(ValueError, match="no"):
            await task

    run(loop, main())


@LOOPS
@pytest.mark.parametrize("stop", [SystemExit(3), KeyboardInterrupt()], ids=["exit", "Ctrl-C"])
def test_exit_of_a_task_that_goes_on_ends_the_loop_and_not_the_connection(loop: NewLoop, stop: BaseException) -> None:
    survived: list[bool] = []

    async def main() -> None:
        reply = Reply(asyncio.get_running_loop(), 0.0)

        async def wait() -> None:
            await answer(reply)
            raise stop

        task = asyncio.create_task(wait())
        await asyncio.sleep(0)

        def read() -> None:
            reply.settle(7)
            survived.append(True)  # whoever reads goes on

        asyncio.get_running_loop().call_soon(read)
        await asyncio.wait([task])
        await asyncio.sleep(60)

    with pytest.raises(type(stop)):
        run(loop, main())
    assert survived == [True]
