"""Keeps the holds of a client, for threads: a timer that never waits on I/O, and renewals beside it.

The timer thread declares loss at the local deadline, before the server could let another in, and starts the renewals
that are due, all of them in one trip, in a thread of their own. Releases that were not confirmed have another, so that
no renewal waits for them. The timer is started with the first hold that needs it and ends by itself when there has been
nothing to keep for a while.
"""

from __future__ import annotations

import threading
from math import inf
from typing import TYPE_CHECKING, Any

from lockfast.clock import now
from lockfast.drivers.ledger import LOOK_S, Ledger
from lockfast.errors import LockfastError
from lockfast.flows.renewal import renew_all

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from lockfast.flows.effects import Env
    from lockfast.grants import Hold

IDLE_LOOKS = 10


class Keeper:
    """Renews, and declares loss, for all holds of one client."""

    def __init__(self, env: Env, run: Callable[[Any], Any]) -> None:
        self.ledger = Ledger(env.now)
        self._env = env
        self._run = run
        self._timer: threading.Thread | None = None
        self._workers: list[threading.Thread] = []
        self._finishing = False
        self._condition = threading.Condition()
        self._wakes_at = inf  # when the timer will look again by itself; inf while it is not asleep, or ended
        self._poked = False
        self._closed = False

    def note(self, hold: Hold) -> None:
        """Remember a hold that nobody asked to have renewed or watched: it is only given back at the end."""
        self.ledger.holds[hold.ticket] = hold

    def watch(self, hold: Hold) -> None:
        """Keep this hold until it ends."""
        self.ledger.holds[hold.ticket] = hold
        if hold.renew_at < self._wakes_at or hold.deadline < self._wakes_at:
            self._poke()

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
        self._poke()

    def close(self) -> None:
        """End the timer and wait for all threads; nothing is renewed after this."""
        with self._condition:
            self._closed = True
            self._condition.notify()
            timer = self._timer
        _join(timer)
        for worker in self._workers:  # no more are started, without a timer
            _join(worker)

    def _poke(self) -> None:
        with self._condition:
            if self._closed:
                return
            self._poked = True
            # One that is not alive was interrupted before it began.
            if self._timer is None or not self._timer.is_alive():
                self._timer = threading.Thread(target=self._look_forever, name="lockfast-timer", daemon=True)
                self._timer.start()
            else:
                self._condition.notify()

    def _look_forever(self) -> None:
        idle_looks = 0
        while True:
            with self._condition:
                # What is watched from here on is either seen by this look or pokes.
                self._wakes_at, self._poked = inf, False
            due, wakes_at = self.ledger.look()
            if self.ledger.begin(due):
                self._beside(self._renew, due)
            if self.ledger.unconfirmed and not self._finishing:
                self._finishing = True
                self._beside(self._finish_all)
            idle_looks = 0 if self.ledger.holds or self.ledger.unconfirmed else idle_looks + 1
            with self._condition:
                if self._closed or (idle_looks > IDLE_LOOKS and not self._poked):
                    self._timer = None
                    return
                if not self._poked:
                    sleep_s = min(wakes_at - now(), LOOK_S)
                    self._wakes_at = now() + sleep_s
                    if sleep_s > 0:
                        self._condition.wait(sleep_s)

    def _beside(self, work: Callable[..., None], *args: Any) -> None:
        """Run what waits on I/O; the timer goes on beside it."""
        worker = threading.Thread(target=work, args=args, name="lockfast-renewals", daemon=True)
        worker.start()
        self._workers = [*[other for other in self._workers if other.is_alive()], worker]

    def _renew(self, due: list[Hold]) -> None:
        try:
            self._run(renew_all(due, self._env))
        except LockfastError:
            pass  # told to each hold
        finally:
            self.ledger.end(due)
        self._poke()

    def _finish_all(self) -> None:
        try:
            for hold in list(self.ledger.unconfirmed.values()):
                if self._closed:
                    return
                try:
                    self._run(self.ledger.finish_one(hold, self._env))
                except LockfastError:
                    pass  # tried again at the next look; others may be luckier
        finally:
            self._finishing = False


def _join(thread: threading.Thread | None) -> None:
    if thread is not None and thread.is_alive() and thread is not threading.current_thread():
        thread.join()
