"""A majority of servers over TLS."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, NamedTuple

import pytest

from kit.cable import Cable
from kit.quorum import Masters, fleet_of
from kit.servers import wait_until
from lockfast.clock import now

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kit.sides import Side
    from lockfast.sync import Lockfast

pytestmark = [pytest.mark.needs_redis, pytest.mark.slow]  # the Valkey of the wheel is built without TLS
TIMEOUT_S = 8.0


class Secured(NamedTuple):
    """Masters with a cable to each."""

    masters: Masters
    cables: list[Cable]

    @property
    def urls(self) -> list[str]:
        pairs = zip(self.cables, self.masters, strict=True)
        return [f"rediss://127.0.0.1:{cable.port}/0?ssl_ca_certs={server.ca_file}" for cable, server in pairs]


@pytest.fixture
def secured() -> Iterator[Secured]:
    with Masters(3, "redis", tls="valid", appendonly=True) as masters, ExitStack() as stack:
        yield Secured(masters, [stack.enter_context(Cable(server.tls_port)) for server in masters])


def connected(side: Side, secured: Secured) -> Lockfast:
    """A client that has met all servers."""
    lf = side.client(secured.urls, timeout=TIMEOUT_S)

    def has_met_all() -> bool:
        with lf.lock("warm") as grant:
            grant.extend()
            return len(grant.nodes) == 3 and all(node.run_id for node in fleet_of(lf).nodes)

    wait_until(has_met_all)
    return lf


@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_server_of_which_part_of_a_reply_comes_holds_nobody_up(
    side: Side, secured: Secured, name: str, place: int
) -> None:
    lf = connected(side, secured)
    secured.cables[place].pinch()
    began = now()
    for _ in range(20):
        with lf.lock(name):
            pass
    assert now() - began < TIMEOUT_S / 4
    secured.cables[place].ease()
    secured.masters.wait_free(name)


def test_a_hold_is_kept_while_part_of_a_reply_comes_from_a_minority(side: Side, secured: Secured, name: str) -> None:
    lf = connected(side, secured)
    with lf.lock(name, lease=1.5) as grant:
        secured.cables[1].pinch()
        began = now()
        wait_until(lambda: not grant.held or now() > began + 3.5)
        assert grant.held
    secured.cables[1].ease()
