"""The drivers of the classics: deadlines, connections that come back clean or not at all, closing, forks."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest
import redis

from classic.meddling import Died, Meddled, die
from kit.leaks import no_leaks
from kit.servers import wait_until
from kit.sides import AsyncioSide
from lockfast import LeaseLost, Misused, NotAcquired, Refused, Unreachable, embedded
from lockfast.classic import (
    Client,
    CountingSemaphore,
    OptimisticLock,
    RaceFreeSemaphore,
    Redlock,
    SetNxPxLock,
    SimpleLock,
)
from lockfast.classic.aio import Client as AsyncioClient

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from kit.proxy import Proxy
    from kit.servers import FreshServer, Server
    from kit.sides import Side


def plus_one(value: bytes | None) -> int:
    return int(value or 0) + 1


TIMEOUT_S = 0.25
RECIPES: list[Any] = [SetNxPxLock("x", acquire_timeout=0), CountingSemaphore("x", 5)]


@pytest.mark.parametrize("recipe", RECIPES)
def test_server_that_hangs_is_unreachable_in_time_and_says_whether_it_was_sent(
    recipe: Any, make_client: Callable[..., Client], fresh_server: FreshServer
) -> None:
    server = fresh_server()
    known, new = make_client(server.url, timeout=TIMEOUT_S), make_client(server.url, timeout=TIMEOUT_S)
    taken = known.acquire(recipe)
    assert taken is not None
    server.pause()
    for client, act, sent in (
        (known, lambda: known.release(recipe, taken), True),
        (new, lambda: new.acquire(recipe), False),
        (known, lambda: known.acquire(recipe), False),  # what did not answer was dropped: a new connection is tried
    ):
        started = time.monotonic()
        with pytest.raises(Unreachable) as failure:
            act()
        assert TIMEOUT_S * 0.9 <= time.monotonic() - started < TIMEOUT_S + 1.0
        assert failure.value.sent is sent, client
    server.resume()
    assert new.acquire(CountingSemaphore("y", 1)) is not None


def test_server_that_is_not_there_is_unreachable_and_nothing_was_sent(
    make_client: Callable[..., Client], fresh_server: FreshServer
) -> None:
    server = fresh_server()
    server.kill9()
    with pytest.raises(Unreachable) as failure:
        make_client(server.url).acquire(SimpleLock("x"))
    assert failure.value.sent is False


def test_restarted_server_is_used_at_once(make_client: Callable[..., Client], fresh_server: FreshServer) -> None:
    server = fresh_server()
    client = make_client(server.url)
    assert client.update(OptimisticLock("n"), plus_one) is not None  # a private connection
    assert client.acquire(CountingSemaphore("x", 1)) is not None  # and one that is not
    server.restart(keep=False)
    wait_until(lambda: server.connections() == 0)
    assert client.acquire(CountingSemaphore("x", 1)) is not None
    assert client.update(OptimisticLock("n"), plus_one) is not None


def test_connection_that_still_watches_is_closed_and_a_clean_one_is_used_again(
    server: Server, client: Client, name: str
) -> None:
    for _ in range(3):
        assert client.update(OptimisticLock(name), plus_one) is not None
    assert server.connections() == 1
    with pytest.raises(Died):
        client.update(Meddled(OptimisticLock(name), "MULTI", die), plus_one)
    wait_until(lambda: server.connections() == 0)


def test_error_reply_is_refused_with_the_servers_words(server: Server, client: Client, name: str) -> None:
    server.command("SET", f"semaphore:{name}", "text")
    with pytest.raises(Refused, match="WRONGTYPE") as refusal:
        client.acquire(CountingSemaphore(name, 1))
    assert refusal.value.code == "WRONGTYPE"
    server.command("RPUSH", f"list-{name}", "item")
    with pytest.raises(Refused, match="WRONGTYPE"):
        client.update(OptimisticLock(f"list-{name}"), plus_one)
    assert client.update(OptimisticLock(name), plus_one) is not None


def test_wrong_password_is_refused(make_client: Callable[..., Client], fresh_server: FreshServer) -> None:
    server = fresh_server(requirepass="secret")
    with pytest.raises(Refused, match="password"):
        make_client(server.url.replace("secret", "guess")).acquire(SimpleLock("x"))
    for client in (make_client(server.url), make_client(redis.Redis(port=server.port, password="secret"))):
        assert client.acquire(Redlock("x", node_timeout=1, acquire_timeout=0)) is not None
        server.command("DEL", "x")


def test_unix_socket(make_client: Callable[..., Client], server: Server, name: str) -> None:
    client = make_client([server.unix_url])
    taken = client.acquire(Redlock(name))
    assert taken is not None
    assert client.release(Redlock(name), taken)


def test_hold_gives_back_and_says_when_it_had_gone(server: Server, client: Client, other: Client, name: str) -> None:
    lock = SetNxPxLock(name, acquire_timeout=0)
    with client.hold(lock) as taken:
        assert server.command("GET", name) == taken.token.encode()
        with pytest.raises(NotAcquired), other.hold(lock):
            pass
    assert server.command("EXISTS", name) == 0
    with pytest.raises(Died), client.hold(lock):
        die()
    assert server.command("EXISTS", name) == 0
    with pytest.raises(LeaseLost), client.hold(lock):
        server.command("SET", name, "another")
    assert server.command("GET", name) == b"another"


def test_many_at_once_share_a_client(side: Side, server: Server, client: Client, name: str) -> None:
    lock = SetNxPxLock(name, retry_delay=0.002)

    def work() -> None:
        for _ in range(5):
            with client.hold(lock):
                number = int(server.command("GET", f"{name}-count") or 0)
                server.command("SET", f"{name}-count", number + 1)
            client.acquire(RaceFreeSemaphore(name + "-s", 1))
            client.update(OptimisticLock(f"{name}-sum"), plus_one)

    for run in [side.spawn(work) for _ in range(6)]:
        run.result()
    assert server.command("GET", f"{name}-count") == b"30"
    assert server.command("GET", f"{name}-sum") == b"30"
    assert server.command("ZCARD", f"semaphore:{name}-s") == 1


def test_closed_client_leaves_no_connection_and_says_so(
    side: Side, make_client: Callable[..., Client], server: Server, name: str
) -> None:
    with no_leaks():
        client = make_client(server.url)
        assert client.acquire(SimpleLock(name)) is not None
        assert client.update(OptimisticLock(f"{name}-n"), plus_one) is not None
        waiting = side.spawn(client.acquire, SimpleLock(name))
        wait_until(lambda: server.stats().get("setnx", 0) > 3)
        client.close()  # maybe between two tries, maybe with a request on its way
        assert isinstance(waiting.error(), Misused)
        wait_until(lambda: server.connections() == 0)
        recipes: list[Any] = [SimpleLock(name), Redlock(name)]
        for recipe in recipes:
            with pytest.raises(Misused, match="closed"):
                client.acquire(recipe)
        client.close()
    assert server.command("EXISTS", f"lock:{name}") == 1  # what was taken stays taken


def test_client_closed_with_a_request_on_its_way_blames_the_closing_and_not_the_server(
    side: Side, make_client: Callable[..., Client], proxy: Proxy, name: str
) -> None:
    client = make_client(proxy.url)
    lock = SetNxPxLock(name, retry_delay=0.01)
    assert client.acquire(lock) is not None
    on_its_way = proxy.when("SET").delay_reply()
    waiting = side.spawn(client.acquire, lock)
    on_its_way.wait_hit()
    client.close()
    on_its_way.let_go()
    assert isinstance(waiting.error(), Misused)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("LOCKFAST_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("LOCKFAST_GRACE_S", "0")
    monkeypatch.delenv("LOCKFAST_URL", raising=False)
    yield
    embedded.stop()


def kill_embedded() -> None:
    status = embedded.status()
    assert status is not None
    os.kill(status.pid, 9)

    def refuses() -> bool:
        # Until then a process that is ending still takes connections, and resets them.
        with socket.socket(socket.AF_UNIX) as knocking:
            return knocking.connect_ex(status.socket_path) == errno.ECONNREFUSED

    wait_until(refuses, what="it has ended")


def test_without_a_server_there_is_the_embedded_one_also_after_it_died(
    home: None, make_client: Callable[..., Client]
) -> None:
    client = make_client(timeout=5.0)
    recipes: list[Any] = [CountingSemaphore("x", 9), Redlock("y", node_timeout=5, acquire_timeout=0)]
    for recipe in recipes:
        taken = client.acquire(recipe)
        assert taken is not None
        client.release(recipe, taken)
        kill_embedded()
        with suppress(Unreachable):  # the request may be faster than the news that the connection has ended
            client.acquire(CountingSemaphore("y", 9))
        taken = client.acquire(recipe)
        assert taken is not None
        assert client.release(recipe, taken)


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork.*:DeprecationWarning")
def test_forked_child_has_connections_of_its_own(server: Server, name: str) -> None:
    with Client(server.url) as client:
        assert client.acquire(CountingSemaphore(name, 9)) is not None
        pid = os.fork()
        if pid == 0:
            taken = client.acquire(CountingSemaphore(name, 9))
            os._exit(0 if taken is not None and server.connections() == 2 else 1)
        assert os.waitpid(pid, 0)[1] == 0
        assert client.acquire(CountingSemaphore(name, 9)) is not None
    assert server.command("ZCARD", f"semaphore:{name}") == 3


# asyncio alone


@pytest.fixture
def aside() -> Any:
    side = AsyncioSide()
    yield side
    side.close()


def test_cancelled_task_leaves_the_line_in_step(aside: AsyncioSide, server: Server, name: str) -> None:
    async def main() -> None:
        async with AsyncioClient(server.url) as client:
            lock = SimpleLock(name)
            taken = await client.acquire(lock)
            assert taken is not None
            waiting = [asyncio.create_task(client.acquire(lock)) for _ in range(5)]
            counting = [asyncio.create_task(client.update(OptimisticLock(f"{name}-n"), plus_one)) for _ in range(5)]
            await asyncio.sleep(0.005)
            for task in (*waiting, *counting):
                task.cancel()
            await asyncio.wait([*waiting, *counting])
            assert await client.release(lock, taken)
            again = await client.acquire(lock)
            assert again is not None
            assert await client.update(OptimisticLock(f"{name}-n"), plus_one) is not None
            assert await client.release(lock, again)

    aside.run(main())


def test_cancelled_dial_of_a_hung_server_leaves_nothing(
    aside: AsyncioSide, fresh_server: FreshServer, name: str
) -> None:
    server = fresh_server()
    server.pause()

    async def main() -> None:
        async with AsyncioClient(server.url) as client:
            tasks = [
                asyncio.create_task(client.acquire(SimpleLock(name))),
                asyncio.create_task(client.acquire(Redlock(name, node_timeout=5))),
                asyncio.create_task(client.update(OptimisticLock(name), plus_one)),
            ]
            await asyncio.sleep(0.02)
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
            assert all(task.cancelled() for task in tasks)

    with no_leaks():
        aside.run(main())
    server.resume()


def test_node_time_out_is_kept_on_a_link_where_others_have_more_patience(
    aside: AsyncioSide, fresh_server: FreshServer
) -> None:
    server = fresh_server()

    async def main() -> None:
        async with AsyncioClient(server.url, timeout=20.0) as client:
            patient = CountingSemaphore("x", 9)
            assert await client.acquire(patient) is not None
            server.pause()
            waiting = asyncio.create_task(client.acquire(patient))
            await asyncio.sleep(0)
            started = time.monotonic()
            assert await client.acquire(Redlock("y", node_timeout=0.02, acquire_timeout=0)) is None
            assert time.monotonic() - started < 0.2
            server.resume()
            assert await waiting is not None  # its reply still came, on the link that is used no more
            await asyncio.to_thread(wait_until, lambda: b"name=lockfast" not in server.command("CLIENT", "LIST"))

    aside.run(main())


def test_client_of_another_loop_or_process_says_so(aside: AsyncioSide, server: Server, name: str) -> None:
    client = AsyncioClient(server.url)

    async def use() -> None:
        await client.acquire(CountingSemaphore(name, 9))

    aside.run(use())
    with pytest.raises(Misused, match="another event loop"):
        asyncio.run(use())
    aside.run(client.aclose())


def test_threads_of_dials_end_with_them(server: Server, name: str) -> None:
    with Client([server.url]) as client:
        assert client.acquire(Redlock(name)) is not None
        assert not [thread for thread in threading.enumerate() if thread.name == "lockfast-dial"]
