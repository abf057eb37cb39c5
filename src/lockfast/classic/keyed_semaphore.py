"""A counting semaphore out of locks: one key with a time-out for each permit.

From: the other way that is usual for a semaphore with a time-out, built as the lock of timed.py is.
Promises: not more than `limit` holders, by the server's clock alone; who dies is dropped after `timeout`.
Breaks: as timed.py does, permit by permit. Finding a free permit takes up to `limit` trips, and a permit that is freed
behind the searcher's back is not found: it may be refused although one was free all the time.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, replace
from typing import TYPE_CHECKING

from lockfast.classic.arguments import check_lease, check_limit, check_name, check_prefix
from lockfast.classic.timed import TimeoutLock

if TYPE_CHECKING:
    from lockfast.classic.taken import Taken
    from lockfast.flows.plain import Env, Flow


@dataclass(frozen=True)
class KeyedSemaphore:
    """Up to `limit` holders at once, each for up to `timeout` seconds, rounded up to whole ones. It never waits."""

    name: str
    limit: int
    _: KW_ONLY
    timeout: float = 10.0
    prefix: str = "semaphore:"

    def __post_init__(self) -> None:
        check_name(self.name)
        check_limit(self.limit)
        check_lease(self.timeout, "timeout")
        check_prefix(self.prefix)

    def acquire(self, env: Env) -> Flow[Taken | None]:
        """Take the first permit that is free; None when none is, at once."""
        for slot in range(self.limit):
            taken = yield from self._permit(slot).acquire(env)
            if taken is not None:
                return replace(taken, name=self.name, slot=slot)
        return None

    def release(self, taken: Taken, env: Env) -> Flow[bool]:
        """Give the permit back. False when it was not ours any more."""
        return (yield from self._permit(taken.slot).release(taken, env))

    def _permit(self, slot: int) -> TimeoutLock:
        return TimeoutLock(f"{self.name}:{slot}", acquire_timeout=0, lock_timeout=self.timeout, prefix=self.prefix)
