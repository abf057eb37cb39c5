"""Clocks step: the server's decides leases and is survived as far as can be, the client's changes nothing."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest

from kit.servers import faketime_env, set_clock, wait_until
from lockfast.clock import now
from lockfast.errors import LeaseLost

if TYPE_CHECKING:
    from pathlib import Path

    from faults.conftest import Eyes, EyesOn, StartActor
    from kit.servers import Kind, Server
    from kit.sides import Side

pytestmark = [pytest.mark.slow, pytest.mark.needs_faketime]


@pytest.fixture
def server_kind() -> Kind:
    """One kind is enough: libfaketime runs Valkey only, and a client's clock is the same to all."""
    return "valkey"


def test_server_clock_that_jumps_ahead_may_pass_the_lock_on_and_the_fence_tells(
    faketime_server: Server, side: Side, eyes_on: EyesOn
) -> None:
    """F52: the lease is over by the server's clock. The fence grows, and the old holder is told at the next contact."""
    server = faketime_server
    told = threading.Event()
    with side.client(server.url) as lf, side.client(server.url) as other:
        grant = lf.lock("name", lease=20, on_lost=lambda _: told.set()).acquire()
        server.clock_shift(60)
        after = other.lock("name", lease=20).acquire(wait=10)
        assert after.fence > grant.fence
        with pytest.raises(LeaseLost):
            grant.extend()
        assert told.wait(10)
        with pytest.raises(LeaseLost):
            grant.release()
        assert eyes_on(server).holder("name") == after.ticket
        after.release()


def test_server_clock_that_jumps_ahead_is_noticed_by_the_renewal(faketime_server: Server, side: Side) -> None:
    """F52: the holder does not have to ask; the keeper does."""
    with side.client(faketime_server.url) as lf:
        grant = lf.lock("name", lease=3).acquire()
        faketime_server.clock_shift(60)
        began = now()
        assert grant.wait_lost(10)
        assert now() - began < 2.5, "told by the renewal, before the local deadline"


def test_server_clock_that_jumps_back_neither_doubles_a_hold_nor_blocks_a_living_one(
    faketime_server: Server, side: Side, eyes_on: EyesOn
) -> None:
    """F52: leases look longer to the server, never shorter: renewals, releases and hand-overs go on."""
    server = faketime_server
    with side.client(server.url) as lf, side.client(server.url) as other:
        with lf.lock("name", lease=0.6) as grant:
            waiting = side.spawn(other.lock("name", lease=30).acquire, wait=20)
            eyes_on(server).wait_waiting("name")
            server.clock_shift(-100)
            assert other.lock("name").try_acquire() is None
            before = grant.deadline
            wait_until(lambda: grant.deadline > before, what="renewed in the old time")
            assert grant.remaining <= 0.6, "the client believes in its lease and no more"
            assert not waiting.done
            fence = grant.fence
        after = waiting.result()
        assert after.fence > fence, "although the server's clock is behind the fence it gave out"
        after.release()
        assert eyes_on(server).is_free("name")


def test_server_clock_that_jumps_back_and_forth_does_not_deceive_the_holder(
    faketime_server: Server, side: Side
) -> None:
    """F52: what a clock behind its time says is left of a lease is not believed: it may catch up at any moment.

    When it does, the lease is over at once, and the holder must hear of it within its lease, by a renewal.
    """
    with side.client(faketime_server.url) as lf, side.client(faketime_server.url) as other:
        grant = lf.lock("name", lease=0.9).acquire()
        faketime_server.clock_shift(-100)
        before = grant.deadline
        wait_until(lambda: grant.deadline > before, what="renewed in the old time")
        faketime_server.clock_shift(60)
        began = now()
        after = other.lock("name", lease=30).acquire(wait=10)
        assert grant.wait_lost(10)
        assert now() - began < 0.9 + 1
        assert after.fence > grant.fence
        after.release()


def test_dead_holder_of_a_server_whose_clock_jumped_back_blocks_for_the_step_at_most(
    faketime_server: Server, side: Side
) -> None:
    """F52: its lease ends later by the step, and not never."""
    with side.client(faketime_server.url) as lf:
        dead = lf.lock("name", lease=0.3, renew=False).acquire()
        faketime_server.clock_shift(-1.5)
        began = now()
        after = lf.lock("name", lease=5).acquire(wait=20)
        assert dead.lost
        assert now() - began < 0.3 + 1.5 + 1.5
        assert after.fence > dead.fence
        after.release()


def test_fence_grows_although_the_server_lost_its_data_and_its_clock_went_back(
    faketime_server: Server, side: Side
) -> None:
    """F52, F11: a client that has seen a higher fence carries it over."""
    with side.client(faketime_server.url) as lf:
        before = lf.lock("name").acquire()
        before.release()
        faketime_server.command("FLUSHALL")
        faketime_server.clock_shift(-1000)
        after = lf.lock("name").acquire()
        assert after.fence > before.fence
        after.release()


@pytest.mark.parametrize("step_s", [3600, -3600])
def test_wall_clock_of_a_client_changes_nothing(
    server: Server, side: Side, start_actor: StartActor, eyes: Eyes, tmp_path: Path, name: str, step_s: float
) -> None:
    """F53: a client's wall clock steps an hour while it holds and while it waits: only steady time counts."""
    clock = tmp_path / "clock"
    set_clock(clock, 0)
    client = start_actor(side.name, server.url, env=faketime_env(clock))
    state = client.ask("acquire", name, lease=0.9)
    assert abs(state["at"] - now()) < 20, "the client's steady clock is the true one"
    set_clock(clock, step_s)
    with side.client(server.url) as lf:
        ends = now() + 1.2
        wait_until(lambda: now() > ends, what="longer than a lease")
        later = client.ask("state", name)
        assert later["held"] is True
        assert 0 < later["deadline"] - later["at"] <= 0.9
        assert eyes.holder(name) == state["ticket"]
        assert "error" not in client.ask("release", name)

        held = lf.lock(name, lease=30).acquire(wait=5)
        began = now()
        client.tell("acquire", name, lease=0.9, wait=0.8)
        eyes.wait_waiting(name)
        set_clock(clock, 0)
        answer = client.answer()
        assert answer["error"] == "NotAcquired"
        assert 0.7 < now() - began < 0.8 + 2
        held.release()
