"""Every deadlock of a server, for operators: all names are looked at, whoever asked for detection."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from lockfast import names, snapshots, waitfor
from lockfast.flows.detection import inspect_all
from lockfast.flows.effects import Sleep
from lockfast.flows.looking import busy, patiently
from lockfast.specs import HEARTBEAT_S

if TYPE_CHECKING:
    from lockfast.flows.effects import Env, Flow
    from lockfast.waitfor import Cycle

# Between the two looks, so that every waiter that is alive was heard of in between.
PAUSE_S = HEARTBEAT_S + 0.5


def find(prefix: str, env: Env) -> Flow[tuple[Cycle, ...]]:
    """One cycle of each deadlock, beginning with the youngest waiter whose giving up would help. Changes nothing.

    Takes a second look after a pause, at the names of deadlocks only; none, if the first look finds nothing.
    """
    everything = yield from busy(prefix, env)
    found = {names.join(parts): one for parts, one in everything.items() if one.waiters}
    suspected = waitfor.Deadlocks(found)
    if not suspected.groups:
        return ()
    sightings = waitfor.Sightings()
    sightings.confirm(found)
    yield Sleep(PAUSE_S)
    again = sorted(suspected.names_of(agent for group in suspected.groups for agent in group))
    found = yield from patiently(partial(inspect_all, prefix, again, snapshots.MAX_WAITERS), env)
    deadlocks = waitfor.Deadlocks(sightings.confirm(found))
    return tuple(deadlocks.cycle(deadlocks.victim(group)) for group in deadlocks.groups)
