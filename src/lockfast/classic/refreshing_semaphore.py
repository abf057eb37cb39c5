"""The refreshing semaphore: the fair one, for holders that stay longer than its time-out, such as open streams.

From: Redis in Action, section 6.3.3 (refresh_fair_semaphore).
Promises: who refreshes in time keeps the place; who comes too late is told so, and does not get it back by that.
Breaks: as fair_semaphore.py does. Between the drop and the next refresh the holder does not know.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from lockfast.classic.fair_semaphore import FairSemaphore
from lockfast.flows.plain import ask

if TYPE_CHECKING:
    from lockfast.classic.taken import Taken
    from lockfast.flows.plain import Env, Flow


@dataclass(frozen=True)
class RefreshingSemaphore(FairSemaphore):
    """Up to `limit` holders at once, each for `timeout` seconds after its last refresh. It never waits."""

    def refresh(self, taken: Taken, env: Env) -> Flow[bool]:
        """Keep the place for another `timeout`. False when it had been dropped: stop, the place is not ours."""
        added = yield from ask(env, "ZADD", self.times_key, env.wall(), taken.token)
        if added:  # it was not there any more: this has put it back where it does not belong
            yield from self._remove(taken.token, env)
        return not added
