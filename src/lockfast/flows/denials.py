"""What a server's refusal says that an account lacks, and the ACL rule that would give it."""

from __future__ import annotations

import re

WHOLE_RULE = "the whole rule is in docs/topologies/acl.md"

# How servers from 6.2 on say that a right is missing; those of a script's own commands come without a code.
_LACKING = re.compile(r"NOPERM|ACL failure|user executing the script can't|No permissions to")
_COMMAND = re.compile(r"the '([^']+)' command")
_USER = re.compile(r"User (\S+) has no")


def is_denial(words: str) -> bool:
    """Whether these words tell of a missing right."""
    return _LACKING.search(words) is not None


def user_of(words: str) -> str:
    """The account that they name; "" when they name none."""
    user = _USER.search(words)
    return user[1] if user else ""


def missing(words: str, keys: str, channels: str) -> str:
    """The right that is missing, as a word of ACL SETUSER. "": they do not tell.

    keys, channels: the rules for these.
    """
    command = _COMMAND.search(words)
    if command is not None:
        return f"+{command[1]}"
    if "key" in words:
        return keys
    return channels if "channel" in words else ""


def next_step(words: str, keys: str, channels: str) -> str:
    """The line that gives what is missing, for the end of a message."""
    right = missing(words, keys, channels)
    if not right:
        return f"ACL LOG tells what the account lacks; {WHOLE_RULE}"
    return f"ACL SETUSER {user_of(words) or 'USER'} {right}; {WHOLE_RULE}"
