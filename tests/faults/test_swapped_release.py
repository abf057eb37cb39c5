"""A release by one plain command (flows/swapping.py) that is lost, late, cut off or cancelled: as with the script."""

from __future__ import annotations

import asyncio
from math import inf
from typing import TYPE_CHECKING

import pytest

from faults.test_lost_messages import REPLY_LOST, REQUEST_LOST, TIMEOUT_S, strike, warmed
from kit.sides import AsyncioSide
from lockfast import NotHeld, Unreachable
from lockfast.aio import Lockfast
from lockfast.clock import now
from lockfast.flows import swapping

if TYPE_CHECKING:
    from collections.abc import Iterator

    from faults.conftest import Eyes, EyesOn
    from kit.proxy import Proxy
    from kit.servers import FreshServer, Kind, Server
    from kit.sides import Side

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def _eager(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(swapping, "AFTER_S", -1.0)
    monkeypatch.setattr(swapping, "YOUNG_S", inf)


@pytest.fixture
def server_kind() -> Kind:
    """The one of the two that can."""
    return "valkey"


@pytest.fixture
def loop() -> Iterator[AsyncioSide]:
    side = AsyncioSide()
    yield side
    side.close()


@pytest.mark.parametrize("fault", REPLY_LOST + REQUEST_LOST)
def test_lost_message_is_no_loss(proxy: Proxy, side: Side, eyes: Eyes, name: str, fault: str) -> None:
    with warmed(side, proxy.url) as lf:
        grant = lf.lock(name, lease=30).acquire()
        lost = strike(proxy.when("SET", containing=grant.ticket), fault)
        began = now()
        grant.release()
        assert now() - began < TIMEOUT_S + 2
        assert lost.hits == 1
        assert not grant.lost
        assert eyes.is_free(name)
        with pytest.raises(NotHeld):
            grant.release()


@pytest.mark.parametrize("fault", REPLY_LOST)
def test_lost_reply_leaves_the_next_holder_alone(
    server: Server, proxy: Proxy, side: Side, eyes: Eyes, name: str, fault: str
) -> None:
    """The next one has it before the script follows, which finds that it is not ours any more."""
    with warmed(side, proxy.url) as lf, side.client(server.url) as other:
        grant = lf.lock(name, lease=30).acquire()
        strike(proxy.when("SET", containing=grant.ticket), fault)
        follows = proxy.when("EVALSHA", containing=grant.ticket).delay_request()
        releasing = side.spawn(grant.release)
        follows.wait_hit()
        after = other.lock(name, lease=30).acquire(wait=0)
        follows.let_go()
        releasing.result()
        assert not grant.lost
        assert eyes.holder(name) == after.ticket
        after.extend()
        after.release()


def test_late_swap_does_nothing_to_the_next_holder(
    server: Server, proxy: Proxy, side: Side, eyes: Eyes, name: str
) -> None:
    """The command is held up on its way; the script overtakes it on another connection."""
    with warmed(side, proxy.url) as lf, side.client(server.url) as other:
        grant = lf.lock(name, lease=30).acquire()
        late = proxy.when("SET", containing=grant.ticket).delay_request()
        grant.release()
        assert eyes.is_free(name)
        after = other.lock(name, lease=30).acquire(wait=0)
        late.let_go()
        after.extend()
        assert eyes.holder(name) == after.ticket
        after.release()


@pytest.mark.parametrize("outage", ["refuse", "blackhole"])
def test_release_in_an_outage_can_be_called_again(proxy: Proxy, side: Side, eyes: Eyes, name: str, outage: str) -> None:
    with warmed(side, proxy.url) as lf:
        grant = lf.lock(name, lease=30).acquire()
        getattr(proxy, outage)()
        began = now()
        with pytest.raises(Unreachable):
            grant.release()
        assert now() - began < TIMEOUT_S + 1
        proxy.heal()
        grant.release()
        assert not grant.lost
        assert eyes.is_free(name)


def test_release_on_a_frozen_server_ends_in_time_and_works_again_after(
    fresh_server: FreshServer, server_kind: Kind, side: Side, eyes_on: EyesOn
) -> None:
    server = fresh_server(server_kind)
    with side.client(server.url, timeout=0.6) as lf:
        grant = lf.lock("name", lease=30).acquire()
        server.pause()
        began = now()
        with pytest.raises(Unreachable):
            grant.release()
        assert now() - began < 0.6 + 1
        server.resume()
        grant.release()
        assert not grant.lost
        assert eyes_on(server).is_free("name")


def test_full_server_lets_go_all_the_same(
    fresh_server: FreshServer, server_kind: Kind, side: Side, eyes_on: EyesOn
) -> None:
    """A plain SET is refused at maxmemory, the script is not."""
    server = fresh_server(server_kind)
    with side.client(server.url) as lf:
        grant = lf.lock("name", lease=30).acquire()
        server.command("CONFIG", "SET", "maxmemory", "1")
        grant.release()
        server.command("CONFIG", "SET", "maxmemory", "0")
        assert not grant.lost
        assert eyes_on(server).is_free("name")


def test_cancelled_release_is_finished_in_the_background(
    proxy: Proxy, eyes: Eyes, loop: AsyncioSide, name: str
) -> None:
    async def give_up() -> None:
        async with Lockfast(proxy.url, timeout=10) as lf:
            for fault in ("cut_request", "drop_reply"):
                grant = await lf.lock(name, lease=60).acquire()
                struck = getattr(proxy.when("SET", containing=grant.ticket), fault)()
                releasing = asyncio.create_task(grant.release())
                await asyncio.to_thread(struck.wait_hit)
                releasing.cancel()
                try:
                    await releasing
                except asyncio.CancelledError:
                    pass
                await asyncio.to_thread(eyes.wait_free, name)
                assert not grant.lost

    loop.run(give_up())


def test_storm_of_cancelled_releases_leaves_nothing_and_raises_no_false_alarm(
    proxy: Proxy, eyes: Eyes, loop: AsyncioSide, name: str
) -> None:
    async def release_twice(lf: Lockfast, number: int) -> None:
        grant = await lf.lock(f"{name}-{number}", lease=60).acquire()
        releasing = asyncio.create_task(grant.release())
        await asyncio.sleep(number % 12 * 0.002)
        was_cancelled = releasing.cancel()
        try:
            await releasing
        except asyncio.CancelledError:
            assert was_cancelled
            await grant.release()
        assert not grant.lost

    async def storm() -> None:
        async with Lockfast(proxy.url, timeout=10) as lf:
            await (await lf.lock("warm-up").acquire()).release()
            for first in range(0, 72, 24):
                await asyncio.gather(*[release_twice(lf, number) for number in range(first, first + 24)])

    proxy.when("SET", times=None).delay_reply(0.01)
    loop.run(storm())
    assert eyes.client.names() == []
