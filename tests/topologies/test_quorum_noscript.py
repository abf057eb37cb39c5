"""Servers of a quorum that have forgotten the scripts (SCRIPT FLUSH): they are told the text, but never out of turn."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from kit.quorum import fleet_of
from kit.servers import wait_until
from kit.sides import AsyncioSide
from lockfast.clock import now
from lockfast.flows.scripts import LEAVE

if TYPE_CHECKING:
    from kit.quorum import Masters
    from kit.servers import Server
    from kit.sides import Side
    from topologies.conftest import Proxied

LEASE_S = 60.0


def forget_all_but_leave(server: Server) -> None:
    """As when another client has released something since the flush."""
    server.command("SCRIPT", "FLUSH")
    server.command("SCRIPT", "LOAD", LEAVE.text)


def test_a_renewal_that_a_release_has_followed_is_not_sent_again_behind_it(
    side: Side, proxied_trio: Proxied, name: str
) -> None:
    """The server has not run it, and runs the release: what came then would hold the name for nobody."""
    masters, slow = proxied_trio.masters, proxied_trio.proxies[2]
    lf = side.client(proxied_trio.urls, node_timeout=5, timeout=20)
    with lf.lock(f"{name}-warm"):
        wait_until(lambda: all(node.run_id for node in fleet_of(lf).nodes), what="all are connected")
    grant = lf.lock(name, lease=LEASE_S).acquire()
    wait_until(lambda: masters.holding(name) == [0, 1, 2])
    with lf.lock(f"{name}-warm"):
        pass
    forget_all_but_leave(masters[2])
    late = slow.when("EVALSHA", containing=grant.ticket).delay_reply()
    grant.extend()
    late.wait_hit()
    grant.release()
    wait_until(lambda: not masters.look(2, name).holders, what="it has run the release")
    mark = len(slow.requests)
    late.let_go()

    def is_heard() -> bool:
        with lf.lock(f"{name}-warm"):  # in threads, who comes next reads what is late
            return bool([one for one in slow.seen("EVALSHA", since=mark) if one.answered])

    wait_until(is_heard)
    with lf.lock(f"{name}-warm"):
        pass
    lf.close()
    assert slow.seen("EVAL", containing=grant.ticket, since=mark) == []
    assert masters.is_free(name)


def test_a_renewal_and_a_release_at_once_leave_nothing_where_all_have_forgotten_the_scripts(
    trio: Masters, name: str
) -> None:
    side = AsyncioSide()
    lf: Any = side.client(trio.urls)

    async def renew_and_release(native: Any) -> None:
        grant = await native.lock(name, lease=LEASE_S).acquire()
        for server in trio:
            forget_all_but_leave(server)
        renewing = asyncio.ensure_future(grant.extend())
        await asyncio.sleep(0)  # it is on its way
        await grant.release()
        await asyncio.gather(renewing, return_exceptions=True)

    side.run(renew_and_release(lf.twin_of))
    lf.close()
    assert trio.is_free(name)
    side.close()


@pytest.mark.parametrize("names", ["one name", "many names"])
def test_a_crowd_finds_servers_that_have_forgotten_the_scripts_and_is_not_held_up(
    side: Side, trio: Masters, name: str, names: str
) -> None:
    """All requests come back, with others behind them: they are sent again at once."""
    lf = side.client(trio.urls, node_timeout=5, timeout=20)
    with lf.lock(f"{name}-warm"):
        pass
    for server in trio:
        server.command("SCRIPT", "FLUSH")

    def hold(number: int) -> None:
        with lf.lock(f"{name}-{number if names == 'many names' else 0}", lease=LEASE_S, wait=20):
            pass

    began = now()
    crowd = [side.spawn(hold, number) for number in range(12)]
    for one in crowd:
        one.result()
    assert now() - began < 4, "nobody has waited for a node's time-out"
    lf.close()
    for number in range(12):
        assert trio.is_free(f"{name}-{number}")
