"""Transactions and everything between a request sent and a reply read: nothing is done twice, nothing is guessed."""

from __future__ import annotations

import asyncio
import itertools
import signal
from typing import TYPE_CHECKING, Any

import pytest

from faults.actors import Script
from kit.servers import wait_until
from kit.sides import AsyncioSide
from kit.transacting import plus_one, transact
from lockfast import Misused, OutcomeUnknown, Unreachable, aio
from lockfast.clock import now
from lockfast.transactions import lock_name

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from kit.proxy import Proxy
    from kit.rules import Request
    from kit.servers import FreshServer, Server
    from kit.sides import Side
    from lockfast import Transaction
    from lockfast.sync import Lockfast

TIMEOUT_S = 0.4


@pytest.fixture
def lf(side: Side, proxy: Proxy, name: str) -> Lockfast:
    """A client behind the proxy, connected already."""
    client = side.client(proxy.url, timeout=TIMEOUT_S)
    transact(side, client, plus_one(f"{name}-warm"), f"{name}-warm")
    return client


@pytest.fixture
def loop() -> Iterator[AsyncioSide]:
    side = AsyncioSide()
    yield side
    side.close()


def counting(fn: Callable[[Transaction], Any], calls: list[int]) -> Callable[[Transaction], Any]:
    def counted(tx: Transaction) -> Any:
        calls.append(tx.attempt)
        return fn(tx)

    return counted


@pytest.mark.slow
@pytest.mark.parametrize("way", ["silent", "reset", "closed"])
def test_lost_reply_of_exec_is_told_as_unknown_and_not_done_again(
    side: Side, server: Server, proxy: Proxy, lf: Lockfast, name: str, way: str
) -> None:
    when = proxy.when("EXEC")
    lost = when.drop_reply() if way == "silent" else when.drop_reply_and_cut(reset=way == "reset")
    calls: list[int] = []
    with pytest.raises(OutcomeUnknown, match="look before you") as unknown:
        transact(side, lf, counting(plus_one(name), calls), name, escalate=0)
    assert lost.hits == 1
    assert calls == [1]
    assert unknown.value.sent is True
    assert (unknown.value.attempts, unknown.value.conflicts) == (1, 0)
    assert server.command("GET", name) == b"1"
    wait_until(lambda: not lf.inspect(*lock_name(name)).holders, what="the lock is given back")
    assert transact(side, lf, plus_one(name), name).value == 1  # on another connection


@pytest.mark.slow
def test_exec_that_arrives_late_is_the_unknown_that_was_told(
    side: Side, server: Server, proxy: Proxy, lf: Lockfast, name: str
) -> None:
    late = proxy.when("MULTI", nth=2).delay_request()  # the first is the look at whether it may
    with pytest.raises(OutcomeUnknown):
        transact(side, lf, plus_one(name), name)
    assert server.command("EXISTS", name) == 0
    late.let_go()
    wait_until(lambda: server.command("GET", name) == b"1", what="what was under way has run")


@pytest.mark.parametrize("reset", [True, False])
def test_connection_cut_before_exec_is_tried_again(
    side: Side, server: Server, proxy: Proxy, lf: Lockfast, name: str, reset: bool
) -> None:
    def fn(tx: Transaction) -> int:
        number = int(tx.get(name) or 0)
        if tx.attempt == 1:
            proxy.cut_all(reset=reset)
            proxy.wait_until(lambda: proxy.connections == 0)
        tx.set(name, number + 1)
        return number

    done = transact(side, lf, fn, name)
    assert (done.attempts, done.conflicts) == (2, 0)
    assert server.command("GET", name) == b"1"


def test_server_restarted_under_the_function_is_tried_again(side: Side, fresh_server: FreshServer, name: str) -> None:
    """The new server knows of no WATCH: what was read from the old one must not be written there."""
    server = fresh_server()
    lf = side.client(server.url)

    def fn(tx: Transaction) -> int:
        number = int(tx.get(name) or 0)
        if tx.attempt == 1:
            server.restart(keep=False)
            server.command("SET", name, 41)
        tx.set(name, number + 1)
        return number

    assert transact(side, lf, fn, name).value == 41
    assert server.command("GET", name) == b"42"


@pytest.mark.slow
@pytest.mark.parametrize("command", ["WATCH", "GET"])
@pytest.mark.parametrize("way", ["drop_reply", "drop_reply_and_cut", "cut_request", "swallow_request"])
def test_what_fails_before_exec_is_tried_again(
    side: Side, valkey_server: Server, proxy_for: Any, name: str, command: str, way: str
) -> None:
    proxy = proxy_for(valkey_server)
    lf = side.client(proxy.url, timeout=TIMEOUT_S)
    transact(side, lf, plus_one(f"{name}-warm"), f"{name}-warm")
    fault = getattr(proxy.when(command), way)()
    done = transact(side, lf, plus_one(name), name)
    assert fault.hits == 1
    assert (done.attempts, done.conflicts) == (1 if command == "WATCH" else 2, 0)
    assert valkey_server.command("GET", name) == b"1"


@pytest.mark.parametrize("reply", [b"-LOADING not yet\r\n", b"-BUSY running a script\r\n"])
@pytest.mark.parametrize("command", ["WATCH", "GET"])
def test_server_that_is_not_fit_yet_is_asked_again(
    side: Side, proxy: Proxy, lf: Lockfast, name: str, command: str, reply: bytes
) -> None:
    proxy.when(command).inject_reply(reply)
    assert transact(side, lf, plus_one(name), name).conflicts == 0


def test_queue_that_a_busy_server_has_refused_is_tried_again(
    side: Side, server: Server, proxy: Proxy, lf: Lockfast, name: str
) -> None:
    proxy.when("SET").inject_reply(b"-BUSY running a script\r\n")
    proxy.when("EXEC").inject_reply(b"-EXECABORT discarded because of previous errors\r\n")
    done = transact(side, lf, plus_one(name), name)
    assert (done.attempts, done.conflicts) == (2, 0)
    assert server.command("GET", name) == b"1"


def test_function_that_goes_on_after_a_failed_read_writes_nothing_unguarded(
    side: Side, server: Server, proxy: Proxy, lf: Lockfast, name: str
) -> None:
    def fn(tx: Transaction) -> None:
        try:
            tx.get(name)
        except Unreachable:
            server.command("SET", name, "changed")
        tx.set(name, tx.attempt)

    proxy.when("GET").cut_request()
    mark = len(proxy.requests)
    assert transact(side, lf, fn, name).attempts == 2
    assert len(proxy.seen("EXEC", since=mark)) == 1
    assert server.command("GET", name) == b"2"


@pytest.mark.slow
@pytest.mark.parametrize("way", ["refuse", "blackhole"])
def test_server_that_is_gone_is_unreachable_in_time_and_nothing_was_written(
    side: Side, proxy: Proxy, lf: Lockfast, name: str, way: str
) -> None:
    getattr(proxy, way)()
    began = now()
    with pytest.raises(Unreachable, match="nothing was written") as failure:
        transact(side, lf, plus_one(name), name, wait=60)
    assert failure.value.sent is False
    assert not isinstance(failure.value, OutcomeUnknown)
    assert TIMEOUT_S / 2 <= now() - began < TIMEOUT_S * 2 + 1


@pytest.mark.slow
def test_client_closed_with_exec_on_its_way_tells_the_unknown(
    side: Side, proxy: Proxy, lf: Lockfast, name: str
) -> None:
    """`close()` waits for the reply as long as a request may take; then the connection goes."""
    late = proxy.when("EXEC").delay_reply()
    running = side.spawn(transact, side, lf, plus_one(name), name)
    late.wait_hit()
    lf.close()
    assert isinstance(running.error(), OutcomeUnknown)


# Cancelled, interrupted


def test_cancelled_in_the_function_leaves_no_connection_that_watches(
    loop: AsyncioSide, server: Server, name: str
) -> None:
    async def main() -> None:
        async with aio.Lockfast(server.url) as lf:
            inside = asyncio.Event()

            async def fn(tx: aio.Transaction) -> None:
                await tx.get(name)
                tx.set(name, 1)
                inside.set()
                await asyncio.sleep(60)

            running = asyncio.create_task(lf.transaction(fn, name, escalate=0))
            await inside.wait()
            running.cancel()
            with pytest.raises(asyncio.CancelledError):
                await running
            assert not lf._plain._lines[0]._free
            assert not (await lf.inspect(*lock_name(name))).holders

            async def increment(tx: aio.Transaction) -> None:
                tx.set(f"{name}-2", 1)

            server.command("SET", name, "changed")
            assert (await lf.transaction(increment, f"{name}-2")).conflicts == 0

    loop.run(main())


@pytest.mark.parametrize("command", ["WATCH", "GET", "EXEC"])
def test_cancelled_with_a_request_on_its_way(
    loop: AsyncioSide, server: Server, proxy: Proxy, name: str, command: str
) -> None:
    async def increment(tx: aio.Transaction) -> None:
        number = int(await tx.get(name) or 0)
        tx.set(name, number + 1)

    async def main() -> None:
        async with aio.Lockfast(proxy.url) as lf:
            await lf.transaction(increment, name)
            late = proxy.when(command).delay_reply()
            running = asyncio.create_task(lf.transaction(increment, name, escalate=0))
            await asyncio.to_thread(late.wait_hit)
            running.cancel()
            with pytest.raises(asyncio.CancelledError) as cancelled:
                await running
            told = "may have been sent" in "".join(getattr(cancelled.value, "__notes__", []))
            assert told is (command == "EXEC")
            assert not lf._plain._lines[0]._free
            assert server.command("GET", name) == (b"2" if command == "EXEC" else b"1")
            late.let_go()
            await lf.transaction(increment, name)

    loop.run(main())


THREADS = """
import sys
from lockfast import Lockfast
lf = Lockfast(sys.argv[1])
def increment(tx):
    number = int(tx.get(sys.argv[2]) or 0)
    tx.set(sys.argv[2], number + 1)
    return number
lf.transaction(increment, sys.argv[2])
print("warm", flush=True)
try:
    lf.transaction(increment, sys.argv[2])
except KeyboardInterrupt as error:
    print("interrupted", *getattr(error, "__notes__", []), flush=True)
print(len(lf._plain._pools[0].free), flush=True)
sys.stdin.readline()
print(lf.transaction(increment, sys.argv[2]), flush=True)
"""


@pytest.mark.slow
@pytest.mark.parametrize("command", ["WATCH", "GET", "EXEC"])
def test_ctrl_c_with_a_request_on_its_way(proxy: Proxy, server: Server, name: str, command: str) -> None:
    late = proxy.when(command, nth=2).delay_reply()
    with Script(THREADS, proxy.url, name) as script:
        assert script.line() == "warm"
        late.wait_hit()
        script.send_signal(signal.SIGINT)
        line = script.line(5)
        assert line.startswith("interrupted")
        assert ("may have been sent" in line) is (command == "EXEC")
        assert script.line() == "0"  # no connection is kept
        late.let_go()
        script.say("")
        done = 2 if command == "EXEC" else 1
        assert f"value={done}, replies=(b'OK',), attempts=1, conflicts=0" in script.line()
        assert script.end()[0] == 0
    assert server.command("GET", name) == str(done + 1).encode()


def test_interrupt_in_the_function_leaves_no_connection_that_watches(valkey_server: Server, name: str) -> None:
    from lockfast.sync import Lockfast as ThreadsLockfast

    with ThreadsLockfast(valkey_server.url) as lf:

        def fn(tx: Transaction) -> None:
            tx.get(name)
            tx.set(name, 1)
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            lf.transaction(fn, name, escalate=0)
        assert not lf._plain._pools[0].free
        assert not lf.inspect(*lock_name(name)).holders
        assert valkey_server.command("EXISTS", name) == 0


@pytest.mark.slow
def test_storm_of_cuts_loses_nothing_and_doubles_nothing(side: Side, valkey_server: Server, proxy_for: Any) -> None:
    """Every id is there once; those whose outcome is unknown, once at most."""
    valkey_server.command("DEL", "storm")
    proxy = proxy_for(valkey_server)
    clients = [side.client(proxy.url, timeout=TIMEOUT_S) for _ in range(3)]
    written: list[str] = []
    unknown: list[str] = []

    def work(client: Lockfast, who: int) -> None:
        for number in range(25):
            mine = f"{who}.{number}"

            def append(tx: Transaction, mine: str = mine) -> None:
                before = (tx.get("storm") or b"").decode()
                tx.set("storm", f"{before} {mine}")

            try:
                transact(side, client, append, "storm", attempts=1000, wait=30)
                written.append(mine)
            except OutcomeUnknown:
                unknown.append(mine)

    def every(nth: int, command: str) -> Callable[[Request], bool]:
        seen = itertools.count(1)
        return lambda request: request.command == command and next(seen) % nth == 0

    proxy.when(every(5, "EXEC"), times=None).drop_reply_and_cut()
    proxy.when(every(7, "EXEC"), times=None).cut_request(reset=False)
    proxy.when(every(11, "GET"), times=None).drop_reply_and_cut()
    workers = [side.spawn(work, client, who) for who, client in enumerate(clients)]
    for worker in workers:
        worker.result()
    proxy.heal()
    found = valkey_server.command("GET", "storm").decode().split()
    assert len(found) == len(set(found))
    assert set(written) <= set(found) <= set(written) | set(unknown)
    assert len(written) + len(unknown) == 75
    assert set(unknown) & set(found)
    assert set(unknown) - set(found)


def test_other_errors_of_a_closed_client_stay_what_they_are(side: Side, server: Server, name: str) -> None:
    lf = side.client(server.url, timeout=0.1)

    def fn(tx: Transaction) -> None:
        tx.set(name, 1)
        lf.close()

    with pytest.raises(Misused, match="closed"):
        transact(side, lf, fn, name)
    assert server.command("EXISTS", name) == 0
