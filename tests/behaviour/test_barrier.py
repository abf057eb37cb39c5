"""Cyclic barriers: nobody passes before all have come, and nobody waits for one who will not come."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

import pytest

from behaviour.queueing import PATIENCE_S, queued, wait_queued
from lockfast import BrokenBarrier, Lockfast, Misused, NotAcquired, Refused, names
from lockfast.aio import Lockfast as AsyncioLockfast
from lockfast.cli.look import describe
from lockfast.flows.barrier import BarrierSpec
from lockfast.flows.watching import insist

if TYPE_CHECKING:
    from kit.servers import Kind, Server
    from kit.sides import AsyncioSide, Side, Spawned
    from lockfast.sync import Barrier

AT_ONCE_S = 1.0  # less than the shortest heartbeat: whoever knows by then was told


@pytest.fixture
def server_kind() -> Kind:
    """One kind is enough: the scripts are compared with their model on both (tests/lua)."""
    return "valkey"


def arrive(side: Side, lf: Lockfast, barrier: Barrier, count: int = 1, **options: Any) -> Spawned[int]:
    """A party that waits, as number `count`."""
    spawned = side.spawn(barrier.wait, **options)
    wait_queued(lf, barrier.name, count)
    return spawned


def is_broken(*waiting: Spawned[int]) -> bool:
    return all(isinstance(one.error(AT_ONCE_S), BrokenBarrier) for one in waiting)


def test_nobody_passes_before_all_have_come(side: Side, lf: Lockfast, other: Lockfast, name: str) -> None:
    barrier, theirs = lf.barrier(name, parties=3), other.barrier(name, parties=3)
    assert (barrier.name, barrier.parties, barrier.is_broken(), barrier.n_waiting()) == (name, 3, False, 0)
    for _ in range(2):
        first = arrive(side, lf, barrier)
        second = arrive(side, lf, theirs, 2, wait=20)
        assert barrier.n_waiting() == 2
        assert not first.done
        assert not second.done
        assert theirs.wait(wait=5) == 2
        assert [first.result(AT_ONCE_S), second.result(AT_ONCE_S)] == [0, 1]
        assert (barrier.n_waiting(), barrier.is_broken()) == (0, False)


def test_generation_follows_generation(side: Side, lf: Lockfast, other: Lockfast, name: str) -> None:
    rounds, steps = 20, [0, 0, 0]

    def go(party: int, barrier: Barrier) -> list[int]:
        indexes = []
        for step in range(rounds):
            steps[party] = step
            indexes.append(barrier.wait(wait=PATIENCE_S))
            assert min(steps) >= step, "somebody passed before all had come"
        return indexes

    clients = (lf, other, lf)
    parties = [side.spawn(go, party, client.barrier(name, parties=3)) for party, client in enumerate(clients)]
    indexes = zip(*[party.result() for party in parties], strict=True)
    assert all(sorted(each) == [0, 1, 2] for each in indexes)


def test_barrier_of_one_lets_everybody_pass(lf: Lockfast, name: str) -> None:
    assert [lf.barrier(name, parties=1).wait(), lf.barrier(name, parties=1).wait(wait=0)] == [0, 0]


def test_time_out_breaks_it_until_it_is_reset(side: Side, lf: Lockfast, other: Lockfast, name: str) -> None:
    barrier, theirs = lf.barrier(name, parties=3), other.barrier(name, parties=3)
    first = arrive(side, lf, theirs)
    with pytest.raises(NotAcquired, match="not all of the 3 parties") as caught:
        barrier.wait(wait=0.05)
    assert isinstance(caught.value, TimeoutError)
    assert is_broken(first)
    assert (barrier.is_broken(), theirs.is_broken(), barrier.n_waiting()) == (True, True, 0)
    for one in (barrier, theirs):
        with pytest.raises(BrokenBarrier, match="reset") as told:
            one.wait()
        assert told.value.name == name
    theirs.reset()
    assert not barrier.is_broken()
    waiting = [arrive(side, lf, barrier, 1), arrive(side, lf, theirs, 2)]
    assert barrier.wait() == 2
    assert sorted(one.result(AT_ONCE_S) for one in waiting) == [0, 1]


@pytest.mark.parametrize("verb", ["abort", "reset"])
def test_abort_and_reset_are_told_to_waiters(side: Side, lf: Lockfast, other: Lockfast, name: str, verb: str) -> None:
    barrier = lf.barrier(name, parties=3)
    waiting = [arrive(side, lf, barrier, 1), arrive(side, lf, other.barrier(name, parties=3), 2)]
    getattr(other.barrier(name, parties=3), verb)()
    assert is_broken(*waiting)
    assert barrier.is_broken() is (verb == "abort")
    assert queued(lf, name) == []


def test_abort_breaks_also_what_nobody_waits_at(lf: Lockfast, other: Lockfast, name: str) -> None:
    lf.barrier(name, parties=2).abort()
    with pytest.raises(BrokenBarrier):
        other.barrier(name, parties=2).wait()


@pytest.mark.slow
def test_party_that_dies_is_noticed_when_its_lease_ends(side: Side, lf: Lockfast, server: Server, name: str) -> None:
    """It arrives, and nothing is heard of it any more."""
    with Lockfast(server.url) as dead:
        spec, env = BarrierSpec(names.make("lockfast", (name,)), 3, 0.5), dead._driver.env
        dead._driver.run(insist(spec.bound(env), ("arrive", 0, "dead.1.1"), env.now() + 5, env))
        began = time.monotonic()
        first = arrive(side, lf, lf.barrier(name, parties=3, lease=0.5), 2)
        assert isinstance(first.error(PATIENCE_S), BrokenBarrier)
        assert 0.4 < time.monotonic() - began < 0.5 + AT_ONCE_S
        assert lf.barrier(name, parties=3).is_broken()


def test_who_names_another_number_of_parties_or_another_kind_is_told(
    side: Side, lf: Lockfast, other: Lockfast, name: str
) -> None:
    barrier = lf.barrier(name, parties=2)
    first = arrive(side, lf, barrier)
    theirs = other.barrier(name, parties=3)
    for call in (theirs.wait, theirs.n_waiting, theirs.abort, other.latch(name, count=2).count_down):
        with pytest.raises(Refused, match="a barrier of 2 parties") as caught:
            call()
        assert caught.value.code == "KIND"
    with pytest.raises(Refused, match="a barrier of 2 parties"):
        other.lock(name).acquire(wait=0)
    assert barrier.wait() == 1
    assert first.result(AT_ONCE_S) == 0
    with pytest.raises(NotAcquired):  # an empty one takes the number of its next user
        theirs.wait(wait=0)
    other.barrier(name, parties=1).reset()
    assert other.barrier(name, parties=1).wait() == 0
    with lf.lock(name, "lock"), pytest.raises(Refused, match="a lock"):
        other.barrier(name, "lock", parties=2).wait(wait=0)


def test_arguments_that_cannot_work_are_refused(lf: Lockfast, name: str) -> None:
    for parties, error in ((0, ValueError), (10_001, ValueError), ("2", TypeError)):
        with pytest.raises(error, match="parties"):
            lf.barrier(name, parties=parties)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="lease"):
        lf.barrier(name, parties=2, lease=0.01)
    with pytest.raises(ValueError, match="wait"):
        lf.barrier(name, parties=2).wait(wait=-1)


def test_tools_show_who_waits_and_that_it_is_broken(side: Side, lf: Lockfast, name: str) -> None:
    barrier = lf.barrier(name, parties=2)
    first = arrive(side, lf, barrier)
    seen = lf.inspect(name)
    assert (seen.kind, seen.limit, seen.standing, len(seen.waiters), seen.holders) == ("barrier", 2, "whole", 1, ())
    barrier.abort()
    assert is_broken(first)
    assert describe(name, lf.inspect(name)).startswith(f"{name}: broken, 0 waiting\n")
    assert lf.names() == []


def test_keys_expire_and_passing_leaves_little(side: Side, lf: Lockfast, server: Server, name: str) -> None:
    barrier = lf.barrier(name, parties=2)
    first = arrive(side, lf, barrier)
    assert len(server.command("KEYS", "*")) == 4
    barrier.wait()
    first.result(AT_ONCE_S)
    keys = server.command("KEYS", "*")
    assert len(keys) == 3, "what stands, and how the tickets of the last minute ended"
    two_days_ms = 2 * 86_400_000 + 60_000
    assert all(0 < server.command("PTTL", key) <= two_days_ms for key in keys)


def test_close_breaks_it_for_the_others(side: Side, server: Server, other: Lockfast, name: str) -> None:
    lf = side.client(server.url)
    mine = arrive(side, other, lf.barrier(name, parties=3))
    theirs = arrive(side, other, other.barrier(name, parties=3), 2)
    lf.close()
    assert isinstance(mine.error(PATIENCE_S), Misused)
    assert is_broken(theirs)
    with pytest.raises(Misused):
        lf.barrier(name, parties=3).wait()


def test_cancelled_party_breaks_it_for_the_others(aside: AsyncioSide, valkey_server: Server, name: str) -> None:
    async def run() -> tuple[int, bool]:
        async with AsyncioLockfast(valkey_server.url) as lf:
            barrier = lf.barrier(name, parties=3)
            parties = [asyncio.create_task(barrier.wait()) for _ in range(2)]
            while await barrier.n_waiting() < 2:
                await asyncio.sleep(0.005)
            parties[0].cancel()
            with pytest.raises(asyncio.CancelledError):
                await parties[0]
            with pytest.raises(BrokenBarrier):
                async with asyncio.timeout(AT_ONCE_S):
                    await parties[1]
            return await barrier.n_waiting(), await barrier.is_broken()

    assert aside.run(run()) == (0, True)
