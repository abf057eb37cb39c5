"""The simple lock: SETNX on a key whose value says who has it.

From: the SETNX page of the Redis documentation; Redis in Action, section 6.2.3 (acquire_lock, release_lock).
Promises: one holder at a time, for as long as the server keeps the key; only the holder's own release frees it.
Breaks: a holder that dies, or whose SETNX was carried out and never answered, leaves it locked for ever. Nobody is
woken: every waiter asks once a millisecond, and whoever asks first after a release is next.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING

from lockfast.classic.arguments import check_name, check_prefix, check_wait
from lockfast.classic.taken import Taken
from lockfast.flows.plain import ask, pause, transact, unwatch, watch

if TYPE_CHECKING:
    from lockfast.flows.plain import Env, Flow

POLL_S = 0.001


@dataclass(frozen=True)
class SimpleLock:
    """A lock without an end. acquire_timeout: seconds to go on trying."""

    name: str
    _: KW_ONLY
    acquire_timeout: float = 10.0
    prefix: str = "lock:"

    def __post_init__(self) -> None:
        check_name(self.name)
        check_wait(self.acquire_timeout, "acquire_timeout")
        check_prefix(self.prefix)

    @property
    def key(self) -> str:
        return self.prefix + self.name

    def acquire(self, env: Env) -> Flow[Taken | None]:
        """Take it; None when it was not free within `acquire_timeout`."""
        token = env.token()
        ends_at = env.now() + self.acquire_timeout
        attempts = 0
        while True:
            attempts += 1
            at = env.wall()
            if (yield from ask(env, "SETNX", self.key, token)):
                return Taken(self.name, token, at, attempts=attempts)
            if env.now() >= ends_at:
                return None
            yield pause(POLL_S, ends_at, env)

    def release(self, taken: Taken, env: Env) -> Flow[bool]:
        """Give it back. False when it was not ours any more; then nothing is changed."""
        return (yield from delete_if_ours(self.key, taken.token, env))


def delete_if_ours(key: str, token: str, env: Env) -> Flow[bool]:
    """Delete the key if its value is the token, under WATCH. False when it is not."""
    # Ends: a round is lost only if somebody changed the key in that very moment, and once it holds another value or
    # none, the next look says so. Contenders change a lock that is ours only by giving it a new TTL.
    while True:
        value = yield from watch(env, key, "GET", key)
        if value != token.encode():
            yield from unwatch(env)
            return False
        if (yield from transact(env, ("DEL", key), watched=True)) is not None:
            return True
