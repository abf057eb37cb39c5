"""Several locks at once: all or none, and whoever waits holds just what comes before the name it waits for.

Two waiters may be let in at the same moment and go on to the same name, so the order there is the server's to choose.
The model is what must be true when everybody has gone as far as they can, whatever it chose.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any, ClassVar

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from kit.servers import wait_until
from machines.kit import CLIENT, MOST_WAITERS, PATIENCE_S, STEPS, WHICH, World, run

if TYPE_CHECKING:
    from collections import Counter

    from kit.servers import Server
    from lockfast.snapshots import Snapshot
    from machines.kit import Waiter

LETTERS = "abc"
WANTS = st.lists(st.sampled_from(LETTERS), min_size=1, max_size=3, unique=True)
_numbers = itertools.count(1)


class SeveralMachine(RuleBasedStateMachine):
    world: ClassVar[World]
    taken: ClassVar[Counter[str]]

    def __init__(self) -> None:
        super().__init__()
        self.stem = f"machine-several-{next(_numbers)}"
        self.groups: list[Any] = []  # grants that were taken together
        self.waiting: dict[str, tuple[Waiter, list[str]]] = {}  # by the agent in their tickets: what it wants

    @initialize(wants=st.lists(st.tuples(CLIENT, WANTS), min_size=3, max_size=MOST_WAITERS))
    def come_together(self, wants: list[tuple[int, list[str]]]) -> None:
        for client, letters in wants:
            self.take(client, letters, waits=True)

    @rule(client=CLIENT, letters=WANTS, waits=st.booleans())
    def take(self, client: int, letters: list[str], waits: bool) -> None:
        locks = self.world.clients[client].locks(*[self._name(letter) for letter in letters])
        before = self._look()
        is_free = all(not before[letter].holders for letter in letters)
        if is_free or not waits:
            grants = locks.try_acquire()
            assert (grants is not None) == is_free
            if grants is not None:
                self.groups.append(grants)
                self.taken["at once"] += 1
            else:
                assert self._tickets(self._look()) == self._tickets(before), "nothing of it is left"
                self.taken["not got"] += 1
        elif len(self.waiting) < MOST_WAITERS:
            known = self._agents(before)
            waiter = self.world.waiter(locks.acquire)
            wait_until(lambda: self._agents(self._look()) - known, what="it waits", timeout_s=PATIENCE_S)
            (agent,) = self._agents(self._look()) - known
            self.waiting[agent] = (waiter, letters)
            self.taken["queued"] += 1

    @rule(which=WHICH)
    def release(self, which: int) -> None:
        if not self.groups:  # not a precondition: hypothesis wants those to be the same in every run of the same steps
            return
        self.groups.pop(which % len(self.groups)).release()
        self._settle()

    @rule(which=WHICH)
    def release_one_of_them(self, which: int) -> None:
        """The rest stays held, and is given back with the group."""
        if not self.groups:
            return
        grants = self.groups[which % len(self.groups)]
        held = [grant for grant in self._each(grants) if grant.held]
        held[0].release()
        if len(held) == 1:
            self.groups.remove(grants)
            grants.release()
        self._settle()

    @rule(which=WHICH)
    def cancel_a_waiter(self, which: int) -> None:
        tasks = [agent for agent, (waiter, _) in self.waiting.items() if waiter.can_be_cancelled]
        if not tasks:
            return
        agent = tasks[which % len(tasks)]
        self.waiting.pop(agent)[0].cancel()
        wait_until(lambda: agent not in self._agents(self._look()), what="it has left", timeout_s=PATIENCE_S)
        self._settle()
        self.taken["cancelled"] += 1

    @invariant()
    def everybody_has_gone_as_far_as_they_can(self) -> None:
        self._settle()
        assert not any(grant.lost for grants in self.groups for grant in self._each(grants))

    def teardown(self) -> None:
        self._settle()
        while self.groups:  # whoever is let in is released in its turn, until nobody waits: there is no circle
            self.release(0)
        assert not self.waiting, "somebody waits for nobody"

    def _settle(self) -> None:
        wait_until(self._is_settled, what="everybody has gone as far as they can", timeout_s=PATIENCE_S)

    def _is_settled(self) -> bool:
        for agent, (waiter, _) in list(self.waiting.items()):
            if waiter.done:
                del self.waiting[agent]
                self.groups.append(waiter.result())
                self.taken["let in"] += 1
        seen = self._look()
        own = {grant.ticket for grants in self.groups for grant in self._each(grants) if grant.held}
        for letter in LETTERS:
            holders = {holder.ticket for holder in seen[letter].holders}
            if len(holders) > 1 or (seen[letter].waiters and not holders):
                return False
            if not all(ticket in own or agent_of(ticket) in self.waiting for ticket in holders):
                return False
        return all(self._waits_behind_what_it_holds(agent, seen, own) for agent in self.waiting)

    def _waits_behind_what_it_holds(self, agent: str, seen: dict[str, Snapshot], own: set[str]) -> bool:
        """It is in one queue, and holds what it wants before that name, in the order of the names, and nothing else.

        own: what has been handed out. A task may have the number of one that has ended.
        """
        wanted = sorted(self.waiting[agent][1])
        queued = [at for at in LETTERS for waiter in seen[at].waiters if agent_of(waiter.ticket) == agent]
        others = [(at, holder.ticket) for at in LETTERS for holder in seen[at].holders if holder.ticket not in own]
        held = [at for at, ticket in others if agent_of(ticket) == agent]
        return len(queued) == 1 and queued[0] in wanted and held == wanted[: wanted.index(queued[0])]

    def _name(self, letter: str) -> str:
        return f"{self.stem}-{letter}"

    def _look(self) -> dict[str, Snapshot]:
        return {letter: self.world.inspect(self._name(letter)) for letter in LETTERS}

    def _each(self, grants: Any) -> list[Any]:
        return self.world.each(grants)

    @staticmethod
    def _tickets(seen: dict[str, Snapshot]) -> list[set[str]]:
        return [
            {holder.ticket for holder in seen[at].holders} | {waiter.ticket for waiter in seen[at].waiters}
            for at in LETTERS
        ]

    @staticmethod
    def _agents(seen: dict[str, Snapshot]) -> set[str]:
        """Who is in a queue."""
        return {agent_of(waiter.ticket) for snapshot in seen.values() for waiter in snapshot.waiters}


def agent_of(ticket: str) -> str:
    return ticket.rpartition(".")[0]


FEWER = settings(STEPS, max_examples=30)


@pytest.mark.slow
def test_all_or_none_and_nobody_waits_in_a_circle(valkey_server: Server) -> None:
    taken = run(SeveralMachine, valkey_server, FEWER)
    assert min(taken[what] for what in ("at once", "not got", "queued", "let in", "cancelled")) > 5, taken
