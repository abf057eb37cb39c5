"""The counting semaphore: a sorted set of holders by the time they came; the first `limit` of them are in.

From: Redis in Action, section 6.3.1 (acquire_semaphore). The other form, a key for each permit, is keyed_semaphore.py.
Promises: not more than `limit` holders while requests arrive in the order of the times in them; who dies is dropped
after `timeout`.
Breaks: the score is the client's own clock. One whose clock is behind ranks before holders that came earlier, and is
let in beside them; 10 ms are enough. So does, even on one clock, who reads the time and is then held up on the way.
One whose clock is ahead drops others before their time.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING

from lockfast.classic.arguments import check_lease, check_limit, check_name, check_prefix
from lockfast.classic.taken import Taken
from lockfast.flows.plain import ask, transact

if TYPE_CHECKING:
    from lockfast.flows.plain import Env, Flow


@dataclass(frozen=True)
class CountingSemaphore:
    """Up to `limit` holders at once, each for up to `timeout` seconds. It never waits."""

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
    def key(self) -> str:
        return self.prefix + self.name

    def acquire(self, env: Env) -> Flow[Taken | None]:
        """Take a place if one is free; None otherwise, at once."""
        token = env.token()
        at = env.wall()
        replies = yield from transact(
            env,
            ("ZREMRANGEBYSCORE", self.key, "-inf", at - self.timeout),
            ("ZADD", self.key, at, token),
            ("ZRANK", self.key, token),
        )
        assert replies is not None, "nothing is watched"
        if replies[-1] < self.limit:
            return Taken(self.name, token, at, self.timeout)
        yield from ask(env, "ZREM", self.key, token)
        return None

    def release(self, taken: Taken, env: Env) -> Flow[bool]:
        """Give the place back. False when it had been dropped."""
        return bool((yield from ask(env, "ZREM", self.key, taken.token)))
