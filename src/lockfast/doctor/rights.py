"""What the account may do: asked for by ACL DRYRUN, or, where that may not be asked, found out by trying.

DRYRUN runs nothing. It leaves out two things that only a run tells, so EVAL and SET are always tried: whether scripts
may begin with #!lua, and what the server has against writes in the state that it is in.

Each command is tried in a form that changes nothing, on a name that nobody has. A server checks rights before it looks
at keys, and the number of words before that; so a command that is let through finds nothing to do (SET … XX, DEL of
what is not there), or stumbles over its own arguments (HSET with half a pair, a script that does not compile). No key
is written and no script is kept. What does stay is the server's own: its statistics, of which the latencies take some
25 kB for each command that nobody had run before (latency-tracking), and an entry in ACL LOG for what was refused. That
is why trying comes second.
"""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Any, NamedTuple

from lockfast import names
from lockfast.doctor.asking import NotTold, text
from lockfast.flows import scripts

if TYPE_CHECKING:
    from lockfast.doctor.asking import Asker, Words

K = "<key>"
C = "<channel>"
S = "<channel in the slot of the key>"
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
# In a cluster: where slots are and move to, and pushes by slot. SPUBLISH goes before the first subscription, behind
# which a connection takes only more of these.
CLUSTER_LOCKS: dict[str, Words] = {**LOCKS, "ASKING": ("ASKING",), "CLUSTER SLOTS": ("CLUSTER", "SLOTS")}
CLUSTER_PUSHES: dict[str, Words] = {
    "SPUBLISH": ("SPUBLISH", S, "doctor"),
    **PUSHES,
    "SSUBSCRIBE": ("SSUBSCRIBE", S),
    "SUNSUBSCRIBE": ("SUNSUBSCRIBE", S),
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
ALWAYS_RUN = ("EVAL", "SET")
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


def trial(asker: Asker, prefix: str, user: str, *, clustered: bool) -> Rights | None:
    """Find out everything, in two trips or three. None when the server did not answer."""
    scratch = os.urandom(8).hex()
    name, channel = names.make(prefix, ("doctor", scratch)), names.channel(prefix, f"doctor-{scratch}")
    meant = {K: name.keys[0], C: channel, S: names.in_slot_of(name, channel)}
    locks, pushes = (CLUSTER_LOCKS, CLUSTER_PUSHES) if clustered else (LOCKS, PUSHES)
    trials = {**locks, **TOOLS, **REPLICAS, **TRANSACTIONS, **pushes}
    forms: dict[str, Words] = {
        command: tuple(meant.get(word, word) if isinstance(word, str) else word for word in form)
        for command, form in trials.items()
    }
    told: dict[str, Any] = {}
    if user and not isinstance(asker.ask("ACL", "DRYRUN", user, "PING"), NotTold):
        told = _run(asker, {command: ("ACL", "DRYRUN", user, *form) for command, form in forms.items()})
        told = {command: _as_if_run(command, reply) for command, reply in told.items()}
        forms = {command: forms[command] for command in ALWAYS_RUN if not isinstance(told[command], NotTold)}
    if forms:
        told |= _run(asker, forms)
        asker.hang_up()  # which ends the subscription
    if any(isinstance(reply, NotTold) and reply.silent for reply in told.values()):
        return None
    return read(told)


def _run(asker: Asker, forms: dict[str, Words]) -> dict[str, Any]:
    return dict(zip(forms, asker.ask_all(list(forms.values())), strict=True))


def _as_if_run(command: str, reply: Any) -> Any:
    """The answer of DRYRUN in the words of a run: it tells a refusal as a text and not as an error."""
    if isinstance(reply, NotTold):
        return reply if reply.silent else NotTold(command, f"ERR unknown command: {reply.words}")
    return reply if reply == b"OK" else NotTold(command, f"NOPERM {text(reply)}")


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
