"""Lockfast's own rows: the shipped flows, scripts, holds and keeper."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from lockfast.errors import LeaseLost, NotHeld, Unreachable
from lockfast.flows import asks, guarding
from lockfast.flows.election import Candidacy
from lockfast.flows.scripts import GUARD
from lockfast.lab.contender import ALSO, BUSY, PREFIX, Contender, Held, Wrote, owner_of, watched
from lockfast.locks import Options
from lockfast.names import make
from lockfast.sim import holding, leading, several
from lockfast.sim.driving import Run
from lockfast.sync.rlock import RLock

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from lockfast.flows.asks import Ask
    from lockfast.flows.effects import Call
    from lockfast.lab.contender import Shape, Watcher
    from lockfast.names import Name
    from lockfast.sim.client import Client
    from lockfast.sim.node import Node
    from lockfast.sync import Grant, Lock, Lockfast, Locks

    Steps = Generator[Any, Any, Any]

RESOURCE = "resource"  # what is guarded, where that is a key on the lock's own server


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

        yield from self._hold(client, ask, shape, within)
        return outcome

    def _hold(self, client: Client, ask: Ask, shape: Shape, within: Callable[[holding.Section], Steps]) -> Steps:
        yield from holding.hold(client, ask, shape.patience_s, within)

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
        outcome = yield from self._use(sections, self._held(sections, fence), body)
        watcher.gave(client, "gives it back" if hold.held() else "lets go of what it no longer has", name)
        return outcome

    def _use(self, sections: list[holding.Section], held: Held, body: Callable[[Held], Steps]) -> Steps:
        """Run the body; everything is taken."""
        return (yield from body(held))

    def _held(self, sections: list[holding.Section], fence: int) -> Held:
        return Held(lambda: all(section.hold.held() for section in sections), fence)

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


@dataclass(frozen=True)
class OwnTwice(Own):
    """The re-entrant lock: every write is made in an inner entry, which is left before the next."""

    def _use(self, sections: list[holding.Section], held: Held, body: Callable[[Held], Steps]) -> Steps:
        (section,) = sections
        hold = section.hold
        given: list[Any] = []  # what releases give back
        driver: Any = SimpleNamespace(entries={}, release=given.append)
        options = Options(hold.ask.lease_s, 0.0, True, None, True, 0.0, None, False)
        lock = RLock(driver, PREFIX, (hold.ask.name.shown,), lambda *_: hold.ask, options)
        outer = lock._grant(hold)
        inner: list[Grant] = []

        def leave_again() -> None:
            while inner:
                inner.pop().release()
            assert not given, "the outer entry is still there"

        def enter_again() -> Steps:
            yield from ()
            leave_again()
            try:
                inner.append(lock.acquire())
            except (LeaseLost, NotHeld):
                return False
            return True

        held.keep = enter_again
        outcome = yield from body(held)
        leave_again()
        outer.release()
        assert given == [hold], "the last entry gives it back, which is what follows"
        return outcome


@dataclass(frozen=True)
class OwnElection(Own):
    """Who leads writes."""

    ask_for: Callable[[Name, Shape], Ask] = lambda name, shape: Candidacy(name, shape.lease_s, "here")

    def _hold(self, client: Client, ask: Ask, shape: Shape, within: Callable[[holding.Section], Steps]) -> Steps:
        assert isinstance(ask, Candidacy), "see above"
        yield from leading.lead(client, ask, shape.patience_s, within)


@dataclass(frozen=True)
class OwnGuarded(Own):
    """A lock whose holders write through its own server, which looks whether the hold stands as it takes the write."""

    def _held(self, sections: list[holding.Section], fence: int) -> Held:
        (section,) = sections
        client, hold = section.client, section.hold
        client.env.commands[b"set"] = guarding.Shape(-3, 1, 1, 1, True, {})  # the simulated server has no table

        def write(number: int, before_sending: Callable[[], None]) -> Steps:
            commands = guarding.prepare((("SET", RESOURCE, f"{client.name} {number}"),))
            flow = guarding.guard(hold, commands, client.new_id(), client.env)
            try:
                yield Run(watched(flow, lambda _effect: before_sending()))
            except (LeaseLost, NotHeld):
                return "is told that its hold is gone, and stops"
            except Unreachable as failure:
                return f"does not know whether its write was made, and stops: {failure}"
            return ""

        return Held(hold.held, fence, write=write)

    def wrote(self, call: Call, reply: Any) -> Wrote | None:
        if call.bound.script is not GUARD or not isinstance(reply, list):
            return None  # of another kind, or not known to the server yet: it is sent again
        who, number = call.args[-1].decode().split()  # type: ignore[union-attr]  # words of a guard are bytes
        return Wrote(call.bound.name.keys[5], who, int(number), accepted=reply[0] != 0)


def patience(shape: Shape) -> dict[str, Any]:
    return {"lease": shape.lease_s, "wait": shape.patience_s}
