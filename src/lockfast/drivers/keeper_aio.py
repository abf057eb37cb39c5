"""Keeps the holds of a client, for asyncio: a timer of the loop declares loss, renewals run in tasks beside it.

Releases that were not confirmed have a task of their own, so that no renewal waits for them.
"""

from __future__ import annotations

import asyncio
from math import inf
from typing import TYPE_CHECKING, Any

from lockfast.clock import now
from lockfast.drivers.ledger import LOOK_S, Ledger
from lockfast.errors import LockfastError
from lockfast.flows.renewal import renew_all

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence

    from lockfast.flows.effects import Env
    from lockfast.grants import Hold


class Keeper:
    """Renews, and declares loss, for all holds of one client."""

    def __init__(self, env: Env, run: Callable[[Any], Coroutine[Any, Any, Any]]) -> None:
        self.ledger = Ledger(env.now)
        self._env = env
        self._run = run
        self._alarm: asyncio.TimerHandle | None = None
        self._wakes_at = inf
        self._workers: set[asyncio.Task[None]] = set()
        self._finishing = False
        self._closed = False

    def note(self, hold: Hold) -> None:
        """Remember a hold that nobody asked to have renewed or watched: it is only given back at the end."""
        self.ledger.holds[hold.ticket] = hold

    def watch(self, hold: Hold) -> None:
        """Keep this hold until it ends."""
        self.ledger.holds[hold.ticket] = hold
        if hold.renew_at < self._wakes_at or hold.deadline < self._wakes_at or self._alarm is None:
            self._look_at(min(hold.renew_at, hold.deadline))

    def unwatch(self, hold: Hold) -> None:
        """The holder gives it back: no renewal and no loss any more."""
        self.ledger.holds.pop(hold.ticket, None)

    def unwatch_all(self, holds: Sequence[Hold]) -> None:
        """The same for several."""
        watched = self.ledger.holds
        for hold in holds:
            watched.pop(hold.ticket, None)

    def finish(self, hold: Hold) -> None:
        """See to it that a `leave` which was not confirmed reaches the server, until the lease would end anyway."""
        self.ledger.unconfirmed[hold.ticket] = hold
        self._look_at(now())

    def _look_at(self, moment: float) -> None:
        if self._closed:
            return
        if self._alarm is not None:
            self._alarm.cancel()
        sleep_s = max(0.0, min(moment - now(), LOOK_S))
        self._wakes_at = now() + sleep_s
        self._alarm = asyncio.get_running_loop().call_later(sleep_s, self._look)

    def _look(self) -> None:
        self._alarm, self._wakes_at = None, inf
        due, wakes_at = self.ledger.look()
        if self.ledger.begin(due):
            self._beside(self._renew(due))
        if self.ledger.unconfirmed and not self._finishing:
            self._finishing = True
            self._beside(self._finish_all())
        if self.ledger.holds or self.ledger.unconfirmed:
            self._look_at(wakes_at)

    def _beside(self, work: Coroutine[Any, Any, None]) -> None:
        worker = asyncio.create_task(work, name="lockfast-renewals")
        self._workers.add(worker)
        worker.add_done_callback(self._workers.discard)

    async def _renew(self, due: list[Hold]) -> None:
        try:
            await self._run(renew_all(due, self._env))
        except LockfastError:
            pass  # told to each hold
        finally:
            self.ledger.end(due)
        self._look_at(now())

    async def _finish_all(self) -> None:
        try:
            for hold in list(self.ledger.unconfirmed.values()):
                try:
                    await self._run(self.ledger.finish_one(hold, self._env))
                except LockfastError:
                    pass  # tried again at the next look; others may be luckier
        finally:
            self._finishing = False

    async def close(self) -> None:
        """Stop looking; nothing is renewed after this."""
        self._closed = True
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
        workers = list(self._workers)
        for worker in workers:
            worker.cancel()
        if workers:
            await asyncio.wait(workers)
