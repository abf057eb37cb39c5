"""A lock against a plain queue of one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from machines.kit import OneName, run

if TYPE_CHECKING:
    from kit.servers import Server
    from lockfast.sync import Lock


class LockMachine(OneName):
    def lock(self, client: int, weight: int) -> Lock:
        return self.world.clients[client].lock(self.name)


@pytest.mark.slow
def test_lock_is_one_holder_and_a_queue(valkey_server: Server) -> None:
    taken = run(LockMachine, valkey_server)
    assert min(taken[what] for what in ("queued", "let in", "cancelled")) > 5, taken
