"""What is owed on the links to a majority of servers, for asyncio: who hears the replies, and who waits for enough."""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, Any

from lockfast.drivers import wire
from lockfast.drivers.dialect import knows_no_flags
from lockfast.drivers.quorum_lines import is_taken_back, too_late
from lockfast.drivers.reply import Reply
from lockfast.drivers.wire import ReplyError
from lockfast.errors import Unreachable

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from lockfast.drivers.link import Link
    from lockfast.flows.effects import Call, Scatter
    from lockfast.flows.fleet import Node


class Trip(Reply):
    """The requests of one Scatter. The task that waits until enough of them are answered is woken once: see reply.py.

    link_by: how long a link may owe a reply before it is given up.
    """

    __slots__ = ("bring", "enough", "hear", "is_awaited", "link_by", "missing")

    def __init__(
        self, loop: asyncio.AbstractEventLoop, effect: Scatter, link_by: float, bring: Callable[[int, Call], None]
    ) -> None:
        super().__init__(loop, effect.by)
        self.hear = effect.hear
        self.enough = effect.enough
        self.bring = bring if effect.behind else None  # called with what was lost or refused, if that must get there
        self.link_by = link_by
        self.missing = 0
        self.is_awaited = False


class Heard:
    """One request of a trip, on the list of what a link owes.

    Filled in by whoever makes it, which costs half as much as an `__init__`: there are ten for one lock.
    """

    __slots__ = ("call", "index", "is_done", "link", "node", "trip")

    call: Call
    index: int
    is_done: bool
    link: Link
    node: Node
    trip: Trip

    @property
    def by(self) -> float:
        return self.trip.link_by

    def settle(self, value: Any) -> None:
        node = self.node
        node.asked_at = inf
        if node.why_down:
            node.answered()
        if type(value) is ReplyError:
            self._refused(value)
        else:
            self._tell(value)

    def _refused(self, reply: Exception) -> None:
        is_old = knows_no_flags(reply)  # see dialect.py
        if is_old:
            self.link.plain = self.link.endpoint.plain = True
        if is_old or wire.is_noscript(reply):
            if self.trip.bring is None and self._is_too_late():
                self._tell(too_late(self.link.where))
                return
            try:
                self.link.post(wire.eval_text(self.call.bound, self.call.args), self, self.by)
            except Unreachable as failure:
                self.fail(failure)
            return
        self.fail(wire.failure(reply, self.link.where, self.call.bound))

    def _is_too_late(self) -> bool:
        """Whether a `leave` may have been sent already that relies on this request to have run by now.

        On a link that was given up, it was brought over another one as well.
        """
        behind = [later.call for later in self.link.awaited if isinstance(later, Heard)]
        return self.is_done or not self.link.usable or is_taken_back(self.call, behind)

    def fail(self, error: BaseException) -> bool:
        if not self.is_done and self.trip.bring is not None:
            self.trip.bring(self.node.env.place, self.call)
        self._tell(error)
        return True

    def _tell(self, value: Any) -> None:
        if self.is_done:
            return
        self.is_done = True
        trip = self.trip
        trip.hear(self.index, value)
        trip.missing -= 1
        if trip.is_awaited and not trip.is_done and (not trip.missing or trip.enough()):
            trip.settle(None)
