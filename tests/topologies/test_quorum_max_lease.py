"""The longest lease of a majority's servers: who may bring one to servers that have none."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from kit.quorum import fleet_of
from kit.servers import wait_until
from lockfast.errors import Unreachable

if TYPE_CHECKING:
    from kit.quorum import Masters
    from kit.sides import Side

pytestmark = pytest.mark.slow


def test_a_client_that_names_none_brings_none_while_a_server_that_may_have_one_is_silent(
    side: Side, trio: Masters, short: str
) -> None:
    """By a default that is shorter, servers that forgot would count before the leases have ended that it stands for."""
    trio.mark(short)
    trio[2].command("SET", f"{short}:quorum", 90_000)
    trio[2].pause()
    lf = side.client(trio.urls, prefix=short)
    with pytest.raises(Unreachable, match=r"no max_lease stored.* name max_lease"):
        lf.lock("x", lease=5).acquire(wait=1)
    assert [server.command("GET", f"{short}:quorum") for server in trio.servers[:2]] == [None, None]
    with side.client(trio.urls, prefix=short, max_lease=90).lock("x", lease=5, wait=5):
        pass  # who names it needs nobody else
    with lf.lock("x", lease=5, wait=5):
        assert fleet_of(lf).max_lease_s == 90
    trio[2].resume()
    trio.wait_free("x", short)


def test_a_client_that_names_none_goes_on_when_the_silent_one_has_told(side: Side, trio: Masters, short: str) -> None:
    trio.mark(short)
    trio[2].pause()
    lf = side.client(trio.urls, prefix=short)
    waiting = side.spawn(lf.lock("x", lease=5).acquire, wait=20)
    wait_until(lambda: any("max_lease" in node.why_down for node in fleet_of(lf).nodes))
    trio[2].resume()
    waiting.result().release()
    wait_until(lambda: {server.command("GET", f"{short}:quorum") for server in trio} == {b"60000"})
