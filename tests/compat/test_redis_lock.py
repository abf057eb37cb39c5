"""What redis-py documents of its Lock, asked of redis-py's own and of ours: the same tests pass on both."""

from __future__ import annotations

import inspect
import logging
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest
import redis.asyncio.lock
import redis.lock
from redis.exceptions import LockError, LockNotOwnedError

import lockfast.compat
import lockfast.compat.aio

if TYPE_CHECKING:
    from compat.conftest import Locks


def test_acquired_lock_is_locked_and_owned_until_it_is_released(locks: Locks, name: str) -> None:
    lock = locks(name)
    assert lock.locked() is False
    assert lock.acquire(blocking=False) is True
    assert lock.locked() is True
    assert lock.owned() is True
    assert lock.release() is None
    assert lock.locked() is False
    assert lock.owned() is False


def test_random_token_is_bytes_and_goes_with_the_release(locks: Locks, name: str) -> None:
    lock = locks(name)
    assert locks.token(lock) is None
    lock.acquire()
    assert isinstance(locks.token(lock), bytes)
    lock.release()
    assert locks.token(lock) is None


@pytest.mark.parametrize("token", ["Kareem", b"Kareem"])
def test_own_token_is_stored_as_bytes(locks: Locks, name: str, token: str | bytes) -> None:
    lock = locks(name)
    assert lock.acquire(blocking=False, token=token) is True
    assert locks.token(lock) == b"Kareem"
    assert lock.owned() is True
    lock.release()


def test_lock_held_by_another_object_is_locked_and_not_owned(locks: Locks, name: str) -> None:
    first, second = locks(name), locks(name)
    assert first.acquire(blocking=False)
    assert second.acquire(blocking=False) is False
    assert second.locked() is True
    assert second.owned() is False
    first.release()
    assert second.acquire(blocking=False) is True
    second.release()


def test_wrong_token_owns_nothing_and_releases_nothing(locks: Locks, name: str) -> None:
    lock, other = locks(name, thread_local=False), locks(name, thread_local=False)
    lock.acquire()
    locks.set_token(other, b"something else")
    assert other.owned() is False
    with pytest.raises(LockNotOwnedError):
        other.release()
    assert lock.owned() is True
    lock.release()


def test_token_that_is_handed_on_releases_the_lock(locks: Locks, name: str) -> None:
    lock, other = locks(name, thread_local=False), locks(name, thread_local=False)
    lock.acquire(token=b"pass it on")
    locks.set_token(other, locks.token(lock))
    assert other.owned() is True
    other.release()
    assert lock.locked() is False
    with pytest.raises(LockNotOwnedError):
        lock.release()


@pytest.mark.parametrize("timeout", [10, 9.5])
def test_timeout_is_the_life_of_the_lock(locks: Locks, name: str, timeout: float) -> None:
    lock = locks(name, timeout=timeout)
    assert lock.acquire(blocking=False)
    assert timeout - 2 < locks.left_s(name) <= timeout
    lock.release()


@pytest.mark.slow
def test_lock_ends_with_its_timeout(locks: Locks, name: str) -> None:
    lock, other = locks(name, timeout=0.2), locks(name, sleep=0.01)
    assert lock.acquire()
    assert other.acquire(blocking_timeout=5) is True
    assert lock.owned() is False
    assert other.owned() is True
    other.release()


def test_blocking_can_be_set_by_the_lock_and_by_the_call(locks: Locks, name: str) -> None:
    holder = locks(name)
    holder.acquire()
    patient, impatient = locks(name), locks(name, blocking=False)
    assert impatient.acquire() is False
    assert patient.acquire(blocking=False) is False
    assert impatient.acquire(blocking=True, blocking_timeout=0.01) is False
    holder.release()
    assert impatient.acquire() is True
    impatient.release()


@pytest.mark.slow
def test_blocking_timeout_is_how_long_it_waits(locks: Locks, name: str) -> None:
    holder = locks(name)
    holder.acquire()
    for waiter, options in [
        (locks(name, blocking_timeout=0.1, sleep=0.01), {}),
        (locks(name, sleep=0.01), {"blocking_timeout": 0.1}),
    ]:
        started = time.monotonic()
        assert waiter.acquire(**options) is False
        assert 0.05 < time.monotonic() - started < 2
    holder.release()


def test_blocking_timeout_of_nothing_asks_once(locks: Locks, name: str) -> None:
    lock, other = locks(name), locks(name, blocking_timeout=0)
    assert other.acquire() is True
    assert lock.acquire(blocking_timeout=-1) is False
    other.release()


@pytest.mark.slow
def test_waiter_gets_it_when_it_is_released(locks: Locks, name: str) -> None:
    holder, waiter = locks(name), locks(name, sleep=0.02, blocking_timeout=20)
    holder.acquire()
    waiting = locks.side.spawn(waiter.acquire)
    time.sleep(0.05)
    assert not waiting.done
    holder.release()
    assert waiting.result() is True


def test_block_holds_the_lock_and_gives_back_the_lock_object(locks: Locks, name: str) -> None:
    lock = locks(name, blocking=False)
    with lock as entered:
        assert entered is lock
        assert lock.locked() is True
        assert lock.owned() or locks.side.name == "asyncio"  # there the block is a task, and this is another
    assert lock.locked() is False


def test_block_on_a_busy_lock_raises_lock_error(locks: Locks, name: str) -> None:
    holder = locks(name)
    holder.acquire()
    words = "Unable to acquire lock within the time specified"
    with pytest.raises(LockError, match=words) as raised, locks(name, blocking_timeout=0.01, sleep=0.005):
        pytest.fail("the body ran without the lock")
    assert not isinstance(raised.value, LockNotOwnedError)
    holder.release()


def test_errors_of_a_body_come_out_and_the_lock_is_released(locks: Locks, name: str) -> None:
    lock = locks(name)
    with pytest.raises(ZeroDivisionError), lock:
        raise ZeroDivisionError
    assert lock.locked() is False


def test_block_whose_lock_was_lost_raises(locks: Locks, name: str) -> None:
    with pytest.raises(LockNotOwnedError), locks(name, timeout=10):
        locks.steal(name)


def test_block_whose_lock_was_lost_only_logs_when_told_so(
    locks: Locks, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING), locks(name, timeout=10, raise_on_release_error=False):
        locks.steal(name)
    assert "no longer owned" in caplog.text


def test_release_of_an_unlocked_lock_raises_lock_error(locks: Locks, name: str) -> None:
    lock = locks(name)
    with pytest.raises(LockError) as raised:
        lock.release()
    assert type(raised.value) is LockError
    lock.acquire()
    lock.release()
    with pytest.raises(LockError) as raised:
        lock.release()
    assert type(raised.value) is LockError


def test_release_of_a_lock_that_is_gone_raises_and_forgets_the_token(locks: Locks, name: str) -> None:
    lock = locks(name, timeout=10)
    lock.acquire()
    locks.steal(name)
    assert lock.owned() is False
    with pytest.raises(LockNotOwnedError, match="Cannot release a lock that's no longer owned"):
        lock.release()
    assert locks.token(lock) is None


def test_release_of_a_lock_that_another_has_leaves_that_one_alone(locks: Locks, name: str) -> None:
    lock, other = locks(name), locks(name)
    lock.acquire()
    locks.steal(name)
    other.acquire()
    with pytest.raises(LockNotOwnedError):
        lock.release()
    assert other.owned() is True
    other.release()


def test_extend_adds_to_what_is_left(locks: Locks, name: str) -> None:
    lock = locks(name, timeout=10)
    lock.acquire()
    assert lock.extend(10) is True
    assert 16 < locks.left_s(name) <= 20
    assert lock.extend(0.5) is True
    assert 16 < locks.left_s(name) <= 20.5
    lock.release()


def test_extend_replaces_what_is_left(locks: Locks, name: str) -> None:
    lock = locks(name, timeout=10)
    lock.acquire()
    assert lock.extend(15, replace_ttl=True) is True
    assert 13 < locks.left_s(name) <= 15
    lock.release()


@pytest.mark.slow
def test_reacquire_sets_the_timeout_anew(locks: Locks, name: str) -> None:
    lock = locks(name, timeout=2)
    lock.acquire()
    time.sleep(0.25)
    assert lock.reacquire() is True
    assert locks.left_s(name) > 1.8
    lock.release()


@pytest.mark.parametrize("verb", ["extend", "reacquire"])
def test_extending_what_is_not_held_raises_lock_error(locks: Locks, name: str, verb: str) -> None:
    lock = locks(name, timeout=10)
    with pytest.raises(LockError, match=f"Cannot {verb} an unlocked lock") as raised:
        prolong(lock, verb)
    assert type(raised.value) is LockError


@pytest.mark.parametrize("verb", ["extend", "reacquire"])
def test_extending_what_has_no_timeout_raises_lock_error(locks: Locks, name: str, verb: str) -> None:
    lock = locks(name)
    lock.acquire()
    with pytest.raises(LockError, match=f"Cannot {verb} a lock with no timeout") as raised:
        prolong(lock, verb)
    assert type(raised.value) is LockError
    lock.release()


@pytest.mark.parametrize("verb", ["extend", "reacquire"])
def test_extending_what_is_gone_raises_and_does_not_revive_it(locks: Locks, name: str, verb: str) -> None:
    lock = locks(name, timeout=10)
    lock.acquire()
    locks.steal(name)
    with pytest.raises(LockNotOwnedError, match=f"Cannot {verb} a lock that's no longer owned"):
        prolong(lock, verb)
    assert lock.locked() is False


def prolong(lock: Any, verb: str) -> None:
    if verb == "extend":
        lock.extend(10)
    else:
        lock.reacquire()


@pytest.mark.parametrize("side", ["threads"], indirect=True)  # tests of tasks are in test_differences.py
@pytest.mark.parametrize("thread_local", [True, False])
def test_token_is_seen_by_other_threads_only_if_it_is_not_thread_local(
    locks: Locks, name: str, thread_local: bool
) -> None:
    lock = locks(name, thread_local=thread_local)
    lock.acquire()
    seen: list[object] = []
    thread = threading.Thread(target=lambda: seen.append(getattr(lock.local, "token", None)))
    thread.start()
    thread.join()
    assert seen == [None if thread_local else lock.local.token]
    lock.release()


def test_waiting_thread_does_not_touch_the_token_of_the_holder(locks: Locks, name: str) -> None:
    lock = locks(name, timeout=10, thread_local=True)
    lock.acquire()
    before = locks.token(lock)
    assert locks.side.spawn(lock.acquire, blocking=False).result() is False
    assert locks.token(lock) == before
    lock.release()


def test_errors_carry_the_name_of_the_lock(locks: Locks, name: str) -> None:
    with pytest.raises(LockError) as raised:
        locks(name).release()
    if locks.is_ours or locks.side.name == "threads":  # redis-py for asyncio does not tell
        assert raised.value.lock_name == name


def test_settings_are_attributes(locks: Locks, name: str) -> None:
    lock = locks(name, timeout=3, sleep=0.2, blocking=False, blocking_timeout=5, thread_local=False)
    assert (lock.name, lock.timeout, lock.sleep, lock.blocking) == (name, 3, 0.2, False)
    assert (lock.blocking_timeout, lock.thread_local, lock.raise_on_release_error) == (5, False, True)
    assert getattr(lock, "twin_of", lock).redis is locks.client


@pytest.mark.parametrize(
    ("mine", "theirs"),
    [(lockfast.compat.Lock, redis.lock.Lock), (lockfast.compat.aio.Lock, redis.asyncio.lock.Lock)],
    ids=["threads", "asyncio"],
)
def test_signatures_are_those_of_redis_py(mine: Any, theirs: Any) -> None:
    internal = {"do_acquire", "do_release", "do_extend", "do_reacquire", "register_scripts"}
    methods = [
        member
        for member, value in vars(theirs).items()
        if inspect.isfunction(value) and member not in internal and not member.endswith("exit__")
    ]
    assert len(methods) >= 8
    for member in methods:
        here, there = inspect.signature(getattr(mine, member)), inspect.signature(getattr(theirs, member))
        assert list(here.parameters) == list(there.parameters), member
        assert [p.default for p in here.parameters.values()] == [p.default for p in there.parameters.values()], member
        assert [p.kind for p in here.parameters.values()] == [p.kind for p in there.parameters.values()], member


@pytest.mark.parametrize("side", ["threads"], indirect=True)
def test_redis_clients_make_it_when_they_are_told_the_class(locks: Locks, name: str) -> None:
    kind = lockfast.compat.Lock if locks.is_ours else redis.lock.Lock
    with locks.client.lock(name, timeout=10, lock_class=kind) as lock:
        assert type(lock) is kind
        assert lock.owned()
