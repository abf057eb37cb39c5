"""Transactions that take the lock after some conflicts; and what closing and forking do to transactions."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest

from behaviour.queueing import PATIENCE_S
from behaviour.test_fork import in_child
from kit.leaks import no_leaks
from kit.servers import wait_until
from kit.transacting import plus_one, transact
from lockfast import Conflict, Misused
from lockfast.sync import Lockfast as ThreadsLockfast
from lockfast.transactions import lock_name

if TYPE_CHECKING:
    from kit.proxy import Proxy
    from kit.servers import Server
    from kit.sides import Side
    from lockfast import Transaction
    from lockfast.sync import Lockfast


class Own(Exception):
    """What a function raises on its own account."""


def locked(lf: Lockfast, key: str) -> bool:
    return bool(lf.inspect(*lock_name(key)).holders)


def test_after_some_conflicts_it_takes_the_lock_on_all_its_keys(
    side: Side, server: Server, lf: Lockfast, other: Lockfast, name: str
) -> None:
    keys = [f"{name}-b", f"{name}-a"]
    seen: list[bool] = []

    def increment(tx: Transaction) -> None:
        seen.append(all(locked(other, key) for key in keys))
        number = int(tx.get(keys[0]) or 0)
        if tx.attempt <= 3:
            server.command("INCR", keys[0])  # who does not use the lock is still noticed
        tx.set(keys[0], number + 1)

    done = transact(side, lf, increment, *keys, escalate=2)
    assert (done.attempts, done.conflicts, done.escalated) == (4, 3, True)
    assert seen == [False, False, True, True]
    assert not any(locked(other, key) for key in keys)
    assert server.command("GET", keys[0]) == b"4"


def test_never_escalates_when_told_so(side: Side, server: Server, lf: Lockfast, other: Lockfast, name: str) -> None:
    def increment(tx: Transaction) -> None:
        assert not locked(other, name)
        tx.get(name)
        if tx.attempt < 6:
            server.command("INCR", name)
        tx.set(name, 0)

    done = transact(side, lf, increment, name, escalate=None)
    assert (done.conflicts, done.escalated) == (5, False)


def test_those_that_escalate_wait_for_each_other(
    side: Side, server: Server, lf: Lockfast, other: Lockfast, name: str
) -> None:
    inside, go_on = threading.Event(), threading.Event()

    def slow(tx: Transaction) -> None:
        inside.set()
        assert go_on.wait(PATIENCE_S)
        plus_one(name)(tx)

    first = side.spawn(transact, side, lf, slow, name, escalate=0)
    assert inside.wait(PATIENCE_S)
    second = side.spawn(transact, side, other, plus_one(name), name, escalate=0)
    wait_queued_for(lf, name)
    third = transact(side, other, plus_one(name), name, escalate=None)  # without the lock, nobody is in its way
    assert (third.value, third.conflicts) == (0, 0)
    go_on.set()
    assert (first.result().conflicts, second.result().conflicts) == (1, 0)
    assert server.command("GET", name) == b"3"


def wait_queued_for(lf: Lockfast, key: str) -> None:
    wait_until(lambda: lf.inspect(*lock_name(key)).waiters, what="one queued", timeout_s=PATIENCE_S)


def test_lock_is_given_back_whatever_the_end(
    side: Side, server: Server, lf: Lockfast, other: Lockfast, name: str
) -> None:
    def look(tx: Transaction) -> None:
        assert locked(other, name)

    def fail(tx: Transaction) -> None:
        assert locked(other, name)
        raise Own

    def lose(tx: Transaction) -> None:
        assert locked(other, name)
        server.command("INCR", name)
        tx.set(name, 0)

    assert transact(side, lf, look, name, escalate=0).escalated
    assert not locked(other, name)
    with pytest.raises(Own):
        transact(side, lf, fail, name, escalate=0)
    assert not locked(other, name)
    with pytest.raises(Conflict) as conflict:
        transact(side, lf, lose, name, escalate=0, attempts=2)
    assert (conflict.value.conflicts, conflict.value.escalated) == (2, True)
    assert not locked(other, name)


def test_loss_of_the_lock_does_no_harm(side: Side, server: Server, lf: Lockfast, other: Lockfast, name: str) -> None:
    def fn(tx: Transaction) -> None:
        tx.get(name)
        other.break_lock(*lock_name(name), reason="a test")
        tx.set(name, 1)

    done = transact(side, lf, fn, name, escalate=0)
    assert (done.attempts, done.escalated) == (1, True)
    assert server.command("GET", name) == b"1"


def test_lock_that_is_busy_for_the_whole_wait_is_a_conflict(
    side: Side, server: Server, lf: Lockfast, other: Lockfast, name: str
) -> None:
    with other.lock(*lock_name(name)), pytest.raises(Conflict) as conflict:
        transact(side, lf, plus_one(name), name, escalate=0, wait=0.05)
    assert (conflict.value.attempts, conflict.value.conflicts, conflict.value.escalated) == (0, 0, False)
    assert 0.05 <= conflict.value.waited_s < PATIENCE_S
    assert f"the lock that transactions take on {name!r} was not to be had in 0." in str(conflict.value)
    assert server.command("EXISTS", name) == 0


# Closing


def test_closed_client_says_so(side: Side, lf: Lockfast, name: str) -> None:
    transact(side, lf, plus_one(name), name)
    lf.close()
    with pytest.raises(Misused, match="closed"):
        transact(side, lf, plus_one(name), name)


def test_close_leaves_no_connection(side: Side, server: Server, name: str) -> None:
    with side.client(server.url) as first:
        transact(side, first, plus_one(name), name)  # the loop's own thread for the function stays
    with no_leaks():
        lf = side.client(server.url)
        transact(side, lf, plus_one(name), name)
        lf.close()
        wait_until(lambda: server.connections() == 0, what="no connection is left")


def test_client_closed_under_the_function_writes_nothing(side: Side, server: Server, name: str) -> None:
    lf = side.client(server.url, timeout=0.1)
    inside, go_on = threading.Event(), threading.Event()

    def fn(tx: Transaction) -> None:
        inside.set()
        assert go_on.wait(PATIENCE_S)
        tx.set(name, 1)

    running = side.spawn(transact, side, lf, fn, name, escalate=0)
    assert inside.wait(PATIENCE_S)
    lf.close()
    go_on.set()
    assert isinstance(running.error(), Misused)
    assert server.command("EXISTS", name) == 0


def test_close_waits_for_an_exec_on_its_way(side: Side, proxy: Proxy, server: Server, name: str) -> None:
    lf = side.client(proxy.url)
    transact(side, lf, plus_one(name), name)
    late = proxy.when("EXEC").delay_reply()
    running = side.spawn(transact, side, lf, plus_one(name), name)
    late.wait_hit()
    closing = side.spawn(lf.close)
    wait_until(lambda: native(lf)._plain.closed, what="closing has begun")
    assert not closing.done
    late.let_go()
    assert running.result().value == 1
    closing.result()


def native(lf: Any) -> Any:
    return getattr(lf, "twin_of", lf)


# Forks


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork.*:DeprecationWarning")
def test_forked_child_shares_no_connection_even_in_the_middle(valkey_server: Server, name: str) -> None:
    with ThreadsLockfast(valkey_server.url) as lf:
        lf.transaction(plus_one(name), name)
        in_child(lambda: lf.transaction(plus_one(name), name))

        def fork(tx: Transaction) -> None:
            number = int(tx.get(name) or 0)
            if tx.attempt == 1:
                in_child(lambda: child_goes_on(tx))
            tx.set(name, number + 1)

        def child_goes_on(tx: Transaction) -> None:
            with pytest.raises(ConnectionError, match="gone"):
                tx.get(name)

        assert lf.transaction(fork, name).attempts == 1
        assert valkey_server.command("GET", name) == b"3"


def test_threads_of_one_client_do_not_mix(valkey_server: Server, name: str) -> None:
    """Each transaction has a connection of its own, also when they are nested in each other."""
    with ThreadsLockfast(valkey_server.url) as lf:

        def outer(tx: Transaction) -> int:
            number = int(tx.get(name) or 0)
            inner = lf.transaction(plus_one(f"{name}-2"), f"{name}-2")
            tx.set(name, number + 1)
            return inner.value

        assert [lf.transaction(outer, name).value for _ in range(3)] == [0, 1, 2]
        assert valkey_server.command("MGET", name, f"{name}-2") == [b"3", b"3"]
