"""What the objects with the shapes of `threading` add to CPython's own tests: processes, losses, outages."""

from __future__ import annotations

import gc
import inspect
import subprocess
import sys
import threading
from typing import TYPE_CHECKING, Any

import pytest

from kit.servers import wait_until
from lockfast import LeaseLost, Lockfast, Refused, Unreachable
from lockfast.compat import threads

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from kit.proxy import ProxyFor
    from kit.servers import Server


@pytest.fixture
def lf(valkey_server: Server) -> Iterator[Lockfast]:
    with Lockfast(valkey_server.url) as made:
        yield made


@pytest.fixture
def other(valkey_server: Server) -> Iterator[Lockfast]:
    with Lockfast(valkey_server.url) as made:
        yield made


def in_thread(call: Callable[[], object]) -> Any:
    """What a call gives, or raises, in another thread."""
    results: list[Any] = []

    def run() -> None:
        try:
            results.append(call())
        except Exception as error:
            results.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    return results[0]


@pytest.mark.parametrize("kind", [threads.Lock, threads.RLock])
def test_lock_of_another_client_is_locked_and_not_ours(lf: Lockfast, other: Lockfast, name: str, kind: Any) -> None:
    mine, theirs = kind(lf, name), kind(other, name)
    with theirs:
        assert mine.locked()
        assert mine.acquire(blocking=False) is False
        assert mine.acquire(timeout=0.01) is False
        with pytest.raises(RuntimeError):
            mine.release()
    assert not mine.locked()


def test_two_rlock_objects_of_one_name_are_one_lock_to_their_thread(lf: Lockfast, name: str) -> None:
    with threads.RLock(lf, name), threads.RLock(lf, name):
        assert in_thread(lambda: threads.RLock(lf, name).acquire(blocking=False)) is False
    assert in_thread(lambda: threads.RLock(lf, name).acquire(blocking=False)) is True


def test_semaphore_counts_the_permits_of_all_processes(lf: Lockfast, other: Lockfast, name: str) -> None:
    mine, theirs = threads.Semaphore(lf, name, 3), threads.BoundedSemaphore(other, name, 3)
    assert [mine.acquire(blocking=False), mine.acquire(blocking=False)] == [True, True]
    assert theirs.acquire(blocking=False) is True
    assert theirs.acquire(blocking=False) is False
    mine.release(2)
    assert theirs.acquire(timeout=1) is True
    theirs.release(2)


def test_semaphore_cannot_release_what_another_object_acquired(lf: Lockfast, name: str) -> None:
    mine, theirs = threads.Semaphore(lf, name, 3), threads.Semaphore(lf, name, 3)
    mine.acquire()
    with pytest.raises(ValueError, match="too many times"):
        theirs.release()
    with pytest.raises(ValueError, match="too many times"):
        mine.release(2)
    assert repr(mine).endswith("value=2>")
    mine.release()


def test_users_of_a_semaphore_must_agree_on_its_value(lf: Lockfast, name: str) -> None:
    with threads.Semaphore(lf, name, 3), pytest.raises(Refused):
        threads.Semaphore(lf, name, 4).acquire()


@pytest.mark.parametrize("kind", [threads.Lock, threads.RLock, threads.Semaphore])
def test_loss_is_told_by_the_release(lf: Lockfast, other: Lockfast, name: str, kind: Any) -> None:
    thing = kind(lf, name)
    thing.acquire()
    other.break_lock(name, reason="a test")
    with pytest.raises(LeaseLost):
        thing.release()
    with pytest.raises(LeaseLost), thing:
        other.break_lock(name, reason="a test")
    with pytest.raises(ZeroDivisionError) as raised, thing:
        other.break_lock(name, reason="a test")
        raise ZeroDivisionError
    assert "is lost" in raised.value.__notes__[0]
    with thing:
        pass


def test_thread_that_lost_the_lock_does_not_release_it_for_the_next(lf: Lockfast, other: Lockfast, name: str) -> None:
    lock = threads.Lock(lf, name)
    lock.acquire()
    other.break_lock(name, reason="a test")
    assert in_thread(lock.acquire) is True
    with pytest.raises(LeaseLost):
        lock.release()
    assert lock.locked()
    lock.release()  # as any thread may
    assert not lock.locked()


def test_release_takes_what_the_caller_acquired_itself(lf: Lockfast, name: str) -> None:
    semaphore = threads.Semaphore(lf, name, 3)
    in_thread(semaphore.acquire)
    theirs = lf.inspect(name).holders
    with semaphore:
        assert len(lf.inspect(name).holders) == 2
    assert [holder.ticket for holder in lf.inspect(name).holders] == [holder.ticket for holder in theirs]
    semaphore.release()


@pytest.mark.slow
def test_release_by_a_third_thread_takes_what_is_still_held(lf: Lockfast, other: Lockfast, name: str) -> None:
    lost = threading.Event()
    lock = threads.Lock(lf, name, lease=0.3, on_lost=lambda grant: lost.set())
    in_thread(lock.acquire)
    other.break_lock(name, reason="a test")
    assert lost.wait(5)
    in_thread(lock.acquire)
    lock.release()
    assert not lock.locked()


@pytest.mark.slow
def test_on_lost_is_called(lf: Lockfast, other: Lockfast, name: str) -> None:
    lost = threading.Event()
    lock = threads.Lock(lf, name, lease=0.3, on_lost=lambda grant: lost.set())
    lock.acquire()
    other.break_lock(name, reason="a test")
    assert lost.wait(5)


@pytest.mark.slow
def test_release_that_is_not_confirmed_is_finished_behind_the_scenes(
    valkey_server: Server, proxy_for: ProxyFor, other: Lockfast, name: str
) -> None:
    proxy = proxy_for(valkey_server)
    with Lockfast(proxy.url, timeout=0.3) as lf:
        lock = threads.Lock(lf, name)
        lock.acquire()
        proxy.refuse()
        proxy.cut_all()
        lock.release()
        with pytest.raises(Unreachable):
            lock.acquire(timeout=0.1)
        proxy.heal()
        proxy.accept()
        wait_until(lambda: not other.inspect(name).holders, what="released after all")


@pytest.mark.slow
def test_lock_that_was_dropped_is_given_back(lf: Lockfast, other: Lockfast, name: str) -> None:
    threads.Lock(lf, name).acquire()
    gc.collect()
    assert other.lock(name).acquire(wait=10)


def test_rlock_works_in_a_condition(lf: Lockfast, name: str) -> None:
    condition = threading.Condition(threads.RLock(lf, name))  # type: ignore[arg-type]
    said: list[str] = []

    def answer() -> None:
        with condition:
            said.append("here")
            condition.notify()

    with condition:
        thread = threading.Thread(target=answer)
        thread.start()
        assert condition.wait_for(lambda: said, timeout=10)
    thread.join()


@pytest.mark.parametrize(
    ("mine", "theirs"),
    [
        (threads.Semaphore, threading.Semaphore),
        (threads.BoundedSemaphore, threading.BoundedSemaphore),
        (threads.Barrier, threading.Barrier),
        (threads.RLock, threading._PyRLock),  # type: ignore[attr-defined]
    ],
)
def test_call_shapes_are_those_of_threading(mine: Any, theirs: Any) -> None:
    for name, value in vars(theirs).items():
        if name.startswith("_") and name != "__init__":
            continue
        if isinstance(value, property):
            assert isinstance(getattr(mine, name), property), name
        if not inspect.isfunction(value):
            continue
        here = dict(inspect.signature(getattr(mine, name)).parameters)
        for own in ("lf", "name", "lease", "on_lost"):
            here.pop(own, None)
        there = inspect.signature(value).parameters
        assert [(p.name, p.default) for p in here.values()] == [(p.name, p.default) for p in there.values()], name


def test_drop_ins_are_imported_without_redis_py() -> None:
    code = "import sys, lockfast.compat, lockfast.compat.aio, lockfast.compat.tasks; print('redis' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_barrier_lets_the_threads_of_two_clients_meet(lf: Lockfast, other: Lockfast, name: str) -> None:
    acted: list[int] = []
    mine = threads.Barrier(lf, name, 2, lambda: acted.append(1), 10)
    theirs = threads.Barrier(other, name, 2, lambda: acted.append(1), 10)
    indices: list[int] = []
    thread = threading.Thread(target=lambda: indices.append(theirs.wait()))
    thread.start()
    indices.append(mine.wait())
    thread.join()
    assert sorted(indices) == [0, 1]
    assert acted == [1]


def test_barrier_whose_action_fails_is_broken_for_all(lf: Lockfast, name: str) -> None:
    def fail() -> None:
        raise ZeroDivisionError

    barrier = threads.Barrier(lf, name, 2, fail, 10)
    results: list[Any] = []
    thread = threading.Thread(target=lambda: results.append(in_thread(barrier.wait)))
    thread.start()
    results.append(in_thread(barrier.wait))
    thread.join()
    assert {type(result) for result in results} == {ZeroDivisionError, threading.BrokenBarrierError}
    assert barrier.broken
    barrier.reset()
    assert not barrier.broken
