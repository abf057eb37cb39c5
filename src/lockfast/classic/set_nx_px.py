"""SET NX PX: take the lock and give it an end in one command; a script gives back only what is ours.

From: "Correct implementation with a single instance" on the Redlock page of the Redis documentation; the SET page.
Promises: one holder at a time on one server that loses nothing; a dead holder's lock ends with its lease; nobody
releases another's lock. The keys are those of redis-py's Lock: both respect each other.
Breaks: a holder that is paused past its lease does not know, and goes on beside the next one. A failover to a replica
that did not get the key yet, or a restart without memory, lets a second one in. There is no fence to tell them apart.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from lockfast.classic.arguments import check_choice, check_delay, check_lease, check_name, check_prefix, check_wait
from lockfast.classic.taken import Taken
from lockfast.flows.plain import ask, pause

if TYPE_CHECKING:
    from lockfast.flows.plain import Env, Flow, Words

RELEASE = (Path(__file__).parent / "release.lua").read_text()


@dataclass(frozen=True)
class SetNxPxLock:
    """A lock with a lease.

    lease: seconds it lasts. acquire_timeout: seconds to go on trying, with a random pause of up to `retry_delay`
    between tries. unit: "PX" counts the lease in ms, "EX" in whole seconds, rounded up. only_if: "NX" takes what is
    free; "XX" takes over what somebody has, and nothing else. prefix: what the key starts with.
    """

    name: str
    _: KW_ONLY
    lease: float = 30.0
    acquire_timeout: float = 10.0
    retry_delay: float = 0.2
    unit: Literal["PX", "EX"] = "PX"
    only_if: Literal["NX", "XX"] = "NX"
    prefix: str = ""

    def __post_init__(self) -> None:
        check_name(self.name)
        check_lease(self.lease, "lease")
        check_wait(self.acquire_timeout, "acquire_timeout")
        check_delay(self.retry_delay, "retry_delay")
        check_choice(self.unit, "unit", ("PX", "EX"))
        check_choice(self.only_if, "only_if", ("NX", "XX"))
        check_prefix(self.prefix)

    @property
    def key(self) -> str:
        return self.prefix + self.name

    def acquire(self, env: Env) -> Flow[Taken | None]:
        """Take it; None when that was not possible within `acquire_timeout`."""
        token = env.token()
        ends_at = env.now() + self.acquire_timeout
        lasts = round(self.lease * 1000) if self.unit == "PX" else ceil(self.lease)
        lease_s = lasts / 1000 if self.unit == "PX" else lasts
        attempts = 0
        while True:
            attempts += 1
            at = env.wall()
            if (yield from ask(env, "SET", self.key, token, self.only_if, self.unit, lasts)) is not None:
                return Taken(self.name, token, at, lease_s, attempts)
            if env.now() >= ends_at:
                return None
            yield pause(env.jitter() * self.retry_delay, ends_at, env)

    def release(self, taken: Taken, env: Env) -> Flow[bool]:
        """Give it back. False when it was not ours any more; then nothing is changed."""
        return bool((yield from ask(env, *release_command(self.key, taken.token))))


def release_command(key: str, token: str) -> Words:
    """The command that deletes the key if its value is the token. Its reply is 1 or 0."""
    return ("EVAL", RELEASE, 1, key, token)
