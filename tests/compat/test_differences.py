"""Where the drop-in differs from redis-py's Lock on purpose. docs/primitives/migrating.md lists the same."""

from __future__ import annotations

import asyncio
import gc
import pickle
import threading
import time
import weakref
from typing import TYPE_CHECKING

import pytest
import redis
import redis.asyncio
import valkey
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import LockError, LockNotOwnedError, ReadOnlyError

import lockfast.compat
import lockfast.compat.aio
from behaviour.test_fork import in_child
from kit.leaks import no_leaks
from kit.servers import wait_until
from kit.sides import AsyncioSide
from lockfast import Lockfast
from lockfast.compat import clients
from lockfast.compat.shape import Token

if TYPE_CHECKING:
    from compat.conftest import Locks
    from kit.proxy import Proxy
    from kit.servers import Server


def test_its_keys_are_lockfasts_and_not_those_of_redis_py(ours: Locks, name: str) -> None:
    """So all processes must switch at once; and they contend with every Lockfast lock of that name."""
    with ours(name), Lockfast(ours.server.url) as lf:
        assert ours.server.command("EXISTS", name) == 0
        assert lf.lock(name).try_acquire() is None


@pytest.mark.parametrize("timeout", [0, -1, 0.01, float("inf"), 1e9])
def test_timeouts_that_cannot_work_are_refused(ours: Locks, name: str, timeout: float) -> None:
    """redis-py takes 0 for "never ends", and leaves the rest to the server."""
    with pytest.raises(ValueError, match="timeout must"):
        ours(name, timeout=timeout)


def test_names_that_cannot_work_are_refused(ours: Locks) -> None:
    for wrong in ("", b"\xff"):
        with pytest.raises(ValueError):
            ours(wrong).acquire(blocking=False)  # type: ignore[arg-type]
    lock = ours(b"caf\xc3\xa9")  # type: ignore[arg-type]
    assert lock.acquire(blocking=False)
    assert ours("caf\u00e9").acquire(blocking=False) is False
    lock.release()


@pytest.mark.slow
def test_lock_without_a_timeout_is_renewed_and_ends_with_its_process(ours: Locks, name: str) -> None:
    """In redis-py it is held by nobody for ever when its process dies."""
    lock = ours(name)
    lock.acquire()
    assert 25 < ours.left_s(name) <= 30
    assert lock.grant.fence > 0
    lock.grant.check()
    lock.release()
    assert lock.grant is None


@pytest.mark.slow
def test_lock_without_a_timeout_that_was_dropped_is_given_back(ours: Locks, name: str) -> None:
    lock = ours(name)
    lock.acquire()
    del lock
    gc.collect()
    wait_until(lambda: ours.left_s(name) == 0, what="given back")


@pytest.mark.slow
def test_lock_with_a_timeout_is_kept_to_its_end_when_it_was_dropped(ours: Locks, name: str) -> None:
    """As in redis-py, where "at most once a minute" is written so. A dropped grant of Lockfast's is given back."""
    ours(name, timeout=6).acquire(blocking=False)
    gc.collect()
    renewed = ours(f"{name}-renewed")
    renewed.acquire()  # now the keeper looks at everything once a second
    time.sleep(1.2)
    assert ours(name).acquire(blocking=False) is False
    renewed.release()


def test_extend_and_reacquire_never_shorten(ours: Locks, name: str) -> None:
    lock = ours(name, timeout=10)
    lock.acquire()
    lock.extend(20, replace_ttl=True)
    lock.extend(5, replace_ttl=True)
    lock.reacquire()
    assert ours.left_s(name) > 18
    with pytest.raises(ValueError, match="must not be negative"):
        lock.extend(-5)
    lock.release()


def test_extends_at_the_same_time_all_count(ours: Locks, name: str) -> None:
    lock = ours(name, timeout=10, thread_local=False)
    lock.acquire()
    for extending in [ours.side.spawn(lock.extend, 10) for _ in range(5)]:
        extending.result()
    assert ours.left_s(name) > 55
    lock.release()


@pytest.mark.slow
def test_blocking_timeout_is_kept_whatever_sleep_says(ours: Locks, name: str) -> None:
    """redis-py gives up before a sleep that would be too long: at once here, though the lock is free in 60 ms."""
    holder, waiter = ours(name), ours(name, sleep=100, blocking_timeout=10)
    holder.acquire()
    waiting = ours.side.spawn(waiter.acquire)
    time.sleep(0.06)
    holder.release()
    assert waiting.result() is True


def test_lost_reply_of_an_acquire_leaves_no_orphan(proxied: tuple[Locks, Proxy], name: str) -> None:
    """redis-py's retry meets its own token, answers False, and the key stays: without a timeout for ever."""
    locks, proxy = proxied
    locks("warm-up").acquire()
    lost = proxy.when("EVALSHA", containing=name).drop_reply_and_cut()
    lock = locks(name)
    assert lock.acquire(blocking=False) is True
    assert lost.hits == 1
    assert lock.owned()
    lock.release()
    assert locks.left_s(name) == 0


def test_lost_reply_of_a_release_is_no_loss(proxied: tuple[Locks, Proxy], name: str) -> None:
    """redis-py sends it again and says "no longer owned"."""
    locks, proxy = proxied
    lock = locks(name)
    lock.acquire()
    lost = proxy.when("EVALSHA", containing=name).drop_reply_and_cut()
    lock.release()
    assert lost.hits == 1
    assert locks.left_s(name) == 0


@pytest.mark.slow
def test_release_that_was_not_confirmed_can_be_called_again(proxied: tuple[Locks, Proxy], name: str) -> None:
    """redis-py (threads, before its #4258) has thrown the token away by then."""
    locks, proxy = proxied
    lock = locks(name, timeout=20)
    lock.acquire()
    proxy.refuse()
    proxy.cut_all()
    with pytest.raises(RedisConnectionError):
        lock.release()
    assert locks.token(lock) is not None
    proxy.heal()
    proxy.accept()
    lock.release()
    assert locks.left_s(name) == 0


@pytest.mark.slow
def test_block_whose_release_was_not_confirmed_does_not_raise(proxied: tuple[Locks, Proxy], name: str) -> None:
    """The body was alone to its end; who gets an error does it again. The release is tried on behind the scenes."""
    locks, proxy = proxied
    lock = locks(name)
    with lock:
        proxy.refuse()
        proxy.cut_all()
    proxy.heal()
    proxy.accept()
    wait_until(lambda: locks.left_s(name) == 0, what="released after all")


def test_error_of_the_body_comes_before_the_loss(ours: Locks, name: str) -> None:
    """redis-py replaces it by LockNotOwnedError."""
    with pytest.raises(ZeroDivisionError) as raised, ours(name, timeout=10):
        ours.steal(name)
        raise ZeroDivisionError
    assert "no longer owned" in raised.value.__notes__[0]


def test_server_that_does_not_answer_is_a_connection_error_of_redis_py(proxied: tuple[Locks, Proxy], name: str) -> None:
    locks, proxy = proxied
    proxy.refuse()
    lock = locks(name, blocking_timeout=0.1)
    for call in (lock.acquire, lock.locked):
        with pytest.raises(RedisConnectionError):
            call()
    proxy.accept()


def test_server_that_refuses_is_the_error_that_redis_py_has_for_it(ours: Locks, name: str) -> None:
    ours.server.command("REPLICAOF", "127.0.0.1", "1")
    try:
        with pytest.raises(ReadOnlyError):
            ours(name).acquire(blocking=False)
    finally:
        ours.server.command("REPLICAOF", "NO", "ONE")


def test_clients_of_valkey_py_get_its_exceptions(valkey_server: Server, name: str) -> None:
    client = valkey.Valkey.from_url(valkey_server.url)
    lock = lockfast.compat.Lock(client, name)
    with pytest.raises(valkey.exceptions.LockError):
        lock.release()
    with lock:
        assert lock.owned()
    lockfast.compat.close(client)
    client.connection_pool.disconnect()


def test_thread_that_holds_nothing_is_told_so(valkey_server: Server, name: str) -> None:
    """redis-py raises a bare AttributeError there, and frees the lock of another if told thread_local=False."""
    with redis.Redis.from_url(valkey_server.url) as client:
        lock = lockfast.compat.Lock(client, name)
        lock.acquire()
        raised: list[type] = []

        def release() -> None:
            try:
                lock.release()
            except LockError as error:
                raised.append(type(error))

        thread = threading.Thread(target=release)
        thread.start()
        thread.join()
        assert raised == [LockError]
        lock.release()
        lockfast.compat.close(client)


def test_tasks_that_share_a_lock_do_not_release_each_others_hold(valkey_server: Server, name: str) -> None:
    """In redis-py the token is the thread's, and so that of all tasks: a late release frees the lock of another."""

    async def work() -> None:
        async with redis.asyncio.Redis.from_url(valkey_server.url) as client:
            lock = lockfast.compat.aio.Lock(client, name, timeout=0.1)
            late, holds = asyncio.Event(), asyncio.Event()

            async def slow() -> None:
                await lock.acquire()
                await holds.wait()
                with pytest.raises(LockNotOwnedError):
                    await lock.release()
                late.set()

            async def next_one() -> None:
                await lock.acquire()  # after 0.1 s
                holds.set()
                await late.wait()
                assert await lock.owned()
                await lock.release()

            first = asyncio.create_task(slow())
            await asyncio.sleep(0.02)
            await asyncio.gather(first, next_one())

    asyncio.run(work())


def test_task_that_holds_nothing_is_told_so(valkey_server: Server, name: str) -> None:
    async def work() -> None:
        async with redis.asyncio.Redis.from_url(valkey_server.url) as client:
            lock = lockfast.compat.aio.Lock(client, name)
            await lock.acquire()
            with pytest.raises(LockError):
                await asyncio.create_task(lock.release())
            await lock.release()
            shared = lockfast.compat.aio.Lock(client, name, thread_local=False)
            await shared.acquire()
            await asyncio.create_task(shared.release())

    asyncio.run(work())


def test_acquire_in_a_task_of_its_own_is_released_by_whoever_started_it(valkey_server: Server, name: str) -> None:
    """`asyncio.wait_for` runs it so before Python 3.12."""

    async def work() -> None:
        async with redis.asyncio.Redis.from_url(valkey_server.url) as client:
            lock = lockfast.compat.aio.Lock(client, name)
            for _ in range(3):
                assert await asyncio.create_task(lock.acquire())
                assert await lock.owned()
                await lock.release()
            assert await asyncio.wait_for(lock.acquire(), 5)
            await lock.release()

    asyncio.run(work())


def test_tokens_of_tasks_that_ended_do_not_pile_up(valkey_server: Server, name: str) -> None:
    async def work() -> None:
        async with redis.asyncio.Redis.from_url(valkey_server.url) as client:
            lock = lockfast.compat.aio.Lock(client, name)

            await lock.acquire()
            grant = lock.grant

            async def hold(token: Token) -> None:
                lock.local.token = token

            for _ in range(3 * lockfast.compat.aio.MAX_LEFT):
                await asyncio.create_task(hold(Token(b"held", grant, None)))
            assert len(lock.local._entries) <= lockfast.compat.aio.MAX_LEFT + 2

    asyncio.run(work())


def test_bare_bytes_of_a_token_are_no_proof(ours: Locks, name: str) -> None:
    """So a lock is not handed to another process by its token; redis-py stores it in the key."""
    lock, other = ours(name, thread_local=False), ours(name, thread_local=False)
    lock.acquire()
    ours.set_token(other, pickle.loads(pickle.dumps(ours.token(lock))))
    assert other.owned() is False
    with pytest.raises(LockNotOwnedError):
        other.release()
    lock.release()


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork.*:DeprecationWarning")
def test_forked_child_extends_what_it_acquired_itself(valkey_server: Server, name: str) -> None:
    """Also by an object that a thread of the parent was extending its own hold with when the process was forked."""
    with redis.Redis.from_url(valkey_server.url) as client:
        lock = lockfast.compat.Lock(client, name, timeout=20)
        lock.acquire()
        lock.local.token.extending.acquire()  # as if another thread were in the middle of it

        def child() -> None:
            with Lockfast(valkey_server.url) as spy:
                spy.break_lock(name, reason="a test")
            lock.acquire()
            lock.extend(10)
            lock.release()

        in_child(child)
        lockfast.compat.close(client)


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork.*:DeprecationWarning")
def test_forked_child_does_not_release_the_lock_of_its_parent(valkey_server: Server, name: str) -> None:
    with redis.Redis.from_url(valkey_server.url) as client:
        lock = lockfast.compat.Lock(client, name, timeout=20)
        lock.acquire()
        lock.local.token.extending.acquire()  # as if another thread were in the middle of it
        clients._mutex.acquire()

        def child() -> None:
            assert not lock.owned()
            with pytest.raises(LockNotOwnedError):
                lock.extend(10)
            with pytest.raises(LockNotOwnedError):
                lock.release()
            assert lock.acquire(blocking=False) is False

        in_child(child)
        clients._mutex.release()
        lock.local.token.extending.release()
        assert lock.owned()
        lock.release()
        lockfast.compat.close(client)


def test_locks_of_one_redis_client_share_one_lockfast_client(ours: Locks, name: str) -> None:
    before = ours.server.connections()
    made = [ours(f"{name}-{i}") for i in range(20)]
    for lock in made:
        lock.acquire()
    assert ours.server.connections() <= before + 2
    for lock in made:
        lock.release()


def test_closed_client_is_made_anew_when_it_is_needed(ours: Locks, name: str) -> None:
    lock = ours(name)
    lock.acquire()
    close(ours)
    assert ours.left_s(name) == 0
    assert lock.acquire(blocking=False) is True
    lock.release()


def test_closing_leaves_locks_with_a_timeout_to_their_end(ours: Locks, name: str) -> None:
    lock = ours(name, timeout=20)
    lock.acquire()
    close(ours)
    assert ours.left_s(name) > 15
    lock.release()  # by a client that is made anew
    assert ours.left_s(name) == 0


def close(locks: Locks) -> None:
    if isinstance(locks.side, AsyncioSide):
        locks.side.run(lockfast.compat.aio.aclose(locks.client))
    else:
        lockfast.compat.close(locks.client)


@pytest.mark.slow
def test_nothing_is_left_when_the_redis_client_is_garbage(valkey_server: Server, name: str) -> None:
    with no_leaks():
        client = redis.Redis.from_url(valkey_server.url)
        lock = lockfast.compat.Lock(client, name)
        lock.acquire()
        seen = weakref.ref(clients.of(client))
        del client, lock
        gc.collect()
        wait_until(lambda: gc.collect() >= 0 and seen() is None, what="gone")


@pytest.mark.slow
@pytest.mark.parametrize("side", ["asyncio"], indirect=True)
def test_nothing_is_left_when_the_redis_client_of_a_loop_is_garbage(side: AsyncioSide, valkey_server: Server) -> None:
    clients_before = valkey_server.connections()

    async def work() -> None:
        client = redis.asyncio.Redis.from_url(valkey_server.url)
        async with lockfast.compat.aio.Lock(client, "garbage"):
            pass

    side.run(work())
    wait_until(lambda: gc.collect() >= 0 and valkey_server.connections() == clients_before, what="closed")


@pytest.mark.parametrize("is_closed_first", [False, True])
def test_client_that_is_dropped_as_its_loop_ends_is_closed(
    valkey_server: Server, name: str, is_closed_first: bool
) -> None:
    before = valkey_server.connections()

    async def work() -> None:
        client = redis.asyncio.Redis.from_url(valkey_server.url)
        assert await lockfast.compat.aio.Lock(client, name).acquire(blocking_timeout=5)
        if is_closed_first:
            await lockfast.compat.aio.aclose(client)

    for turns in range(4):

        async def drop(turns: int = turns) -> None:
            await work()
            for _ in range(turns):
                await asyncio.sleep(0)

        asyncio.run(drop())
        gc.collect()
    wait_until(lambda: valkey_server.connections() == before, what="closed")


def test_client_is_closed_with_its_loop(valkey_server: Server, name: str) -> None:
    client = redis.asyncio.Redis.from_url(valkey_server.url)
    lock = lockfast.compat.aio.Lock(client, name)
    before = valkey_server.connections()

    async def hold() -> None:
        assert await lock.acquire(blocking_timeout=5)

    for _ in range(2):  # each loop has a client of its own, and gives back what it held
        asyncio.run(hold())
        wait_until(lambda: valkey_server.connections() == before, what="closed")
    with Lockfast(valkey_server.url) as lf:
        assert not lf.inspect(name).holders


def test_lock_with_a_timeout_is_released_and_extended_after_the_client_was_closed(ours: Locks, name: str) -> None:
    """It outlives the connections that it was acquired over, as with redis-py."""
    lock = ours(name, timeout=20, thread_local=False)
    lock.acquire()
    close(ours)
    lock.extend(20)
    assert ours.left_s(name) > 30
    close(ours)
    lock.release()
    assert not lock.locked()
    with ours(name, timeout=20, thread_local=False):
        close(ours)
    assert not lock.locked()


def test_lock_with_a_timeout_is_released_in_a_later_loop(valkey_server: Server, name: str) -> None:
    client = redis.asyncio.Redis.from_url(valkey_server.url)
    lock = lockfast.compat.aio.Lock(client, name, timeout=20, thread_local=False)

    async def release() -> None:
        await lock.release()
        assert not await lock.locked()
        await client.aclose()

    asyncio.run(lock.acquire())
    asyncio.run(release())
