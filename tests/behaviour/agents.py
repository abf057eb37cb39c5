"""Threads, or tasks, that do one thing after the other: those whom a deadlock is about."""

from __future__ import annotations

import asyncio
import inspect
import queue
import threading
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

from kit.sides import AsyncioSide

if TYPE_CHECKING:
    from kit.sides import Side
    from lockfast.sync import Grant

_PATIENCE_S = 60.0
_END_S = 5.0


class Agent:
    """One thread or one task: every acquire that it is told to do is done by this one."""

    def __init__(self, side: Side) -> None:
        self._side = side
        self._thread: threading.Thread | None = None
        self._task: Future[None] | None = None
        if isinstance(side, AsyncioSide):
            self._orders: Any = asyncio.Queue()
            self._task = asyncio.run_coroutine_threadsafe(self._as_task(), side.loop)
        else:
            self._orders = queue.Queue()
            self._thread = threading.Thread(target=self._as_thread, daemon=True)
            self._thread.start()

    def take(self, lock: Any, **options: Any) -> Grant:
        """Acquire and wait for it."""
        grant: Grant = self.begin(lock, **options).result(_PATIENCE_S)
        return grant

    def begin(self, lock: Any, **options: Any) -> Future[Any]:
        """Begin an acquire; its outcome is in the future. Whoever has begun before is older by a server's clock."""
        threading.Event().wait(0.003)  # that has milliseconds
        outcome: Future[Any] = Future()
        self._order((lock, options, outcome))
        return outcome

    def end(self) -> None:
        """End the thread or task, once it has done what it was told."""
        self._order(None)
        if self._task is not None:
            self._task.result(_END_S)
        if self._thread is not None:
            self._thread.join(_END_S)

    def _order(self, order: Any) -> None:
        if isinstance(self._side, AsyncioSide):
            self._side.loop.call_soon_threadsafe(self._orders.put_nowait, order)
        else:
            self._orders.put(order)

    def _as_thread(self) -> None:
        while (order := self._orders.get()) is not None:
            lock, options, outcome = order
            try:
                outcome.set_result(lock.acquire(**options))
            except BaseException as error:
                outcome.set_exception(error)

    async def _as_task(self) -> None:
        assert isinstance(self._side, AsyncioSide)
        while (order := await self._orders.get()) is not None:
            lock, options, outcome = order
            try:
                result = getattr(lock, "twin_of", lock).acquire(**options)
                assert inspect.isawaitable(result)
                outcome.set_result(self._side.wrap(await result))
            except BaseException as error:
                outcome.set_exception(error)
