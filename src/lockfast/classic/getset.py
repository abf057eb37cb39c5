"""The GETSET lock: the value is the wall-clock time at which the lock ends, and GETSET decides who inherits it.

From: "Design pattern: Locking with SETNX" on the SETNX page of the Redis documentation.
Promises: no TTL is needed, and of several clients that find a lock ended, one gets it: GETSET hands the ended value
to the first of them only.
Breaks: clients compare each other's clocks, so one that is ahead takes a lock that has not ended. The GETSET of those
who lose is carried out all the same and stretches the winner's time; if it comes after the winner's DEL, it locks for
a whole time-out what nobody holds. The value names no owner: a holder whose time was up cannot tell whether the
lock has passed on, and so must leave it alone.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING

from lockfast.classic.arguments import check_lease, check_name, check_prefix, check_wait
from lockfast.classic.simple import POLL_S
from lockfast.classic.taken import Taken
from lockfast.errors import Refused
from lockfast.flows.plain import ask, pause

if TYPE_CHECKING:
    from lockfast.flows.plain import Env, Flow


@dataclass(frozen=True)
class GetSetLock:
    """A lock that ends by its clients' clocks.

    acquire_timeout: seconds to go on trying; 0 gives up at once. lock_timeout: seconds it lasts.
    """

    name: str
    _: KW_ONLY
    acquire_timeout: float = 10.0
    lock_timeout: float = 10.0
    prefix: str = "lock:"

    def __post_init__(self) -> None:
        check_name(self.name)
        check_wait(self.acquire_timeout, "acquire_timeout")
        check_lease(self.lock_timeout, "lock_timeout")
        check_prefix(self.prefix)

    @property
    def key(self) -> str:
        return self.prefix + self.name

    def acquire(self, env: Env) -> Flow[Taken | None]:
        """Take it; None when it was neither free nor ended within `acquire_timeout`."""
        ends_at = env.now() + self.acquire_timeout
        attempts = 0
        while True:
            attempts += 1
            at = env.wall()
            value = self._end(at)
            if (yield from ask(env, "SETNX", self.key, value)):
                return Taken(self.name, value, at, self.lock_timeout, attempts)
            read = yield from ask(env, "GET", self.key)
            if read is not None and self._ended(read, env):
                at = env.wall()
                value = self._end(at)
                if (yield from ask(env, "GETSET", self.key, value)) == read:
                    return Taken(self.name, value, at, self.lock_timeout, attempts)
            if env.now() >= ends_at:
                return None
            yield pause(POLL_S, ends_at, env)

    def release(self, taken: Taken, env: Env) -> Flow[bool]:
        """Delete the key, if less than `lock_timeout` has passed. Otherwise it may be another's: False, untouched."""
        if env.wall() - taken.at >= self.lock_timeout:
            return False
        return bool((yield from ask(env, "DEL", self.key)))

    def _ended(self, value: bytes, env: Env) -> bool:
        try:
            return float(value) < env.wall()
        except ValueError:
            words = f"{self.key!r} holds {value[:40]!r}, which is no time: another program uses it"
            raise Refused(words, code="VALUE") from None

    def _end(self, at: float) -> str:
        return f"{at + self.lock_timeout:.6f}"
