"""What the account may do, found out by trying: each command in a form that changes nothing on a name nobody has.

A server checks rights before it looks at keys, and at the number of words before that. So a command that is let through
finds nothing to do (SET … XX, DEL of what is not there), or stumbles over its own arguments (HSET with half a pair, a
script that does not compile). Nothing is written, and no script is left in the server's memory. Trying needs no right
to ask about rights, as ACL DRYRUN and ACL GETUSER do, and sees renamed commands as well.
"""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Any, NamedTuple

from lockfast import names
from lockfast.doctor.asking import NotTold
from lockfast.flows import scripts

if TYPE_CHECKING:
    from lockfast.doctor.asking import Asker, Words

K = "<key>"
C = "<channel>"
NO_SCRIPT = "0" * 40
BROKEN_SCRIPT = "#!lua\n)"  # a server that knows the first line complains about the second

# What scripts call for every lock; a test compares with lua/.
IN_SCRIPTS: dict[str, Words] = {
    "DEL": ("DEL", K),
    "EXISTS": ("EXISTS", K),
    "GET": ("GET", K),
    "HDEL": ("HDEL", K, "f"),
    "HEXISTS": ("HEXISTS", K, "f"),
    "HGET": ("HGET", K, "f"),
    "HSET": ("HSET", K, "f", "v", "half a pair"),
    "MGET": ("MGET", K),
    "PEXPIREAT": ("PEXPIREAT", K, 1),
    "PUBLISH": ("PUBLISH", C, "doctor"),
    "SET": ("SET", K, "v", "XX", "PX", 1),
    "TIME": ("TIME",),
    "ZADD": ("ZADD", K, "XX", 0, "m"),
    "ZCARD": ("ZCARD", K),
    "ZRANGE": ("ZRANGE", K, 0, 0),
    "ZRANGEBYSCORE": ("ZRANGEBYSCORE", K, 0, 0),
    "ZRANK": ("ZRANK", K, "m"),
    "ZREM": ("ZREM", K, "m"),
    "ZREMRANGEBYSCORE": ("ZREMRANGEBYSCORE", K, 0, 0),
    "ZSCORE": ("ZSCORE", K, "m"),
}
LOCKS: dict[str, Words] = {
    "EVALSHA": ("EVALSHA", NO_SCRIPT, 1, K),
    "EVAL": ("EVAL", BROKEN_SCRIPT, 1, K),
    **{command: form for command, form in IN_SCRIPTS.items() if command != "PUBLISH"},
}
# Without these locks work, but waiters have to ask. The subscription ends with its connection: it is tried last.
PUSHES: dict[str, Words] = {
    "PING": ("PING",),
    "PUBLISH": IN_SCRIPTS["PUBLISH"],
    "SUBSCRIBE": ("SUBSCRIBE", C),
}
# In this order: each is undone by what follows it. An EXEC that is refused ends its transaction.
TRANSACTIONS: dict[str, Words] = {
    "WATCH": ("WATCH", K),
    "UNWATCH": ("UNWATCH",),
    "MULTI": ("MULTI",),
    "EXEC": ("EXEC",),
    "DISCARD": ("DISCARD",),
}
TOOLS: dict[str, Words] = {"SCAN": ("SCAN", 0, "MATCH", K)}
REPLICAS: dict[str, Words] = {"WAIT": ("WAIT", 0, 1)}
# Answers of a server that lets the account do it, and cannot take it in the state that it is in.
STATES = ("READONLY", "OOM", "MISCONF", "NOREPLICAS", "MOVED", "CLUSTERDOWN", "LOADING", "BUSY", "MASTERDOWN")
_CALLED = re.compile(r"redis\.p?call\('([A-Z]+)'")


class Rights(NamedTuple):
    """What was refused, as the server put it, by command; and what the server said of its own state meanwhile.

    knows_flags: whether scripts may begin with #!lua; None where that could not be tried.
    """

    refused: dict[str, str]
    unknown: dict[str, str]
    states: dict[str, str]
    knows_flags: bool | None


def trial(asker: Asker, prefix: str) -> Rights | None:
    """Try everything once, in one trip. None when the server did not answer."""
    scratch = os.urandom(8).hex()
    key, channel = names.make(prefix, ("doctor", scratch)).keys[0], names.channel(prefix, f"doctor-{scratch}")
    trials = {**LOCKS, **TOOLS, **REPLICAS, **TRANSACTIONS, **PUSHES}
    forms = [tuple(key if word is K else channel if word is C else word for word in form) for form in trials.values()]
    replies = asker.ask_all(forms)
    asker.hang_up()
    if any(isinstance(reply, NotTold) and reply.silent for reply in replies):
        return None
    return read(dict(zip(trials, replies, strict=True)))


def read(replies: dict[str, Any]) -> Rights:
    """What the replies mean."""
    told = {command: reply.words for command, reply in replies.items() if isinstance(reply, NotTold)}
    flags: bool | None = None
    if "compiling script" in told.get("EVAL", ""):
        flags = "user_script:1:" not in told["EVAL"]
    return Rights(
        # EXEC wraps what is said against it: "EXECABORT Transaction discarded because of: NOPERM …"
        refused={command: words for command, words in told.items() if "NOPERM" in words},
        unknown={command: words for command, words in told.items() if "unknown command" in words.lower()},
        states={words.partition(" ")[0]: words for words in told.values() if words.startswith(STATES)},
        knows_flags=flags,
    )


def called_by_scripts() -> set[str]:
    """Every command that a script of ours calls."""
    every = [script for script in vars(scripts).values() if isinstance(script, scripts.Script)]
    return {command for script in every for command in _CALLED.findall(script.text)}
