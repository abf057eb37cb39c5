"""A release that one of the servers does not hear of: it is told as soon as it can be, and keeps nobody waiting."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest

from kit.quorum import fleet_of
from kit.servers import wait_until
from lockfast.drivers import bringing_aio, bringing_threads
from lockfast.drivers.undelivered import MOST_KEPT, Undelivered
from lockfast.flows.effects import Call
from lockfast.flows.fleet import Fleet, Node
from lockfast.flows.scripts import LEAVE, Bound
from lockfast.names import make

if TYPE_CHECKING:
    from kit.quorum import Masters
    from kit.sides import Side
    from lockfast.sync import Grant, Lockfast
    from topologies.conftest import Proxied, StartMasters

pytestmark = pytest.mark.slow
LEASE_S = 60.0
SOON_S = 8.0


def hold_everywhere(lf: Lockfast, masters: Masters, name: str) -> Grant:
    """A grant for which all servers have voted."""
    with lf.lock(f"{name}-warm"):
        wait_until(lambda: all(node.run_id for node in fleet_of(lf).nodes), what="all are connected")
    grant = lf.lock(name, lease=LEASE_S).acquire()
    wait_until(lambda: masters.holding(name) == [0, 1, 2])
    return grant


def door_of(lf: Lockfast, name: str) -> int:
    return fleet_of(lf).door(name, fleet_of(lf).everywhere)


def test_a_server_that_was_down_during_a_release_is_told_when_it_is_back(
    side: Side, start_masters: StartMasters, name: str
) -> None:
    """By a client that asks for nothing else, so that another one finds the name free."""
    masters = start_masters(3, appendonly=True)
    lf = side.client(masters.urls)
    grant = hold_everywhere(lf, masters, name)
    door = door_of(lf, name)
    masters[door].kill9()
    grant.release()
    masters[door].start()
    assert masters.holding(name) in ([door], []), "it has kept its memory"
    masters.wait_free(name, timeout_s=SOON_S)
    side.client(masters.urls).lock(name).acquire(wait=1).release()


def test_a_server_that_was_down_during_a_release_is_told_before_it_is_asked_for_anything(
    side: Side, start_masters: StartMasters, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for driver in (bringing_threads, bringing_aio):
        monkeypatch.setattr(driver, "PROBE_S", LEASE_S)  # nobody tells it beside everything else
    masters = start_masters(3, appendonly=True)
    lf = side.client(masters.urls)
    grant = hold_everywhere(lf, masters, name)
    door = door_of(lf, name)
    masters[door].kill9()
    grant.release()
    with lf.lock(f"{name}-warm"):
        assert fleet_of(lf).nodes[door].why_down, "it was tried, and in vain"
    masters[door].start()

    def holds_everywhere() -> bool:
        with lf.lock(name, wait=1) as again:
            return len(again.nodes) == 3

    wait_until(holds_everywhere, timeout_s=SOON_S)
    masters.wait_free(name)


@pytest.mark.parametrize("code", ["BUSY", "LOADING", "MISCONF"])
def test_a_minority_that_refuses_a_release_for_now_is_told_it_again(
    side: Side, proxied_trio: Proxied, name: str, code: str
) -> None:
    masters = proxied_trio.masters
    lf = side.client(proxied_trio.urls)
    grant = hold_everywhere(lf, masters, name)
    refusal = f"-{code} not now\r\n".encode()
    refused = [
        proxied_trio.proxies[2].when(command, containing=grant.ticket, times=times).inject_reply(refusal)
        for command, times in (("EVALSHA", 1), ("EVAL", 2))
    ]
    grant.release()

    def is_refused_again() -> bool:
        with lf.lock(f"{name}-warm"):  # in threads, who comes next reads what is late
            return refused[1].hits == 2

    wait_until(is_refused_again, timeout_s=SOON_S)
    masters.wait_free(name, timeout_s=SOON_S)


def test_close_waits_for_what_is_being_taken_back(side: Side, proxied_trio: Proxied, name: str) -> None:
    """A program that ends with it would take it along: the server would keep the vote for the rest of the lease."""
    masters = proxied_trio.masters
    lf = side.client(proxied_trio.urls)
    grant = hold_everywhere(lf, masters, name)
    proxied_trio.proxies[2].cut_all()
    far = [proxied_trio.proxies[2].when(how, containing=name).delay_request(0.1) for how in ("EVAL", "EVALSHA")]
    grant.release()
    lf.close()
    assert masters.is_free(name)
    assert any(rule.hits for rule in far)


def test_close_does_not_wait_long_for_a_server_that_is_gone(side: Side, start_masters: StartMasters, name: str) -> None:
    masters = start_masters(3, appendonly=True)
    lf = side.client(masters.urls, timeout=20)
    grant = hold_everywhere(lf, masters, name)
    masters[2].kill9()
    grant.release()
    closing = side.spawn(lf.close)
    closing.result(3)


def test_what_is_kept_is_bounded_and_ends_with_the_longest_lease(monkeypatch: pytest.MonkeyPatch) -> None:
    moment = 1000.0
    monkeypatch.setattr("lockfast.drivers.undelivered.now", lambda: moment)
    fleet = Fleet([Node("a", None), Node("b", None)], 1.0, 30.0)  # type: ignore[arg-type]
    undelivered = Undelivered(fleet)
    bound = Bound(LEAVE, make("lockfast", ("n",)), (1000, 0, ""))
    calls = [Call(bound, (f"ticket-{number}",), 0.0) for number in range(MOST_KEPT + 5)]
    assert [undelivered.keep(1, call) for call in calls] == [True] + [False] * (MOST_KEPT + 4), "one brings them all"
    assert undelivered.take(1) == calls[5:]
    assert undelivered.take(0) == []
    undelivered.heard(1, calls[5:7], [1, 0])
    assert undelivered.take(1) == calls[7:]
    assert not undelivered.is_done(1)
    moment += 30.0
    assert undelivered.take(1) == []
    assert undelivered.is_done(1)
    assert undelivered.keep(1, calls[0]), "somebody else has to begin"


def test_a_loss_ends_the_pause_of_who_brings_them() -> None:
    undelivered = Undelivered(Fleet([Node("a", None)], 1.0, 30.0))  # type: ignore[arg-type]
    call = Call(Bound(LEAVE, make("lockfast", ("n",)), (1000, 0, "")), ("t",), 0.0)
    undelivered.keep(0, call)
    undelivered.take(0)
    pausing = threading.Thread(target=undelivered.pause, args=(0, 60.0))
    pausing.start()
    undelivered.keep(0, call)
    pausing.join(10)
    assert not pausing.is_alive()
