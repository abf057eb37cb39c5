"""Deadlocks: who waits in a circle is told, the youngest of them only, and nobody else ever is."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

from behaviour.agents import Agent
from behaviour.queueing import PATIENCE_S, holder, queued, wait_queued
from kit.servers import wait_until
from lockfast import Deadlock, LockfastError, NotAcquired, Refused
from lockfast.aio import Lockfast as AsyncioLockfast
from lockfast.flows import admission, deadlocks, detection
from lockfast.sync import Lockfast as ThreadsLockfast
from lua.scripts import Scripts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from concurrent.futures import Future

    from kit.servers import Server
    from kit.sides import AsyncioSide, Side
    from lockfast.sync import Lock, Lockfast

pytestmark = pytest.mark.slow


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Looks follow each other quickly, so that tests do not take long."""
    monkeypatch.setattr(detection, "FIRST_LOOK_S", 0.05)
    monkeypatch.setattr(detection, "LOOK_EVERY_S", 0.1)


@pytest.fixture
def lf(side: Side, valkey_server: Server) -> Lockfast:
    """A client of Valkey: what does not depend on the server is not run on both."""
    valkey_server.command("FLUSHALL")
    return side.client(valkey_server.url)


@pytest.fixture
def other(side: Side, valkey_server: Server) -> Lockfast:
    """Another one."""
    return side.client(valkey_server.url)


@pytest.fixture
def agent(side: Side) -> Iterator[Callable[[], Agent]]:
    """Makes threads, or tasks; they end with the test."""
    made: list[Agent] = []

    def make() -> Agent:
        made.append(Agent(side))
        return made[-1]

    yield make
    for one in made:
        one.end()


# Time in which a waiter that looks soon has looked several times.
LOOKS_S = 0.6


def told(outcome: Future[Any]) -> Deadlock:
    """The deadlock that an acquire ended with."""
    error = outcome.exception(PATIENCE_S)
    assert isinstance(error, Deadlock), error
    return error


@pytest.mark.usefixtures("soon")
def test_crossed_locks_of_two_clients_are_found_and_the_youngest_waiter_is_told(
    side: Side, server: Server, agent: Callable[[], Agent], name: str
) -> None:
    a, b = side.client(server.url, label="first"), side.client(server.url, label="second")
    one, two = agent(), agent()
    x, y = f"{name}-x", f"{name}-y"
    of_one = one.take(a.lock(x, detect=True))
    of_two = two.take(b.lock(y, detect=True))
    elder = one.begin(a.lock(y, detect=True))
    wait_queued(a, y)
    younger = two.begin(b.lock(x, detect=True))
    deadlock = told(younger)
    assert not elder.done(), "only one of them is told"
    assert queued(a, x) == [], "nothing is left behind"
    mine, theirs = deadlock.cycle
    assert (mine.who.label, mine.waits_for, mine.held_by.label) == ("second", x, "first")
    assert (theirs.who.label, theirs.waits_for, theirs.held_by.label) == ("first", y, "second")
    assert mine.who.pid == os.getpid()
    assert mine.since >= theirs.since
    assert mine.agent != theirs.agent == mine.held_by_agent
    assert deadlock.name == x
    assert "release what you hold" in str(deadlock)
    of_two.release()
    elder.result(PATIENCE_S).release()
    of_one.release()
    assert holder(a, x) is holder(a, y) is None


@pytest.mark.usefixtures("soon")
def test_ring_of_three_in_one_client_is_found(lf: Lockfast, agent: Callable[[], Agent], name: str) -> None:
    ring = [agent() for _ in range(3)]
    locks = [lf.lock(name, number, detect=True) for number in range(3)]
    held = [one.take(lock) for one, lock in zip(ring, locks, strict=True)]
    waits = []
    for number, one in enumerate(ring):
        waits.append(one.begin(locks[(number + 1) % 3]))
        wait_until(lambda n=number: lf.inspect(name, (n + 1) % 3).waiters, what="queued")  # type: ignore[misc]
    deadlock = told(waits[2])
    assert [step.waits_for for step in deadlock.cycle] == [f"{name}|0", f"{name}|1", f"{name}|2"]
    assert [wait.done() for wait in waits] == [False, False, True]
    held[2].release()
    waits[1].result(PATIENCE_S).release()
    held[1].release()
    waits[0].result(PATIENCE_S).release()
    held[0].release()


@pytest.mark.usefixtures("soon")
def test_who_waits_for_what_it_holds_itself_is_told(
    lf: Lockfast, other: Lockfast, agent: Callable[[], Agent], name: str
) -> None:
    one = agent()
    grant = one.take(lf.lock(name))
    for client in (lf, other):
        deadlock = told(one.begin(client.lock(name, detect=True)))
        (step,) = deadlock.cycle
        assert step.agent == step.held_by_agent
        assert "use an rlock" in str(deadlock)
    assert grant.held
    grant.release()


@pytest.mark.usefixtures("soon")
def test_who_waits_for_its_own_permits_is_told_what_helps_there(
    lf: Lockfast, agent: Callable[[], Agent], name: str
) -> None:
    one = agent()
    grant = one.take(lf.semaphore(name, limit=2, permits=2))
    deadlock = told(one.begin(lf.semaphore(name, limit=2, detect=True)))
    assert "release it first, or take all permits with one acquire" in str(deadlock)
    assert "rlock" not in str(deadlock)
    grant.release()


@pytest.mark.usefixtures("soon")
def test_rlock_that_is_entered_again_is_no_deadlock_and_crossed_ones_are(
    lf: Lockfast, agent: Callable[[], Agent], name: str
) -> None:
    one, two = agent(), agent()
    x, y = (lf.rlock(name, part, detect=True) for part in "xy")
    held = [one.take(x), two.take(y), one.take(x)]
    elder = one.begin(y)
    wait_until(lambda: lf.inspect(name, "y").waiters, what="queued")
    told(two.begin(x))
    held.pop(1).release()
    elder.result(PATIENCE_S).release()
    for grant in held:
        grant.release()


@pytest.mark.usefixtures("soon")
def test_semaphore_is_a_deadlock_only_when_no_permit_can_come_back(
    lf: Lockfast, agent: Callable[[], Agent], name: str
) -> None:
    one, two, free = agent(), agent(), agent()
    both = lf.semaphore(name, "s", limit=3, permits=2, detect=True)
    single = lf.semaphore(name, "s", limit=3, detect=True)
    lock = lf.lock(name, "l", detect=True)
    held = one.take(single)
    also = free.take(single)
    third = free.take(single)
    of_two = two.take(lock)
    elder = one.begin(lock)
    wait_until(lambda: lf.inspect(name, "l").waiters, what="queued")
    younger = two.begin(both)
    time.sleep(LOOKS_S)
    assert not younger.done(), "another can give its permits back"
    third.release()
    also.release()
    younger.result(PATIENCE_S).release()
    of_two.release()
    elder.result(PATIENCE_S).release()
    held.release()


@pytest.mark.usefixtures("soon")
def test_weights_that_can_never_be_had_are_a_deadlock(lf: Lockfast, agent: Callable[[], Agent], name: str) -> None:
    one, two, free = agent(), agent(), agent()
    whole = lf.semaphore(name, "s", limit=3, permits=3, detect=True)
    single = lf.semaphore(name, "s", limit=3, detect=True)
    lock = lf.lock(name, "l", detect=True)
    held, also = one.take(single), free.take(single)
    of_two = two.take(lock)
    elder = one.begin(lock)
    wait_until(lambda: lf.inspect(name, "l").waiters, what="queued")
    deadlock = told(two.begin(whole))
    assert len(deadlock.cycle) == 2, "who holds a permit and runs is not named"
    of_two.release()
    elder.result(PATIENCE_S).release()
    held.release()
    also.release()


@pytest.mark.usefixtures("soon")
def test_readers_and_writers_that_cross_are_found(lf: Lockfast, agent: Callable[[], Agent], name: str) -> None:
    one, two, bystander = agent(), agent(), agent()
    x, y = (lf.rwlock(name, part, detect=True) for part in "xy")
    held = [one.take(x.read()), two.take(y.read()), bystander.take(x.read())]
    elder = one.begin(y.write())
    wait_until(lambda: lf.inspect(name, "y").waiters, what="queued")
    deadlock = told(two.begin(x.write()))
    assert [step.waits_for for step in deadlock.cycle] == [f"{name}|x", f"{name}|y"]
    held.pop(1).release()
    elder.result(PATIENCE_S).release()
    for grant in held:
        grant.release()


@pytest.mark.usefixtures("soon")
def test_writer_in_the_queue_that_keeps_a_reader_out_is_part_of_the_circle(
    lf: Lockfast, agent: Callable[[], Agent], name: str
) -> None:
    reads, writes, late = agent(), agent(), agent()
    n, m = lf.rwlock(name, "n", detect=True), lf.lock(name, "m", detect=True)
    held = reads.take(n.read())
    of_late = late.take(m)
    writing = writes.begin(n.write())
    wait_until(lambda: lf.inspect(name, "n").waiters, what="queued")
    waits = reads.begin(m)
    wait_until(lambda: lf.inspect(name, "m").waiters, what="queued")
    deadlock = told(late.begin(n.read()))
    assert [step.ahead for step in deadlock.cycle] == [True, False, False]
    of_late.release()
    waits.result(PATIENCE_S).release()
    held.release()
    writing.result(PATIENCE_S).release()


@pytest.mark.usefixtures("soon")
def test_several_at_once_tell_of_a_deadlock_with_others(
    side: Side, lf: Lockfast, agent: Callable[[], Agent], name: str
) -> None:
    one, two = agent(), agent()
    x, y, z = (lf.lock(name, part, detect=True) for part in "xyz")
    held = one.take(x)
    of_two = two.take(y)
    elder = two.begin(x)
    wait_until(lambda: lf.inspect(name, "x").waiters, what="queued")
    several = lf.locks(*(lock if side.name == "threads" else lock.twin_of for lock in (y, z)))  # type: ignore[attr-defined]
    told(one.begin(several))
    assert not lf.inspect(name, "z").holders, "none of several is kept"
    held.release()
    elder.result(PATIENCE_S).release()
    of_two.release()


@pytest.mark.usefixtures("soon")
def test_nobody_is_told_where_there_is_no_circle(
    lf: Lockfast, other: Lockfast, agent: Callable[[], Agent], name: str
) -> None:
    """A slow holder, a long queue, and a chain of those who hold one thing and wait for the next."""
    slow = agent()
    locks = [lf.lock(name, number, detect=True) for number in range(4)]
    held = [slow.take(locks[0])]
    chain = [agent() for _ in range(3)]
    waits = []
    for number, one in enumerate(chain):
        held.append(one.take(locks[number + 1]))
        waits.append(one.begin(locks[number]))
    crowd: list[Future[Any]] = []
    for number in range(1, 7):  # one after the other: that is how they are let in
        wait_until(lambda n=number: len(lf.inspect(name, 0).waiters) == n, what="queued")  # type: ignore[misc]
        crowd.append(agent().begin(other.lock(name, 0, detect=True)))
    time.sleep(LOOKS_S)
    assert not any(wait.done() for wait in [*waits, *crowd])
    for hold, wait in zip(held, waits, strict=False):
        hold.release()
        wait.result(PATIENCE_S).release()
    held[-1].release()
    for wait in crowd:
        wait.result(PATIENCE_S).release()


def test_crossing_that_ends_by_a_time_out_tells_nobody(lf: Lockfast, agent: Callable[[], Agent], name: str) -> None:
    one, two = agent(), agent()
    x, y = (lf.lock(name, part, detect=True) for part in "xy")
    held = [one.take(x), two.take(y)]
    elder = one.begin(y)
    wait_until(lambda: lf.inspect(name, "y").waiters, what="queued")
    assert isinstance(two.begin(x, wait=0.5).exception(PATIENCE_S), NotAcquired)
    held.pop().release()
    elder.result(PATIENCE_S).release()
    held.pop().release()


@pytest.mark.usefixtures("soon")
def test_hold_of_another_thread_or_task_that_has_ended_is_not_our_own(
    side: Side, lf: Lockfast, agent: Callable[[], Agent], name: str
) -> None:
    """Numbers of threads and addresses of tasks come again; agents do not."""
    for number in range(2):
        past = Agent(side)
        grant = past.take(lf.lock(name, number))
        past.end()
        waiting = Agent(side)
        error = waiting.begin(lf.lock(name, number, detect=True), wait=0.3).exception(PATIENCE_S)
        assert isinstance(error, NotAcquired), error
        waiting.end()
        grant.release()


@pytest.mark.usefixtures("soon")
def test_youngest_that_asked_is_told_if_the_youngest_did_not(
    lf: Lockfast, agent: Callable[[], Agent], name: str
) -> None:
    """A writer that did not ask stands between readers that did."""
    reads, writes, late = agent(), agent(), agent()
    n, m = lf.rwlock(name, "n"), lf.lock(name, "m", detect=True)
    asks = lf.rwlock(name, "n", detect=True)
    held = reads.take(n.read())
    of_late = late.take(m)
    waits = reads.begin(m)
    wait_until(lambda: lf.inspect(name, "m").waiters, what="queued")
    late_read = late.begin(asks.write())
    wait_until(lambda: lf.inspect(name, "n").waiters, what="queued")
    writing = writes.begin(n.write())
    told(late_read)
    assert not waits.done()
    assert not writing.done()
    of_late.release()
    waits.result(PATIENCE_S).release()
    held.release()
    writing.result(PATIENCE_S).release()


@pytest.mark.usefixtures("soon")
def test_without_detection_nothing_is_announced_and_nobody_is_told(
    valkey_server: Server, lf: Lockfast, agent: Callable[[], Agent], name: str
) -> None:
    one, two = agent(), agent()
    x, y = (lf.lock(name, part, wait=0.5) for part in "xy")
    held = [one.take(x), two.take(y)]
    waits = [one.begin(y), two.begin(x)]
    wait_until(lambda: any(wait.done() for wait in waits), what="a time-out")
    assert valkey_server.command("KEYS", "lockfast:waits:*") == []
    for wait in waits:
        try:
            wait.result(PATIENCE_S).release()
        except NotAcquired:
            pass
    for grant in held:
        grant.release()


@pytest.mark.usefixtures("soon")
def test_announcement_is_small_expires_and_tells_what_is_waited_for(
    valkey_server: Server, lf: Lockfast, agent: Callable[[], Agent]
) -> None:
    odd = "100 % {odd} ü"
    grant = lf.lock(odd, "a|b").acquire()
    wait = agent().begin(lf.lock(odd, "a|b", detect=True))
    wait_until(lambda: valkey_server.command("KEYS", "lockfast:waits:*"), what="announced")
    (key,) = valkey_server.command("KEYS", "lockfast:waits:*")
    (waiter,) = lf.inspect(odd, "a|b").waiters
    assert key.decode() == f"lockfast:waits:{waiter.ticket.split('.')[1]}"
    assert valkey_server.command("GET", key).decode() == f"{waiter.ticket} 100 %25 %7Bodd%7D ü|a%7Cb"
    assert 0 < valkey_server.command("PTTL", key) <= 6000
    assert lf.names() == [(odd, "a|b")], "it is no name"
    grant.release()
    wait.result(PATIENCE_S).release()


@pytest.mark.usefixtures("soon")
def test_announcements_that_lie_mislead_nobody(
    valkey_server: Server, lf: Lockfast, agent: Callable[[], Agent], name: str
) -> None:
    """They only say where to look."""
    one = agent()
    grant = one.take(lf.lock(name))
    own = grant.ticket.split(".")[1]
    for lie in (f"x {name}", "x a||b", "x \xff"):
        valkey_server.command("SET", f"lockfast:waits:{own}", lie)
        wait = agent().begin(lf.lock(name, detect=True), wait=0.25)
        assert isinstance(wait.exception(PATIENCE_S), NotAcquired)
    grant.release()


def test_real_time_from_crossing_to_telling_is_seconds(valkey_server: Server, name: str) -> None:
    with ThreadsLockfast(valkey_server.url) as lf:
        x, y = (lf.lock(name, part, detect=True) for part in "xy")
        met = threading.Barrier(2)
        took_s: list[float] = []

        def cross(first: Lock, second: Lock) -> None:
            while True:
                try:
                    with first:
                        if not took_s:
                            met.wait(PATIENCE_S)
                        started = time.monotonic()
                        with second:
                            return
                except Deadlock:
                    took_s.append(time.monotonic() - started)

        threads = [threading.Thread(target=cross, args=order) for order in ((x, y), (y, x))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE_S)
        assert not any(thread.is_alive() for thread in threads)
        assert len(took_s) == 1, "one was told, once, and then both were served"
        assert 1.0 < took_s[0] < 6.0


def test_threads_and_tasks_that_cross_are_found(aside: AsyncioSide, valkey_server: Server, name: str) -> None:
    x, y = f"{name}-x", f"{name}-y"
    ready, met = threading.Event(), threading.Event()

    async def task() -> str:
        async with AsyncioLockfast(valkey_server.url) as lf, lf.lock(x, detect=True):
            ready.set()
            await asyncio.to_thread(met.wait, PATIENCE_S)
            try:
                async with lf.lock(y, detect=True):
                    return "served"
            except Deadlock:
                return "told"

    running = asyncio.run_coroutine_threadsafe(task(), aside.loop)
    assert ready.wait(PATIENCE_S)
    with ThreadsLockfast(valkey_server.url) as lf, lf.lock(y, detect=True):
        met.set()
        try:
            with lf.lock(x, detect=True):
                mine = "served"
        except Deadlock:
            mine = "told"
    assert sorted([mine, running.result(PATIENCE_S)]) == ["served", "told"]


@pytest.mark.usefixtures("soon")
def test_cancelled_while_looking_leaves_nothing_behind(aside: AsyncioSide, valkey_server: Server, name: str) -> None:
    async def work() -> None:
        async with AsyncioLockfast(valkey_server.url) as lf, lf.lock(name):
            for number in range(12):
                waiting = asyncio.create_task(lf.lock(name, detect=True).acquire())
                await asyncio.sleep(0.05 + number / 80)
                waiting.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await waiting
            assert (await lf.inspect(name)).waiters == ()

    aside.run(work())


@pytest.mark.usefixtures("soon")
def test_account_that_may_not_look_is_refused_not_left_waiting(
    server: Server, side: Side, agent: Callable[[], Agent], name: str
) -> None:
    server.command("ACL", "SETUSER", "blind", "on", ">pw", "~*", "&*", "+@all", "-mget")
    try:
        blind = side.client(server.url.replace("://", "://blind:pw@", 1))
        held = agent().take(blind.lock(name))
        with pytest.raises(Refused) as caught:
            blind.lock(name, detect=True, wait=10).acquire()
        assert caught.value.code == "NOPERM"
        assert queued(blind, name) == []
        held.release()
        blind.close()
    finally:
        server.command("ACL", "DELUSER", "blind")


@pytest.mark.parametrize("wrong", [None, 1, "yes"])
def test_detect_is_true_or_false(lf: Lockfast, name: str, wrong: Any) -> None:
    for make in (lf.lock, lf.rlock, lf.rwlock, lf.semaphore):
        with pytest.raises(TypeError, match="detect must be True or False"):
            make(name, detect=wrong)


# The whole server


def test_every_deadlock_of_the_server_is_told_whoever_asked(
    side: Side, server: Server, agent: Callable[[], Agent], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    lf = side.client(server.url)
    monkeypatch.setattr(admission, "HEARTBEAT_S", 0.2)
    monkeypatch.setattr(deadlocks, "PAUSE_S", 0.5)
    crossing = [agent() for _ in range(4)]
    selfish, innocent, bystander = agent(), agent(), agent()
    plain = [lf.lock(name, number, wait=20) for number in range(4)]
    held = [one.take(lock) for one, lock in zip(crossing, plain, strict=True)]
    held += [selfish.take(lf.lock(name, "own")), innocent.take(lf.lock(name, "free"))]
    assert lf.deadlocks() == ()
    waits = [one.begin(plain[number ^ 1]) for number, one in enumerate(crossing)]
    waits.append(selfish.begin(lf.lock(name, "own")))
    waits.append(bystander.begin(lf.lock(name, "free")))
    wait_until(lambda: sum(len(lf.inspect(*parts).waiters) for parts in lf.names()) == 6, what="all of them wait")
    found = lf.deadlocks()
    told = sorted(sorted(step.waits_for for step in cycle) for cycle in found)
    assert told == [[f"{name}|0", f"{name}|1"], [f"{name}|2", f"{name}|3"], [f"{name}|own"]]
    for cycle in found:
        assert max(step.since for step in cycle) == cycle[0].since, "the youngest is first"
    for grant in held:
        grant.release()
    for wait in waits:
        try:
            wait.result(PATIENCE_S).release()
        except LockfastError:
            pass
    assert lf.deadlocks() == ()


def test_waiters_that_have_died_are_no_deadlock(valkey_server: Server, name: str) -> None:
    with Scripts(valkey_server) as scripts:
        scripts.name(f"{name}-x").admit("c.one.1", lease=20_000)
        scripts.name(f"{name}-y").admit("c.two.1", lease=20_000)
        scripts.name(f"{name}-x").admit("c.two.2")
        scripts.name(f"{name}-y").admit("c.one.2")
    with ThreadsLockfast(valkey_server.url) as lf:
        assert lf.deadlocks() == ()
