"""The lock with a time-out: SETNX, then EXPIRE; contenders mend a lock that was left without a TTL.

From: Redis in Action, section 6.2.5 (acquire_lock_with_timeout); the form with a plain DEL is in many articles.
Promises: a holder that died is waited for no longer than `lock_timeout`, if a contender comes by or EXPIRE was sent.
Breaks: death between SETNX and EXPIRE leaves a lock without an end until a contender mends it. A holder slower than
`lock_timeout` is not told that the lock has passed on. `release="del"` then deletes the next holder's lock.

Which locks do contenders mend? The three tests in circulation are all here:
- "missing": those without a TTL (−1). This is what the book means, and the default.
- "falsy": `not ttl`, as the book prints it. Its client gave None for "no TTL"; today it is −1, which is true, so the
  lock that needs mending is never mended. Worse, TTL rounds, and is 0 in the last half second: then the contender
  gives a dead holder's lock another full time-out, again and again.
- "inverted": `if ttl`, as it is often copied. Every contender prolongs the lock at every look, so that a dead
  holder's lock stays for as long as anybody wants it.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from math import ceil
from typing import TYPE_CHECKING, Literal

from lockfast.classic.arguments import check_choice, check_lease, check_name, check_prefix, check_wait
from lockfast.classic.simple import POLL_S, delete_if_ours
from lockfast.classic.taken import Taken
from lockfast.flows.plain import ask, pause

if TYPE_CHECKING:
    from lockfast.flows.plain import Env, Flow

NO_TTL = -1


@dataclass(frozen=True)
class TimeoutLock:
    """A lock that ends by itself.

    acquire_timeout: seconds to go on trying. lock_timeout: seconds it lasts, rounded up to whole ones. repair: which
    locks a contender gives a new TTL: "missing" those without one; "falsy" and "inverted" are mistakes in circulation.
    release_by: "checked" deletes only what is ours, "del" whatever is there.
    """

    name: str
    _: KW_ONLY
    acquire_timeout: float = 10.0
    lock_timeout: float = 10.0
    repair: Literal["missing", "falsy", "inverted"] = "missing"
    release_by: Literal["checked", "del"] = "checked"
    prefix: str = "lock:"

    def __post_init__(self) -> None:
        check_name(self.name)
        check_wait(self.acquire_timeout, "acquire_timeout")
        check_lease(self.lock_timeout, "lock_timeout")
        check_choice(self.repair, "repair", ("missing", "falsy", "inverted"))
        check_choice(self.release_by, "release_by", ("checked", "del"))
        check_prefix(self.prefix)

    @property
    def key(self) -> str:
        return self.prefix + self.name

    @property
    def whole_lock_timeout_s(self) -> int:
        return ceil(self.lock_timeout)

    def acquire(self, env: Env) -> Flow[Taken | None]:
        """Take it; None when it was not free within `acquire_timeout`."""
        token = env.token()
        ends_at = env.now() + self.acquire_timeout
        attempts = 0
        while True:
            attempts += 1
            at = env.wall()
            if (yield from ask(env, "SETNX", self.key, token)):
                # A trip of its own: who dies here leaves a lock without an end.
                yield from ask(env, "EXPIRE", self.key, self.whole_lock_timeout_s)
                return Taken(self.name, token, at, self.whole_lock_timeout_s, attempts)
            ttl = yield from ask(env, "TTL", self.key)
            if self._mends(ttl):
                yield from ask(env, "EXPIRE", self.key, self.whole_lock_timeout_s)
            if env.now() >= ends_at:
                return None
            yield pause(POLL_S, ends_at, env)

    def release(self, taken: Taken, env: Env) -> Flow[bool]:
        """Give it back. False when it was not ours any more ("del": when nobody had it)."""
        if self.release_by == "del":
            return bool((yield from ask(env, "DEL", self.key)))
        return (yield from delete_if_ours(self.key, taken.token, env))

    def _mends(self, ttl: int) -> bool:
        if self.repair == "missing":
            return ttl == NO_TTL
        return not ttl if self.repair == "falsy" else bool(ttl)
