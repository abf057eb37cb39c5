"""Two hundred waiters: first come, first served, all of them, with few commands for each hand-over."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest

from kit.servers import wait_until
from kit.sides import AsyncioSide

if TYPE_CHECKING:
    from faults.conftest import Eyes
    from kit.servers import Server
    from kit.sides import Side
    from lockfast.sync import Lockfast

pytestmark = pytest.mark.slow
WAITERS = 200
CLIENTS = 4


def test_herd_is_served_in_order_with_few_commands(server: Server, side: Side, eyes: Eyes, name: str) -> None:
    """F49: FIFO, all served, at most 15 commands per hand-over.

    Counted are the requests of clients as the server saw them (INFO commandstats), heartbeats of the whole herd
    included. What scripts call inside costs no trip and is left out: it is bounded by the test below.
    """
    served: list[str] = []
    with side.client(server.url) as holder:
        grant = holder.lock(name, lease=60).acquire()
        clients = [side.client(server.url) for _ in range(CLIENTS)]
        ended = start_herd(side, clients, name, served)
        eyes.wait_waiting(name, WAITERS)
        wait_until(lambda: len(server.command("PUBSUB", "CHANNELS")) == CLIENTS, what="subscribed")
        queue = [waiter.ticket for waiter in eyes.look(name).waiters]
        server.reset_stats()
        grant.release()
        ended()
        asked = requests(server)
    assert served == queue, "first come, first served"
    assert sum(asked.values()) <= 15 * WAITERS, asked
    assert eyes.is_free(name)


def start_herd(side: Side, clients: list[Lockfast], name: str, served: list[str]) -> Any:
    """Starts the waiters; returns what waits for their end. Each notes its ticket when it is in, and lets go."""
    if isinstance(side, AsyncioSide):
        import asyncio

        async def one(lf: Any) -> None:
            async with lf.lock(name, lease=60, wait=60) as grant:
                served.append(grant.ticket)

        async def herd() -> None:
            async with asyncio.TaskGroup() as group:
                for number in range(WAITERS):
                    group.create_task(one(clients[number % CLIENTS].twin_of))  # type: ignore[attr-defined]  # a Twin

        return side.spawn(side.run, herd()).result

    def work(lf: Lockfast) -> None:
        with lf.lock(name, lease=60, wait=60) as grant:
            served.append(grant.ticket)

    threads = [threading.Thread(target=work, args=(clients[number % CLIENTS],)) for number in range(WAITERS)]
    for thread in threads:
        thread.start()

    def join() -> None:
        for thread in threads:
            thread.join(60)

    return join


def requests(server: Server) -> dict[str, int]:
    """Requests of lock clients by command. The eyes of the test ask nothing while this counts."""
    ours = ("evalsha", "eval", "ping", "subscribe", "client|setname", "script|load")
    stats = server.stats()
    return {command: stats[command] for command in ours if command in stats}


def test_server_work_per_hand_over_does_not_grow_with_the_queue(server: Server, side: Side, eyes: Eyes) -> None:
    """F49: the calls inside the scripts at one hand-over are as many for 60 waiters as for 3."""
    counted = []
    with side.client(server.url) as lf, side.client(server.url) as waiting:
        for waiters in (3, 60):
            name = f"queue-of-{waiters}"
            grant = lf.lock(name, lease=60).acquire()
            ended = threading.Event()

            def wait_for_turn(name: str = name, ended: threading.Event = ended) -> None:
                with waiting.lock(name, lease=60, wait=60):
                    ended.wait(60)

            herd = [side.spawn(wait_for_turn) for _ in range(waiters)]
            eyes.wait_waiting(name, waiters)
            wait_until(lambda: server.command("PUBSUB", "CHANNELS"), what="subscribed")
            with server.wire() as monitor:
                monitor.call("MONITOR")
                grant.release()
                server.command("ECHO", "the end")
                lines = []
                while "the end" not in (line := monitor.read()):
                    lines.append(line)
            calls = calls_of_the_leave(lines, grant.ticket)
            assert sum("PUBLISH" in call for call in calls) == 1, "one is woken, and nobody else"
            counted.append(len(calls))
            ended.set()
            for one in herd:
                one.result()
    assert counted[0] == counted[1] < 25, counted


def calls_of_the_leave(lines: list[str], ticket: str) -> list[str]:
    """What the script of the `leave` called, out of what MONITOR saw: its line, and those of Lua behind it."""
    (start,) = (number for number, line in enumerate(lines) if ticket in line and "lua]" not in line)
    calls = []
    for line in lines[start + 1 :]:
        if "lua]" not in line:
            break
        calls.append(line)
    return calls
