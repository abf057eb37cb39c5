"""Count-down latches: nobody passes before zero, everybody does from then on, and nothing is counted twice."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

import pytest

from behaviour.queueing import PATIENCE_S, queued, wait_queued
from kit.servers import wait_until
from lockfast import Misused, NotAcquired, Refused
from lockfast.aio import Lockfast as AsyncioLockfast
from lockfast.cli.look import describe

if TYPE_CHECKING:
    from kit.servers import Kind, Server
    from kit.sides import AsyncioSide, Side
    from lockfast.sync import Lockfast

AT_ONCE_S = 1.0  # less than the shortest heartbeat: whoever knows by then was told


@pytest.fixture
def server_kind() -> Kind:
    """One kind is enough: the scripts are compared with their model on both (tests/lua)."""
    return "valkey"


def test_latch_opens_at_zero_and_stays_open(side: Side, lf: Lockfast, other: Lockfast, name: str) -> None:
    latch, theirs = lf.latch(name, count=3), other.latch(name, count=3)
    assert (latch.name, latch.count(), repr(latch)) == (name, 3, repr(theirs))
    waiting = [side.spawn(latch.wait), side.spawn(theirs.wait, wait=20)]
    wait_queued(lf, name, 2)
    assert [latch.count_down(), theirs.count_down()] == [2, 1]
    assert latch.count() == 1
    assert not any(one.done for one in waiting)
    assert latch.count_down() == 0
    for one in waiting:
        one.result(AT_ONCE_S)
    theirs.wait()
    theirs.wait(wait=0)
    assert latch.count_down(2) == latch.count() == 0
    assert queued(lf, name) == []


def test_counts_by_several_at_once_and_never_below_zero(lf: Lockfast, name: str) -> None:
    latch = lf.latch(name, count=5)
    assert [latch.count_down(2), latch.count_down(2), latch.count_down(7)] == [3, 1, 0]


def test_same_word_is_counted_once_whoever_says_it(lf: Lockfast, other: Lockfast, name: str) -> None:
    latch, theirs = lf.latch(name, count=2), other.latch(name, count=2)
    assert [latch.count_down(once="part 1"), theirs.count_down(once="part 1"), latch.count_down(once="part 1")] == [
        1
    ] * 3
    assert theirs.count_down(once="teil ü") == 0


@pytest.mark.parametrize("wait", [0, 0.05])
def test_wait_that_runs_out_is_a_time_out_and_leaves_nothing(lf: Lockfast, name: str, wait: float) -> None:
    latch = lf.latch(name, count=2)
    with pytest.raises(NotAcquired, match="2 of 2 were left") as caught:
        latch.wait(wait=wait)
    assert isinstance(caught.value, TimeoutError)
    assert (caught.value.name, caught.value.waited_s) == (name, wait)
    assert queued(lf, name) == []


def test_looking_makes_no_latch(lf: Lockfast, server: Server, name: str) -> None:
    assert lf.latch(name, count=2).count() == 2
    with pytest.raises(NotAcquired):
        lf.latch(name, count=2).wait(wait=0)
    assert server.command("DBSIZE") == 0


def test_who_names_another_count_or_another_kind_is_told(lf: Lockfast, other: Lockfast, name: str) -> None:
    lf.latch(name, count=2).count_down()
    theirs = other.latch(name, count=3)
    for call in (theirs.count_down, theirs.count, theirs.wait, lambda: other.semaphore(name, limit=2).try_acquire()):
        with pytest.raises(Refused, match="a latch with count 2") as caught:
            call()
        assert caught.value.code == "KIND"
    with pytest.raises(Refused, match="a latch with count 2"):
        other.lock(name).acquire(wait=0)
    with pytest.raises(Refused, match="a latch with count 2"):
        other.barrier(name, parties=2).wait(wait=0)
    lf.latch(name, count=2).count_down()
    with pytest.raises(Refused, match="a latch"):
        other.lock(name).acquire(wait=0)
    with lf.lock(name, "lock"), pytest.raises(Refused, match="a lock"):
        other.latch(name, "lock", count=2).count_down()
    assert other.latch(name, "lock", count=2).count_down() == 1, "nobody uses the lock any more"


def test_arguments_that_cannot_work_are_refused(lf: Lockfast, name: str) -> None:
    for count, error in (
        (0, ValueError),
        (-1, ValueError),
        (1_000_001, ValueError),
        (1.5, TypeError),
        (True, TypeError),
    ):
        with pytest.raises(error, match="count"):
            lf.latch(name, count=count)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="60"):
        lf.latch(name, count=1, lease=59)
    latch = lf.latch(name, count=1)
    for down, error in ((0, ValueError), ("1", TypeError)):
        with pytest.raises(error, match="n must"):
            latch.count_down(down)  # type: ignore[arg-type]
    for once, error in (("", ValueError), ("x" * 201, ValueError), (7, TypeError)):
        with pytest.raises(error, match="once"):
            latch.count_down(once=once)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="wait"):
        latch.wait(wait=-1)


def test_tools_show_what_is_left_and_who_waits(side: Side, lf: Lockfast, other: Lockfast, name: str) -> None:
    lf.latch(name, count=4).count_down()
    assert lf.names() == []
    spawned = side.spawn(other.latch(name, count=4).wait)
    wait_queued(lf, name)
    seen = lf.inspect(name)
    assert (seen.kind, seen.limit, seen.standing, seen.holders) == ("latch", 4, "3 left", ())
    assert lf.names() == [(name,)]
    assert describe(name, seen).startswith(f"{name}: 3 left, 1 waiting\n")
    lf.latch(name, count=4).count_down(3)
    spawned.result(AT_ONCE_S)
    assert lf.inspect(name).standing == "0 left"


def test_keys_expire(lf: Lockfast, server: Server, side: Side, name: str) -> None:
    latch = lf.latch(name, count=3, lease=60)
    latch.count_down()
    spawned = side.spawn(latch.wait)
    wait_queued(lf, name)
    keys = server.command("KEYS", "*")
    assert len(keys) == 4
    day_ms = 86_400_000
    assert all(day_ms <= server.command("PTTL", key) <= day_ms + 60_000 for key in keys)
    latch.count_down(2)
    spawned.result(AT_ONCE_S)
    assert len(server.command("KEYS", "*")) == 1, "an open latch is one string"


def test_close_ends_a_wait(side: Side, server: Server, other: Lockfast, name: str) -> None:
    lf = side.client(server.url)
    spawned = side.spawn(lf.latch(name, count=1).wait)
    wait_queued(other, name)
    lf.close()
    assert isinstance(spawned.error(PATIENCE_S), Misused)
    assert queued(other, name) == []
    for call in (lf.latch(name, count=1).wait, lf.latch(name, count=1).count_down):
        with pytest.raises(Misused):
            call()


def test_emptied_server_is_told_to_whoever_waits(
    side: Side, lf: Lockfast, other: Lockfast, server: Server, name: str
) -> None:
    spawned = side.spawn(lf.latch(name, count=2).wait)
    wait_queued(lf, name)
    wait_until(lambda: server.command("PUBSUB", "CHANNELS"), what="a subscription")
    server.command("FLUSHALL")
    other.latch(name, count=2).count_down()
    server.command("CLIENT", "KILL", "TYPE", "pubsub")  # so that it asks at once
    error = spawned.error(PATIENCE_S)
    assert isinstance(error, Refused)
    assert error.code == "FORGOTTEN"


def test_cancelled_wait_leaves_nothing_behind(aside: AsyncioSide, valkey_server: Server, name: str) -> None:
    async def run() -> Any:
        async with AsyncioLockfast(valkey_server.url) as lf:
            waiting = asyncio.create_task(lf.latch(name, count=1).wait())
            while not (await lf.inspect(name)).waiters:
                await asyncio.sleep(0.005)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            while (await lf.inspect(name)).waiters:
                await asyncio.sleep(0.005)
            return (await lf.inspect(name)).queue_length

    assert aside.run(run()) == 0


def test_many_waiters_are_told_at_once(side: Side, lf: Lockfast, other: Lockfast, server: Server, name: str) -> None:
    waiting = [side.spawn(lf.latch(name, count=1).wait) for _ in range(10)]
    wait_queued(other, name, 10)
    began = time.monotonic()
    other.latch(name, count=1).count_down()
    for one in waiting:
        one.result(PATIENCE_S)
    assert time.monotonic() - began < AT_ONCE_S
    assert len(server.command("PUBSUB", "CHANNELS")) == 1, "one push connection for all of them"
