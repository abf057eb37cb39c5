"""Wake-ups get lost, waiters die: everybody still gets in, in bounded time."""

from __future__ import annotations

import asyncio
import signal
import threading
from typing import TYPE_CHECKING, Any

import pytest

from kit.servers import wait_until
from lockfast.clock import now
from lockfast.drivers import hub_aio, hub_threads
from lockfast.flows.effects import Env, Push

if TYPE_CHECKING:
    from faults.conftest import Eyes, StartActor
    from kit.proxy import Proxy
    from kit.servers import Kind, Server
    from kit.sides import Side

pytestmark = pytest.mark.slow
NOISE_S = 1.0


@pytest.fixture
def server_kind() -> Kind:
    """One kind is enough: these wait for heartbeats of seconds, and the storm runs on both."""
    return "valkey"


def wait_settled(proxy: Proxy) -> None:
    """The waiter behind the proxy is subscribed and has asked again since: now it only waits."""
    mark = proxy.wait_for("SUBSCRIBE").number
    proxy.wait_until(lambda: any(asked.answered for asked in proxy.seen("EVALSHA", since=mark)))


@pytest.mark.parametrize("loss", ["push", "push connection", "everything"])
def test_lost_wake_up_is_made_good_within_seconds(
    server: Server, proxy: Proxy, side: Side, eyes: Eyes, name: str, loss: str
) -> None:
    """F46: the push is dropped, its connection is killed at the server, or every connection is reset."""
    with side.client(server.url) as holder, side.client(proxy.url) as lf:
        grant = holder.lock(name, lease=30).acquire()
        waiting = side.spawn(lf.lock(name, lease=30).acquire, wait=20)
        wait_settled(proxy)
        if loss == "push":
            proxy.when_push(times=None).drop()
        elif loss == "push connection":
            assert server.command("CLIENT", "KILL", "TYPE", "pubsub") >= 1
        else:
            proxy.refuse()
        released_at = now()
        grant.release()
        assert eyes.holder(name) not in ("", grant.ticket), "the release itself has let the next one in"
        if loss == "everything":
            proxy.accept()
        after = waiting.result()
        assert now() - released_at < 2.5 + NOISE_S
        assert eyes.holder(name) == after.ticket
        assert after.remaining > 10, "what it gets is not the rest of a lease"
        after.release()


def test_push_that_comes_late_is_not_believed(proxy: Proxy, server: Server, side: Side, name: str) -> None:
    """F46: the grant arrives after its lease has passed to another: nobody enters on an old wake-up."""
    with side.client(server.url) as holder, side.client(proxy.url) as lf, side.client(server.url) as third:
        grant = holder.lock(name, lease=30).acquire()
        late = proxy.when_push(times=None).delay()
        waiting = side.spawn(lf.lock(name, lease=0.5).acquire, wait=30)
        wait_settled(proxy)
        grant.release()  # the waiter's lease of 0.5 s begins now, and it does not hear of it
        late.wait_hit()
        other = third.lock(name, lease=30).acquire(wait=10)
        late.let_go()
        assert third.inspect(name).holders[0].ticket == other.ticket
        assert not waiting.done
        proxy.heal()
        other.release()
        after = waiting.result()
        assert after.fence > other.fence
        after.release()


def test_waiter_is_more_patient_than_the_time_out_of_a_request(
    server: Server, side: Side, eyes: Eyes, name: str
) -> None:
    """F47: waiting is not a slow request: a client with a time-out of 0.2 s waits for seconds without an error."""
    import redis

    short = redis.Redis(host="127.0.0.1", port=server.port, socket_timeout=0.05)
    with side.client(server.url) as holder, side.client(server.url, timeout=0.2) as lf, side.client(short) as handed_in:
        grant = holder.lock(name, lease=30).acquire()
        waiting = [side.spawn(each.lock(name, lease=30).acquire, wait=20) for each in (lf, handed_in)]
        eyes.wait_waiting(name, 2)
        since = eyes.look(name).waiters[0].since
        wait_until(lambda: eyes.look(name).at > since + 1.0, what="longer than any time-out")
        assert not any(one.done for one in waiting)
        grant.release()
        wait_until(lambda: any(one.done for one in waiting), what="the first is in")
        first, second = sorted(waiting, key=lambda one: not one.done)
        first.result().release()
        second.result().release()
    short.close()


def test_dead_waiter_at_the_head_is_passed_over(
    server: Server, side: Side, start_actor: StartActor, eyes: Eyes, name: str
) -> None:
    """F48: kill -9 of the first in the queue: its place ends by itself within 6 s, however long its lease is."""
    dead = start_actor(side.name, server.url)
    with side.client(server.url) as holder, side.client(server.url) as lf:
        grant = holder.lock(name, lease=30).acquire()
        dead.tell("acquire", name, lease=600, wait=60)
        eyes.wait_waiting(name)
        waiting = side.spawn(lf.lock(name, lease=30).acquire, wait=60)
        eyes.wait_waiting(name, 2)
        dead.send_signal(signal.SIGKILL)
        dead.wait()
        killed_at = now()
        grant.release()
        after = waiting.result()
        assert now() - killed_at < 6.0 + NOISE_S
        assert eyes.holder(name) == after.ticket
        assert eyes.waiting(name) == 0
        after.release()


def test_frozen_waiter_that_is_granted_a_short_lease_is_passed_over_soon(
    server: Server, side: Side, start_actor: StartActor, eyes: Eyes, name: str
) -> None:
    """F48: its connection stands, so the push counts as heard; what it is granted lasts for its own lease."""
    dead = start_actor(side.name, server.url)
    with side.client(server.url) as holder, side.client(server.url) as lf:
        grant = holder.lock(name, lease=30).acquire()
        dead.tell("acquire", name, lease=0.3, wait=60)
        eyes.wait_waiting(name)
        waiting = side.spawn(lf.lock(name, lease=30).acquire, wait=60)
        eyes.wait_waiting(name, 2)
        dead.stop()
        released_at = now()
        grant.release()
        after = waiting.result()
        # Its follower was second when it last asked, so it looks at the end of that lease with its next heartbeat.
        assert now() - released_at < 0.3 + 2.0 + NOISE_S
        dead.resume()
        eyes.wait_waiting(name, 1)  # it has found out, and queues again
        after.release()
        assert dead.answer()["fence"] > after.fence


def _push_to(hub: Any, ticket: str) -> None:
    if isinstance(hub, hub_threads.Hub):
        hub._deliver(ticket, Push("grant", 7))
    else:
        hub._deliver([b"message", b"channel", f"grant {ticket} 7".encode()])


@pytest.mark.parametrize("kind", [hub_threads.Hub, hub_aio.Hub])
def test_pushes_to_those_who_wait_are_kept_however_many_come_at_once(kind: Any) -> None:
    loop = asyncio.new_event_loop()
    try:
        hub = kind(Env(now, lambda: 0.0, 1.0), "channel", None)
        many = hub_threads.MAX_MAIL * 2
        for number in range(many):
            hub._sleepers[f"t{number}"] = threading.Event() if kind is hub_threads.Hub else loop.create_future()
        for number in range(many):
            _push_to(hub, f"t{number}")
        assert len(hub._mail) == many
        hub._sleepers.clear()
        _push_to(hub, "other")
        assert len(hub._mail) == hub_threads.MAX_MAIL, "what nobody waits for is bounded"
    finally:
        loop.close()


def test_server_that_is_busy_when_a_waiter_subscribes_is_asked_again(
    server: Server, proxy: Proxy, side: Side, name: str
) -> None:
    """Only who has no right to subscribe polls from then on."""
    with side.client(server.url) as holder, side.client(proxy.url) as lf:
        grant = holder.lock(name, lease=30).acquire()
        proxy.when("SUBSCRIBE").inject_reply(b"-BUSY Valkey is busy running a script.\r\n")
        waiting = side.spawn(lf.lock(name, lease=30).acquire, wait=20)
        proxy.wait_until(lambda: any(asked.answered for asked in proxy.seen("SUBSCRIBE")[1:]))
        grant.release()
        waiting.result().release()
