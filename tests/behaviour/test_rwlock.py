"""Read/write locks: many readers or one writer, in order, and from writer to reader with nobody in between."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

from behaviour.queueing import PATIENCE_S, queued, wait_over, wait_queued, waiting
from behaviour.test_semaphore import AT_ONCE_S, wait_listening
from kit.servers import wait_until
from kit.sides import AsyncioSide
from lockfast import LeaseLost, Misused, NotAcquired, NotHeld, Refused, Unreachable
from lockfast import Lockfast as SyncLockfast
from lockfast.aio import Lockfast as AsyncioLockfast
from lockfast.flows import asks
from lua.scripts import Scripts

if TYPE_CHECKING:
    from kit.proxy import Proxy
    from kit.servers import Server
    from kit.sides import Side
    from lockfast.sync import Lock, Lockfast, RWLock


class Sides:
    """The two sides of a read/write lock, through the blocking API also where asyncio is below."""

    def __init__(self, side: Side, name: str) -> None:
        self._side = side
        self._name = name

    def _wrap(self, lock: Any) -> Any:
        return self._side.wrap(lock) if isinstance(self._side, AsyncioSide) else lock

    def read(self, lf: Lockfast, **options: Any) -> Lock:
        lock: Lock = self._wrap(lf.rwlock(self._name, **options).read())
        return lock

    def write(self, lf: Lockfast, **options: Any) -> Lock:
        lock: Lock = self._wrap(lf.rwlock(self._name, **options).write())
        return lock


@pytest.fixture
def rw(side: Side, name: str) -> Sides:
    return Sides(side, name)


def held(lf: Lockfast, name: str) -> dict[str, str]:
    """The tickets that hold, and how."""
    return {holder.ticket: "write" if holder.weight == asks.READERS else "read" for holder in lf.inspect(name).holders}


def test_many_read_at_once(side: Side, server: Server, lf: Lockfast, other: Lockfast, rw: Sides, name: str) -> None:
    stranger = side.client(server.url)
    grants = [rw.read(client).acquire(wait=0) for client in (lf, other, lf)]
    assert list(held(lf, name).values()) == ["read"] * 3
    assert len({grant.fence for grant in grants}) == 3
    for grant in grants:
        assert rw.write(stranger).try_acquire() is None
        grant.release()
    with rw.write(stranger, wait=0):
        assert list(held(lf, name).values()) == ["write"]


def test_one_writes_and_nobody_else_is_in(lf: Lockfast, other: Lockfast, rw: Sides, name: str) -> None:
    with rw.write(lf) as grant:
        assert grant.held
        assert rw.write(other).try_acquire() is None
        assert rw.read(other).try_acquire() is None
        with pytest.raises(NotAcquired, match=name):
            rw.read(other).acquire(wait=0.05)
        assert queued(lf, name) == []
    with rw.read(other, wait=0):
        pass


def test_fences_of_writers_grow(lf: Lockfast, other: Lockfast, rw: Sides) -> None:
    fences = []
    for client in (lf, other, lf):
        with rw.write(client) as grant:
            fences.append(grant.fence)
        with rw.read(client):
            pass
    assert fences == sorted(set(fences))


def test_reader_behind_a_waiting_writer_waits(side: Side, lf: Lockfast, other: Lockfast, rw: Sides, name: str) -> None:
    first = rw.read(lf).acquire()
    writer = waiting(side, lf, rw.write(other), name)
    assert rw.read(lf).try_acquire() is None
    reader = waiting(side, lf, rw.read(other), name, 2)
    first.release()
    written = writer.result()
    assert not reader.done
    assert list(held(lf, name).values()) == ["write"]
    written.release()
    reader.result().release()


def test_readers_that_follow_each_other_are_let_in_together(
    side: Side, lf: Lockfast, other: Lockfast, rw: Sides, name: str
) -> None:
    first = rw.write(lf).acquire()
    readers = [waiting(side, lf, rw.read(other), name, number) for number in (1, 2, 3)]
    writer = waiting(side, lf, rw.write(other), name, 4)
    late = waiting(side, lf, rw.read(other), name, 5)
    first.release()
    grants = [reader.result() for reader in readers]
    assert list(held(lf, name).values()) == ["read"] * 3
    assert len(queued(lf, name)) == 2
    for grant in grants:
        assert not writer.done
        grant.release()
    written = writer.result()
    assert not late.done
    written.release()
    late.result().release()


@pytest.mark.slow
def test_storm_of_readers_does_not_keep_a_writer_out(
    side: Side, lf: Lockfast, other: Lockfast, rw: Sides, name: str
) -> None:
    """There is never a moment without a reader, and the writer is in after at most the readers that came before it."""
    over = threading.Event()
    reads: list[float] = []

    def storm(client: Lockfast) -> None:
        lock = rw.read(client, wait=PATIENCE_S)
        while not over.is_set():
            with lock:
                reads.append(time.monotonic())
                over.wait(0.005)

    readers = [side.spawn(storm, client) for client in (lf, other) * 3]
    try:
        wait_until(lambda: len(reads) > 20, what="the storm")
        for _ in range(3):
            asked = time.monotonic()
            with rw.write(lf, wait=PATIENCE_S):
                assert time.monotonic() - asked < 1.0
                assert list(held(other, name).values()) == ["write"]
        after = len(reads)
        wait_until(lambda: len(reads) > after + 10, what="readers served after the writers")
    finally:
        over.set()
    for reader in readers:
        reader.result()


@pytest.mark.slow
def test_stream_of_writers_does_not_keep_a_reader_out(side: Side, lf: Lockfast, other: Lockfast, rw: Sides) -> None:
    over = threading.Event()
    writes: list[int] = []

    def stream(client: Lockfast) -> None:
        lock = rw.write(client, wait=PATIENCE_S)
        while not over.is_set():
            with lock as grant:
                writes.append(grant.fence)

    writers = [side.spawn(stream, client) for client in (lf, other) * 2]
    try:
        for turn in range(1, 4):
            wait_until(lambda turn=turn: len(writes) > 5 * turn, what="writers")  # type: ignore[misc]
            before = len(writes)
            with rw.read(lf, wait=PATIENCE_S):
                assert len(writes) - before < 25
    finally:
        over.set()
    for writer in writers:
        writer.result()
    assert writes == sorted(set(writes))


def test_zombie_readers_are_swept_after_their_lease(server: Server, lf: Lockfast, rw: Sides, name: str) -> None:
    with Scripts(server) as scripts:
        named = scripts.name(name, kind="rwlock", limit=asks.READERS)
        for i in range(5):
            named.admit(f"zombie{i}", lease=100 + 20 * i)
    alive = rw.read(lf, lease=20).acquire()
    assert len(held(lf, name)) == 6
    wait_until(lambda: list(held(lf, name)) == [alive.ticket], what="the zombies to be gone", timeout_s=3)
    alive.release()
    start = time.monotonic()
    with Scripts(server) as scripts:
        scripts.name(name, kind="rwlock", limit=asks.READERS).admit("zombie", lease=150)
    with rw.write(lf, wait=PATIENCE_S):
        assert time.monotonic() - start < 1.5
        assert list(held(lf, name).values()) == ["write"]


def test_zombie_writer_is_swept_after_its_lease(server: Server, lf: Lockfast, rw: Sides, name: str) -> None:
    with Scripts(server) as scripts:
        dead = scripts.name(name, kind="rwlock", limit=asks.READERS).admit("dead", weight=asks.READERS, lease=150)
    start = time.monotonic()
    with rw.read(lf, wait=PATIENCE_S) as grant:
        assert time.monotonic() - start < 1.5
        assert grant.fence > dead.fence


@pytest.mark.slow
def test_keeper_renews_readers_and_writers(lf: Lockfast, other: Lockfast, rw: Sides, name: str) -> None:
    for lock in (rw.read(lf, lease=0.2), rw.write(lf, lease=0.2)):
        with lock as grant:
            assert not grant.wait_lost(0.4)
            assert rw.write(other).try_acquire() is None
            assert len(held(lf, name)) == 1


# From writer to reader


def test_downgrade_lets_waiting_readers_in_and_keeps_waiting_writers_out(
    side: Side, server: Server, lf: Lockfast, other: Lockfast, rw: Sides, name: str
) -> None:
    grant = rw.write(lf).acquire()
    fence, ticket = grant.fence, grant.ticket
    readers = [waiting(side, lf, rw.read(other), name, number) for number in (1, 2)]
    writer = waiting(side, lf, rw.write(other), name, 3)
    wait_listening(server)
    start = time.monotonic()
    grant.downgrade()
    let_in = [reader.result() for reader in readers]
    assert time.monotonic() - start < AT_ONCE_S, "not told, but found out"
    assert (grant.held, grant.fence, grant.ticket) == (True, fence, ticket)
    assert held(lf, name) == dict.fromkeys([ticket, *(each.ticket for each in let_in)], "read")
    assert rw.read(lf).try_acquire() is None, "a writer waits"
    for each in let_in:
        each.release()
    assert not writer.done
    grant.release()
    written = writer.result()
    assert written.fence > fence
    written.release()


def test_downgrade_with_a_writer_first_in_the_queue_lets_nobody_in(
    side: Side, lf: Lockfast, other: Lockfast, rw: Sides, name: str
) -> None:
    grant = rw.write(lf).acquire()
    writer = waiting(side, lf, rw.write(other), name)
    reader = waiting(side, lf, rw.read(other), name, 2)
    grant.downgrade()
    grant.check()
    assert held(lf, name) == {grant.ticket: "read"}
    assert (writer.done, reader.done, len(queued(lf, name))) == (False, False, 2)
    grant.release()
    writer.result().release()
    reader.result().release()


def test_downgrade_with_nobody_waiting_lets_newcomers_read(lf: Lockfast, other: Lockfast, rw: Sides, name: str) -> None:
    with rw.write(lf) as grant:
        grant.downgrade()
        with rw.read(other, wait=0):
            assert list(held(lf, name).values()) == ["read", "read"]
        assert rw.write(other).try_acquire() is None
        grant.extend(20)
        assert grant.remaining > 18
    assert not grant.lost
    assert held(lf, name) == {}
    with pytest.raises(NotHeld):
        grant.release()


@pytest.mark.slow
def test_keeper_goes_on_renewing_after_a_downgrade(lf: Lockfast, other: Lockfast, rw: Sides, name: str) -> None:
    grant = rw.write(lf, lease=0.25).acquire()
    grant.downgrade()
    assert not grant.wait_lost(0.6)
    assert held(other, name) == {grant.ticket: "read"}
    grant.release()


def test_downgrade_never_shortens_what_is_sure(lf: Lockfast, rw: Sides) -> None:
    grant = rw.write(lf, lease=2, renew=False).acquire()
    grant.extend(30)
    before = grant.deadline
    grant.downgrade()
    assert grant.deadline >= before
    grant.release()


def test_only_a_writer_can_downgrade(lf: Lockfast, rw: Sides, name: str) -> None:
    locks: list[Any] = [rw.read(lf), lf.lock(name, "lock"), lf.semaphore(name, "semaphore", limit=2, permits=2)]
    for lock in locks:
        with lock as grant:
            with pytest.raises(Misused, match="writer"):
                grant.downgrade()
            grant.check()
    with rw.write(lf) as grant:
        grant.downgrade()
        with pytest.raises(Misused, match="writer"):
            grant.downgrade()
        grant.check()


def test_downgrade_after_the_loss_tells_and_creates_nothing(server: Server, lf: Lockfast, rw: Sides, name: str) -> None:
    grant = rw.write(lf, lease=0.1, renew=False).acquire()
    wait_over(grant)
    with pytest.raises(LeaseLost, match=name):
        grant.downgrade()
    grant = rw.write(lf, renew=False).acquire(wait=PATIENCE_S)
    server.command("FLUSHALL")
    with pytest.raises(LeaseLost):
        grant.downgrade()
    assert grant.lost
    assert server.command("DBSIZE") == 0


def test_downgrade_of_a_hold_that_passed_to_another_leaves_the_other_alone(
    server: Server, lf: Lockfast, other: Lockfast, rw: Sides, name: str
) -> None:
    grant = rw.write(lf, renew=False).acquire()
    server.command("FLUSHALL")
    with rw.write(other) as new:
        with pytest.raises(LeaseLost):
            grant.downgrade()
        assert held(lf, name) == {new.ticket: "write"}


def test_downgrade_after_release_is_not_held(lf: Lockfast, rw: Sides, name: str) -> None:
    grant = rw.write(lf).acquire()
    grant.release()
    with pytest.raises(NotHeld, match=name):
        grant.downgrade()


def test_downgrade_whose_answer_is_lost_is_asked_again(
    side: Side, proxy: Proxy, lf: Lockfast, other: Lockfast, rw: Sides, name: str
) -> None:
    grant = rw.write(side.client(proxy.url)).acquire()
    reader = waiting(side, lf, rw.read(other), name)
    lost = proxy.when(containing=name).drop_reply_and_cut()
    grant.downgrade()
    lost.wait_hit()
    assert list(held(lf, name).values()) == ["read", "read"]
    grant.release()
    reader.result().release()


def test_downgrade_that_was_not_confirmed_can_be_asked_for_again(
    side: Side, proxy: Proxy, lf: Lockfast, rw: Sides, name: str
) -> None:
    grant = rw.write(side.client(proxy.url, timeout=0.3)).acquire()
    lost = proxy.when(containing=name, times=None).drop_reply_and_cut()
    with pytest.raises(Unreachable):
        grant.downgrade()
    lost.cancel()
    assert held(lf, name) == {grant.ticket: "read"}
    grant.downgrade()
    grant.check()
    with pytest.raises(Misused, match="writer"):
        grant.downgrade()
    grant.release()
    assert held(lf, name) == {}


def test_writer_whose_downgrade_was_not_answered_is_a_reader_from_then_on(
    side: Side, proxy: Proxy, other: Lockfast, rw: Sides
) -> None:
    grant = rw.write(side.client(proxy.url, timeout=0.3)).acquire()
    proxy.when("EVALSHA", times=None).drop_reply()
    with pytest.raises(Unreachable):
        grant.downgrade()
    with rw.read(other, wait=0):  # the server has heard it: nobody may count on being the writer
        assert _weight(grant) == asks.READER


def test_downgrade_that_never_arrived_is_told_by_the_next_renewal(
    side: Side, proxy: Proxy, lf: Lockfast, other: Lockfast, rw: Sides, name: str
) -> None:
    grant = rw.write(side.client(proxy.url, timeout=0.3), lease=2).acquire()
    lost = proxy.when("EVALSHA", times=None).swallow_request()
    with pytest.raises(Unreachable):
        grant.downgrade()
    assert held(lf, name) == {grant.ticket: "write"}, "the server has not heard it"
    assert _weight(grant) == asks.READER
    lost.cancel()
    proxy.cut_all()
    with rw.read(other, wait=PATIENCE_S):
        grant.check()
        assert list(held(lf, name).values()) == ["read", "read"]
    grant.release()


def test_downgrade_that_is_cancelled_makes_a_reader(
    aside: AsyncioSide, server: Server, proxy: Proxy, name: str
) -> None:
    async def run() -> None:
        async with AsyncioLockfast(proxy.url) as lf, AsyncioLockfast(server.url) as other:
            grant = await lf.rwlock(name).write().acquire()
            late = proxy.when("EVALSHA", containing=name).delay_reply()
            downgrading = asyncio.create_task(grant.downgrade())
            await asyncio.to_thread(late.wait_hit)
            downgrading.cancel()
            with pytest.raises(asyncio.CancelledError):
                await downgrading
            async with other.rwlock(name, wait=PATIENCE_S).read():
                assert _weight(grant) == asks.READER
                grant.check()
            late.let_go()
            await grant.release()

    aside.run(run())


def _weight(grant: Any) -> int:
    """What a grant of either side counts for."""
    weight: int = getattr(grant, "twin_of", grant)._hold.ask.weight
    return weight


# From reader to writer


def test_reader_that_wants_to_write_is_refused_at_once_in_its_own_thread(server: Server, name: str) -> None:
    with SyncLockfast(server.url) as lf:
        lock = lf.rwlock(name)
        with lock.read() as grant:
            for ask in (lock.write().acquire, lock.write().try_acquire, lf.rwlock(name).write().__enter__):
                with pytest.raises(Misused, match="release the read first"):
                    ask()
            lf.rwlock(name, "part").write().acquire(wait=0).release()
            lf.rwlock("another").write().acquire(wait=0).release()
            assert queued(lf, name) == []
            grant.check()
        with lock.write() as written:
            written.downgrade()
            with pytest.raises(Misused, match="release the read first"):
                lock.write().acquire()
        lock.write().acquire(wait=0).release()


def test_reader_that_wants_to_write_is_refused_at_once_in_its_own_task(
    aside: AsyncioSide, server: Server, name: str
) -> None:
    async def run() -> None:
        async with AsyncioLockfast(server.url) as lf:
            lock = lf.rwlock(name)
            async with lock.read():
                for ask in (lock.write().acquire, lock.write().try_acquire, lf.rwlock(name).write().__aenter__):
                    with pytest.raises(Misused, match="release the read first"):
                        await ask()
                await (await lf.rwlock(name, "part").write().acquire(wait=0)).release()
            async with lock.write() as written:
                await written.downgrade()
                with pytest.raises(Misused, match="release the read first"):
                    await lock.write().acquire()
            await (await lock.write().acquire(wait=0)).release()

    aside.run(run())


def test_another_task_may_wait_to_write_meanwhile(aside: AsyncioSide, server: Server, name: str) -> None:
    async def run() -> None:
        async with AsyncioLockfast(server.url) as lf:
            lock = lf.rwlock(name)
            async with lock.read():
                writing = asyncio.create_task(lock.write().acquire(wait=PATIENCE_S))
                while not (await lf.inspect(name)).waiters:
                    await asyncio.sleep(0.002)
            await (await writing).release()

    aside.run(run())


def test_another_thread_may_wait_to_write_meanwhile(server: Server, name: str) -> None:
    """Also one that has the number of the reader's thread, which has ended: it is another all the same."""
    with SyncLockfast(server.url) as lf:
        outcomes: list[Any] = []

        def write(lock: RWLock) -> None:
            try:
                outcomes.append(lock.write().try_acquire())
            except Misused as error:
                outcomes.append(error)

        for attempt in range(100):  # numbers are given out by the system: mostly the first is used again at once
            lock = lf.rwlock(name, attempt)
            readers: list[Any] = []
            reading = threading.Thread(target=lambda lock=lock, readers=readers: readers.append(lock.read().acquire()))
            reading.start()
            reading.join()
            writing = threading.Thread(target=write, args=(lock,))
            writing.start()
            writing.join()
            readers[0].release()
            if writing.ident == reading.ident and attempt >= 5:
                break
        else:
            pytest.fail("no thread had the number of another")
        assert set(outcomes) == {None}


def test_read_that_was_released_or_lost_stands_in_nobodys_way(server: Server, name: str) -> None:
    with SyncLockfast(server.url) as lf:
        lf.rwlock(name).read().acquire().release()
        lf.rwlock(name).write().acquire(wait=0).release()
        lost = lf.rwlock(name, lease=0.1, renew=False).read().acquire()
        wait_over(lost)
        lf.rwlock(name).write().acquire(wait=PATIENCE_S).release()


# The rest


def test_name_in_use_as_something_else_is_refused_and_nothing_changes(
    lf: Lockfast, other: Lockfast, rw: Sides, name: str
) -> None:
    with lf.lock(name) as grant:
        for lock in (rw.read(other), rw.write(other)):
            with pytest.raises(Refused, match="a lock") as caught:
                lock.acquire()
            assert caught.value.code == "KIND"
        grant.check()
    with rw.read(lf) as grant:
        for lock in (other.lock(name), other.semaphore(name, limit=3), other.semaphore(name, limit=asks.READERS)):
            with pytest.raises(Refused, match="a read/write lock") as caught:
                lock.acquire()
            assert caught.value.code == "KIND"
        with pytest.raises(Refused, match="a read/write lock"):
            other.semaphore(name).resize(2)
        assert held(lf, name) == {grant.ticket: "read"}


def test_read_and_write_as_decorators(lf: Lockfast, other: Lockfast, side: Side, name: str) -> None:
    def work(order: int) -> list[str]:
        return list(held(other, f"{name}-{order}").values())

    sides = Sides(side, name + "-{order}")
    assert sides.read(lf)(work)(7) == ["read"]
    assert sides.write(lf)(work)(7) == ["write"]
    with Sides(side, f"{name}-7").write(other), pytest.raises(NotAcquired):
        sides.read(lf, wait=0)(work)(7)
    assert held(other, f"{name}-7") == {}


def test_waiters_of_both_sorts_share_one_queue(side: Side, lf: Lockfast, other: Lockfast, rw: Sides, name: str) -> None:
    first = rw.write(lf).acquire()
    order: list[int] = []

    def work(number: int) -> None:
        lock = rw.write(other) if number % 3 == 2 else rw.read(other)
        with lock:
            order.append(number // 3 * 2 + number % 3 // 2)  # two readers and the writer behind them are one turn each

    workers = []
    for number in range(9):
        workers.append(side.spawn(work, number))
        wait_queued(lf, name, number + 1)
    first.release()
    for worker in workers:
        worker.result()
    assert order == sorted(order)


@pytest.mark.parametrize("options", [{"lease": 0}, {"wait": -1}, {"renew": 1}])
def test_bad_options_are_refused_at_once(lf: Lockfast, name: str, options: dict[str, Any]) -> None:
    with pytest.raises((TypeError, ValueError), match=next(iter(options))):
        lf.rwlock(name, **options)


def test_lock_shows_itself(lf: Lockfast, rw: Sides, name: str) -> None:
    assert lf.rwlock(name).name == name
    for lock in (lf.rwlock(name), rw.read(lf), rw.write(lf)):
        assert name in repr(lock)
