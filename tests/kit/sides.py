"""One test body for both sides: `side.client(url)` gives the blocking API, be it threads or asyncio below.

On asyncio a loop runs in its own thread. What `lockfast.aio` returns is handed out as a `Twin`, which has
the same methods without `await`: each call becomes a task on the loop, and the caller blocks until it ends.
A `with` block is one task from entry to exit, as `async with` is, so that the library may cancel it.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import threading
import time
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine
    from types import TracebackType

    from lockfast.sync import Lockfast

T = TypeVar("T")

# A call that hangs should fail its test with a stack, before the time limit of the test ends everything.
_PATIENCE_S = 60.0
_OTHER_NAMES = {"close": "aclose"}
# Read-only and without I/O: called where the test is, so that they answer even while the loop is blocked.
_ANYWHERE = {"check"}


class Spawned(Generic[T]):
    """A call that runs in a thread of its own."""

    def __init__(self, function: Callable[..., T], *arguments: Any, **options: Any) -> None:
        self._future: Future[T] = Future()
        self._call = functools.partial(function, *arguments, **options)
        threading.Thread(target=self._run, name="spawned", daemon=True).start()

    def _run(self) -> None:
        try:
            self._future.set_result(self._call())
        except BaseException as error:
            self._future.set_exception(error)

    @property
    def done(self) -> bool:
        return self._future.done()

    def result(self, timeout_s: float = _PATIENCE_S) -> T:
        """What the call returned, or what it raised, here."""
        return self._future.result(timeout_s)

    def error(self, timeout_s: float = _PATIENCE_S) -> BaseException | None:
        return self._future.exception(timeout_s)


class Side:
    """Threads: the sync API as it is."""

    name = "threads"

    def __init__(self) -> None:
        self._clients: list[Lockfast] = []

    def client(self, server: Any = None, **options: Any) -> Lockfast:
        """A `Lockfast` of this side. It is closed with the side, if the test has not closed it."""
        made = self._make(server, options)
        self._clients.append(made)
        return made

    def spawn(self, function: Callable[..., T], *arguments: Any, **options: Any) -> Spawned[T]:
        """Runs something blocking beside the test: `waiting = side.spawn(lock.acquire, wait=5)`."""
        return Spawned(function, *arguments, **options)

    def close(self, *, grace_s: float = 2.0) -> None:
        """Closes the clients and fails if they leave threads or tasks behind."""
        for client in self._clients:
            client.close()
        _soon_empty(_library_threads, "threads left after close()", grace_s)

    def _make(self, server: Any, options: dict[str, Any]) -> Lockfast:
        from lockfast.sync import Lockfast

        return Lockfast(server, **options)


class AsyncioSide(Side):
    """asyncio behind the sync API."""

    name = "asyncio"

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self._complaints: list[str] = []
        self.loop.set_exception_handler(lambda _, context: self._complaints.append(repr(context)))
        self._thread = threading.Thread(target=self.loop.run_forever, name="event loop", daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Runs a coroutine on the loop and waits for it."""
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(_PATIENCE_S)

    def wrap(self, value: Any) -> Any:
        """A Twin for what has an async side, anything else as it is."""
        return Twin(self, value) if _is_async(type(value)) else value

    def close(self, *, grace_s: float = 2.0) -> None:
        try:
            super().close(grace_s=grace_s)
            _soon_empty(self._tasks, "tasks left after close()", grace_s)
            assert not self._complaints, f"the event loop complained: {self._complaints}"
        finally:
            self.run(self._cancel_tasks())
            self.run(self.loop.shutdown_default_executor())
            self.loop.call_soon_threadsafe(self.loop.stop)
            self._thread.join(10)
            self.loop.close()

    def _tasks(self) -> list[str]:
        async def look() -> list[str]:
            return [repr(task) for task in asyncio.all_tasks() if task is not asyncio.current_task()]

        return self.run(look())

    async def _cancel_tasks(self) -> None:
        for task in asyncio.all_tasks():
            if task is not asyncio.current_task():
                task.cancel()
        await asyncio.sleep(0)

    def _make(self, server: Any, options: dict[str, Any]) -> Lockfast:
        from lockfast.aio import Lockfast as AsyncioLockfast

        async def make() -> AsyncioLockfast:
            return AsyncioLockfast(server, **options)

        return cast("Lockfast", Twin(self, self.run(make())))


class Twin:
    """The blocking face of one asyncio object. `twin_of` is that object."""

    def __init__(self, side: AsyncioSide, twin_of: Any) -> None:
        self.twin_of = twin_of
        self._side = side
        self._bodies = threading.local()  # Each thread that is inside a `with` of this object has its own.

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.twin_of, _OTHER_NAMES.get(name, name))
        if not inspect.isroutine(found):
            return self._side.wrap(found)
        return found if name in _ANYWHERE else functools.partial(self._call, found)

    def _call(self, method: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        if on_lost := options.get("on_lost"):
            options["on_lost"] = lambda grant: on_lost(self._side.wrap(grant))

        async def run() -> Any:
            result = method(*arguments, **options)
            return await result if inspect.isawaitable(result) else result

        return self._side.wrap(self._side.run(run()))

    def __call__(self, function: Callable[..., T]) -> Callable[..., T]:
        """Decorates a plain function: below, it is an async one that runs the function in a thread."""

        @functools.wraps(function)
        async def body(*arguments: Any, **options: Any) -> T:
            return await asyncio.to_thread(function, *arguments, **options)

        decorated: Callable[..., Awaitable[T]] = self.twin_of(body)

        async def run(arguments: tuple[Any, ...], options: dict[str, Any]) -> T:
            return await decorated(*arguments, **options)

        @functools.wraps(function)
        def call(*arguments: Any, **options: Any) -> T:
            return self._side.run(run(arguments, options))

        return call

    def __iter__(self) -> Twin:
        return self

    def __next__(self) -> Any:
        try:
            return self._call(self.twin_of.__anext__)
        except StopAsyncIteration:
            raise StopIteration from None

    def __enter__(self) -> Any:
        body = _Body(self._side, self.twin_of)
        value = body.enter()
        self._bodies.stack = [*getattr(self._bodies, "stack", []), body]
        return self if value is self.twin_of else self._side.wrap(value)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        body: _Body = self._bodies.stack.pop()
        return body.leave(error)

    def __repr__(self) -> str:
        return repr(self.twin_of)


class _Interrupted(Exception):
    """Stands for a KeyboardInterrupt or SystemExit of the test's body, which would end the loop itself."""


class _Body:
    """An `async with` block in one task, whose body is the test's `with` block in another thread."""

    def __init__(self, side: AsyncioSide, manager: Any) -> None:
        self._side = side
        self._manager = manager
        self._entered: Future[Any] = Future()
        self._ended: Future[BaseException | None] = Future()

    def enter(self) -> Any:
        self._task = asyncio.run_coroutine_threadsafe(self._run(), self._side.loop)
        self._task.add_done_callback(self._fail_to_enter)
        return self._entered.result(_PATIENCE_S)

    async def _run(self) -> None:
        async with self._manager as value:
            self._entered.set_result(value)
            if error := await asyncio.wrap_future(self._ended):
                raise error

    def _fail_to_enter(self, task: Future[None]) -> None:
        if not self._entered.done():
            self._entered.set_exception(task.exception() or RuntimeError("the block was never entered"))

    def leave(self, error: BaseException | None) -> bool:
        """True when the error of the body is to be swallowed, as `__exit__` says it."""
        carried = error if error is None or isinstance(error, Exception) else _Interrupted()
        delivered = self._ended.set_running_or_notify_cancel()
        if delivered:
            self._ended.set_result(carried)
        try:
            self._task.result(_PATIENCE_S)
        except BaseException as raised:
            # Undelivered: the task was cancelled under the body. An async body would not have come this far.
            if raised is carried or (error is not None and not delivered):
                return False
            raise
        return error is not None


def make_side(name: str) -> Side:
    return AsyncioSide() if name == "asyncio" else Side()


def _is_async(kind: type) -> bool:
    if kind.__module__ == "builtins":
        return False
    members = [member for _, member in inspect.getmembers_static(kind)]
    return hasattr(kind, "__aenter__") or any(map(inspect.iscoroutinefunction, members))


def _library_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("lockfast")]


def _soon_empty(look: Callable[[], list[str]], complaint: str, grace_s: float) -> None:
    end = time.monotonic() + grace_s
    while left := look():
        if time.monotonic() > end:
            raise AssertionError(f"{complaint}: {left}")
        time.sleep(0.005)
