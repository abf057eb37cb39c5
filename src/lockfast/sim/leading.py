"""A leadership, as a caller of the library has it: campaign, lead, resign, and let those who observe know."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lockfast.errors import LockfastError
from lockfast.flows import election
from lockfast.sim.driving import Run
from lockfast.sim.holding import Section, TellingHold, believe, within
from lockfast.sim.several import Holder

if TYPE_CHECKING:
    from collections.abc import Generator

    from lockfast.flows.election import Candidacy
    from lockfast.sim.client import Client
    from lockfast.sim.holding import Body


def lead(client: Client, ask: Candidacy, wait_s: float | None, body: Body) -> Generator[Any, Any, bool]:
    """Campaign, run the body, resign. True when it led to the end. Cancelled travels through."""
    name = ask.name.shown
    try:
        hold = yield Run(election.campaign(ask, wait_s, client.env, Holder(client)))
    except LockfastError as failure:
        client.world.say(client.name, f"does not come to lead {name!r}: {failure}")
        return False
    assert isinstance(hold, TellingHold), "this is what the holder keeps"
    section = Section(client, hold)
    about = {"name": name, "ticket": hold.ticket, "client": client.name, "weight": ask.weight, "limit": ask.limit}
    believe(section, about)
    led = yield from within(section, about, body)
    yield Run(election.farewell(hold, client.env))
    return led
