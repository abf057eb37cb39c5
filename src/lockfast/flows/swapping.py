"""Release without a script: a hold whom nobody has joined is swapped for a free name, by one plain command.

What the server keeps of a hold that was granted at once follows from the hold itself: see lua/state.lua, and the quick
ways of admit.lua and leave.lua. So its `leave` can be `SET name free IFEQ held`, which costs the server a fifth of what
the script does. If anything has come in between (somebody waits, it was renewed, it was broken, the clock stepped back
before the grant), what is kept differs and nothing happens: then the script follows, as always. That is one more trip,
and those are dear where somebody waits. So only holds that are given back in a moment are swapped, and a name that was
found in use by others is left to the script for a while.

Servers before Valkey 8.1 and Redis 8.4 do not know IFEQ. A client finds out by itself, and does not ask again.
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

YOUNG_S = 0.005  # who holds for longer has more time to be joined than a swap saves
AFTER_S = 1.0  # how old a client must be: one that lives shorter has nothing of it
SWAPPED = b"OK"


def words(hold: Hold, moment: float, env: Env) -> tuple[str, ...] | None:
    """The command that gives a hold back if nobody has joined it; None where the script is to do that."""
    ask = hold.ask
    if (
        hold.deadline - moment < ask.lease_s * MARGIN_RATIO - MARGIN_S - env.young_s
        or moment < ask.crowded_until
        or moment < env.swaps_from
        or hold.leave_sent
    ):
        return None
    fence, weight, limit = hold.fence, ask.weight, ask.limit
    since_ms = fence // 1000
    end_ms = since_ms + ask.lease_ms + ask.grace_ms
    name = f"1 {ask.kind} {limit} {fence}"
    held = f"{name} {weight if weight < limit else 0} 0 0 {hold.ticket} {end_ms} {since_ms} {env.owner}"
    return "SET", ask.name.keys[0], f"{name} 0 0 0 - 0 0 ", "IFEQ", held, "KEEPTTL"


def swap(hold: Hold, command: tuple[str, ...], env: Env) -> Flow[bool]:
    """Give a hold back like that. False when it was not, or nobody knows: the script finds out."""
    try:
        answer = yield Command(command, env.now() + env.attempt_s)
    except Unreachable as failure:
        hold.leave_sent = hold.leave_sent or failure.sent
        return False
    except Refused:
        env.swaps_from = inf  # it does not know the command; should it refuse everything, the script is told so too
        return False
    if answer != SWAPPED:
        hold.ask.meet_others(env.now())
    return bool(answer == SWAPPED)
