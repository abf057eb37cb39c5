"""Keeps the holds of a simulated client, as drivers/keeper_threads.py and keeper_aio.py do.

The ledger and the renewal are the shipped ones. A timer declares loss at the local deadline and waits for no I/O;
renewals, and releases that were not confirmed, run in tasks beside it.
"""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING

from lockfast.drivers.ledger import LOOK_S, Ledger
from lockfast.errors import LockfastError
from lockfast.flows import renewal
from lockfast.sim.tasks import Task

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lockfast.grants import Hold
    from lockfast.sim.client import Client
    from lockfast.sim.tasks import Steps
    from lockfast.sim.world import Timer


class Keeper:
    """Renews, and declares loss, for all holds of one client."""

    def __init__(self, client: Client) -> None:
        self.ledger = Ledger(client.now)
        self._client = client
        self._alarm: Timer | None = None
        self._wakes_at = inf
        self._finishing = False

    def note(self, hold: Hold) -> None:
        """Remember a hold that nobody asked to have renewed or watched."""
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
        self._look_at(self._client.shown())

    def _look_at(self, moment: float) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
        shown = self._client.shown()
        self._wakes_at = shown + max(0.0, min(moment - shown, LOOK_S))
        self._alarm = self._client.alarm(self._wakes_at, False, self._look)

    def _look(self) -> None:
        self._alarm, self._wakes_at = None, inf
        due, wakes_at = self.ledger.look()
        if self.ledger.begin(due):
            Task(self._client, self._renew(due), "renewals")
        if self.ledger.unconfirmed and not self._finishing:
            self._finishing = True
            Task(self._client, self._finish_all(), "releases")
        if self.ledger.holds or self.ledger.unconfirmed:
            self._look_at(wakes_at)

    def _renew(self, due: list[Hold]) -> Steps[None]:
        """What waits on I/O; the timer goes on beside it."""
        try:
            yield from self._client.runner.run(renewal.renew_all(due, self._client.env))
        except LockfastError:
            pass  # told to each hold
        self.ledger.end(due)
        self._look_at(self._client.shown())

    def _finish_all(self) -> Steps[None]:
        for hold in list(self.ledger.unconfirmed.values()):
            try:
                yield from self._client.runner.run(self.ledger.finish_one(hold, self._client.env))
            except LockfastError:
                pass  # tried again at the next look; others may be luckier
        self._finishing = False
