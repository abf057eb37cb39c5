"""The holder's process is killed or frozen: the others get on, and it finds out when it wakes."""

from __future__ import annotations

import signal
import time
from typing import TYPE_CHECKING

import pytest

from lockfast.clock import now

if TYPE_CHECKING:
    from faults.conftest import Eyes, StartActor
    from kit.servers import Server
    from kit.sides import Side

pytestmark = pytest.mark.slow
NOISE_S = 1.0  # what a busy machine may add to anything


def test_killed_holder_is_followed_within_its_lease(
    server: Server, side: Side, start_actor: StartActor, eyes: Eyes, name: str
) -> None:
    """F1: kill -9 of the holder; the waiter gets in within the lease + 0.5 s, and not before the lease ended."""
    holder = start_actor(side.name, server.url)
    was = holder.ask("acquire", name, lease=0.8)
    with side.client(server.url) as lf:
        waiting = side.spawn(lf.lock(name, lease=5).acquire, wait=20)
        eyes.wait_waiting(name)
        holder.send_signal(signal.SIGKILL)
        killed_at = now()
        sure_until = killed_at + eyes.look(name).holders[0].lease_left
        grant = waiting.result()
        assert now() >= sure_until - 0.1
        assert now() - killed_at < 0.8 + 0.5 + NOISE_S
        assert grant.fence > was["fence"]
        grant.release()


def test_holder_that_was_frozen_past_its_lease_knows_when_it_wakes(
    server: Server, side: Side, start_actor: StartActor, eyes: Eyes, name: str
) -> None:
    """F2: SIGSTOP past the lease. The other is unharmed, whatever the zombie tries; its fence is older."""
    zombie = start_actor(side.name, server.url)
    was = zombie.ask("acquire", name, lease=0.5)
    zombie.stop()
    with side.client(server.url) as lf:
        grant = lf.lock(name, lease=5).acquire(wait=20)
        got_at = now()
        zombie.resume()
        state = zombie.ask("state", name)
        assert (state["held"], state["lost"]) == (False, True)
        assert state["deadline"] <= got_at, "the zombie believed in its hold when the other had it"
        for attempt in ("check", "extend", "release"):
            assert zombie.ask(attempt, name)["error"] == "LeaseLost"
        grant.check()
        grant.extend()
        assert eyes.holder(name) == grant.ticket
        assert was["fence"] < grant.fence
        grant.release()


def test_holder_frozen_for_less_than_its_lease_goes_on(server: Server, side: Side, start_actor: StartActor) -> None:
    """F2, the other way round: never a "lost" while clock and server still make the hold sure."""
    holder = start_actor(side.name, server.url)
    holder.ask("acquire", "short-freeze", lease=6)
    holder.stop()
    time.sleep(0.3)
    holder.resume()
    state = holder.ask("state", "short-freeze")
    assert (state["held"], state["lost"]) == (True, False)
    assert "error" not in holder.ask("release", "short-freeze")
