"""Holds of a majority while some of the servers do not answer, or refuse: what one comes to costs no other."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from kit.quorum import fleet_of
from kit.servers import wait_until
from kit.sides import AsyncioSide
from lockfast.clock import now
from lockfast.errors import Refused, Unreachable
from lockfast.flows import asks

if TYPE_CHECKING:
    from kit.quorum import Masters
    from kit.sides import Side
    from topologies.conftest import Proxied

pytestmark = pytest.mark.slow


def hold_of(grant: Any) -> Any:
    """The state behind a grant of either side."""
    return getattr(grant, "twin_of", grant)._hold


def wrapped(side: Side, lock: Any) -> Any:
    """What `rwlock` returns is plain on both sides, so its locks are wrapped."""
    return side.wrap(lock) if isinstance(side, AsyncioSide) else lock


def test_writer_whose_downgrade_was_not_answered_is_a_reader_from_then_on(
    side: Side, proxied_trio: Proxied, name: str
) -> None:
    lf, other = side.client(proxied_trio.urls, timeout=0.5), side.client(proxied_trio.masters.urls)
    grant = wrapped(side, lf.rwlock(name).write()).acquire()
    for proxy in proxied_trio.proxies:
        proxy.when("EVALSHA", containing=name, times=None).drop_reply()
    with pytest.raises(Unreachable):
        grant.downgrade()
    with wrapped(
        side, other.rwlock(name, wait=0).read()
    ):  # servers have heard it: nobody may count on being the writer
        assert hold_of(grant).ask.weight == asks.READER
    for proxy in proxied_trio.proxies:
        proxy.heal()
        proxy.cut_all()
    grant.downgrade()
    grant.release()


def test_downgrade_that_never_arrived_is_told_by_the_next_renewal(side: Side, proxied_trio: Proxied, name: str) -> None:
    lf, other = side.client(proxied_trio.urls, timeout=0.5), side.client(proxied_trio.masters.urls)
    grant = wrapped(side, lf.rwlock(name, lease=3).write()).acquire()
    for proxy in proxied_trio.proxies:
        proxy.when("EVALSHA", containing=name, times=None).swallow_request()
    with pytest.raises(Unreachable):
        grant.downgrade()
    assert hold_of(grant).ask.weight == asks.READER
    assert wrapped(side, other.rwlock(name).read()).try_acquire() is None, "the servers have not heard it"
    for proxy in proxied_trio.proxies:
        proxy.heal()
        proxy.cut_all()
    with wrapped(side, other.rwlock(name, wait=20).read()):
        grant.check()
    grant.release()


def test_a_hold_that_cannot_be_decided_on_costs_no_other_one_its_renewal(side: Side, trio: Masters, name: str) -> None:
    """One says yes, one has voted for somebody else, one hangs; all three of the other's would have been yes."""
    lf = side.client(trio.urls)
    door = fleet_of(lf).door(f"{name}|torn", [0, 1, 2])  # there it would wait for the other
    taken, hung = [place for place in (0, 1, 2) if place != door]
    stray = side.client(trio[taken].url).lock(name, "torn", lease=20).acquire()
    first, torn, last = [lf.lock(name, part, lease=1.2).acquire() for part in ("first", "torn", "last")]
    later = last.deadline
    wait_until(lambda: first.deadline > later and torn.deadline > later, what="all are renewed together")
    trio[hung].pause()
    later = now() + 4
    wait_until(lambda: first.lost or last.lost or min(first.deadline, last.deadline) > later)
    for grant in (first, last):
        assert grant.held, hold_of(grant).why_lost
        grant.release()
    stray.release()


def spoil(masters: Masters, grant: Any, *places: int) -> None:
    """Somebody else uses a name's key for something else, on these servers."""
    key = hold_of(grant).ask.name.keys[0]
    for place in places:
        masters[place].command("DEL", key)
        masters[place].command("RPUSH", key, "not ours")


def mend(masters: Masters, grant: Any) -> None:
    for server in masters:
        server.command("DEL", hold_of(grant).ask.name.keys[0])


def test_a_release_that_most_servers_refuse_says_so_at_once(side: Side, five: Masters, name: str) -> None:
    grant = side.client(five.urls, timeout=5).lock(name, lease=10).acquire()
    spoil(five, grant, 0, 2, 4)
    began = now()
    with pytest.raises(Refused, match="WRONGTYPE"):
        grant.release()
    assert now() - began < 2.5, "tried for the whole time-out"
    mend(five, grant)


def test_a_release_that_few_servers_refuse_is_confirmed_by_the_others(side: Side, five: Masters, name: str) -> None:
    grant = side.client(five.urls).lock(name, lease=10).acquire()
    wait_until(lambda: len(five.holding(name)) == 5)
    spoil(five, grant, 0, 2)
    grant.release()
    mend(five, grant)
    five.wait_free(name)
