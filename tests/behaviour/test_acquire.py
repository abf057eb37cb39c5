"""Getting a lock: at once, after a wait, in order, or not at all."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pytest

from behaviour.queueing import PATIENCE_S, holder, queued, wait_queued, waiting
from kit.servers import wait_until
from lockfast import Lockfast as SyncLockfast
from lockfast import LockfastError, NotAcquired, locks
from lockfast.flows import asks
from lockfast.flows.effects import Env
from lockfast.flows.scripts import Bound
from lockfast.names import make
from lua.scripts import Scripts

if TYPE_CHECKING:
    from kit.proxy import Proxy
    from kit.servers import Server
    from kit.sides import Side
    from lockfast.sync import Lockfast


def test_with_block_holds_the_lock_and_gives_it_back(lf: Lockfast, other: Lockfast, name: str) -> None:
    with lf.lock(name) as grant:
        assert grant.held
        assert holder(other, name) == grant.ticket
        assert other.lock(name).try_acquire() is None
    assert not grant.held
    assert holder(other, name) is None


def test_acquire_gives_a_grant_that_tells_what_is_held(lf: Lockfast, name: str) -> None:
    lock = lf.lock(name, "part", 7, lease=12, wait=3)
    assert (lock.name, lock.lease, lock.wait) == (f"{name}|part|7", 12.0, 3.0)
    grant = lock.acquire()
    assert grant.name == f"{name}|part|7"
    assert grant.fence > 0
    assert grant.ticket
    assert 11 < grant.remaining <= 12
    grant.release()


def test_one_lock_object_can_be_used_again_and_again(lf: Lockfast, name: str) -> None:
    lock = lf.lock(name)
    tickets = set()
    for _ in range(3):
        with lock as grant:
            tickets.add(grant.ticket)
    assert len(tickets) == 3, "a ticket is never used twice"


def test_try_acquire_gives_a_grant_or_none(lf: Lockfast, other: Lockfast, name: str) -> None:
    grant = lf.lock(name).try_acquire()
    assert grant is not None
    assert other.lock(name, wait=60).try_acquire() is None, "it never waits, whatever the lock's own patience"
    assert queued(lf, name) == []
    grant.release()
    again = other.lock(name).try_acquire()
    assert again is not None
    again.release()


@pytest.mark.parametrize("wait", [0, 0.0, 0.0001, 0.2])
def test_busy_lock_is_not_acquired_after_the_wait(lf: Lockfast, other: Lockfast, name: str, wait: float) -> None:
    with lf.lock(name):
        start = time.monotonic()
        with pytest.raises(NotAcquired, match=name) as caught:
            other.lock(name).acquire(wait=wait)
        took_s = time.monotonic() - start
        assert wait <= took_s < wait + 2
        assert queued(lf, name) == []
    assert isinstance(caught.value, TimeoutError)
    assert isinstance(caught.value, LockfastError)
    assert (caught.value.name, caught.value.waited_s) == (name, wait)


@pytest.mark.parametrize("wait", [0.01, 0.05])
def test_short_wait_is_kept_to_the_hundredth(lf: Lockfast, other: Lockfast, name: str, wait: float) -> None:
    took_s = []
    with lf.lock(name):
        for _ in range(3):  # The quickest of three: the machine may be busy with other things.
            start = time.monotonic()
            with pytest.raises(NotAcquired):
                other.lock(name).acquire(wait=wait)
            took_s.append(time.monotonic() - start)
    assert wait <= min(took_s) < wait + 0.05


def test_end_of_a_dead_holders_lease_is_noticed_at_once(server: Server, lf: Lockfast, name: str) -> None:
    late_s = []
    for i in range(3):
        with Scripts(server) as scripts:
            scripts.name(name, str(i)).admit("dead", lease=60)
        ends = time.monotonic() + 0.06
        lf.lock(name, str(i), wait=PATIENCE_S).acquire().release()
        late_s.append(time.monotonic() - ends)
    assert min(late_s) < 0.06


def test_wait_of_zero_asks_once(side: Side, proxy: Proxy, lf: Lockfast, name: str) -> None:
    with lf.lock(name), side.client(proxy.url) as asking:
        with pytest.raises(NotAcquired):
            asking.lock(name, wait=0).acquire()
        scripts = [request for request in proxy.seen() if request.command.startswith("EVAL")]
        assert len({request.arguments[-1] for request in scripts}) == 1, "one ticket"
        assert len([request for request in scripts if request.command == "EVALSHA"]) == 1
        assert proxy.seen("SUBSCRIBE") == []


def test_wait_of_the_call_goes_before_the_locks_own(lf: Lockfast, other: Lockfast, name: str) -> None:
    with lf.lock(name):
        with pytest.raises(NotAcquired):
            other.lock(name, wait=None).acquire(wait=0)
        with pytest.raises(NotAcquired):
            other.lock(name, wait=0).acquire()
        with pytest.raises(NotAcquired), other.lock(name, wait=0):
            pytest.fail("entered without the lock")


def test_wait_of_none_waits_until_it_is_free(side: Side, lf: Lockfast, other: Lockfast, name: str) -> None:
    with lf.lock(name) as first:
        spawned = waiting(side, lf, other.lock(name, wait=0), name, wait=None)  # type: ignore[arg-type]
        assert not spawned.done
    second = spawned.result()
    assert second.fence > first.fence
    second.release()


def test_free_lock_is_acquired_with_no_wait_at_all(lf: Lockfast, name: str) -> None:
    lf.lock(name, wait=0).acquire().release()
    lf.lock(name).acquire(wait=0).release()
    with lf.lock(name, wait=0.0001):
        pass


def test_waiters_are_served_in_the_order_in_which_they_came(
    side: Side, server: Server, lf: Lockfast, name: str
) -> None:
    clients = [lf, side.client(server.url), side.client(server.url)]
    served: list[int] = []

    def work(number: int) -> int:
        with clients[number % 3].lock(name) as grant:
            served.append(number)
            return grant.fence

    first = lf.lock(name).acquire()
    workers = []
    for number in range(9):
        workers.append(side.spawn(work, number))
        wait_queued(lf, name, number + 1)
    first.release()
    fences = [worker.result() for worker in workers]
    assert served == list(range(9))
    assert fences == sorted(fences)
    assert fences[0] > first.fence


def wait_listening(proxy: Proxy) -> None:
    """Until a waiter behind the proxy has subscribed, and asked once more in case it missed something before."""
    subscribed = proxy.wait_for("SUBSCRIBE").number
    proxy.wait_until(lambda: any(request.answered for request in proxy.seen("EVALSHA", since=subscribed)))


def test_next_holder_is_known_the_moment_the_release_returns(side: Side, proxy: Proxy, lf: Lockfast, name: str) -> None:
    """Decided inside the release: the next one's client has heard nothing and done nothing yet."""
    pushes = proxy.when_push(times=None).delay()
    first = lf.lock(name).acquire()
    spawned = waiting(side, lf, side.client(proxy.url).lock(name), name)
    (ticket,) = queued(lf, name)
    wait_listening(proxy)
    asked = len(proxy.requests)
    first.release()
    assert holder(lf, name) == ticket
    assert queued(lf, name) == []
    assert len(proxy.requests) == asked
    pushes.let_go()
    second = spawned.result()
    assert (second.ticket, second.fence > first.fence) == (ticket, True)
    pushes.cancel()
    second.release()


def test_newcomer_does_not_barge_in_while_somebody_is_queued(
    side: Side, proxy: Proxy, lf: Lockfast, other: Lockfast, name: str
) -> None:
    pushes = proxy.when_push(times=None).delay()
    first = lf.lock(name).acquire()
    spawned = waiting(side, lf, side.client(proxy.url).lock(name), name)
    first.release()
    assert other.lock(name).try_acquire() is None
    assert lf.lock(name).try_acquire() is None, "nor the one who has just released it"
    pushes.let_go()
    pushes.cancel()
    spawned.result().release()


def test_place_of_a_client_that_died_is_skipped(
    side: Side, server: Server, lf: Lockfast, other: Lockfast, name: str
) -> None:
    first = lf.lock(name).acquire()
    with Scripts(server) as scripts:
        scripts.name(name).admit("ghost", place=100)
        alive = waiting(side, lf, other.lock(name), name, 2)
        wait_until(lambda: "ghost" not in queued(lf, name), what="the place of the ghost to end")
    first.release()
    alive.result().release()


@pytest.mark.slow
def test_grant_to_a_client_that_died_ends_with_its_place_not_with_its_lease(
    side: Side, server: Server, lf: Lockfast, other: Lockfast, name: str
) -> None:
    first = lf.lock(name).acquire()
    with Scripts(server) as scripts:
        scripts.name(name).admit("ghost", place=200, lease=60_000)
        alive = waiting(side, lf, other.lock(name), name, 2)
        first.release()
    alive.result(PATIENCE_S).release()


def test_lock_of_a_holder_that_died_is_free_after_its_lease(server: Server, lf: Lockfast, name: str) -> None:
    with Scripts(server) as scripts:
        dead = scripts.name(name).admit("dead", lease=150)
    start = time.monotonic()
    with lf.lock(name, wait=PATIENCE_S) as grant:
        assert grant.fence > dead.fence
    assert time.monotonic() - start < 1.5, "the first in the queue asks when the lease is due to end"


def test_eight_workers_share_one_lock_object(side: Side, lf: Lockfast, name: str) -> None:
    lock = lf.lock(name)
    inside: list[int] = []
    fences: list[int] = []

    def work(number: int) -> None:
        for _ in range(5):
            with lock as grant:
                inside.append(number)
                assert inside == [number], "not alone"
                fences.append(grant.fence)
                inside.remove(number)

    for worker in [side.spawn(work, number) for number in range(8)]:
        worker.result()
    assert fences == sorted(set(fences))
    assert len(fences) == 40
    assert holder(lf, name) is None
    assert queued(lf, name) == []


def test_first_acquires_of_a_lock_object_at_the_same_moment_all_ask_for_it(side: Side, lf: Lockfast, name: str) -> None:
    """What a lock keeps for its next requests is made on first use, perhaps by several threads at once."""
    for attempt in range(5):
        lock = lf.lock(name, str(attempt), wait=PATIENCE_S)

        def use(lock: object = lock) -> None:
            with lock:  # type: ignore[attr-defined]
                pass

        for worker in [side.spawn(use) for _ in range(8)]:
            worker.result()


def test_request_of_a_lock_object_is_whole_before_another_thread_can_send_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same at its worst moment: another thread asks while the first is still making what they will share."""
    ask = asks.lock(make("lockfast", ("x",)), 30)
    env = Env(time.monotonic, lambda: 0.0, 2.0)
    sent: list[str] = []

    class Interrupted(Bound):
        __slots__ = ()

        def __init__(self, *given: Any) -> None:
            if not sent:
                sent.append("")
                sent.append(ask.admit(env, None).script.name)
            super().__init__(*given)

    monkeypatch.setattr(asks, "Bound", Interrupted)
    assert ask.admit(env, None).script.name == "admit"
    assert sent == ["", "admit"]


def test_holder_that_asks_again_waits_for_itself(lf: Lockfast, name: str) -> None:
    """Ownership is the ticket: a second acquire is another one, also from the same thread or task."""
    with lf.lock(name):
        assert lf.lock(name).try_acquire() is None


def test_clients_with_different_prefixes_do_not_meet(side: Side, server: Server, lf: Lockfast, name: str) -> None:
    elsewhere = side.client(server.url, prefix="other:app")
    with lf.lock(name), elsewhere.lock(name, wait=0):
        assert elsewhere.names() == [(name,)]


def test_lock_that_was_made_before_is_made_quickly_and_checked_as_before(server: Server, name: str) -> None:
    with SyncLockfast(server.url) as lf:
        first = lf.lock(name, lease=1)
        assert lf.lock(name, lease=1.0)._ask is first._ask
        for other in (lf.lock(name, lease=2), lf.lock(name, lease=1, grace=1), lf.lock(name, lease=1, detect=True)):
            assert other._ask is not first._ask
        assert lf.rwlock(name, lease=1).read()._ask is not lf.rwlock(name, lease=1).write()._ask
        for options in ({"lease": True}, {"lease": 1, "grace": False}, {"lease": 1, "detect": 0}):
            with pytest.raises(TypeError):
                lf.lock(name, **options)
        for number in range(locks.MAX_ASKS + 10):
            lf.lock(f"{name}-{number}")
        assert len(lf._driver.asks) <= locks.MAX_ASKS
