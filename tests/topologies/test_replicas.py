"""`replicas=k`: nothing counts as granted or renewed that fewer replicas have."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pytest

import lockfast
import lockfast.aio
from kit.servers import wait_until
from kit.sides import AsyncioSide, Twin
from lockfast import LeaseLost, Refused
from lockfast.flows.scripts import RENEW

if TYPE_CHECKING:
    from collections.abc import Callable

    from kit.proxy import Proxy, ProxyFor
    from kit.sentinels import Sentinels
    from kit.sides import Side

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("value", [-1, 101, True, 1.0, "1", None])
@pytest.mark.parametrize("family", [lockfast.Lockfast, lockfast.aio.Lockfast])
def test_number_of_replicas_that_cannot_be_meant_is_refused(family: Any, value: object) -> None:
    with pytest.raises((TypeError, ValueError), match="replicas"):
        family("redis://localhost", replicas=value)


def test_grant_counts_once_a_replica_has_it(sentinels: Sentinels, side: Side, name: str) -> None:
    lf = side.client(sentinels.url, replicas=1)
    for _ in range(20):
        with lf.lock(name, lease=5):
            assert sentinels.replica.command("EXISTS", f"lockfast:{{{name}}}") == 1, "at once, without waiting for it"
            state: bytes = sentinels.replica.command("GET", f"lockfast:{{{name}}}")
            assert b" - " not in state, "held"


def test_without_replicas_nothing_waits(sentinels: Sentinels, side: Side, name: str) -> None:
    master = sentinels.master
    master.reset_stats()
    with side.client(sentinels.url).lock(name) as grant:
        grant.extend()
    assert "wait" not in master.stats()


MAKES: dict[str, Callable[[Any, str], Any]] = {
    "lock": lambda lf, name: lf.lock(name, wait=0),
    "rlock": lambda lf, name: lf.rlock(name, wait=0),
    "read": lambda lf, name: lf.rwlock(name, wait=0).read(),
    "write": lambda lf, name: lf.rwlock(name, wait=0).write(),
    "semaphore": lambda lf, name: lf.semaphore(name, limit=3, wait=0),
    "locks": lambda lf, name: lf.locks(name, f"{name}-2", wait=0),
    "election": lambda lf, name: lf.election(name, wait=0).campaign(),
}


def make(side: Side, lf: Any, kind: str, name: str) -> Any:
    made = MAKES[kind](lf, name)
    return side.wrap(made) if isinstance(side, AsyncioSide) and not isinstance(made, Twin) else made


@pytest.mark.parametrize("kind", MAKES)
def test_too_few_replicas_refuse_every_kind_of_lock_and_leave_nothing(
    sentinels: Sentinels, side: Side, name: str, kind: str
) -> None:
    lf = side.client(sentinels.master.url, replicas=2, timeout=0.6)  # there is only one
    for again in range(2):  # the second time `locks` knows the names, and takes them by one script
        with pytest.raises(Refused, match="1 of the 2 replicas") as caught:
            make(side, lf, kind, name).acquire()
        assert caught.value.code == "REPLICAS", again
        wait_until(lambda: not lf.names(), what="nothing is held or waited for")


@pytest.mark.parametrize("timeout", [0.5, 1.0, 2.0])
@pytest.mark.parametrize("kind", ["lock", "read", "locks"])
def test_too_few_replicas_are_told_in_time_by_a_server_that_knows_no_script(
    sentinels: Sentinels, side: Side, name: str, kind: str, timeout: float
) -> None:
    """The WAIT behind a script that was not run takes its time as well."""
    master = sentinels.master
    lf = side.client(master.url, replicas=2, timeout=timeout)
    with pytest.raises(Refused):
        make(side, lf, kind, name).acquire()
    master.command("SCRIPT", "FLUSH")
    began = time.monotonic()
    with pytest.raises(Refused, match="1 of the 2 replicas"):
        make(side, lf, kind, name).acquire()
    assert time.monotonic() - began < timeout + 0.2
    wait_until(lambda: not lf.names(), what="nothing is held or waited for")


def test_replica_that_hangs_is_not_counted(sentinels: Sentinels, side: Side, name: str) -> None:
    lf, replica = side.client(sentinels.master.url, replicas=1, timeout=0.6), sentinels.replica
    replica.pause()
    started = time.monotonic()
    with pytest.raises(Refused, match="0 of the 1 replicas"):
        lf.lock(name, lease=10).acquire()
    assert time.monotonic() - started < 0.6
    assert not lf.inspect(name).holders
    replica.resume()
    lf.lock(name, lease=10).acquire().release()


def test_pushed_grant_is_proven_before_it_is_handed_out(sentinels: Sentinels, side: Side, name: str) -> None:
    """WAIT counts the writes of its own connection, and a pushed grant was written by somebody else's release."""
    plain = side.client(sentinels.master.url)
    lf = side.client(sentinels.master.url, replicas=1, timeout=1)
    for hangs in (False, True):
        holder = plain.lock(name, lease=20).acquire()
        waiting = side.spawn(lf.lock(name, lease=20, wait=20).acquire)
        wait_until(lambda: len(plain.inspect(name).waiters) == 1, what="it waits")
        wait_until(lambda: _is_listening(sentinels), what="it listens")
        if hangs:
            sentinels.replica.pause()
        holder.release()
        if not hangs:
            waiting.result().release()
        else:
            with pytest.raises(Refused, match="0 of the 1 replicas"):
                waiting.result()
            assert not plain.inspect(name).holders


def _is_listening(sentinels: Sentinels) -> bool:
    return any(b"lockfast" in channel for channel in sentinels.master.command("PUBSUB", "CHANNELS"))


def test_renewal_that_too_few_replicas_have_is_none(sentinels: Sentinels, side: Side, name: str) -> None:
    lf = side.client(sentinels.master.url, replicas=1, timeout=0.4)
    replica = sentinels.replica
    grant, kept = lf.lock(name, lease=1.2).acquire(), lf.lock(name, "kept", lease=3).acquire()
    deadline = grant.deadline
    replica.pause()
    with pytest.raises(Refused) as caught:
        grant.extend()
    assert caught.value.code == "REPLICAS"
    assert grant.deadline == deadline, "what the server says of it does not count"
    wait_until(lambda: grant.lost, what="it is lost at its deadline")
    assert time.monotonic() < deadline + 0.5
    with pytest.raises(LeaseLost):
        grant.check()
    replica.resume()
    before = kept.deadline
    wait_until(lambda: kept.deadline > before, what="the other one is renewed in time")
    kept.release()


@pytest.fixture
def proxied(sentinels: Sentinels, proxy_for: ProxyFor) -> Proxy:
    return proxy_for(sentinels.master)


def test_grant_whose_reply_was_lost_is_proven_by_a_renewal(
    sentinels: Sentinels, proxied: Proxy, side: Side, name: str
) -> None:
    lf = side.client(proxied.url, replicas=1)
    lf.lock(name, "warm").acquire().release()
    proxied.when("EVALSHA").drop_reply_and_cut()
    mark = len(proxied.requests)
    with lf.lock(name, wait=5):
        assert [request.command for request in proxied.seen("WAIT", since=mark)] == ["WAIT"] * 3
        assert proxied.seen("EVALSHA", containing=RENEW.sha, since=mark) or proxied.seen("EVAL", since=mark)


def test_scripts_that_the_server_forgot_are_waited_for_as_well(sentinels: Sentinels, side: Side, name: str) -> None:
    lf = side.client(sentinels.master.url, replicas=1)
    for number in range(2):
        sentinels.master.command("SCRIPT", "FLUSH")
        with lf.locks(f"{name}-1", f"{name}-2", wait=0), lf.lock(name, wait=0) as grant:
            sentinels.master.command("SCRIPT", "FLUSH")
            grant.extend()
            assert sentinels.replica.command("EXISTS", f"lockfast:{{{name}}}") == 1, number


def test_account_that_may_not_wait_is_told_so_and_holds_nothing(sentinels: Sentinels, side: Side, name: str) -> None:
    master = sentinels.master
    master.command("ACL", "SETUSER", "mute", "on", ">pass", "~*", "&*", "+@all", "-wait")
    lf = side.client(master.url.replace("//", "//mute:pass@"), replicas=1)
    with pytest.raises(Refused, match="wait"):
        lf.lock(name, wait=0).acquire()
    assert not lf.inspect(name).holders


def test_adopted_hold_is_proven(sentinels: Sentinels, side: Side, name: str) -> None:
    lf = side.client(sentinels.master.url)
    strict = side.client(sentinels.master.url, replicas=2, timeout=0.4)
    with pytest.raises(Refused, match="1 of the 2 replicas"):
        strict.adopt(lf.lock(name, lease=10).acquire().export())
    assert not lf.inspect(name).holders
    modest = side.client(sentinels.master.url, replicas=1)
    modest.adopt(lf.lock(name, lease=10).acquire().export()).release()


def test_tasks_and_threads_do_not_wait_for_each_others_replicas(sentinels: Sentinels, side: Side, name: str) -> None:
    lf = side.client(sentinels.master.url, replicas=2, timeout=1)
    started = time.monotonic()
    tries = [side.spawn(lf.lock(name, number, wait=0).acquire) for number in range(8)]
    for each in tries:
        assert isinstance(each.error(), Refused)
    assert time.monotonic() - started < 1.0, "each waits 0.25 s, all at once"
