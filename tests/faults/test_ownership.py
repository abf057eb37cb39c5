"""Who may do what with a hold: forked children, sharers of one object, second acquires, second releases."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

import pytest

from faults.actors import Script
from kit.servers import wait_until
from lockfast.clock import now
from lockfast.errors import LeaseLost, NotAcquired, NotHeld

if TYPE_CHECKING:
    from collections.abc import Callable

    from faults.conftest import Eyes
    from kit.servers import Server
    from kit.sides import Side

FORK = """
import gc, json, os, sys
from lockfast.sync import Lockfast
from lockfast.errors import LockfastError
lf = Lockfast(sys.argv[1])
lock = lf.lock(sys.argv[2], lease=0.9)
grant = lock.acquire()

def attempt(function):
    try:
        return repr(function())
    except LockfastError as error:
        return type(error).__name__

sys.stdout.flush()
pid = os.fork()
if not pid:
    said = {name: attempt(getattr(grant, name)) for name in ("check", "extend", "release")}
    said["held"] = grant.held
    said["try_acquire"] = attempt(lock.try_acquire)
    with lf.lock(sys.argv[2], "of the child", lease=30) as own:
        said["own"] = own.held
    lf.close()
    del grant
    gc.collect()
    print(json.dumps(said), flush=True)
    sys.exit(0)
os.waitpid(pid, 0)
for line in sys.stdin:
    grant.check()
    print(json.dumps({"deadline": grant.deadline, "held": grant.held}), flush=True)
grant.release()
lf.close()
"""


@pytest.mark.slow
def test_forked_child_owns_nothing_and_the_parent_keeps_its_hold(server: Server, eyes: Eyes, name: str) -> None:
    """F39: the child tries everything, closes, collects garbage and exits; the parent's keeper renews on."""
    with Script(FORK, server.url, name) as script:
        child = json.loads(script.line())
        assert {child[key] for key in ("check", "extend", "release")} == {"NotHeld"}
        assert child["held"] is False
        assert child["try_acquire"] == "None", "the parent's hold is somebody else's"
        assert child["own"] is True
        script.say("")
        first = json.loads(script.line())
        ends = now() + 1.3
        wait_until(lambda: now() > ends, what="longer than a lease")
        script.say("")
        second = json.loads(script.line())
        assert second["held"] is True
        assert second["deadline"] > first["deadline"]
        assert eyes.holder(name)
        assert script.end()[0] == 0
        assert eyes.is_free(name)


FORK_IN_LOOP = """
import asyncio, json, os, sys
from lockfast.aio import Lockfast

async def main():
    lf = Lockfast(sys.argv[1])
    grant = await lf.lock(sys.argv[2], lease=0.9).acquire()
    pid = os.fork()
    if not pid:
        said = {"held": grant.held}
        for name, work in (("release", grant.release), ("extend", grant.extend), ("acquire", lf.lock("x").acquire)):
            try:
                said[name] = repr(await work())
            except Exception as error:
                said[name] = type(error).__name__
        print(json.dumps(said), flush=True)
        os._exit(0)
    await asyncio.to_thread(os.waitpid, pid, 0)
    await asyncio.sleep(1.2)
    grant.check()
    await grant.release()
    await lf.aclose()
    print("done", flush=True)

asyncio.run(main())
"""


@pytest.mark.slow
def test_child_forked_in_an_event_loop_owns_nothing(server: Server, eyes: Eyes, name: str) -> None:
    """F39, for asyncio: errors that say so, and the parent's loop goes on."""
    with Script(FORK_IN_LOOP, server.url, name) as script:
        said = json.loads(script.line())
        assert said == {"held": False, "release": "NotHeld", "extend": "NotHeld", "acquire": "Misused"}
        assert script.line() == "done"
        assert script.end()[0] == 0
        assert eyes.is_free(name)


@pytest.mark.slow
def test_lock_shared_by_many_keeps_their_turns_apart(server: Server, side: Side, eyes: Eyes, name: str) -> None:
    """F41, F43: one object, 8 owners (threads, tasks), 40 sections; none enters twice, none releases another's."""
    inside: list[int] = []
    fences: list[int] = []
    with side.client(server.url) as lf:
        lock = lf.lock(name, lease=30, wait=30)

        def work(number: int) -> None:
            for _ in range(5):
                with lock as grant:
                    inside.append(number)
                    fences.append(grant.fence)
                    assert inside == [number]
                    grant.check()
                    inside.remove(number)

        for worker in [side.spawn(work, number) for number in range(8)]:
            worker.result()
        assert len(fences) == 40
        assert fences == sorted(set(fences))
        assert eyes.is_free(name)


def test_second_acquire_of_a_held_lock_waits_and_loses_nothing(
    server: Server, side: Side, eyes: Eyes, name: str
) -> None:
    """F42, F43: not re-entrant: the second is told "busy", the first is as good as before."""
    with side.client(server.url) as lf:
        lock = lf.lock(name, lease=30)
        with lock as grant:
            assert lock.try_acquire() is None
            with pytest.raises(NotAcquired):
                lock.acquire(wait=0.05)
            grant.check()
            assert eyes.holder(name) == grant.ticket
        assert eyes.is_free(name)


def test_second_release_says_so_and_deletes_nothing(server: Server, side: Side, eyes: Eyes, name: str) -> None:
    """F44"""
    with side.client(server.url) as lf:
        lock = lf.lock(name, lease=30)
        old = lock.acquire()
        old.release()
        new = lock.acquire()
        for _ in range(2):
            with pytest.raises(NotHeld):
                old.release()
        for attempt in (old.check, old.extend):
            with pytest.raises(NotHeld):
                attempt()
        assert eyes.holder(name) == new.ticket
        new.release()
        with lf.lock(name, lease=30) as own:
            own.release()  # and the block's own end does not complain about it
        assert eyes.is_free(name)


@pytest.mark.slow
@pytest.mark.parametrize("then", ["free", "taken"])
def test_hold_that_has_ended_can_be_neither_extended_nor_released(
    server: Server, side: Side, eyes: Eyes, name: str, then: str
) -> None:
    """F44, F45: raises, and never creates."""
    with side.client(server.url) as lf:
        attempts: list[tuple[str, Callable[[], None]]] = []
        for deed in ("extend", "release", "check"):
            grant = lf.lock(name, deed, lease=0.1, renew=False).acquire()
            attempts.append((deed, getattr(grant, deed)))
        wait_until(lambda: not any(lf.inspect(name, deed).holders for deed, _ in attempts), what="leases ended")
        successors = {}
        if then == "taken":
            successors = {deed: lf.lock(name, deed, lease=30).acquire() for deed, _ in attempts}
        for deed, attempt in attempts:
            with pytest.raises(LeaseLost):
                attempt()
            found = [holder.ticket for holder in eyes.client.inspect(name, deed).holders]
            assert found == ([successors[deed].ticket] if successors else [])


def test_hold_that_the_server_has_ended_is_not_extended_although_the_clock_says_it_stands(
    server: Server, side: Side, eyes: Eyes, name: str
) -> None:
    """F45: the server is asked, and its word counts: broken by an operator, the hold is not revived."""
    with side.client(server.url) as lf:
        grant = lf.lock(name, lease=30).acquire()
        eyes.client.break_lock(name, reason="the test says so")
        assert grant.held, "nobody has told it yet"
        with pytest.raises(LeaseLost):
            grant.extend()
        assert grant.lost
        assert eyes.is_free(name)


def test_the_process_is_named_in_its_hold(server: Server, side: Side, name: str) -> None:
    """F39, F44: who owns what can be read at the server."""
    with side.client(server.url, label="night job") as lf, lf.lock(name):
        (holder,) = lf.inspect(name).holders
        assert (holder.owner.pid, holder.owner.label) == (os.getpid(), "night job")
