"""Servers of a quorum that hang, go down, lose replies: a minority costs nothing, and nothing is left behind."""

from __future__ import annotations

import asyncio
import random
import threading
from typing import TYPE_CHECKING, Any

import pytest

from kit.quorum import fleet_of
from kit.servers import wait_until
from kit.sides import AsyncioSide
from lockfast.clock import now
from lockfast.errors import LockfastError, Misused, NotAcquired, Unreachable
from lockfast.flows.scripts import VOTE
from lockfast.sync import Lockfast
from topologies.conftest import Proxied

if TYPE_CHECKING:
    from kit.quorum import Masters
    from kit.sides import Side
    from topologies.conftest import StartMasters

pytestmark = pytest.mark.slow
NODE_TIMEOUT_S = 1.0


# A minority that hangs.


@pytest.mark.parametrize("when", ["before the client connects", "while it is connected"])
def test_two_of_five_that_are_frozen_cost_nothing_and_are_used_again(
    side: Side, five: Masters, name: str, when: str
) -> None:
    """The time for one server is set so long that a single wait for it would be seen."""
    lf = side.client(five.urls, node_timeout=NODE_TIMEOUT_S, timeout=4)
    if when.startswith("while"):
        with lf.lock(name):
            pass
    five[1].pause()
    five[3].pause()
    began = now()
    for _ in range(20):
        with lf.lock(name) as grant:
            assert len(grant.nodes) == 3
    assert now() - began < NODE_TIMEOUT_S, "nobody has waited for them"
    wait_until(lambda: now() > began + NODE_TIMEOUT_S + 0.05)  # from here on they count as hung
    with lf.lock(name):
        pass
    waited_from = now()
    with lf.lock(name):
        assert now() - waited_from < NODE_TIMEOUT_S / 2
    five.heal()

    def all_vote() -> bool:
        with lf.lock(name) as grant:
            five.wait_free(f"{name}-else")
            grant.extend()
            return len(grant.nodes) == 5

    wait_until(all_vote, what="they are used again")
    five.wait_free(name)


def test_a_hung_server_is_not_asked_again_before_it_answers_a_probe(
    side: Side, proxied_five: Proxied, name: str
) -> None:
    lf = side.client(proxied_five.urls, node_timeout=0.05)
    with lf.lock(name):
        pass
    hung = proxied_five.proxies[2]
    hung.blackhole()
    with lf.lock(name):
        pass
    wait_until(lambda: is_asleep(lf, 2))
    mark = len(hung.requests)
    for _ in range(30):
        with lf.lock(name):
            pass
    assert hung.seen("EVALSHA", since=mark) == []
    hung.heal()

    def is_asked() -> bool:
        with lf.lock(name):
            pass
        return bool(hung.seen("EVALSHA", since=mark))

    wait_until(is_asked)
    proxied_five.masters.wait_free(name)


def is_asleep(lf: Lockfast, place: int) -> bool:
    with lf.lock("anything"):
        return place not in fleet_of(lf).ready(now())


@pytest.mark.parametrize("how", ["killed", "frozen"])
def test_a_lock_that_is_held_is_told_to_be_so_with_a_minority_gone(
    side: Side, start_masters: StartMasters, name: str, how: str
) -> None:
    """And not that too few servers answer: with one of three gone, a single no settles it."""
    masters = start_masters(3, appendonly=True)
    lf, other = side.client(masters.urls), side.client(masters.urls)
    with lf.lock(f"{name}-warm"), other.lock(f"{name}-too"):
        pass
    if how == "killed":
        masters[1].kill9()
    else:
        masters[1].pause()
    with lf.lock(name):
        for _ in range(10):
            assert other.lock(name).try_acquire() is None
        with pytest.raises(NotAcquired):
            other.lock(name).acquire(wait=0.1)
        waiting = side.spawn(other.lock(name).acquire, wait=20)
        wait_until(lambda: any(masters.look(place, name).waiters for place in (0, 2)))
    waiting.result().release()


def test_connections_that_died_silently_are_replaced(side: Side, proxied_trio: Proxied, name: str) -> None:
    """As behind a firewall that forgot them: nothing comes back on the old ones, new ones work."""
    lf = side.client(proxied_trio.urls, node_timeout=0.05)
    with lf.lock(name):
        pass
    proxied_trio.masters.wait_free(name)
    dead = proxied_trio.proxies[1]
    swallowed = dead.when(lambda request: request.connection <= dead.accepted_before, times=None)  # type: ignore[attr-defined]
    dead.accepted_before = dead.accepted  # type: ignore[attr-defined]
    swallowed.swallow_request()

    def votes_again() -> bool:
        with lf.lock(name) as grant:
            grant.extend()
            return proxied_trio.proxies[1].url in grant.nodes

    wait_until(votes_again, timeout_s=5)
    proxied_trio.masters.wait_free(name)


def test_waiters_at_a_door_that_freezes_go_on_elsewhere(side: Side, five: Masters, name: str) -> None:
    lf = side.client(five.urls)
    grant = lf.lock(name, lease=60).acquire()

    def take() -> None:
        with lf.lock(name, wait=30):
            pass

    waiting = [side.spawn(take) for _ in range(3)]
    five.wait_waiting(name, 3)
    door = five.waiting(name).index(3)
    five[door].pause()
    began = now()
    grant.release()
    for one in waiting:
        one.result()
    assert now() - began < 8
    five.heal()
    five.wait_free(name)


# A majority that is gone.


@pytest.mark.parametrize("how", ["frozen", "killed"])
def test_three_of_five_gone_is_told_within_the_wait_and_leaves_nothing(
    side: Side, start_masters: StartMasters, name: str, how: str
) -> None:
    masters = start_masters(5, appendonly=True)
    lf = side.client(masters.urls, timeout=0.6)
    with lf.lock(name):
        pass
    masters.wait_free(name)
    for place in (0, 2, 4):
        if how == "frozen":
            masters[place].pause()
        else:
            masters[place].kill9()
    for wait in (0, 0.7):
        began = now()
        with pytest.raises(Unreachable, match="3 of 5 servers have to agree, too few can") as caught:
            lf.lock(name).acquire(wait=wait)
        assert now() - began < max(wait, 0.6) + 1.0
        said = str(caught.value)
        for place in (0, 2, 4):
            assert f":{masters[place].port}/0: " in said, "which"
        for place in (1, 3):
            assert f":{masters[place].port}/0: " not in said
        assert ("answer" in said) if how == "frozen" else ("onnect" in said), f"why: {said}"
        wait_until(lambda: not masters.look(1, name).holders and not masters.look(3, name).holders)
        assert not masters.look(1, name).waiters
        assert not masters.look(3, name).waiters
    masters.heal()

    def comes_back() -> bool:
        try:
            with lf.lock(name, wait=0):
                return True
        except LockfastError:
            return False

    wait_until(comes_back)
    masters.wait_free(name)


def test_one_who_waits_outlasts_a_majority_that_comes_back(side: Side, start_masters: StartMasters, name: str) -> None:
    masters = start_masters(3, appendonly=True)
    lf = side.client(masters.urls, timeout=0.5)
    with lf.lock(name):
        pass
    masters.wait_free(name)
    masters[0].kill9()
    masters[1].kill9()
    waiting = side.spawn(lf.lock(name).acquire, wait=20)
    wait_until(lambda: fleet_of(lf).nodes[0].why_down and fleet_of(lf).nodes[1].why_down)
    masters.heal()
    waiting.result().release()
    masters.wait_free(name)


# Whatever ends an acquire, nothing is left.


@pytest.mark.parametrize("fault", ["drop_reply_and_cut", "drop_reply", "cut_request", "swallow_request"])
@pytest.mark.parametrize("wait", [0, 0.3])
def test_a_vote_whose_reply_was_lost_is_taken_back(
    side: Side, proxied_trio: Proxied, name: str, fault: str, wait: float
) -> None:
    """Two servers say no, the third one's yes is lost: it must not keep its vote for the lease."""
    masters = proxied_trio.masters
    lf = side.client(proxied_trio.urls, node_timeout=0.05)
    with lf.lock(f"{name}-warm"):
        pass
    wait_until(lambda: masters.is_free(f"{name}-warm"))
    with Lockfast(masters[0].url) as a, Lockfast(masters[1].url) as b, a.lock(name), b.lock(name):
        lost = getattr(proxied_trio.proxies[2].when("EVALSHA", containing=name), fault)()
        with pytest.raises(NotAcquired):
            lf.lock(name, lease=60).acquire(wait=wait)
        lost.wait_hit()
        if fault in ("drop_reply", "swallow_request"):
            proxied_trio.proxies[2].cut_all()  # the line is dead for good, and what was written behind on it
        wait_until(lambda: not masters.look(2, name).holders, what="taken back")
        assert not any(masters.waiting(name))


@pytest.mark.parametrize("fault", ["drop_reply_and_cut", "cut_request"])
def test_a_leave_that_was_lost_is_brought_again(side: Side, proxied_trio: Proxied, name: str, fault: str) -> None:
    masters = proxied_trio.masters
    lf = side.client(proxied_trio.urls, node_timeout=0.05)
    with lf.lock(f"{name}-warm"):
        pass
    wait_until(lambda: masters.is_free(f"{name}-warm"))
    with Lockfast(masters[0].url) as a, Lockfast(masters[1].url) as b, a.lock(name), b.lock(name):
        lost = getattr(proxied_trio.proxies[2].when("EVALSHA", containing=name, nth=2), fault)()
        with pytest.raises(NotAcquired):
            lf.lock(name, lease=60).acquire(wait=0)
        lost.wait_hit()
        wait_until(lambda: not masters.look(2, name).holders, what="taken back")


def test_a_release_reaches_a_server_whose_connection_was_cut(side: Side, proxied_trio: Proxied, name: str) -> None:
    masters = proxied_trio.masters
    lf = side.client(proxied_trio.urls)
    with lf.lock(f"{name}-warm"):
        wait_until(lambda: fleet_of(lf).nodes[2].run_id, what="all are connected")
    grant = lf.lock(name, lease=60).acquire()
    wait_until(lambda: masters.holding(name) == [0, 1, 2])
    proxied_trio.proxies[2].cut_all()
    grant.release()
    masters.wait_free(name)


def test_a_leave_runs_at_a_server_that_did_not_know_the_script(
    side: Side, start_masters: StartMasters, name: str
) -> None:
    """Nobody reads that server's reply in time, so it could not ask for the text either."""
    masters = start_masters(3, appendonly=True)
    for server in masters:
        server.command("SCRIPT", "LOAD", VOTE.text)
    proxied = Proxied(masters)
    lf = side.client(proxied.urls, node_timeout=NODE_TIMEOUT_S)
    warm = lf.lock(f"{name}-warm").acquire()
    wait_until(lambda: all(node.run_id for node in fleet_of(lf).nodes))
    grant = lf.lock(name, lease=60).acquire()
    wait_until(lambda: masters.holding(name) == [0, 1, 2])
    late = proxied.proxies[2].when("EVALSHA", containing=name).delay_reply()
    grant.release()
    late.wait_hit()
    late.let_go()
    masters.wait_free(name)
    warm.release()
    lf.close()
    proxied.close()


def test_a_vote_that_arrives_after_its_leave_is_refused(side: Side, proxied_trio: Proxied, name: str) -> None:
    """The request hangs in the network, the leave overtakes it over another connection."""
    masters = proxied_trio.masters
    lf = side.client(proxied_trio.urls, node_timeout=0.05, timeout=0.5)
    with lf.lock(f"{name}-warm"):
        pass
    wait_until(lambda: masters.is_free(f"{name}-warm"))
    with Lockfast(masters[0].url) as a, Lockfast(masters[1].url) as b, a.lock(name), b.lock(name):
        slow = proxied_trio.proxies[2].when("EVALSHA", containing=name).delay_request()
        with pytest.raises(NotAcquired):
            lf.lock(name, lease=60).acquire(wait=0)
        slow.wait_hit()
        lf.close()
        slow.let_go()
        wait_until(lambda: bool(proxied_trio.proxies[2].seen("EVALSHA", containing=name)[0].answered))
        wait_until(lambda: not masters.look(2, name).holders, what="refused, or taken back")


@pytest.mark.parametrize("crowd", [False, True])
def test_tasks_cancelled_at_any_moment_leave_nothing(trio: Masters, name: str, crowd: bool) -> None:
    side = AsyncioSide()
    lf: Any = side.client(trio.urls)
    rng = random.Random(name)

    async def cancel_one(native: Any) -> None:
        task = asyncio.ensure_future(native.lock(name, lease=60).acquire())
        await asyncio.sleep(rng.random() * 0.004)
        if not task.cancel():
            await (await task).release()
            return
        try:
            await (await task).release()
        except asyncio.CancelledError:
            pass

    async def storm() -> None:
        native = lf.twin_of
        async with native.lock(name):
            pass
        for _ in range(60):
            await asyncio.gather(*[cancel_one(native) for _ in range(4 if crowd else 1)])

    side.run(storm())
    trio.wait_free(name)
    with side.client(trio.urls).lock(name, wait=5):
        pass
    trio.wait_free(name)
    side.close()


def test_cancelled_before_the_first_connection_stands_leaves_nothing(proxied_trio: Proxied, name: str) -> None:
    side = AsyncioSide()
    for proxy in proxied_trio.proxies:
        proxy.blackhole()
    lf: Any = side.client(proxied_trio.urls)

    async def cancel() -> None:
        task = asyncio.ensure_future(lf.twin_of.lock(name, lease=60).acquire())
        await asyncio.sleep(0.02)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    side.run(cancel())
    for proxy in proxied_trio.proxies:
        proxy.heal()
    side.close()
    proxied_trio.masters.wait_free(name)


def test_close_does_not_wait_for_those_who_wait_for_servers(side: Side, start_masters: StartMasters, name: str) -> None:
    """They started a moment ago and are not counted for a minute; who waits for that ends with the client."""
    masters = start_masters(3)
    lf = side.client(masters.urls)
    waiting = side.spawn(lf.lock(name).acquire, wait=50)
    wait_until(lambda: fleet_of(lf).counts_at() < float("inf"))
    began = now()
    threading.Event().wait(0.1)
    lf.close()
    assert isinstance(waiting.error(5), Misused)
    assert now() - began < 1.5
    masters.wait_free(name)


@pytest.mark.slow
def test_what_a_minority_knows_is_not_told_as_if_it_were_all(side: Side, trio: Masters, name: str) -> None:
    with side.client(trio.urls, timeout=0.3) as lf, lf.lock(name, lease=10):
        assert lf.inspect(name).holders
        trio[0].pause()
        trio[1].pause()
        with pytest.raises(Unreachable):
            lf.inspect(name)
        with pytest.raises(Unreachable):
            lf.names()
        trio.heal()
