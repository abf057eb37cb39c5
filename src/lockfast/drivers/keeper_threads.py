"""Keeps the holds of a client, for threads: a timer that never waits on I/O, and renewals beside it.

The timer thread looks at every hold: it declares loss at the local deadline, before the server could let another in,
and starts the renewals that are due, all of them in one trip, in a thread of their own. It is started with the first
hold that needs it and ends by itself when there has been nothing to keep for a while.
"""

from __future__ import annotations

import threading
from math import inf
from typing import TYPE_CHECKING, Any

from lockfast.clock import now
from lockfast.errors import LockfastError, Unreachable
from lockfast.flows.admission import leave
from lockfast.flows.renewal import Due, renew_all
from lockfast.grants import HELD, LEAVING, RELEASED

if TYPE_CHECKING:
    from collections.abc import Callable

    from lockfast.flows.effects import Env
    from lockfast.grants import Hold

# The timer looks at least this often while something is held: threads sleep on a clock that stops during suspend,
# and must notice soon after it that a deadline has passed meanwhile.
LOOK_S = 1.0
IDLE_LOOKS = 10


class Keeper:
    """Renews, and declares loss, for all holds of one client."""

    def __init__(self, env: Env, run: Callable[[Any], Any]) -> None:
        self._env = env
        self._run = run
        self._holds: dict[str, Hold] = {}
        self._unconfirmed: dict[str, Hold] = {}
        self._timer: threading.Thread | None = None
        self._worker: threading.Thread | None = None
        self._condition = threading.Condition()
        self._wakes_at = inf  # when the timer will look again by itself; inf while it is not asleep
        self._poked = False
        self._seen_work = False
        self._closed = False

    def watch(self, hold: Hold) -> None:
        """Keep this hold until it ends."""
        self._holds[hold.ticket] = hold
        self._seen_work = True
        if min(hold.renew_at, hold.deadline) < self._wakes_at or self._timer is None:
            self._poke()

    def unwatch(self, hold: Hold) -> None:
        """The holder gives it back: no renewal and no loss any more."""
        self._holds.pop(hold.ticket, None)

    def finish(self, hold: Hold) -> None:
        """See to it that a `leave` which was not confirmed reaches the server, until the lease would end anyway."""
        self._unconfirmed[hold.ticket] = hold
        self._poke()

    def holds(self) -> list[Hold]:
        """All that is watched."""
        return list(self._holds.values())

    def close(self) -> None:
        """End the timer and wait for both threads; nothing is renewed after this."""
        with self._condition:
            self._closed = True
            self._condition.notify()
            threads = [self._timer, self._worker]
        for thread in threads:
            if thread is not None and thread is not threading.current_thread():
                thread.join()

    def _poke(self) -> None:
        with self._condition:
            if self._closed:
                return
            self._poked = True
            if self._timer is None:
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
            wakes_at = self._look()
            idle_looks = 0 if self._holds or self._unconfirmed or self._seen_work else idle_looks + 1
            self._seen_work = False
            with self._condition:
                if self._closed or (idle_looks > IDLE_LOOKS and not self._poked):
                    self._timer = None
                    return
                if not self._poked:
                    sleep_s = min(wakes_at - now(), LOOK_S)
                    self._wakes_at = now() + sleep_s
                    if sleep_s > 0:
                        self._condition.wait(sleep_s)

    def _look(self) -> float:
        """Declare losses, start what is due, and say when to look again."""
        wakes_at = inf
        moment = now()
        due: list[Hold] = []
        for hold in self.holds():
            if hold.state is not HELD:
                self.unwatch(hold)
            elif moment >= hold.deadline:
                hold.held()  # finds it lost
                self.unwatch(hold)
            elif hold.orphaned:
                self._give_up(hold)
            else:
                if hold.renews and moment >= hold.renew_at:
                    due.append(hold)
                    wakes_at = min(wakes_at, hold.deadline)
                else:
                    wakes_at = min(wakes_at, hold.deadline, hold.renew_at if hold.renews else inf)
        if (due or self._unconfirmed) and (self._worker is None or not self._worker.is_alive()):
            self._worker = threading.Thread(target=self._work, args=(due,), name="lockfast-renewals", daemon=True)
            self._worker.start()
        return wakes_at

    def _give_up(self, hold: Hold) -> None:
        """The grant is gone and nobody can release it: give it back rather than renew it for ever."""
        _log().warning("a grant of %r was dropped without release(); it is given back now", hold.ask.name.shown)
        self.unwatch(hold)
        try:
            hold.begin_leave()
        except LockfastError:
            return
        self._unconfirmed[hold.ticket] = hold

    def _work(self, due: list[Hold]) -> None:
        """Everything that waits on I/O; the timer goes on beside it."""
        if due:
            renew_batch(due, self._env, self._run)
        for hold in list(self._unconfirmed.values()):
            if self._closed or now() >= hold.deadline + LOOK_S:
                self._unconfirmed.pop(hold.ticket, None)  # the lease has ended it
                continue
            try:
                self._run(leave(hold.ask, hold.ticket, hold.unsure, self._env, sent_before=True))
            except LockfastError:
                continue
            self._unconfirmed.pop(hold.ticket, None)
            if hold.state is LEAVING:
                hold.state = RELEASED
        self._poke()


def renew_batch(due: list[Hold], env: Env, run: Callable[[Any], Any]) -> None:
    """Renew all of these in one trip and tell each hold what came of it."""
    by = max(now() + 0.05, min(now() + env.timeout_s / 2, *(hold.deadline for hold in due)))
    wants = [Due(hold.ask.name.keys, hold.ticket, hold.fence, hold.lease_ms) for hold in due]
    try:
        answers = run(renew_all(wants, by, env))
    except LockfastError as failure:
        answers = [failure] * len(due)
    settle(due, answers)


def settle(due: list[Hold], answers: list[float | BaseException]) -> None:
    """Tell each hold how its renewal went."""
    for hold, answer in zip(due, answers, strict=True):
        if isinstance(answer, float):
            if answer > 0:
                hold.renewed(answer, hold.lease_ms)
            else:
                hold.lose("the server no longer knows it (broken, flushed, or restarted empty)")
            continue
        hold.renew_at = now() + min(hold.lease_ms / 10_000, LOOK_S)
        _log().warning("renewal of %r failed, %.1f s of its lease left: %s", hold.ask.name.shown,
                       max(0.0, hold.deadline - now()), answer)
        if not isinstance(answer, Unreachable):
            _log().debug("the server refused a renewal", exc_info=answer)


def _log() -> Any:
    import logging  # imported on first need: a tenth of the start time of `lockfast run`

    return logging.getLogger("lockfast")
