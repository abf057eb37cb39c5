"""Brings to servers of a quorum what was lost on its way, in asyncio: see undelivered.py."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from lockfast.clock import now
from lockfast.drivers.undelivered import TRY_S, packed
from lockfast.errors import LockfastError
from lockfast.flows.fleet import PROBE_S

if TYPE_CHECKING:
    from collections.abc import Callable

    from lockfast.drivers.undelivered import Undelivered
    from lockfast.flows.effects import Call


class Bringer:
    """At most one task for each server, and only while something is to be brought there.

    connector: returns what makes links to a server. tasks: where those who are at it are listed.
    """

    def __init__(
        self,
        connector: Callable[[int], Any],
        undelivered: Undelivered,
        timeout_s: float,
        tasks: set[asyncio.Future[Any]],
        count: int,
    ) -> None:
        self._connector = connector
        self._undelivered = undelivered
        self._timeout_s = timeout_s
        self._tasks = tasks
        self._hurry = [asyncio.Event() for _ in range(count)]  # ends the pause of who brings something there

    def bring(self, place: int, call: Call) -> None:
        """Bring a request to a server over a link of its own, as soon as that can be done."""
        is_first = self._undelivered.keep(place, call)
        self._hurry[place].set()
        if is_first:
            task = asyncio.get_running_loop().create_task(self._deliver(place), name="lockfast-undo")
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def end(self) -> None:
        """The client is about to be closed: whoever pauses goes on now."""
        self._undelivered.end()
        for hurry in self._hurry:
            hurry.set()

    async def finish(self) -> None:
        """Wait a moment for what is under way."""
        gives_up_at = now() + min(TRY_S, self._timeout_s)
        while self._tasks and now() < gives_up_at:
            await asyncio.wait(self._tasks, timeout=gives_up_at - now())

    async def _deliver(self, place: int) -> None:
        """Bring what was lost there, until it is confirmed or of no more use."""
        try:
            await self._bring_all(place, now() + self._timeout_s)
            while not self._undelivered.is_done(place):
                await self._pause(place)
                await self._bring_all(place, now() + min(TRY_S, self._timeout_s))
        except BaseException:
            self._undelivered.stop(place)
            raise

    async def _pause(self, place: int) -> None:
        if self._undelivered.is_urgent(place):
            return
        self._hurry[place].clear()
        try:
            async with asyncio.timeout(PROBE_S):
                await self._hurry[place].wait()
        except TimeoutError:
            pass

    async def _bring_all(self, place: int, by: float) -> None:
        calls = self._undelivered.take(place)
        if not calls:
            return
        try:
            link = await self._connector(place)(by, lambda _: None)
            try:
                replies = await link.request_many(packed(calls), len(calls), by)
            finally:
                link.close()
        except LockfastError:
            return
        self._undelivered.heard(place, calls, replies)
