"""What is owed on the links to a majority of servers, for asyncio: who hears the replies, and who waits for enough."""

from __future__ import annotations

from types import coroutine
from typing import TYPE_CHECKING, Any

from lockfast.clock import now
from lockfast.drivers import wire
from lockfast.drivers.dialect import knows_no_flags
from lockfast.drivers.reply import Reply
from lockfast.drivers.wire import ReplyError
from lockfast.errors import Unreachable

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Generator

    from lockfast.drivers.link import Link
    from lockfast.flows.effects import Call, Scatter
    from lockfast.flows.fleet import Node


class Trip:
    """The requests of one Scatter, and the task that waits until enough of them are answered."""

    __slots__ = ("_enough", "_waiter", "bring", "hear", "missing")

    def __init__(self, effect: Scatter, bring: Callable[[int, Call], None]) -> None:
        self.hear = effect.hear
        self.bring = bring if effect.behind else None  # called with what was lost, if that must get there
        self._enough = effect.enough
        self.missing = 0
        self._waiter: Reply | None = None

    def told(self) -> None:
        """One more has been heard."""
        self.missing -= 1
        waiter = self._waiter
        if waiter is not None and not waiter.is_done and (not self.missing or self._enough()):
            waiter.settle(None)

    async def wait(self, loop: asyncio.AbstractEventLoop, by: float) -> None:
        """Until it is enough, or all is there, or the time is up."""
        if not self.missing or self._enough():
            return
        waiter = self._waiter = Reply(loop, by)
        alarm = loop.call_later(max(by - now(), 0.0), waiter.settle, None)
        try:
            await _settled(waiter)
        finally:
            alarm.cancel()


class Heard:
    """One request of a trip, on the list of what a link owes."""

    __slots__ = ("_call", "_index", "_link", "_node", "_trip", "by", "is_done")

    def __init__(self, trip: Trip, index: int, call: Call, link: Link, node: Node, by: float) -> None:
        self._trip = trip
        self._index = index
        self._call = call
        self._link = link
        self._node = node
        self.by = by
        self.is_done = False

    def settle(self, value: Any) -> None:
        self._node.answered()
        if type(value) is ReplyError:
            is_old = knows_no_flags(value)  # see dialect.py
            if is_old:
                self._link.plain = self._link.endpoint.plain = True
            if is_old or wire.is_noscript(value):
                try:
                    self._link.post(wire.eval_text(self._call.bound, self._call.args), [self], self.by)
                except Unreachable as failure:
                    self.fail(failure)
                return
            value = wire.failure(value, self._link.where, self._call.bound)
        self._tell(value)

    def fail(self, error: BaseException) -> bool:
        if not self.is_done and self._trip.bring is not None:
            self._trip.bring(self._node.env.place, self._call)
        self._tell(error)
        return True

    def _tell(self, value: Any) -> None:
        if not self.is_done:
            self.is_done = True
            self._trip.hear(self._index, value)
            self._trip.told()


@coroutine
def _settled(reply: Reply) -> Generator[Reply, None, Any]:
    yield reply
    return reply.value
