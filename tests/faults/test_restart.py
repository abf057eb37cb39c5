"""The server dies, restarts, loads, is busy, or forgets: holds survive if it kept them, or their holders are told."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest

from kit.resp import ServerError
from kit.servers import wait_until
from lockfast.clock import now
from lockfast.errors import LeaseLost, NotAcquired, Unreachable
from lockfast.flows import admission
from lockfast.flows.effects import Call, Wait
from lockfast.sync import Lockfast

if TYPE_CHECKING:
    from faults.conftest import Eyes, EyesOn
    from kit.servers import FreshServer, Kind, Server
    from kit.sides import Side
    from lockfast.flows.effects import Flow

pytestmark = pytest.mark.slow


def test_hold_and_fence_survive_kill_9_with_aof(
    fresh_server: FreshServer, server_kind: Kind, side: Side, eyes_on: EyesOn
) -> None:
    """F10"""
    server = fresh_server(server_kind, appendonly=True)
    with side.client(server.url) as lf, side.client(server.url) as other:
        grant = lf.lock("name", lease=30).acquire()
        server.kill9()
        server.start()
        assert eyes_on(server).holder("name") == grant.ticket
        assert eyes_on(server).look("name").fence == grant.fence
        assert other.lock("name").try_acquire() is None
        grant.extend()
        grant.release()
        after = other.lock("name", lease=30).acquire(wait=5)
        assert after.fence > grant.fence
        after.release()


def test_holder_of_an_emptied_server_is_told_at_the_next_contact(
    fresh_server: FreshServer, server_kind: Kind, side: Side, eyes_on: EyesOn
) -> None:
    """F11: no resurrection by a renewal, and the fence grows although the server has forgotten it."""
    server = fresh_server(server_kind)
    with side.client(server.url) as lf, side.client(server.url) as fresh:
        grant = lf.lock("name", lease=30).acquire()
        server.restart(keep=False)
        with pytest.raises(LeaseLost):
            grant.extend()
        assert grant.lost
        assert eyes_on(server).is_free("name")
        after = fresh.lock("name", lease=30).acquire(wait=5)
        assert after.fence > grant.fence
        with pytest.raises(LeaseLost):
            grant.release()
        after.extend()
        after.release()


def test_renewal_finds_out_about_an_emptied_server(fresh_server: FreshServer, server_kind: Kind, side: Side) -> None:
    """F11: nobody has to ask: the keeper's renewal does, and on_lost is called."""
    server = fresh_server(server_kind)
    told = threading.Event()
    with side.client(server.url) as lf:
        grant = lf.lock("name", lease=6, on_lost=lambda _: told.set()).acquire()
        server.restart(keep=False)
        assert told.wait(5), "told by the renewal, before the lease would have ended"
        assert grant.lost


def test_waiter_gets_in_across_a_restart(fresh_server: FreshServer, server_kind: Kind, side: Side) -> None:
    """F11: a waiter of a server that restarts empty asks again by itself, and gets in."""
    server = fresh_server(server_kind)
    with side.client(server.url) as holder, side.client(server.url) as lf:
        held = holder.lock("name", lease=30).acquire()
        waiting = side.spawn(lf.lock("name", lease=30).acquire, wait=20)
        wait_until(lambda: lf.inspect("name").waiters, what="queued")
        server.restart(keep=False)
        began = now()
        grant = waiting.result()
        assert now() - began < 5
        assert grant.fence > held.fence
        grant.release()


def test_loading_server_is_waited_for(fresh_server: FreshServer, server_kind: Kind, side: Side) -> None:
    """F14: LOADING is retried inside the wait."""
    server = fresh_server(server_kind)
    with server.wire() as wire:
        for number in range(200):
            wire.send("SET", f"key{number}", "x" * 100)
        assert [wire.read() for _ in range(200)] == ["OK"] * 200
    with side.client(server.url) as lf:
        slow = ("--key-load-delay", "4000", "--loading-process-events-interval-bytes", "1024")
        server.restart(*slow, wait_loaded=False)
        with pytest.raises(ServerError, match="LOADING"):
            server.command("GET", "key1")
        with lf.lock("name", wait=20) as grant:
            grant.check()


def test_busy_server_is_waited_for_and_never_longer_than_said(
    fresh_server: FreshServer, server_kind: Kind, side: Side
) -> None:
    """F15: somebody's endless script. Unreachable in time; when it ends, all goes on."""
    server = fresh_server(server_kind, extra=("--busy-reply-threshold", "50"))
    with side.client(server.url, timeout=0.6) as lf, server.wire() as wire:
        held = lf.lock("held", lease=30).acquire()
        wire.send("EVAL", "while true do end", "0")
        wait_until(lambda: _is_busy(server), what="BUSY")
        began = now()
        with pytest.raises(Unreachable):
            lf.lock("name").acquire(wait=0.5)
        with pytest.raises(Unreachable):
            held.release()
        assert now() - began < 3
        waiting = side.spawn(lf.lock("name", lease=30).acquire, wait=20)
        server.command("SCRIPT", "KILL")
        waiting.result().release()
        held.release()
        assert not held.lost


def _is_busy(server: Server) -> bool:
    try:
        server.command("PING")
    except ServerError as error:
        return "BUSY" in str(error)
    return False


def test_scripts_that_are_flushed_all_the_time_are_brought_along(server: Server, side: Side, name: str) -> None:
    """F18: SCRIPT FLUSH every millisecond, under contention, renewals and releases."""
    ended = threading.Event()
    flushes = 0

    def flush() -> None:
        nonlocal flushes
        with server.wire() as wire:
            while not ended.wait(0.001):
                wire.call("SCRIPT", "FLUSH")
                flushes += 1

    def work() -> int:
        done = 0
        while done < 25 or flushes <= 20:  # on a busy machine a millisecond is longer
            with lf.lock(name, lease=5, wait=20) as grant:
                grant.extend()
                done += 1
        return done

    with side.client(server.url) as lf:
        flushing = side.spawn(flush)
        try:
            held = lf.lock(name, "kept", lease=0.3).acquire()
            assert all(worker.result() >= 25 for worker in [side.spawn(work) for _ in range(4)])
            held.check()
            held.release()
        finally:
            ended.set()
        flushing.result()


@pytest.mark.parametrize("deed", ["FLUSHALL", "DEL"])
def test_hold_deleted_by_an_operator_is_found_lost_at_the_next_renewal(
    server: Server, side: Side, name: str, deed: str
) -> None:
    """F19"""
    told = threading.Event()
    with side.client(server.url) as lf:
        grant = lf.lock(name, lease=1.5, on_lost=lambda _: told.set()).acquire()
        _delete(server, deed)
        began = now()
        assert told.wait(10)
        assert grant.lost
        assert now() - began < 1.4, "told by the renewal, before the lease would have ended"
        assert server.command("DBSIZE") == 0, "a renewal never creates"
        with pytest.raises(LeaseLost):
            grant.release()


@pytest.mark.parametrize("deed", ["FLUSHALL", "DEL"])
def test_hold_deleted_by_an_operator_is_found_lost_at_the_release(
    server: Server, side: Side, eyes: Eyes, name: str, deed: str
) -> None:
    """F19: the body must not commit, and whoever came meanwhile keeps what it has."""
    with side.client(server.url) as lf, side.client(server.url) as other:
        after = None
        with pytest.raises(LeaseLost), lf.lock(name, lease=30, renew=False) as grant:
            _delete(server, deed)
            after = other.lock(name, lease=30).acquire(wait=5)
        assert after is not None
        assert after.fence > grant.fence
        assert eyes.holder(name) == after.ticket
        after.release()


def _delete(server: Server, deed: str) -> None:
    if deed == "DEL":
        server.command("DEL", *server.command("KEYS", "lockfast:*"))
    else:
        server.command("FLUSHALL")


def test_evicted_hold_is_found_lost(fresh_server: FreshServer, server_kind: Kind, side: Side) -> None:
    """F20: maxmemory with volatile-ttl throws the hold away; another may get it; the holder is told, not deceived."""
    server = fresh_server(server_kind, extra=("--maxmemory-policy", "volatile-ttl"))
    with side.client(server.url) as lf, side.client(server.url) as other:
        grant = lf.lock("name", lease=30).acquire()
        server.command("CONFIG", "SET", "maxmemory", "1")
        with pytest.raises(ServerError, match="OOM"):
            server.command("SET", "big", "x")
        wait_until(lambda: server.command("DBSIZE") == 0, what="evicted")
        server.command("CONFIG", "SET", "maxmemory", "0")
        after = other.lock("name", lease=30).acquire(wait=5)
        with pytest.raises(LeaseLost):
            grant.extend()
        assert after.fence > grant.fence
        after.extend()
        after.release()


def test_evicted_queue_is_joined_again(valkey_server: Server, side: Side, eyes_on: EyesOn, name: str) -> None:
    """F20: single keys of a name are gone, the queue or what is known of it; waiters come back and get in."""
    server, eyes = valkey_server, eyes_on(valkey_server)
    with side.client(server.url) as lf, side.client(server.url) as other:
        for part in ("queue", "entries"):
            grant = lf.lock(name, lease=30).acquire(wait=10)
            waiting = side.spawn(other.lock(name, lease=30).acquire, wait=20)
            eyes.wait_waiting(name)
            server.command("DEL", f"lockfast:{{{name}}}:{part}")
            grant.release()
            waiting.result().release()
            assert eyes.is_free(name)
            with pytest.raises(NotAcquired), lf.lock(name, lease=30), other.lock(name, wait=0):
                pytest.fail("never entered")


def test_interrupted_waiter_leaves_the_queue_although_its_idle_connections_were_closed(
    fresh_server: FreshServer, server_kind: Kind, eyes_on: EyesOn
) -> None:
    """Ctrl-C while waiting: the connection that the `leave` would go out on was closed while nobody looked."""
    server = fresh_server(server_kind)
    # Over TCP, writing to a connection that was closed succeeds at first.
    with Lockfast(f"redis://127.0.0.1:{server.port}") as lf, lf.lock("name", lease=30) as grant:
        driver, lock = lf._driver, lf.lock("name", lease=30)

        def interrupted() -> Flow[None]:
            flow = admission.acquire(lock._ask, "waiter", None, driver.env)
            effect = next(flow)
            while not isinstance(effect, Wait):
                effect = flow.send((yield effect))
            server.command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
            undo = flow.throw(KeyboardInterrupt())
            assert isinstance(undo, Call)
            assert undo.behind
            yield undo

        driver.run(interrupted())
        assert [waiter.ticket for waiter in eyes_on(server).look("name").waiters] == []
        assert eyes_on(server).holder("name") == grant.ticket
