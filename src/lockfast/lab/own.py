"""Lockfast's own rows: the shipped flows, scripts, holds and keeper."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lockfast.flows import asks
from lockfast.lab.contender import ALSO, BUSY, PREFIX, Contender, Held, owner_of
from lockfast.names import make
from lockfast.sim import holding, several

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from lockfast.flows.asks import Ask
    from lockfast.lab.contender import Shape, Watcher
    from lockfast.names import Name
    from lockfast.sim.client import Client
    from lockfast.sim.node import Node
    from lockfast.sync import Lock, Lockfast, Locks

    Steps = Generator[Any, Any, Any]


@dataclass(frozen=True)
class Own(Contender):
    """One of Lockfast's own: the shipped flows, scripts, holds and keeper."""

    ask_for: Callable[[Name, Shape], Ask] = lambda name, shape: asks.lock(name, shape.lease_s)
    open: Callable[[Lockfast, str, Shape], Lock | Locks] = lambda lf, name, shape: lf.lock(name, **patience(shape))

    def section(
        self, client: Client, name: str, shape: Shape, body: Callable[[Held], Steps], watcher: Watcher
    ) -> Generator[Any, Any, str]:
        ask = self.ask_for(make(PREFIX, (name,)), shape)
        outcome = BUSY

        def within(section: holding.Section) -> Steps:
            nonlocal outcome
            outcome = yield from self._within(client, [section], body, watcher, name)

        yield from holding.hold(client, ask, shape.patience_s, within)
        return outcome

    def _within(
        self,
        client: Client,
        sections: list[holding.Section],
        body: Callable[[Held], Steps],
        watcher: Watcher,
        name: str,
    ) -> Steps:
        hold = sections[0].hold
        # Of several who hold at the same time the fence only says who is who: it guards nothing.
        fence = hold.fence if hold.ask.weight == hold.ask.limit else 0
        watcher.took(client, fence, name)
        for section in sections:
            section.hold.when_lost(lambda: watcher.ended(client, "is told that its hold is no longer sure"))
        outcome = yield from body(Held(lambda: all(section.hold.held() for section in sections), fence))
        watcher.gave(client, "gives it back" if hold.held() else "lets go of what it no longer has", name)
        return outcome

    def standing(self, node: Node, name: str, shape: Shape) -> dict[str, float]:
        keys = [key.encode() for key in make(PREFIX, (name,)).keys]
        data, true_of = node.server.store.data, node.clock.true_of_wall_ms
        raw: Any = data.get(keys[0])
        if raw is None:
            return {}
        words = raw.decode().split(" ")
        shared: Any = data.get(keys[3])
        standing = {owner_of(ticket): true_of(int(end)) for end, ticket in shared.order} if shared is not None else {}
        if words[7] != "-":
            standing[owner_of(words[7].encode())] = true_of(int(words[8]))
        return standing


@dataclass(frozen=True)
class OwnSeveral(Own):
    """Several of Lockfast's locks at once. Where a scenario wants one name, a second is taken with it."""

    def section(
        self, client: Client, name: str, shape: Shape, body: Callable[[Held], Steps], watcher: Watcher
    ) -> Generator[Any, Any, str]:
        return (yield from self.section_of_all(client, (name, ALSO), shape, body, watcher))

    def section_of_all(
        self, client: Client, names: tuple[str, ...], shape: Shape, body: Callable[[Held], Steps], watcher: Watcher
    ) -> Generator[Any, Any, str]:
        """Take all names at once, run the body, give all of them back."""
        wanted = [self.ask_for(make(PREFIX, (name,)), shape) for name in names]
        outcome = BUSY

        def within(sections: list[holding.Section]) -> Steps:
            nonlocal outcome
            outcome = yield from self._within(client, sections, body, watcher, names[0])

        yield from several.hold_all(client, wanted, shape.patience_s, within)
        return outcome


def patience(shape: Shape) -> dict[str, Any]:
    return {"lease": shape.lease_s, "wait": shape.patience_s}
