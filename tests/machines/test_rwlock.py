"""A read/write lock against a plain queue: readers together, writers alone, and writers that become readers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis.stateful import precondition, rule

from lockfast import Misused
from lockfast.flows.asks import READER, READERS
from machines.kit import WHICH, OneName, run

if TYPE_CHECKING:
    from kit.servers import Server
    from lockfast.sync import Lock


class ReadWriteMachine(OneName):
    LIMIT = READERS
    WEIGHTS = (READERS, READER, READER, READERS)

    def lock(self, client: int, weight: int) -> Lock:
        sides = self.world.clients[client].rwlock(self.name)
        lock: Lock = self.world.wrapped(client, sides.write() if weight == READERS else sides.read())
        return lock

    @precondition(lambda self: READERS in self.model.holders.values())
    @rule()
    def downgrade(self) -> None:
        """It reads from now on, and whoever waits to read next is let in with it."""
        ((who, grant),) = self.held.items()
        grant.downgrade()
        self.taken["downgraded"] += 1
        self.model.holders[who] = READER
        self._let_in()

    @precondition(lambda self: READER in self.model.holders.values())
    @rule(which=WHICH)
    def downgrade_what_only_reads(self, which: int) -> None:
        grant = list(self.held.values())[which % len(self.held)]
        with pytest.raises(Misused, match="only the writer"):
            grant.downgrade()


@pytest.mark.slow
def test_readers_are_let_in_together_and_a_writer_alone_in_the_order_they_came(valkey_server: Server) -> None:
    taken = run(ReadWriteMachine, valkey_server)
    assert min(taken[what] for what in ("queued", "let in", "cancelled", "downgraded")) > 5, taken
