"""Requests and replies get lost, one at a time: nothing is granted twice, nothing is left behind, nobody is misled."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from kit.servers import wait_until
from kit.sides import AsyncioSide
from lockfast.clock import now
from lockfast.errors import NotAcquired, NotHeld, Unreachable

if TYPE_CHECKING:
    from faults.conftest import Eyes
    from kit.proxy import Proxy
    from kit.rules import Rule, When
    from kit.servers import Kind, Server
    from kit.sides import Side
    from lockfast.sync import Lockfast

pytestmark = pytest.mark.slow
TIMEOUT_S = 0.5  # a lost message is noticed after half of it

REPLY_LOST = ["drop_reply", "drop_reply_and_cut", "closed"]
REQUEST_LOST = ["swallow_request", "cut_request"]


def strike(when: When, fault: str) -> Rule:
    """Puts the fault into force; "closed" ends the connection in good order behind the lost reply."""
    if fault == "closed":
        return when.drop_reply_and_cut(reset=False)
    rule: Rule = getattr(when, fault)()
    return rule


def warmed(side: Side, url: str, **options: Any) -> Lockfast:
    """A client that is connected, to a server that knows the scripts: the next request is the one to lose."""
    lf = side.client(url, **({"timeout": TIMEOUT_S} | options))
    with lf.lock("warm-up"):
        pass
    return lf


@pytest.fixture
def server_kind() -> Kind:
    """One kind is enough: what is lost here is lost on the way, whatever the server."""
    return "valkey"


@pytest.mark.parametrize("fault", REPLY_LOST)
def test_lost_reply_of_an_acquire_grants_once(proxy: Proxy, side: Side, eyes: Eyes, name: str, fault: str) -> None:
    """F3: the same ticket asks again and is told of the hold that it has: no waiting for itself, no orphan."""
    with warmed(side, proxy.url) as lf:
        lost = strike(proxy.when("EVALSHA", containing=name), fault)
        began = now()
        grant = lf.lock(name, lease=30).acquire(wait=10)
        assert now() - began < 3
        assert lost.hits == 1
        first = proxy.seen("EVALSHA", containing=name)[0]
        assert first.reply == grant.fence, "it was granted by the request whose reply was lost"
        assert eyes.holder(name) == grant.ticket
        assert grant.remaining <= 30 - (now() - began)
        grant.release()
        assert eyes.is_free(name)


@pytest.mark.parametrize("fault", REPLY_LOST)
def test_lost_reply_of_a_try_acquire_is_no_refusal(proxy: Proxy, side: Side, eyes: Eyes, name: str, fault: str) -> None:
    """F3: asking once means once per ticket: it does not take its own hold for somebody else's."""
    with warmed(side, proxy.url) as lf:
        lost = strike(proxy.when("EVALSHA", containing=name), fault)
        grant = lf.lock(name, lease=30).try_acquire()
        assert lost.hits == 1
        assert grant is not None
        assert eyes.holder(name) == grant.ticket
        grant.release()
        assert eyes.is_free(name)


@pytest.mark.parametrize("fault", REPLY_LOST + REQUEST_LOST)
def test_lost_message_of_a_waiter_keeps_one_place(
    server: Server, proxy: Proxy, side: Side, eyes: Eyes, name: str, fault: str
) -> None:
    """F3, F4: a waiter whose first request or reply was lost stands in the queue once, and gets in at the release."""
    with warmed(side, proxy.url) as lf, side.client(server.url) as other:
        holder = other.lock(name, lease=30).acquire()
        lost = strike(proxy.when("EVALSHA", containing=name), fault)
        waiting = side.spawn(lf.lock(name, lease=30).acquire, wait=20)
        lost.wait_hit()
        proxy.wait_for("EVALSHA", containing=name, count=2)
        eyes.wait_waiting(name)
        proxy.wait_for("SUBSCRIBE")
        holder.release()
        grant = waiting.result()
        assert eyes.holder(name) == grant.ticket
        assert eyes.waiting(name) == 0
        grant.release()
        assert eyes.is_free(name)


@pytest.mark.parametrize("busy", [False, True], ids=["one is free", "none is free"])
def test_waiter_whose_first_connection_died_leaves_no_place_behind(
    server: Server, proxy: Proxy, side: Side, eyes: Eyes, name: str, busy: bool
) -> None:
    """What it undoes went out on a connection that nothing passes any more; the server was asked over another since."""
    with warmed(side, proxy.url) as lf, side.client(server.url) as other:
        holder = other.lock(name, lease=30).acquire()
        proxy.when("EVALSHA", containing=name).swallow_request()  # and whatever follows on that connection
        waiting = side.spawn(lf.lock(name, lease=30).acquire, wait=3)
        eyes.wait_waiting(name)
        if busy and not isinstance(side, AsyncioSide):
            lf._driver._pool.close_free()  # as if other threads had them all at the moment
        with pytest.raises(NotAcquired):
            waiting.result()
        wait_until(lambda: eyes.waiting(name) == 0, timeout_s=2, what="its place given up, long before that ends")
        holder.release()
        assert eyes.is_free(name)


@pytest.mark.parametrize("fault", REQUEST_LOST)
def test_lost_request_of_an_acquire_is_sent_again(proxy: Proxy, side: Side, eyes: Eyes, name: str, fault: str) -> None:
    """F4"""
    with warmed(side, proxy.url) as lf:
        lost = strike(proxy.when("EVALSHA", containing=name), fault)
        grant = lf.lock(name, lease=30).acquire(wait=10)
        assert lost.hits == 1
        assert eyes.holder(name) == grant.ticket
        grant.release()
        assert eyes.is_free(name)


@pytest.mark.parametrize("fault", REPLY_LOST + REQUEST_LOST)
def test_lost_message_of_a_release_is_no_loss(proxy: Proxy, side: Side, eyes: Eyes, name: str, fault: str) -> None:
    """F5: the second `leave` finds nothing, and that is a success."""
    with warmed(side, proxy.url) as lf:
        grant = lf.lock(name, lease=30).acquire()
        lost = strike(proxy.when("EVALSHA", containing=grant.ticket), fault)
        grant.release()
        assert lost.hits == 1
        assert not grant.lost
        assert eyes.is_free(name)
        with pytest.raises(NotHeld):
            grant.release()


@pytest.mark.parametrize("fault", REPLY_LOST)
def test_lost_reply_of_a_release_leaves_the_next_holder_alone(
    server: Server, proxy: Proxy, side: Side, eyes: Eyes, name: str, fault: str
) -> None:
    """F5: the name has been handed over by the release whose reply was lost; the retry harms nobody."""
    with warmed(side, proxy.url) as lf, side.client(server.url) as other:
        grant = lf.lock(name, lease=30).acquire()
        waiting = side.spawn(other.lock(name, lease=30).acquire, wait=20)
        eyes.wait_waiting(name)
        lost = strike(proxy.when("EVALSHA", containing=grant.ticket), fault)
        grant.release()
        assert lost.hits == 1
        after = waiting.result()
        after.extend()
        assert eyes.holder(name) == after.ticket
        after.release()


@pytest.mark.parametrize("outage", ["refuse", "blackhole"])
def test_release_in_an_outage_can_be_called_again(proxy: Proxy, side: Side, eyes: Eyes, name: str, outage: str) -> None:
    """F6: Unreachable, and the ticket is kept; after the heal the same call works and is no "lost"."""
    with warmed(side, proxy.url) as lf:
        grant = lf.lock(name, lease=30).acquire()
        getattr(proxy, outage)()
        began = now()
        for _ in range(2):
            with pytest.raises(Unreachable):
                grant.release()
        assert now() - began < 2 * TIMEOUT_S + 2
        assert not grant.lost
        assert eyes.holder(name) == grant.ticket
        proxy.heal()
        grant.release()
        assert not grant.lost
        assert eyes.is_free(name)
        with pytest.raises(NotHeld):
            grant.release()


@pytest.mark.parametrize("outage", ["refuse", "blackhole"])
def test_block_that_ends_in_an_outage_does_not_raise_and_is_finished_later(
    proxy: Proxy, side: Side, eyes: Eyes, name: str, outage: str
) -> None:
    """F6: the body ran under the lock to its end. The release reaches the server after the heal, not after a lease."""
    with warmed(side, proxy.url) as lf:
        with lf.lock(name, lease=30) as grant:
            getattr(proxy, outage)()
        assert not grant.held
        assert not grant.lost
        assert eyes.holder(name) == grant.ticket
        proxy.heal()
        eyes.wait_free(name)


def test_close_after_an_outage_finishes_what_was_not_confirmed(proxy: Proxy, side: Side, eyes: Eyes, name: str) -> None:
    """F6: a program that ends right after the outage does not leave the name to the lease."""
    lf = warmed(side, proxy.url)
    with lf.lock(name, lease=30):
        proxy.refuse()
    tried_until = now() + TIMEOUT_S + 0.2
    wait_until(lambda: now() > tried_until, what="the keeper's first attempt has failed as well")
    proxy.heal()
    lf.close()
    assert eyes.is_free(name)


def test_error_of_a_body_that_ends_in_an_outage_is_the_bodys(proxy: Proxy, side: Side, name: str) -> None:
    """F6, F31"""
    with warmed(side, proxy.url) as lf:
        with pytest.raises(ValueError, match="own"), lf.lock(name, lease=30):
            proxy.refuse()
            raise ValueError("own")
        proxy.heal()


def test_reset_of_every_connection_is_not_noticed(proxy: Proxy, side: Side, eyes: Eyes, name: str) -> None:
    """F3-F5: idle connections that were cut are replaced without a word, also under a hold that is renewed."""
    with warmed(side, proxy.url, timeout=2.0) as lf:
        for _ in range(5):
            with lf.lock(name, lease=0.6) as grant:
                proxy.cut_all()
                before = grant.deadline
                wait_until(lambda: grant.deadline > before, what="renewal")  # noqa: B023 - called at once
                proxy.cut_all()
            assert not grant.lost
        assert eyes.is_free(name)
