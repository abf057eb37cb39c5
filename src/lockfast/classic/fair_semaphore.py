"""The fair semaphore: a counter on the server decides who came first; clocks only decide who is dropped.

From: Redis in Action, section 6.3.2 (acquire_fair_semaphore).
It keeps two sorted sets with the same members: by time, to drop those that timed out, and by counter, to rank.
Promises: places go by the counter, so a slow clock steals nothing as long as clocks are within a second or two.
Breaks: clocks still decide time-outs: one that is further ahead than `timeout` drops everybody. The counter and the
place are taken in two trips: of two clients near the limit, the one with the later counter may look first, find
itself within the limit and be let in; then the earlier one arrives, ranks before it, and is let in as well.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING

from lockfast.classic.arguments import check_lease, check_limit, check_name, check_prefix
from lockfast.classic.taken import Taken
from lockfast.flows.plain import transact

if TYPE_CHECKING:
    from lockfast.flows.plain import Env, Flow


@dataclass(frozen=True)
class FairSemaphore:
    """Up to `limit` holders at once, first come, first in, each for up to `timeout` seconds. It never waits."""

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

    @property
    def times_key(self) -> str:
        return self.prefix + self.name

    @property
    def owners_key(self) -> str:
        return f"{self.times_key}:owner"

    @property
    def counter_key(self) -> str:
        return f"{self.times_key}:counter"

    def acquire(self, env: Env) -> Flow[Taken | None]:
        """Take a place if one is free; None otherwise, at once."""
        token = env.token()
        at = env.wall()
        counted = yield from transact(
            env,
            ("ZREMRANGEBYSCORE", self.times_key, "-inf", at - self.timeout),
            # Keeps the counters of those members that are still in the set of times.
            ("ZINTERSTORE", self.owners_key, 2, self.owners_key, self.times_key, "WEIGHTS", 1, 0),
            ("INCR", self.counter_key),
        )
        assert counted is not None, "nothing is watched"
        ranked = yield from transact(
            env,
            ("ZADD", self.times_key, at, token),
            ("ZADD", self.owners_key, counted[-1], token),
            ("ZRANK", self.owners_key, token),
        )
        assert ranked is not None, "nothing is watched"
        if ranked[-1] < self.limit:
            return Taken(self.name, token, at, self.timeout)
        yield from self._remove(token, env)
        return None

    def release(self, taken: Taken, env: Env) -> Flow[bool]:
        """Give the place back. False when it had been dropped."""
        return (yield from self._remove(taken.token, env))

    def _remove(self, token: str, env: Env) -> Flow[bool]:
        removed = yield from transact(env, ("ZREM", self.times_key, token), ("ZREM", self.owners_key, token))
        assert removed is not None, "nothing is watched"
        return bool(removed[0])
