"""Fences of a quorum grow, whichever majority answers and whatever the clocks of servers and clients show."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import pytest

from faults.actors import Actor
from kit.servers import faketime_env, set_clock

if TYPE_CHECKING:
    from pathlib import Path

    from kit.quorum import Masters
    from kit.sides import Side
    from topologies.conftest import StartMasters

pytestmark = [pytest.mark.slow, pytest.mark.needs_faketime]
HOUR_S = 3600


def test_fences_grow_over_servers_whose_clocks_are_hours_apart(
    side: Side, start_masters: StartMasters, name: str
) -> None:
    """Each grant by another majority, and by a client that knows nothing of the ones before."""
    masters = start_masters(5, appendonly=True, faketime=True)
    for place, hours in enumerate((0, 3, -5, 8, -1)):
        masters[place].clock_shift(hours * HOUR_S)
    fences = []
    for out in ((3, 1), (0, 2), (3, 4), (1, 0), (3, 1), (2, 4), (3, 0)):
        for place in out:
            masters[place].pause()
        with side.client(masters.urls, max_lease=60).lock(name, wait=10) as grant:
            fences.append(grant.fence)
        masters.heal()
        masters.wait_free(name)
    assert all(earlier < later for earlier, later in pairwise(fences)), fences


def test_clocks_of_clients_do_not_matter(trio: Masters, name: str, tmp_path: Path) -> None:
    fences = []
    for hours in (0, 9, -9, 0):
        clock = tmp_path / f"clock{hours}"
        set_clock(clock, hours * HOUR_S)
        with Actor("asyncio", ",".join(trio.urls), env=faketime_env(clock)) as actor:
            held = actor.ask("acquire", name, lease=20, wait=10)
            fences.append(held["fence"])
            assert 18 < held["deadline"] - held["at"] < 20
            actor.ask("release", name)
            actor.tell("end")
            assert actor.end()[0] == 0
    assert fences == sorted(set(fences))
    assert (fences[-1] - fences[0]) / 1e6 < HOUR_S, "they follow the servers' clocks"


def test_a_server_whose_clock_steps_back_does_not_make_a_hold_look_longer(
    side: Side, start_masters: StartMasters, name: str
) -> None:
    masters = start_masters(3, appendonly=True, faketime=True)
    grant = side.client(masters.urls).lock(name, lease=5, renew=False).acquire()
    for server in masters:
        server.clock_shift(-HOUR_S)
    grant.extend()
    assert grant.remaining <= 5
    grant.release()
