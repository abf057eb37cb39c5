"""The asyncio side behaves, through its blocking face, as `async with` and `await` do."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any, Self

import pytest

from kit.sides import AsyncioSide, Side, Spawned

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    from kit.proxy import Proxy


class Grant:
    """A stand-in with the shapes that matter: a coroutine, a plain method, a property."""

    fence = 7

    def __init__(self) -> None:
        self.released_by: asyncio.Task[Any] | None = None

    @property
    def held(self) -> bool:
        return self.released_by is None

    def check(self) -> None:
        if not self.held:
            raise LookupError("released")

    async def release(self) -> None:
        await asyncio.sleep(0)
        self.released_by = asyncio.current_task()


class Lock:
    """Enters to a Grant, and notes which task did what and which error came out of the body."""

    def __init__(self, *, refuse: bool = False) -> None:
        self.refuse = refuse
        self.entered_by: list[asyncio.Task[Any] | None] = []
        self.left_by: list[asyncio.Task[Any] | None] = []
        self.errors: list[BaseException | None] = []
        self.replace_with: Exception | None = None

    async def acquire(self, *, on_lost: Callable[[Grant], object] | None = None) -> Grant:
        grant = Grant()
        if on_lost:
            on_lost(grant)
        return grant

    async def __aenter__(self) -> Grant:
        await asyncio.sleep(0)
        if self.refuse:
            raise LookupError("busy")
        self.entered_by.append(asyncio.current_task())
        return Grant()

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self.left_by.append(asyncio.current_task())
        self.errors.append(error)
        if self.replace_with is not None:
            raise self.replace_with

    def __call__(self, function: Callable[..., Awaitable[str]]) -> Callable[..., Awaitable[str]]:
        async def locked(*arguments: str) -> str:
            async with self:
                return "locked " + await function(*arguments)

        return locked


class Client:
    def __init__(self) -> None:
        self.closed = False

    def lock(self) -> Lock:
        asyncio.get_running_loop()  # Plain methods run on the loop too.
        return Lock()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        self.closed = True


@pytest.fixture
def aside() -> Iterator[AsyncioSide]:
    side = AsyncioSide()
    yield side
    side.close()


def test_coroutines_block_and_their_results_are_wrapped_in_turn(aside: AsyncioSide) -> None:
    grant = aside.wrap(Client()).lock().acquire()
    assert (grant.fence, grant.held) == (7, True)
    grant.check()
    assert grant.release() is None
    assert grant.held is False
    with pytest.raises(LookupError, match="released"):
        grant.check()


def test_with_block_is_one_task_from_entry_to_exit(aside: AsyncioSide) -> None:
    lock = Lock()
    with aside.wrap(lock) as grant:
        assert grant.fence == 7
    assert lock.entered_by == lock.left_by
    assert lock.errors == [None]


def test_client_is_a_context_manager_that_gives_itself(aside: AsyncioSide) -> None:
    client = Client()
    twin = aside.wrap(client)
    with twin as entered:
        assert entered is twin
    assert client.closed


def test_close_is_aclose(aside: AsyncioSide) -> None:
    client = Client()
    aside.wrap(client).close()
    assert client.closed


def test_error_at_entry_is_raised(aside: AsyncioSide) -> None:
    with pytest.raises(LookupError, match="busy"), aside.wrap(Lock(refuse=True)):
        pytest.fail("never entered")


@pytest.mark.parametrize("error", [ValueError("own"), KeyboardInterrupt("own")])
def test_error_of_the_body_passes_through_the_exit(aside: AsyncioSide, error: BaseException) -> None:
    lock = Lock()
    with pytest.raises(type(error), match="own"), aside.wrap(lock):
        raise error
    assert lock.errors[0] is not None


def test_error_that_replaces_the_bodys_is_seen(aside: AsyncioSide) -> None:
    lock = Lock()
    lock.replace_with = RuntimeError("replaced")
    with pytest.raises(RuntimeError, match="replaced"), aside.wrap(lock):
        raise ValueError("own")


def test_cancelled_body_ends_in_what_the_exit_makes_of_it(aside: AsyncioSide) -> None:
    lock = Lock()
    lock.replace_with = RuntimeError("lost")
    with pytest.raises(RuntimeError, match="lost"), aside.wrap(lock):
        _cancel(aside, lock)
    assert isinstance(lock.errors[0], asyncio.CancelledError)


def test_own_error_of_a_body_whose_task_was_cancelled_wins(aside: AsyncioSide) -> None:
    lock = Lock()
    lock.replace_with = RuntimeError("lost")
    with pytest.raises(ValueError, match="own"), aside.wrap(lock):
        _cancel(aside, lock)
        raise ValueError("own")


def test_one_lock_can_be_entered_by_several_threads_and_nested(aside: AsyncioSide) -> None:
    lock = Lock()
    twin = aside.wrap(lock)
    inside = threading.Barrier(3)

    def enter() -> None:
        with twin, twin:
            inside.wait(10)

    spawned = [Spawned(enter) for _ in range(3)]
    for one in spawned:
        one.result()
    assert len(set(lock.entered_by)) == 6
    assert set(lock.entered_by) == set(lock.left_by)


def test_plain_function_is_decorated_as_an_async_one(aside: AsyncioSide) -> None:
    def work(text: str) -> str:
        return text

    decorated = aside.wrap(Lock())(work)
    assert decorated("text") == "locked text"
    assert decorated.__name__ == "work"


def test_callbacks_get_the_blocking_face(aside: AsyncioSide) -> None:
    seen: list[Any] = []
    aside.wrap(Lock()).acquire(on_lost=seen.append)
    assert seen[0].release() is None


def test_tasks_left_behind_fail_the_test() -> None:
    side = AsyncioSide()
    side.loop.call_soon_threadsafe(side.loop.create_task, asyncio.sleep(60))
    with pytest.raises(AssertionError, match="tasks left"):
        side.close(grace_s=0.05)


def test_spawned_call_gives_its_result_or_raises_its_error() -> None:
    side = Side()
    assert side.spawn(int, "7").result() == 7
    failed = side.spawn(int, "x")
    assert isinstance(failed.error(), ValueError)
    with pytest.raises(ValueError, match="invalid literal"):
        failed.result()
    side.close()


def test_one_body_runs_on_both_sides_through_a_fault(side: Side, proxy: Proxy, name: str) -> None:
    """The example of CONTRIBUTING.md."""
    lost = proxy.when("EVALSHA", containing=name).drop_reply_and_cut()
    with side.client(proxy.url) as lf, lf.lock(name) as grant:
        assert grant.held
    assert lost.hits == 1
    assert not grant.held


def _cancel(side: AsyncioSide, lock: Lock) -> None:
    """Cancels the task that is inside the lock, and waits until it has left."""
    task = lock.entered_by[-1]
    assert task is not None
    side.loop.call_soon_threadsafe(task.cancel)
    while not task.done():
        side.run(asyncio.sleep(0))
