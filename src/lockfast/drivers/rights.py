"""What an account may do: the next step when a right is missing, and pushes that are not allowed."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from lockfast.drivers import wire
from lockfast.errors import Unreachable

if TYPE_CHECKING:
    from lockfast.flows.scripts import Bound

RULE = "the whole rule is in docs/topologies/acl.md"
LISTEN_REPLIES = 2

# How servers from 6.2 on say that a right is missing; those of a script's own commands come without a code.
_LACKING = re.compile(r"NOPERM|ACL failure|user executing the script can't|No permissions to")
_UNKNOWN = re.compile(r"unknown (?:redis |valkey )?command(?: '([^']*)'| `([^`]*)`)?", re.IGNORECASE)
_COMMAND = re.compile(r"the '([^']+)' command")
_USER = re.compile(r"User (\S+) has no")


def next_step(words: str, bound: Bound | None) -> str | None:
    """What to do about an answer that tells of a missing right; None when it tells of something else."""
    if not _LACKING.search(words):
        return None
    user, command = _USER.search(words), _COMMAND.search(words)
    prefix = "lockfast" if bound is None else bound.name.keys[0].partition(":{")[0]
    if command is not None:
        right = f"+{command[1]}"
    elif "key" in words:
        right = f"~{prefix}:*"
    elif "channel" in words:
        right = f"&{prefix}:*"
    else:
        return f"ACL LOG tells what the account lacks; {RULE}"
    step = f"ACL SETUSER {user[1] if user else 'USER'} {right}; {RULE}"
    if right == "+eval":
        step = f"the server does not know the script, and without EVAL it cannot be brought there: {step}"
    return step


def not_offered(words: str) -> str | None:
    """What to do about a server that has no such command; None when the answer is about something else."""
    found = _UNKNOWN.search(words)
    if found is None:
        return None
    command = (found[1] or found[2] or "a command").upper()
    return f"this server does not offer {command}; Lockfast needs EVALSHA, EVAL and what its scripts call: {RULE}"


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
            from lockfast.grants import log

            log().warning("no pushes: waiters ask 4 times a second instead, as long as this client lives. %s", reason)
            return False
    return True
