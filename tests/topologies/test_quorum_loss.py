"""A hold by majority is kept while a majority answers, and is known to be lost before anybody else could have it."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING, Any

import pytest

from behaviour.test_fork import in_child, native, raises, run
from kit.quorum import fleet_of
from kit.servers import wait_until
from lockfast.clock import now
from lockfast.errors import LeaseLost, Misused, NotHeld, Unreachable

if TYPE_CHECKING:
    from kit.quorum import Masters
    from kit.sides import Side
    from lockfast.sync import Lockfast
    from topologies.conftest import StartMasters

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork.*:DeprecationWarning")]


@pytest.mark.parametrize("how", ["killed", "frozen"])
def test_a_hold_is_renewed_by_a_majority_and_lost_with_it(
    side: Side, start_masters: StartMasters, name: str, how: str
) -> None:
    masters = start_masters(3, appendonly=True)
    lf = side.client(masters.urls)
    with lf.lock(f"{name}-warm"):
        wait_until(lambda: all(node.run_id for node in fleet_of(lf).nodes))

    def stop(place: int) -> None:
        if how == "killed":
            masters[place].kill9()
        else:
            masters[place].pause()

    told = threading.Event()
    left: list[float] = []

    def on_lost(_: object) -> None:
        left.extend(holder.lease_left for holder in masters.look(2, name).holders)
        told.set()

    with (
        pytest.raises(LeaseLost),
        lf.lock(name, lease=0.6, on_lost=on_lost, cancel_on_loss=False) as grant,
    ):
        wait_until(lambda: masters.holding(name) == [0, 1, 2])
        stop(0)
        began = grant.deadline
        wait_until(lambda: grant.deadline > began + 0.3, what="renewed by the two that are left")
        assert not any(f":{masters[0].port}/" in where for where in grant.nodes) or grant.remaining > 0
        grant.check()
        stop(1)
        deadline_passed = now() + 3
        assert grant.wait_lost(5)
        assert now() < deadline_passed
        assert told.wait(5)
        with pytest.raises(LeaseLost, match="its lease ended without a renewal"):
            grant.check()
        assert grant.nodes == ()
    assert left, "the server that is left still kept it when the holder was told"
    assert left[0] > 0


def test_a_child_owns_nothing_and_has_connections_of_its_own(side: Side, trio: Masters, name: str) -> None:
    lf = side.client(trio.urls)
    grant = lf.lock(name).acquire()
    mine = native(side, grant)

    def check() -> None:
        assert (mine.held, mine.nodes) == (False, ())
        raises(NotHeld, lambda: run(side, mine.release()))
        if side.name == "threads":
            assert lf.lock(name).try_acquire() is None
            with lf.lock(f"{name}-child") as own:
                os.write(writing, str(own.fence).encode())
        else:
            raises(Misused, lambda: run(side, native(side, lf).lock(name).acquire()))

    reading, writing = os.pipe()
    in_child(check)
    os.close(writing)
    os.close(reading)
    grant.extend()
    assert grant.held
    grant.release()
    trio.wait_free(name)
    trio.wait_free(f"{name}-child")


def test_a_flushed_server_is_counted_so_that_another_gets_in_where_its_vote_was_needed_and_the_fence_tells(
    side: Side, start_masters: StartMasters, name: str
) -> None:
    """Not so where a majority keeps its votes without it. After a restart it would not be counted; this one runs on."""
    masters = start_masters(3, appendonly=True)
    lf, other = side.client(masters.urls, max_lease=60), side.client(masters.urls, max_lease=60)
    with lf.lock(f"{name}-warm"), other.lock(f"{name}-too"):
        wait_until(lambda: all(node.run_id for client in (lf, other) for node in fleet_of(client).nodes))
    grant = lf.lock(name, lease=30).acquire()
    wait_until(lambda: masters.holding(name) == [0, 1, 2])
    masters[1].command("FLUSHALL")
    assert other.lock(name).try_acquire() is None, "two of three keep their votes"
    grant.release()
    masters.wait_free(name)
    masters[2].kill9()
    grant = lf.lock(name, lease=30).acquire()
    assert masters.holding(name) == [0, 1], "a bare majority"
    masters[2].start()
    masters[1].command("FLUSHALL")
    got: list[Any] = []

    def gets_in() -> bool:
        got.append(try_acquire(other, name))
        return got[-1] is not None

    wait_until(gets_in, what="another is let in")
    assert grant.held, "it has not been told yet"
    assert got[-1].fence > grant.fence
    with pytest.raises(LeaseLost, match="a majority of the servers no longer knows it"):
        grant.extend()
    got[-1].release()


def try_acquire(lf: Lockfast, name: str) -> Any:
    """None also while too few servers are connected to."""
    try:
        return lf.lock(name, lease=30).try_acquire()
    except Unreachable:
        return None
