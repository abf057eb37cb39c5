"""Transactions: written of what was read, or not at all; what is told of it; what is refused."""

from __future__ import annotations

import asyncio
import functools
from typing import TYPE_CHECKING, Any

import pytest

from kit.transacting import plus_one, transact
from lockfast import Conflict, Misused, Outcome, PartlyWritten, Refused, aio
from lockfast.sync import Lockfast as ThreadsLockfast
from lockfast.transactions import lock_name

if TYPE_CHECKING:
    from collections.abc import Callable

    from kit.servers import Server
    from kit.sides import AsyncioSide, Side
    from lockfast import Transaction
    from lockfast.sync import Lockfast


class Own(Exception):
    """What a function raises on its own account."""


def outrun(server: Server, key: str, times: int = 10**9) -> Callable[[Transaction], int]:
    """Like plus_one; but in the first attempts another adds a thousand between the read and the write."""

    def increment(tx: Transaction) -> int:
        number = int(tx.get(key) or 0)
        if tx.attempt <= times:
            server.command("INCRBY", key, 1000)
        tx.set(key, number + 1)
        return number

    return increment


def test_what_was_read_is_changed_and_the_outcome_tells(side: Side, server: Server, lf: Lockfast, name: str) -> None:
    assert transact(side, lf, plus_one(name), name) == Outcome(0, (b"OK",), 1, 0, False)
    assert transact(side, lf, plus_one(name), name) == Outcome(1, (b"OK",), 1, 0, False)
    assert server.command("GET", name) == b"2"


def test_any_commands_may_be_read_and_queued(side: Side, server: Server, lf: Lockfast, name: str) -> None:
    raw = b"\xff\x00" + name.encode()
    server.command("HSET", raw, "apples", 3, "pears", 4)

    def sell(tx: Transaction) -> list[Any]:
        stock = tx.read("hmget", raw, "apples", "pears")
        tx.write("HINCRBY", raw, "apples", -2)
        tx.write("RPUSH", f"{name}-sold", "apples", 2.5, b"\x00")  # not watched, and need not be
        tx.write("LRANGE", f"{name}-sold", 0, -1)
        return list(stock)

    sold = transact(side, lf, sell, raw)
    assert sold.value == [b"3", b"4"]
    assert sold.replies == (1, 3, [b"apples", b"2.5", b"\x00"])


def test_several_keys_change_together(side: Side, server: Server, lf: Lockfast, name: str) -> None:
    here, there = f"{name}-a", f"{name}-b"
    server.command("MSET", here, 100, there, 5)

    def move(tx: Transaction) -> None:
        first, second = tx.read("MGET", here, there)
        if tx.attempt == 1:
            server.command("SET", there, 50)  # the second counts as the first does
        tx.set(here, int(first) - 30)
        tx.set(there, int(second) + 30)

    moved = transact(side, lf, move, here, there)
    assert (moved.attempts, moved.conflicts) == (2, 1)
    assert server.command("MGET", here, there) == [b"70", b"80"]


def test_change_by_another_in_between_makes_it_begin_anew(side: Side, server: Server, lf: Lockfast, name: str) -> None:
    seen: list[tuple[int, int]] = []

    def increment(tx: Transaction) -> int:
        seen.append((tx.attempt, tx.conflicts))
        return outrun(server, name, times=2)(tx)

    assert transact(side, lf, increment, name) == Outcome(2000, (b"OK",), 3, 2, False)
    assert seen == [(1, 0), (2, 1), (3, 2)]
    assert server.command("GET", name) == b"2001"


@pytest.mark.parametrize(("attempts", "wait"), [(3, None), (1000, 0.05), (1000, 0)])
def test_who_is_always_outrun_gives_up_in_time_and_has_written_nothing(
    side: Side, server: Server, lf: Lockfast, name: str, attempts: int, wait: float | None
) -> None:
    with pytest.raises(Conflict, match="nothing was written: try later, or") as caught:
        transact(side, lf, outrun(server, name), name, attempts=attempts, wait=wait, escalate=None)
    conflict = caught.value
    assert conflict.attempts == conflict.conflicts
    assert conflict.attempts == {3: 3, 1000: conflict.attempts}[attempts] < 1000
    assert conflict.attempts > 1 or wait == 0
    assert not conflict.escalated
    assert conflict.waited_s >= (wait or 0)
    assert int(server.command("GET", name)) == 1000 * conflict.attempts


def test_function_that_raises_has_written_nothing_and_leaves_nothing_watched(
    side: Side, server: Server, lf: Lockfast, name: str
) -> None:
    def fail(tx: Transaction) -> None:
        tx.get(name)
        tx.set(name, "never")
        raise Own

    transact(side, lf, plus_one(f"{name}-n"), f"{name}-n")
    connections = server.connections()
    with pytest.raises(Own):
        transact(side, lf, fail, name)
    assert server.connections() == connections
    assert server.command("EXISTS", name) == 0
    server.command("SET", name, "changed")  # a WATCH that stayed would now spoil the next transaction
    assert transact(side, lf, plus_one(f"{name}-n"), f"{name}-n").conflicts == 0
    assert server.connections() == connections


def test_nothing_queued_means_nothing_sent(side: Side, server: Server, lf: Lockfast, name: str) -> None:
    server.command("SET", name, "text")
    server.reset_stats()

    def look(tx: Transaction) -> bytes | None:
        found = tx.get(name)
        server.command("SET", name, "changed")  # no conflict: nothing depends on it
        return found

    assert transact(side, lf, look, name) == Outcome(b"text", (), 1, 0, False)
    assert "exec" not in server.stats()
    assert server.stats()["unwatch"] == 1
    server.command("SET", name, 1)
    assert transact(side, lf, plus_one(name), name).conflicts == 0


def test_reads_that_could_go_unnoticed_are_refused(side: Side, lf: Lockfast, server: Server, name: str) -> None:
    server.command("SET", name, "text")
    told: list[str] = []

    def read(tx: Transaction) -> None:
        for words in (
            ("GET", "other"),
            ("MGET", name, "other"),
            ("ZUNION", 2, name, "other"),
            ("EVAL_RO", "return 1", 1, "other"),
            ("INCR", name),
            ("JSON.GET", name),
            ("KEYS", "*"),
        ):
            with pytest.raises(ValueError, match=r"is not watched|not known as a command that only reads") as refused:
                tx.read(*words)
            told.append(str(refused.value))
        with pytest.raises(TypeError, match="list of keys"):
            tx.read("STRLEN", name, keys=name)
        with pytest.raises(ValueError, match="not watched"):
            tx.read("OBJECT", "ENCODING", name, keys=["other"])
        assert tx.read("OBJECT", "ENCODING", name, keys=[name]) in (b"embstr", b"raw")
        if server.version >= (7,):
            assert tx.read("EVAL_RO", "return KEYS[1]", 1, name) == name.encode()
        assert tx.read("EXISTS", name) == 1

    transact(side, lf, read, name)
    assert len(told) == 7


def test_reads_after_a_write_are_refused(side: Side, lf: Lockfast, server: Server, name: str) -> None:
    def read_own_write(tx: Transaction) -> None:
        tx.set(name, 1)
        tx.get(name)

    with pytest.raises(Misused, match="read first, then write"):
        transact(side, lf, read_own_write, name)
    assert server.command("EXISTS", name) == 0


def test_commands_that_have_no_place_in_a_transaction_are_refused(side: Side, lf: Lockfast, name: str) -> None:
    def queue(tx: Transaction) -> None:
        for words in (("EXEC",), ("select", 1), ("WATCH", "x"), ("CLIENT", "REPLY", "OFF"), ("SUBSCRIBE", "x")):
            with pytest.raises(ValueError, match="cannot be part of a transaction"):
                tx.write(*words)
            with pytest.raises(ValueError, match="cannot be part of a transaction"):
                tx.read(*words, keys=[name])
        for wrong in (None, True, [1], {"a": 1}):
            with pytest.raises(TypeError, match="str, bytes, int and float"):
                tx.set(name, wrong)  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="begins with its name"):
            tx.write(b"SET", name, 1)  # type: ignore[arg-type]

    assert transact(side, lf, queue, name).replies == ()


def test_transaction_that_is_over_can_do_nothing(side: Side, lf: Lockfast, server: Server, name: str) -> None:
    kept: list[Transaction] = []
    transact(side, lf, kept.append, name)
    lates: list[Callable[[], object]] = [lambda: kept[0].get(name), lambda: kept[0].set(name, 1)]
    for late in lates:
        with pytest.raises(Misused, match="is over"):
            late()
    assert server.command("EXISTS", name) == 0
    assert "attempt 1" in repr(kept[0])


def test_command_that_the_server_does_not_know_leaves_nothing_written(
    side: Side, server: Server, lf: Lockfast, name: str
) -> None:
    def wrong(tx: Transaction) -> None:
        tx.set(name, 1)
        tx.write("NOSUCH", name)

    with pytest.raises(Refused, match=r"NOSUCH.*nothing was written") as refused:
        transact(side, lf, wrong, name)
    assert not isinstance(refused.value, PartlyWritten)
    assert server.command("EXISTS", name) == 0
    assert transact(side, lf, plus_one(name), name).attempts == 1


def test_command_that_fails_within_is_told_with_what_the_others_came_to(
    side: Side, server: Server, lf: Lockfast, name: str
) -> None:
    def wrong(tx: Transaction) -> None:
        tx.set(name, "text")
        tx.write("LPUSH", name, 1)
        tx.set(f"{name}-2", "text")

    with pytest.raises(PartlyWritten, match=r"LPUSH.*WRONGTYPE") as partly:
        transact(side, lf, wrong, name)
    assert partly.value.code == "WRONGTYPE"
    assert partly.value.replies[0] == partly.value.replies[2] == b"OK"
    assert isinstance(partly.value.replies[1], Exception)
    assert server.command("MGET", name, f"{name}-2") == [b"text", b"text"]


def test_read_that_the_server_refuses_raises_in_the_function(
    side: Side, server: Server, lf: Lockfast, name: str
) -> None:
    server.command("RPUSH", name, 1)

    def read(tx: Transaction) -> Any:
        with pytest.raises(Refused, match="WRONGTYPE"):
            tx.get(name)
        tx.write("RPUSH", name, 2)
        return tx.attempt

    assert transact(side, lf, read, name) == Outcome(1, (2,), 1, 0, False)
    with pytest.raises(Refused, match="WRONGTYPE"):
        transact(side, lf, plus_one(name), name)


@pytest.mark.parametrize("missing", ["multi", "watch", "exec"])
def test_account_that_may_not_is_told_so_before_anything_is_written(
    side: Side, server: Server, name: str, missing: str
) -> None:
    """Without MULTI, what follows it would run by itself."""
    server.command("ACL", "SETUSER", "poor", "on", ">secret", "~*", "+@all", f"-{missing}")
    try:
        lf = side.client(server.url.replace("://", "://poor:secret@"))
        with pytest.raises(Refused, match="NOPERM"):
            transact(side, lf, plus_one(name), name)
        assert server.command("EXISTS", name) == 0
    finally:
        server.command("ACL", "DELUSER", "poor")


@pytest.mark.slow
def test_many_at_once_lose_no_update(side: Side, server: Server, name: str) -> None:
    clients = [side.client(server.url) for _ in range(3)]

    def work(client: Lockfast) -> None:
        for _ in range(10):
            transact(side, client, plus_one(name), name, wait=60, attempts=1000)

    for worker in [side.spawn(work, client) for client in clients * 2]:
        worker.result()
    assert server.command("GET", name) == b"60"
    assert server.connections() <= 4 * len(clients)


def test_what_cannot_work_is_refused_before_anything_is_sent(side: Side, server: Server, lf: Lockfast) -> None:
    def fn(tx: Transaction) -> None:
        raise AssertionError("never called")

    def generator(tx: Transaction) -> Any:
        yield

    calls: list[tuple[type[Exception], tuple[Any, ...], dict[str, Any]]] = [
        (ValueError, (fn,), {}),
        (TypeError, ("key", fn), {}),
        (TypeError, (fn, ["a", "b"]), {}),
        (TypeError, (fn, 7), {}),
        (ValueError, (fn, "\ud800"), {}),
        (TypeError, (generator, "a"), {}),
        (TypeError, (fn, "a"), {"attempts": "3"}),
        (ValueError, (fn, "a"), {"attempts": 0}),
        (ValueError, (fn, "a"), {"wait": -1}),
        (ValueError, (fn, "a"), {"escalate": -1}),
        (TypeError, (fn, "a"), {"escalate": True}),
        (TypeError, (fn, "a"), {"escalate": 1.5}),
    ]
    for error, arguments, options in calls:
        with pytest.raises(error):
            lf.transaction(*arguments, **options)
    assert server.connections() == 0


def test_error_of_escalate_tells_that_it_may_be_0(lf: Lockfast) -> None:
    with pytest.raises(ValueError, match="escalate must be from 0 to"):
        lf.transaction(lambda tx: None, "a", escalate=-1)


def test_key_named_twice_is_one(side: Side, lf: Lockfast, name: str) -> None:
    done = transact(side, lf, plus_one(name), name, name.encode(), name, escalate=0)
    assert done.escalated


def test_async_function_in_threads_is_refused(valkey_server: Server, name: str) -> None:
    async def async_fn(tx: Transaction) -> None:
        raise AssertionError("never run")

    with ThreadsLockfast(valkey_server.url) as lf:
        for fn in (async_fn, lambda tx: async_fn(tx), functools.partial(async_fn)):
            with pytest.raises(TypeError, match="is async"):
                lf.transaction(fn, name)


def test_plain_function_in_asyncio_is_refused_and_a_lambda_around_an_async_one_is_not(
    aside: AsyncioSide, valkey_server: Server, name: str
) -> None:
    async def main() -> None:
        async def increment(tx: aio.Transaction, by: int) -> int:
            number = int(await tx.get(name) or 0)
            tx.set(name, number + by)
            return number

        async with aio.Lockfast(valkey_server.url) as lf:
            with pytest.raises(TypeError, match="is not async"):
                await lf.transaction(lambda tx: tx.set(name, 1), name)  # type: ignore[arg-type, return-value]
            assert (await lf.transaction(lambda tx: increment(tx, 5), name)).value == 0
            assert (await lf.transaction(functools.partial(increment, by=5), name)).value == 5

    aside.run(main())


def test_reads_at_the_same_time_are_refused(aside: AsyncioSide, valkey_server: Server, name: str) -> None:
    async def both(tx: aio.Transaction) -> Any:
        return await asyncio.gather(tx.get(name), tx.get(name), return_exceptions=True)

    async def main() -> None:
        async with aio.Lockfast(valkey_server.url) as lf:
            first, second = (await lf.transaction(both, name)).value
            assert first is None
            assert isinstance(second, Misused)

    aside.run(main())


def test_what_is_left_of_a_read_never_takes_the_guard_away_from_the_writes(
    aside: AsyncioSide, valkey_server: Server, name: str
) -> None:
    """A read given up in the middle, or never awaited, costs the connection that watches. No other is used instead."""
    left: list[Any] = []

    async def gives_up(tx: aio.Transaction) -> None:
        if tx.attempt == 1:
            reading = asyncio.create_task(tx.get(name))
            await asyncio.sleep(0)
            reading.cancel()
            await asyncio.wait([reading])
            valkey_server.command("SET", name, "changed")
        tx.set(name, "written")

    async def forgets(tx: aio.Transaction) -> None:
        if tx.attempt == 1:
            left.append(asyncio.create_task(tx.get(name)))
            await asyncio.sleep(0)
            valkey_server.command("SET", name, "changed")
        tx.set(name, "written")

    async def main() -> None:
        async with aio.Lockfast(valkey_server.url) as lf:
            for fn in (gives_up, forgets):
                done = await lf.transaction(fn, name)
                assert (done.attempts, done.conflicts) == (2, 0), fn
            await asyncio.wait(left)

    aside.run(main())


@pytest.mark.parametrize("key", ["", "a b", "{odd}|%", b"\xff\xfe", "nul\0", "x" * 5000, "ключ"])
def test_every_key_has_a_lock_of_its_own(side: Side, lf: Lockfast, key: str | bytes) -> None:
    def look(tx: Transaction) -> Any:
        tx.write("DEL", key)
        return lf.inspect(*lock_name(key)).holders

    done = transact(side, lf, look, key, escalate=0)
    assert len(done.value) == 1
