"""The reply to one request, for the one task that waits for it: what a future is, less what is not needed here.

A task that awaits a future is woken by a callback in a later turn of the loop. One that awaits a Reply goes on where
the reply is read, in the same turn: that is half the cost of a wait. What such a task sends is then written together
with what the other tasks send whose replies came along.
"""

from __future__ import annotations

from asyncio import CancelledError
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable
    from contextvars import Context


class Reply:
    """Yielded to the task by whoever waits (see `Link.ask`). asyncio takes it for a future by these names."""

    __slots__ = ("_asyncio_future_blocking", "_context", "_error", "_loop", "_wake", "by", "is_done", "value")

    def __init__(self, loop: asyncio.AbstractEventLoop, by: float) -> None:
        self._asyncio_future_blocking = True
        self._loop = loop
        self._error: BaseException | None = None
        self.by = by  # when to stop waiting
        self.is_done = False

    def add_done_callback(self, wake: Callable[[Reply], object], *, context: Context) -> None:
        """How to wake the task. It calls this once."""
        self._wake = wake
        self._context = context

    def result(self) -> Any:
        """Asked for by the task before it goes on."""
        if self._error is not None:
            try:
                raise self._error
            finally:
                self._error = None  # its traceback leads here: see Threads.acquire
        return self.value

    def settle(self, value: Any) -> None:
        """The reply is here: let the task go on, unless it was cancelled."""
        if self.is_done:
            return
        self.is_done = True
        self.value = value
        try:
            self._context.run(self._wake, self)
        except RuntimeError:  # another task is in the middle of something (a foreign loop): in a later turn, then
            self._loop.call_soon(self._wake, self, context=self._context)
        except (SystemExit, KeyboardInterrupt) as stop:  # of the task; some loops heed it in callbacks only
            self._loop.call_soon(_raise, stop)

    def fail(self, error: BaseException) -> bool:
        """There will be no reply. The task hears of it in a later turn. False when it has been told already."""
        if self.is_done:
            return False
        self.is_done = True
        self._error = error
        self._loop.call_soon(self._wake, self, context=self._context)
        # A link that was not answered keeps this for a minute; the task, and what it returned, is not to stay as long.
        del self._wake, self._context
        return True

    def cancel(self, msg: object = None) -> bool:
        """The task is cancelled, and waits no longer."""
        return self.fail(CancelledError() if msg is None else CancelledError(msg))


class Promised:
    """The reply to one request, for a future."""

    __slots__ = ("_future", "by")

    def __init__(self, future: asyncio.Future[Any], by: float) -> None:
        self._future = future
        self.by = by

    @property
    def is_done(self) -> bool:
        return self._future.done()

    def settle(self, value: Any) -> None:
        if not self._future.done():
            self._future.set_result(value)

    def fail(self, error: BaseException) -> bool:
        if self._future.done():
            return False
        self._future.set_exception(error)
        return True


def _raise(stop: BaseException) -> None:
    raise stop
