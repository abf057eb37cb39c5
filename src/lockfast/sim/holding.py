"""A section under a lock, as a caller of the library has it: acquire, hold, work, release.

The flows, the hold and the rules of its end are the shipped ones; this adds what `sync.py` and `aio.py` do around them,
and writes the client's side of the history.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from lockfast.errors import LeaseLost, LockfastError
from lockfast.flows import ending, renewal
from lockfast.grants import Hold
from lockfast.sim.driving import Give, Run, Take, Work
from lockfast.sim.tasks import Cancelled, Pending
from lockfast.sim.telling import fence_text

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from lockfast.flows.asks import Ask
    from lockfast.sim.client import Client

    Body = Callable[["Section"], Generator[Any, Any, Any]]


class TellingHold(Hold):
    """A hold that tells the moment it is renewed: its holder may stall before anybody else could look."""

    __slots__ = ("on_renewed",)

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.on_renewed: Callable[[], None] = lambda: None

    def renewed(self, deadline: float) -> None:
        before = self.deadline
        super().renewed(deadline)
        if self.deadline > before:
            self.on_renewed()


class Section:
    """One hold from the inside. over: settled when the hold is lost; work that is told of it ends there."""

    __slots__ = ("client", "hold", "over")

    def __init__(self, client: Client, hold: TellingHold) -> None:
        self.client = client
        self.hold = hold
        self.over = Pending()

    def work(self, length_s: float) -> Work:
        """Some time under the lock; it ends early when the hold is lost, as in asyncio."""
        return Work(length_s, self.over)

    def extend(self, lease_s: float) -> Generator[Any, Any, None]:
        """Renew by hand, as `grant.extend` does. Raises LeaseLost, NotHeld, Unreachable."""
        yield Run(renewal.extend(self.hold, max(round(lease_s * 1000), 50), self.client.env))


def hold(
    client: Client,
    ask: Ask,
    wait_s: float | None,
    body: Body | float = 0.0,
    renew: bool = True,
    ticket: str = "",
    take: Run | None = None,
) -> Generator[Any, Any, bool]:
    """Acquire, run the body (or work for that many seconds), release. True when it was held to the end.

    False when it was not acquired, or was lost on the way. Cancelled travels through. take: how to come by the hold,
    if not by asking for it.
    """
    ticket = ticket or client.new_id()
    name = ask.name.shown
    about = {"name": name, "ticket": ticket, "client": client.name, "weight": ask.weight, "limit": ask.limit}
    world = client.world
    world.record("asked", lease=ask.lease_s, **about)
    try:
        held = yield take or Take(ask, ticket, wait_s)
    except (LockfastError, Cancelled) as failure:
        world.say(client.name, f"does not get {name!r} ({ticket}): {failure}")
        world.record("failed", note=type(failure).__name__, **about)
        if isinstance(failure, Cancelled):
            raise
        return False
    section = Section(client, TellingHold(ask, ticket, held, client.era, renew))
    believe(section, about)
    if renew:
        client.keeper.watch(section.hold)
    else:
        client.keeper.note(section.hold)
    return (yield from within(section, about, body if callable(body) else partial(_just_work, length_s=body)))


def within(section: Section, about: dict[str, Any], body: Body) -> Generator[Any, Any, bool]:
    """Run the body under a hold, and release it. Returns and raises as `hold` does."""
    try:
        yield from body(section)
    except (LockfastError, Cancelled) as struck:
        yield from _release(section, about, struck)
        if isinstance(struck, LeaseLost):
            return False
        raise
    return (yield from _release(section, about, None))


def believe(section: Section, about: dict[str, Any]) -> None:
    """Write down what the holder believes: from now, at every renewal, and when it learns that it is over."""
    client, held = section.client, section.hold
    world, until = client.world, client.clock.true_at
    words = f"{held.ask.name.shown!r} ({held.ticket}), fence {fence_text(held.fence)}, until {until(held.deadline):.3f}"
    world.say(client.name, f"has {words}")
    world.record("granted", fence=held.fence, until=until(held.deadline), lease=held.lease_ms / 1000, **about)

    def renewed() -> None:
        world.say(client.name, f"has {held.ask.name.shown!r} ({held.ticket}) until {until(held.deadline):.3f}")
        world.record("renewed", fence=held.fence, until=until(held.deadline), **about)

    def lost() -> None:
        world.say(client.name, f"has lost {held.ask.name.shown!r} ({held.ticket}): {held.why_lost}")
        world.record("lost", fence=held.fence, note=held.why_lost, **about)
        section.over.settle()

    held.on_renewed = renewed
    held.when_lost(lost)


def _just_work(section: Section, length_s: float) -> Generator[Any, Any, None]:
    yield section.work(length_s)


def _release(section: Section, about: dict[str, Any], error: BaseException | None) -> Generator[Any, Any, bool]:
    client, held = section.client, section.hold
    world = client.world
    if held.held():
        world.record("leaving", fence=held.fence, **about)
    try:
        yield Give(held)
    except LockfastError as failure:
        world.say(client.name, f"release of {about['name']!r} ({held.ticket}): {failure}")
        ending.conclude(held, client.keeper, error, failure)
        return False
    world.record("left", fence=held.fence, **about)
    return True
