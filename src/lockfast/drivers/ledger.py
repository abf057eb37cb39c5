"""What a keeper has to look after, the same for threads and asyncio: which holds are over, and which are due."""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING

from lockfast.errors import LockfastError
from lockfast.flows.ending import leave_by
from lockfast.grants import HELD, log

if TYPE_CHECKING:
    from collections.abc import Callable

    from lockfast.flows.effects import Env, Flow
    from lockfast.grants import Hold

# A keeper looks at least this often while something is held: threads and loops sleep on a clock that stops during
# suspend, and must notice soon after it that a deadline has passed meanwhile.
LOOK_S = 1.0
MOST_TRIPS = 2  # renewals under way at once: one that waits for a server that hangs, and one for all others


class Ledger:
    """The holds of one client, and the releases that were not confirmed yet."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self.holds: dict[str, Hold] = {}
        self.unconfirmed: dict[str, Hold] = {}
        self._trips: list[list[Hold]] = []  # what is being renewed

    def look(self) -> tuple[list[Hold], float]:
        """Declare what is lost. Returns the holds that are due for renewal, and when to look again."""
        renewing = {hold.ticket for trip in list(self._trips) for hold in trip}
        wakes_at = inf
        moment = self._now()
        due: list[Hold] = []
        for hold in list(self.holds.values()):
            if hold.state is not HELD:
                self.holds.pop(hold.ticket, None)
            elif moment >= hold.deadline:
                hold.held()  # finds that it is lost
                self.holds.pop(hold.ticket, None)
            elif hold.orphaned:
                self._give_up(hold)
            elif not hold.renews:
                wakes_at = min(wakes_at, hold.deadline)
            elif moment >= hold.renew_at:
                if hold.ticket not in renewing:
                    due.append(hold)
                wakes_at = min(wakes_at, hold.deadline)
            else:
                wakes_at = min(wakes_at, hold.deadline, hold.renew_at)
        return due, wakes_at

    def begin(self, due: list[Hold]) -> bool:
        """Whether these are to be renewed now, or when one of the trips that are under way has ended."""
        if not due or len(self._trips) >= MOST_TRIPS:
            return False
        self._trips.append(due)
        return True

    def end(self, due: list[Hold]) -> None:
        """Their renewal has ended."""
        self._trips.remove(due)

    def _give_up(self, hold: Hold) -> None:
        """The grant was garbage-collected: give it back rather than renew it for ever."""
        log().warning("a grant of %r was dropped without release(); it is being given back", hold.ask.name.shown)
        self.holds.pop(hold.ticket, None)
        try:
            if hold.begin_leave():
                self.unconfirmed[hold.ticket] = hold
        except LockfastError:
            pass  # released by somebody in the same moment

    def finish_one(self, hold: Hold, env: Env) -> Flow[None]:
        """Try once more to have a release confirmed, unless its lease and grace have ended by now."""
        if self._now() >= hold.deadline + hold.ask.grace_ms / 1000 + LOOK_S:
            self.unconfirmed.pop(hold.ticket, None)
            return
        stood = yield from leave_by(hold, env, sent_before=True)
        self.unconfirmed.pop(hold.ticket, None)
        hold.end_leave(stood, told=False)
