"""What the scripts cost the server, and that they go on when it is full or forgets them."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest

from kit.resp import ServerError
from lua.scripts import PLACE_MS, Named, Scripts

if TYPE_CHECKING:
    from collections.abc import Callable

    from kit.servers import FreshServer, Kind, Server
    from kit.sides import Side

OUTSIDE = ("evalsha", "eval", "config", "info", "script", "hello", "ping")


def commands_inside(server: Server, call: Callable[[], Any]) -> dict[str, int]:
    """The commands that a script runs, each with how often."""
    server.reset_stats()
    call()
    return {key: count for key, count in server.stats().items() if key.split("|")[0] not in OUTSIDE}


def test_uncontended_acquire_and_release_cost_five_commands(server: Server, scripts: Scripts) -> None:
    if server.version < (7,):
        pytest.skip("one more command each: it stands for the flags that this server does not know")
    name = scripts.name("n")
    name.admit("first")
    name.leave("first")
    assert commands_inside(server, lambda: name.admit("a")) == {"get": 1, "time": 1, "set": 1}
    assert commands_inside(server, lambda: name.leave("a")) == {"get": 1, "set": 1}


def queue_up(name: Named, count: int) -> None:
    wire = name.scripts.wire
    for i in range(count):
        wire.send(*name.admit_request(f"q{i}", channel=f"channel{i}"))
    for _ in range(count):
        wire.read()


def test_work_of_a_hand_over_does_not_grow_with_the_number_of_waiters(server: Server, clocked: Scripts) -> None:
    work = {}
    for count in (10, 1000):
        name = clocked.name("n", str(count))
        name.admit("holder")
        queue_up(name, count)
        leave = commands_inside(server, lambda name=name: name.leave("holder"))  # type: ignore[misc]
        newcomer = commands_inside(server, lambda name=name: name.admit("new"))  # type: ignore[misc]
        beat = commands_inside(server, lambda name=name: name.admit("q5"))  # type: ignore[misc]
        work[count] = (leave, newcomer, beat)
        assert name.holders == ["q0"]
        assert leave["publish"] == 1, "one push, to the next"
    assert work[10] == work[1000]
    assert sum(work[10][0].values()) <= 15


def test_ended_lease_is_passed_on_at_the_same_cost(server: Server, clocked: Scripts) -> None:
    work = []
    for count in (10, 1000):
        name = clocked.name("n", str(count))
        name.admit("holder", lease=PLACE_MS // 2)
        queue_up(name, count)
        clocked.pass_ms(PLACE_MS // 2)
        work.append(commands_inside(server, lambda name=name: name.admit("q0")))  # type: ignore[misc]
        assert name.holders == ["q0"]
    assert work[0] == work[1]


def test_full_server_refuses_to_admit_and_still_renews_and_lets_go(
    fresh_server: FreshServer, server_kind: Kind
) -> None:
    server = fresh_server(server_kind)
    with Scripts(server) as scripts:
        lock = scripts.name("n")
        shared = scripts.name("s", kind="semaphore", limit=4)
        held = lock.admit("a", lease=30_000)
        lock.admit("waiting")
        part = shared.admit("a", weight=2)
        server.command("CONFIG", "SET", "maxmemory", "1")
        for name in (lock, shared):
            with pytest.raises(ServerError, match="OOM"):
                name.admit("b")
        assert lock.renew("a", held.fence, 60_000)[0] == 1
        assert shared.renew("a", part.fence, 60_000)[0] == 1
        assert lock.leave("a") == 1
        assert lock.holders == ["waiting"], "and hands over"
        assert shared.leave("a") == 1
        assert lock.leave("stranger") == 0, "a tombstone can be left too"
        assert lock.leave("waiting", unsure=True, note="me/1 why") == 1
        server.command("CONFIG", "SET", "maxmemory", "0")
        assert lock.admit("b").code == 1


def test_full_server_refuses_to_admit_to_a_name_it_has_never_seen(fresh_server: FreshServer, server_kind: Kind) -> None:
    """A script that has deleted something may write on a full server: so nothing may be deleted needlessly."""
    server = fresh_server(server_kind)
    with Scripts(server) as scripts:
        server.command("CONFIG", "SET", "maxmemory", "1")
        with pytest.raises(ServerError, match="OOM"):
            scripts.name("new").admit("a")
        assert scripts.wire.call("DBSIZE") == 0


def test_uncontended_holder_of_a_full_server_gets_rid_of_its_hold(fresh_server: FreshServer, server_kind: Kind) -> None:
    server = fresh_server(server_kind)
    with Scripts(server) as scripts:
        lock = scripts.name("n")
        lock.admit("a")
        server.command("CONFIG", "SET", "maxmemory", "1")
        assert lock.leave("a") == 1
        assert lock.holders == []


@pytest.mark.slow
def test_scripts_that_are_flushed_all_the_time_are_brought_along(side: Side, server: Server, name: str) -> None:
    done = threading.Event()

    def flush() -> None:
        with server.wire() as wire:
            while not done.wait(0.001):
                wire.call("SCRIPT", "FLUSH")

    flusher = side.spawn(flush)
    try:
        with side.client(server.url) as lf:
            lock = lf.lock(name, lease=1.0)

            def work() -> list[int]:
                fences = []
                for _ in range(25):
                    with lock as grant:
                        grant.extend()
                        fences.append(grant.fence)
                return fences

            found = sorted(fence for worker in [side.spawn(work) for _ in range(4)] for fence in worker.result())
            assert len(set(found)) == 100
            with lock as grant:
                assert not grant.wait_lost(1.3), "renewals go on too"
            assert lf.inspect(name).holders == ()
    finally:
        done.set()
        flusher.result()
    stats = server.stats()
    assert stats.get("script|flush", stats.get("script", 0)) > 10
