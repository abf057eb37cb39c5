"""A semaphore against a plain queue with weights, and a limit that changes on the way."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from lockfast import Refused
from machines.kit import CLIENT, WHICH, OneName, run

if TYPE_CHECKING:
    from kit.servers import Server
    from lockfast.sync import Lock


class SemaphoreMachine(OneName):
    LIMIT = 4
    WEIGHTS = (1, 2, 3, 4)

    def prepare(self) -> None:
        self.world.clients[0].semaphore(self.name).resize(self.LIMIT)

    def lock(self, client: int, weight: int) -> Lock:
        return self.world.clients[client].semaphore(self.name, permits=weight)

    @precondition(lambda self: self.model.queue)
    @rule(client=CLIENT, limit=st.integers(1, 6))
    def resize(self, client: int, limit: int) -> None:
        """Nobody loses what they hold; waiters that want more than there is are refused."""
        self.world.clients[client].semaphore(self.name).resize(limit)
        self.taken["resized"] += 1
        self.model.limit = limit
        too_heavy = [who for who, weight in self.model.queue if weight > limit]
        self.model.queue = [place for place in self.model.queue if place[0] not in too_heavy]
        self._let_in()
        for who in too_heavy:
            error = self.waiting.pop(who).error()
            assert isinstance(error, Refused), error
            self.taken["refused"] += 1

    @precondition(lambda self: self.model.holders)
    @rule(client=CLIENT, which=WHICH)
    def name_another_limit(self, client: int, which: int) -> None:
        other = self.model.limit + 1 + which % 2
        with pytest.raises(Refused, match=f"limit {self.model.limit}"):
            self.world.clients[client].semaphore(self.name, limit=other).try_acquire()

    @precondition(lambda self: self.model.holders)
    @rule(client=CLIENT)
    def want_more_than_there_is(self, client: int) -> None:
        with pytest.raises(Refused, match=f"limit of {self.model.limit}"):
            self.lock(client, self.model.limit + 1).try_acquire()

    @precondition(lambda self: self.model.holders)
    @rule(client=CLIENT)
    def use_it_as_a_lock(self, client: int) -> None:
        with pytest.raises(Refused, match="semaphore"):
            self.world.clients[client].lock(self.name).try_acquire()


@pytest.mark.slow
def test_semaphore_is_permits_and_a_queue_that_nobody_overtakes(valkey_server: Server) -> None:
    taken = run(SemaphoreMachine, valkey_server)
    assert min(taken[what] for what in ("queued", "let in", "cancelled", "refused", "resized")) > 5, taken
