"""The door, the server whose queue those who wait stand in: nobody overtakes them, and no place is left behind."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from kit.quorum import fleet_of
from kit.servers import wait_until
from kit.sides import AsyncioSide

if TYPE_CHECKING:
    from kit.quorum import Masters
    from kit.sides import Side
    from topologies.conftest import Proxied


def door_of(client: Any, name: str) -> int:
    fleet = fleet_of(client)
    return fleet.door(name, fleet.everywhere)


def test_who_does_not_wait_does_not_overtake_those_who_do(side: Side, proxied_trio: Proxied, name: str) -> None:
    masters = proxied_trio.masters
    first, second, third = (side.client(proxied_trio.urls) for _ in range(3))
    door = door_of(first, name)
    grant = first.lock(name, lease=30).acquire()
    waiting = side.spawn(second.lock(name, lease=30).acquire, wait=20)
    masters.wait_waiting(name)
    assert third.lock(name).try_acquire() is None, "and knows from now on that others want it"
    # The release is known everywhere but at the door, where somebody stands in the queue.
    late = proxied_trio.proxies[door].when("EVALSHA", containing=grant.ticket).delay_request()
    grant.release()
    wait_until(lambda: masters.holding(name) == [door], what="free elsewhere")
    assert third.lock(name).try_acquire() is None
    late.let_go()
    waiting.result().release()
    masters.wait_free(name)
    assert third.lock(name).acquire(wait=10).held


def test_who_does_not_wait_is_let_in_where_nobody_waits_any_more(side: Side, trio: Masters, name: str) -> None:
    lf, other = side.client(trio.urls), side.client(trio.urls)
    with lf.lock(name):
        assert other.lock(name).try_acquire() is None
    trio.wait_free(name)
    grant = other.lock(name).try_acquire()
    assert grant is not None, "that others wanted it a moment ago is no reason to refuse"
    grant.release()
    trio.wait_free(name)


def test_a_door_that_refuses_new_connections_is_left_for_another(side: Side, trio: Masters, name: str) -> None:
    """Pushes come over a connection of their own; those that stand go on after a password was set."""
    lf, other = side.client(trio.urls), side.client(trio.urls)
    with other.lock(name):
        pass
    door = door_of(lf, name)
    grant = lf.lock(name, lease=30).acquire()
    elsewhere = trio[(door + 1) % 3], trio[(door + 2) % 3]
    with trio[door].wire() as wire:
        wire.call("CONFIG", "SET", "requirepass", "new")
        try:
            waiting = side.spawn(other.lock(name, lease=30).acquire, wait=20)
            wait_until(lambda: any(one.command("PUBSUB", "CHANNELS") for one in elsewhere), what="it listens elsewhere")
            grant.release()
            waiting.result().release()
        finally:
            wire.call("CONFIG", "SET", "requirepass", "")
    trio.wait_free(name)


def test_cancelled_while_it_takes_its_votes_back_it_still_does(proxied_trio: Proxied, name: str) -> None:
    side, masters = AsyncioSide(), proxied_trio.masters
    yes, no, lost = proxied_trio.proxies
    with side.client(masters.urls[1]).lock(name, lease=30):  # one server says no
        lf: Any = side.client(proxied_trio.urls, timeout=20, node_timeout=10)
        with lf.lock("warm-up"):  # a name that has not this one in it
            pass
        masters.wait_free("warm-up")
        late = no.when("EVALSHA", containing=name).delay_reply()
        lost.blackhole()

        async def cancel() -> None:
            task = asyncio.ensure_future(lf.twin_of.lock(name, lease=60).try_acquire())
            while not (lost.seen("EVALSHA", containing=name) and masters.look(0, name).holders):
                await asyncio.sleep(0.005)
            driver = lf.twin_of._driver
            dial = driver._dial

            def dial_and_cancel(place: int) -> None:
                dial(place)
                task.cancel()

            driver._dial = dial_and_cancel  # as soon as it waits for a connection
            lost.cut_all()  # and who connects anew hears nothing
            while driver._placed[2] is not None:
                await asyncio.sleep(0.005)
            late.let_go()
            with pytest.raises(asyncio.CancelledError):
                await task

        side.run(cancel())
        wait_until(lambda: not masters.look(0, name).holders, timeout_s=10, what="the vote was taken back")
        assert yes.seen("EVALSHA", containing=name)
        lost.heal()
    side.close()
