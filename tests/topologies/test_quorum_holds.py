"""Holds of a majority while some of the servers do not answer, or refuse: what one comes to costs no other."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from kit.sides import AsyncioSide
from lockfast.errors import Unreachable
from lockfast.flows import asks

if TYPE_CHECKING:
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
