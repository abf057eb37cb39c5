"""Holds that are handed on and asked for, against a book of who holds under which ticket.

Whoever goes on with a hold has its fence and its weight, and a ticket of its own; whoever was asked to let go stays
asked in other hands. The queue behind goes on as if nothing had happened.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import invariant, precondition, rule

from lockfast import LeaseLost, NotHeld
from lockfast.flows.handing import read
from machines.kit import CLIENT, PATIENCE_S, STEPS, WHICH, OneName, run

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kit.servers import Server
    from lockfast.sync import Grant, Lock

HAPPENED = ("let in", "exported", "adopted", "adopted twice", "asked", "not asked", "asked by an heir")


class Hands(OneName):
    def __init__(self) -> None:
        super().__init__()
        self.exported: dict[int, str] = {}  # on the way: nobody has a grant of these, and the server has the hold
        self.spent: list[str] = []
        self.heirs: set[int] = set()
        self.asked: set[int] = set()
        self.fences: dict[int, int] = {}

    @precondition(lambda self: self.held)
    @rule(which=WHICH)
    def export(self, which: int) -> None:
        who = self._one_of(self.held, which)
        grant = self.held.pop(who)
        self.exported[who] = text = grant.export()
        self.tickets[who] = read(text, "lockfast").ticket
        assert not grant.held
        assert not grant.lost
        with pytest.raises(NotHeld, match="handed on"):
            grant.release()
        self.taken["exported"] += 1

    @precondition(lambda self: self.exported)
    @rule(client=CLIENT, which=WHICH)
    def adopt(self, client: int, which: int) -> None:
        who = self._one_of(self.exported, which)
        text = self.exported.pop(who)
        self.spent.append(text)
        self.held[who] = grant = self.world.clients[client].adopt(text)
        assert grant.ticket != self.tickets[who]
        self.tickets[who] = grant.ticket
        self.heirs.add(who)
        self.taken["adopted"] += 1

    @precondition(lambda self: self.spent)
    @rule(client=CLIENT, which=WHICH)
    def adopt_again(self, client: int, which: int) -> None:
        with pytest.raises(LeaseLost, match="adopted by another"):
            self.world.clients[client].adopt(self.spent[which % len(self.spent)])
        self.taken["adopted twice"] += 1

    @precondition(lambda self: self.model.holders)
    @rule(client=CLIENT)
    def revoke(self, client: int) -> None:
        """All who hold are asked, those on the way among them; who comes later is not meant."""
        assert self.world.clients[client].revoke(self.name) == len(self.model.holders)
        self.asked |= self.model.holders.keys()

    @precondition(lambda self: self.held)
    @rule(which=WHICH, lease=st.sampled_from([None, 60]))
    def extend(self, which: int, lease: float | None) -> None:
        who = self._one_of(self.held, which)
        self.held[who].extend(lease)
        self._knows_whether_it_is_asked(who, self.held[who].revoked)

    @precondition(lambda self: self.held)
    @rule(which=WHICH)
    def wait_revoked(self, which: int) -> None:
        who = self._one_of(self.held, which)
        heard = self.held[who].wait_revoked(PATIENCE_S if who in self.asked else 0)
        self._knows_whether_it_is_asked(who, heard)

    def _knows_whether_it_is_asked(self, who: int, knows: bool) -> None:
        assert knows == (who in self.asked)
        self.taken["asked" if knows else "not asked"] += 1
        self.taken["asked by an heir"] += knows and who in self.heirs

    @invariant()
    def fences_stay(self) -> None:
        """That the tickets and weights are right is looked at for all of them, see the kit."""
        fences = {holder.ticket: holder.fence for holder in self.world.inspect(self.name).holders}
        for who in self.model.holders:
            assert fences[self.tickets[who]] == self.fences[who]

    def teardown(self) -> None:
        while self.exported:
            self.adopt(0, 0)
        super().teardown()

    def _got(self, who: int, grant: Grant) -> None:
        super()._got(who, grant)
        self.fences[who] = grant.fence

    @staticmethod
    def _one_of(those: Mapping[int, object], which: int) -> int:
        return list(those)[which % len(those)]


class LockHands(Hands):
    def lock(self, client: int, weight: int) -> Lock:
        return self.world.clients[client].lock(self.name)


class SemaphoreHands(Hands):
    LIMIT = 4
    WEIGHTS = (1, 2, 3)

    def lock(self, client: int, weight: int) -> Lock:
        return self.world.clients[client].semaphore(self.name, limit=self.LIMIT, permits=weight)


@pytest.mark.slow
@pytest.mark.parametrize("machine", [LockHands, SemaphoreHands])
def test_hold_in_other_hands_is_the_same_hold(machine: type[Hands], valkey_server: Server) -> None:
    taken = run(machine, valkey_server, settings(STEPS, max_examples=40))
    assert min(taken[what] for what in HAPPENED) > 2, taken
