"""What an account may do: the next step when a right is missing, and pushes that are not allowed."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from lockfast.drivers import wire
from lockfast.errors import Unreachable
from lockfast.flows import denials
from lockfast.flows.denials import WHOLE_RULE

if TYPE_CHECKING:
    from lockfast.errors import LockfastError
    from lockfast.flows.scripts import Bound

LISTEN_REPLIES = 2
SENTINELS_LACK = ("EVALSHA", "EVAL", "SCAN", "SELECT", "CLUSTER", "WATCH", "MULTI", "SET", "GET")

_UNKNOWN = re.compile(r"unknown (?:redis |valkey )?command(?: '([^']*)'| `([^`]*)`)?", re.IGNORECASE)


def next_step(words: str, bound: Bound | None) -> str | None:
    """What to do about an answer that tells of a missing right; None when it tells of something else."""
    if not denials.is_denial(words):
        return None
    prefix = "lockfast" if bound is None else bound.name.keys[0].partition(":{")[0]
    step = denials.next_step(words, f"~{prefix}:*", f"&{prefix}:*")
    if denials.missing(words, "", "") == "+eval":
        step = f"the server does not know the script, and without EVAL it cannot be brought there: {step}"
    return step


def not_offered(words: str, where: str) -> str | None:
    """What to do about a server that has no such command; None when the answer is about something else."""
    found = _UNKNOWN.search(words)
    if found is None:
        return None
    command = (found[1] or found[2] or "a command").upper()
    scheme, _, rest = where.partition("://")
    step = f"this server does not offer {command}; Lockfast needs EVALSHA, EVAL and what its scripts call: {WHOLE_RULE}"
    if command not in SENTINELS_LACK or scheme not in ("redis", "rediss"):
        return step
    sentinels = "sentinels" if scheme == "rediss" else "sentinel"
    return f"if this is a Sentinel, write {sentinels}://{rest.partition('/')[0]}/SERVICE; if it is not, {step}"


def listen_request(channel: str) -> bytes:
    """Subscribe, and find out whether this account's releases will be heard: PUBLISH, before anybody listens."""
    return wire.pack(("PUBLISH", channel, "")) + wire.pack(("SUBSCRIBE", channel))


def may_listen(replies: list[Any], where: str) -> bool:
    """Whether pushes will come. If the account is not allowed, it is said once and the waiters poll instead.

    Raises Unreachable for what passes: busy with a script, or loading.
    """
    for reply in replies:
        if isinstance(reply, wire.ReplyError):
            reason = wire.failure(reply, where)
            if isinstance(reason, Unreachable):
                raise reason
            say_deaf(reason)
            return False
    return True


def say_deaf(reason: LockfastError) -> None:
    """Log, once for each client, that no pushes will come."""
    from lockfast.grants import log

    log().warning("no pushes: waiters ask 4 times a second instead, as long as this client lives. %s", reason)
