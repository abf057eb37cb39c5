"""A section under several locks at once, as a caller of the library has it: the shipped flow, and what is around it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lockfast.errors import LeaseLost, LockfastError
from lockfast.flows import ending, several
from lockfast.flows.group import Asks
from lockfast.sim.driving import Run
from lockfast.sim.holding import Section, TellingHold, believe
from lockfast.sim.tasks import Cancelled

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Sequence

    from lockfast.flows.admission import Held
    from lockfast.flows.asks import Ask
    from lockfast.sim.client import Client

    Body = Callable[[list[Section]], Generator[Any, Any, Any]]


class Holder:
    """What the flow needs of a client."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self.keeper = client.keeper

    def new_ticket(self) -> str:
        return self._client.new_id()

    def keep(self, ask: Ask, ticket: str, held: Held) -> TellingHold:
        hold = TellingHold(ask, ticket, held, self._client.era, True)
        self.keeper.watch(hold)
        return hold


def hold_all(client: Client, asks: Sequence[Ask], wait_s: float | None, body: Body) -> Generator[Any, Any, bool]:
    """Acquire all, run the body, release all. True when they were held to the end; Cancelled travels through."""
    together = Asks(asks)
    try:
        holds = yield Run(several.acquire(together, wait_s, client.env, Holder(client)))
    except LockfastError as failure:
        client.world.say(client.name, f"does not get all of them: {failure}")
        return False
    sections = []
    for hold in holds:
        about = {"name": hold.ask.name.shown, "ticket": hold.ticket, "client": client.name}
        sections.append(Section(client, hold))
        believe(sections[-1], about | {"weight": hold.ask.weight, "limit": hold.ask.limit})
    try:
        yield from body(sections)
    except (LockfastError, Cancelled) as struck:
        yield from _release(client, holds, together, struck)
        if isinstance(struck, LeaseLost):
            return False
        raise
    return (yield from _release(client, holds, together, None))


def _release(
    client: Client, holds: list[TellingHold], together: Asks, error: BaseException | None
) -> Generator[Any, Any, bool]:
    try:
        yield Run(several.release(holds, client.keeper, client.env, together))
    except LockfastError as failure:
        ending.conclude(holds[0], client.keeper, error, failure)
        return False
    return True
