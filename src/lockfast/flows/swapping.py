"""Release without a script: a hold whom nobody has joined is swapped for a free name, by one plain command.

What the server keeps of a hold that was granted at once follows from the hold itself: see lua/state.lua, and the quick
ways of admit.lua and leave.lua. So its `leave` can be `SET name free IFEQ held`, which costs the server a fifth of what
the script does. If anything has come in between (somebody waits, it was renewed, it was broken, the clock stepped back
before the grant), what is kept differs and nothing happens: then the script follows, as always. That is one more trip,
and those are dear where somebody waits. So only holds that are given back in a moment are swapped, and a name that was
found in use by others is left to the script for a while.

Servers before Valkey 8.1 and Redis 8.4 do not know IFEQ. A client finds out by itself, and does not ask again. At
maxmemory the command is refused, while the script still gives back.
"""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING

from lockfast.errors import Refused, Unreachable
from lockfast.flows.admission import MARGIN_RATIO, MARGIN_S
from lockfast.flows.effects import Command

if TYPE_CHECKING:
    from lockfast.flows.effects import Env, Flow
    from lockfast.grants import Hold
    from lockfast.names import Name

YOUNG_S = 0.005  # who holds for longer has more time to be joined than a swap saves
AFTER_S = 1.0  # how old a client must be: one that lives shorter has nothing of it
PAUSE_S = 60.0  # for how long a server that refused is not asked again
SWAPPED = b"OK"


class Swap:
    """What to give back, of whom: all of the command but the grant, the same for every one."""

    __slots__ = ("free", "held", "key", "lease_ms", "name", "owner", "packed")

    def __init__(self, name: Name, kind: str, limit: int, weight: int, lease_ms: int, owner: str) -> None:
        self.key = name.keys[0]
        self.name = f"1 {kind} {limit} "
        self.free = " 0 0 0 - 0 0 "
        self.held = f" {weight if weight < limit else 0} 0 0 "
        self.lease_ms = lease_ms
        self.owner = f" {owner}"
        self.packed: tuple[str, str, int, str, str] | None = None  # for the wire; filled in by drivers/wire.py

    def words(self, fence: int, ticket: str) -> tuple[str, ...]:
        """The command that gives back the hold of `ticket` with this fence."""
        since_ms = fence // 1000  # a fence is the server's clock, unless that is behind an older one
        held = f"{self.name}{fence}{self.held}{ticket} {since_ms + self.lease_ms} {since_ms}{self.owner}"
        return "SET", self.key, f"{self.name}{fence}{self.free}", "IFEQ", held, "KEEPTTL"


def is_due(hold: Hold, moment: float, env: Env) -> bool:
    """Whether a hold is to be given back like that, and not by the script."""
    ask = hold.ask
    return (
        hold.deadline - moment >= ask.lease_s * MARGIN_RATIO - MARGIN_S - env.young_s
        and moment >= ask.crowded_until
        and moment >= env.swaps_from
        and hold.unchanged
        and not hold.leave_sent
    )


def swap(hold: Hold, env: Env) -> Flow[bool]:
    """Give a hold back like that. False when it was not, or nobody knows: the script finds out."""
    command = hold.ask.swap.words(hold.fence, hold.ticket)
    try:
        answer = yield Command(command, env.now() + env.attempt_s)
    except Unreachable as failure:
        hold.leave_sent = hold.leave_sent or failure.sent
        return False
    except Refused as refusal:
        # "ERR syntax error": it does not know the command. All else may pass; the script is told the same, or runs.
        env.swaps_from = inf if refusal.code == "ERR" else env.now() + PAUSE_S
        return False
    if answer != SWAPPED:
        hold.ask.meet_others(env.now())
    return bool(answer == SWAPPED)
