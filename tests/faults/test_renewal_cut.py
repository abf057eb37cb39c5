"""Renewals do not get through, or nobody runs them: the holder is told by its own clock, before the server lets go."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

from kit.servers import wait_until
from kit.sides import AsyncioSide, Side
from lockfast.aio import Lockfast as AsyncioLockfast
from lockfast.clock import now
from lockfast.errors import LeaseLost

if TYPE_CHECKING:
    from faults.conftest import Eyes
    from kit.proxy import Proxy
    from kit.servers import Kind, Server

pytestmark = pytest.mark.slow


@pytest.fixture
def server_kind() -> Kind:
    """One kind is enough: what fails here is the line, or the client's own loop."""
    return "valkey"


@pytest.mark.parametrize("outage", ["refuse", "blackhole"])
def test_holder_cut_off_is_told_before_the_server_lets_another_in(
    server: Server, proxy: Proxy, side: Side, eyes: Eyes, name: str, outage: str
) -> None:
    """F50: told by the local deadline, while the server still keeps the hold; no resurrection after the heal."""
    told: list[tuple[int, float]] = []
    heard = threading.Event()

    def on_lost(grant: Any) -> None:
        told.append((grant.fence, now()))
        heard.set()

    with side.client(proxy.url) as lf, side.client(server.url) as other:
        grant = lf.lock(name, lease=0.8, on_lost=on_lost).acquire()
        proxy.wait_for("EVALSHA", containing=grant.ticket, count=2)  # a renewal: it does renew
        getattr(proxy, outage)()
        waiting = side.spawn(other.lock(name, lease=10).acquire, wait=20)
        assert heard.wait(10)
        after = waiting.result()
        got_at = now()
        assert told[0][0] == grant.fence < after.fence
        assert grant.deadline <= told[0][1] <= got_at
        assert (grant.held, grant.lost) == (False, True)
        with pytest.raises(LeaseLost):
            grant.check()
        proxy.heal()
        with pytest.raises(LeaseLost):
            grant.release()
        assert eyes.holder(name) == after.ticket
        after.check()
        assert grant.lost
        assert len(told) == 1
        after.release()


def test_loss_is_declared_while_the_server_still_keeps_the_hold(
    proxy: Proxy, side: Side, eyes: Eyes, name: str
) -> None:
    """F50: the local deadline lies before the server's, by the margin for clocks that tick differently."""
    with side.client(proxy.url) as lf:
        grant = lf.lock(name, lease=2).acquire()
        proxy.blackhole()
        before = now()
        left_s = eyes.look(name).holders[0].lease_left
        assert grant.deadline < before + left_s + 0.001
        assert grant.wait_lost(10)
        proxy.heal()


def test_one_failed_renewal_is_tried_again_and_loses_nothing(proxy: Proxy, side: Side, name: str) -> None:
    """F50, the other way round: an outage shorter than the lease is survived without a word."""
    with side.client(proxy.url, timeout=0.4) as lf:
        with lf.lock(name, lease=1.2) as grant:
            first = grant.deadline
            lost = proxy.when("EVALSHA", containing=grant.ticket, times=2).drop_reply_and_cut()
            lost.wait_hit(2)
            wait_until(lambda: grant.deadline > first + 0.5, what="renewed after all")
            grant.check()
        assert not grant.lost


def test_renewal_that_the_server_refuses_is_tried_until_the_deadline(proxy: Proxy, side: Side, name: str) -> None:
    """F22, F50: MISCONF on renewals; when it passes, nothing was lost."""
    with side.client(proxy.url) as lf, lf.lock(name, lease=1.5) as grant:
        first = grant.deadline
        sick = proxy.when("EVALSHA", containing=grant.ticket, times=2).inject_reply(b"-MISCONF disk full\r\n")
        sick.wait_hit(2)
        wait_until(lambda: grant.deadline > first + 0.5, what="renewed after all")
        grant.check()


def test_late_answer_of_a_renewal_does_not_revive_a_lost_hold(proxy: Proxy, side: Side, eyes: Eyes, name: str) -> None:
    """F50: the server has renewed, the answer comes after the local deadline: lost is lost."""
    with side.client(proxy.url, timeout=10) as lf:
        grant = lf.lock(name, lease=0.6).acquire()
        late = proxy.when("EVALSHA", containing=grant.ticket, times=None).delay_reply()
        late.wait_hit()
        assert grant.wait_lost(10)
        proxy.heal()
        assert not grant.held
        assert grant.lost
        with pytest.raises(LeaseLost):
            grant.release()
        eyes.wait_free(name)


def test_blocked_event_loop_finds_its_hold_lost(server: Server, eyes: Eyes, name: str) -> None:
    """F51: the loop stands still longer than the lease; another gets in; the body hears of it at its next await."""
    seen: list[float] = []
    threads, aside = Side(), AsyncioSide()
    other = threads.client(server.url)

    async def blocked() -> None:
        async with AsyncioLockfast(server.url) as lf, lf.lock(name, lease=0.3) as grant:
            waiting = threads.spawn(other.lock(name, lease=10).acquire, wait=20)
            await asyncio.to_thread(eyes.wait_waiting, name)
            successor = waiting.result()  # blocks this loop until the other has it
            seen.extend((grant.deadline, now()))
            assert (grant.held, grant.lost) == (False, True)
            with pytest.raises(LeaseLost):
                grant.check()
            try:
                await asyncio.sleep(10)
                pytest.fail("the body was not cancelled")
            finally:
                successor.check()
                successor.release()

    with pytest.raises(LeaseLost):
        aside.run(blocked())
    assert seen[0] <= seen[1]
    threads.close()
    aside.close()


def test_busy_threads_keep_their_hold(server: Server, name: str) -> None:
    """F51: other threads that fight for the interpreter do not keep the timer and the renewals from running."""
    side = Side()
    ends = time.monotonic() + 1.2

    def spin() -> None:
        while time.monotonic() < ends:
            sum(range(10_000))

    with side.client(server.url) as lf, lf.lock(name, lease=1.0) as grant:
        for spinning in [side.spawn(spin) for _ in range(3)]:
            spinning.result()
        grant.check()
    side.close()


def test_release_that_is_not_confirmed_holds_up_no_renewal(proxy: Proxy, side: Side, name: str) -> None:
    """The keeper goes on with it, for the whole time-out each time; other holds have less time than that."""
    lf = side.client(proxy.url)
    kept = lf.lock(name, "kept", lease=1.2).acquire()
    with lf.lock(name, "left", lease=8) as left:
        leaving = proxy.when("EVALSHA", containing=left.ticket, times=None).cut_request()
    leaving.wait_hit()
    later = now() + 3
    wait_until(lambda: kept.lost or kept.deadline > later)
    kept.check()
    leaving.cancel()
    kept.release()
