"""Histories of a real server: Lockfast's own are clean, and those of a lock made by hand are not."""

from __future__ import annotations

from collections import Counter
from contextlib import ExitStack
from math import inf
from typing import TYPE_CHECKING

import pytest

from faults.actors import Script
from kit.servers import wait_until
from lockfast import check
from lockfast.check import io
from lockfast.check.record import Claim, Recorder

if TYPE_CHECKING:
    from pathlib import Path

    from kit.servers import Server

RUN = "from check.history_worker import main; main()"
PROCESSES, THREADS, SECTIONS = 3, 4, 40
LEASE_S = 8.0
DEAD_LEASE_S = 0.5


@pytest.mark.slow
def test_processes_and_threads_that_contend_leave_a_clean_history(
    valkey_server: Server, tmp_path: Path, name: str
) -> None:
    """Three processes of four threads on two names, one of which is held at first by a process that is killed."""
    url, names = valkey_server.url, [f"{name}-1", f"{name}-2"]
    files = [tmp_path / f"worker-{number}" for number in range(PROCESSES)]
    with Recorder(tmp_path / "world", "world") as world, ExitStack() as running:
        dead = Script(RUN, "hold", url, str(tmp_path / "dead"), "dead", str(DEAD_LEASE_S), names[0])
        running.enter_context(dead)
        assert dead.line() == "holding"
        dead.kill()
        dead.wait()
        world.crashed("dead")
        world.quiet()
        workers = [
            running.enter_context(
                Script(RUN, "work", url, str(path), path.name, str(LEASE_S), str(SECTIONS), str(THREADS), *names)
            )
            for path in files
        ]
        for worker in workers:
            code, _, errors = worker.end()
            assert code == 0, errors
        world.end()

    history = io.load(*files, tmp_path / "dead", tmp_path / "world")
    granted = [event for event in history if event.what == "granted"]
    assert len(granted) == PROCESSES * THREADS * SECTIONS + 1
    assert {event.name for event in granted} == set(names)
    assert waited(history) > len(granted) // 2, "they contended"
    verdicts = check.all(history)
    for question in ("exclusion", "permits", "fences_grow", "not_stuck", "no_resumption"):
        assert verdicts[question].ok, str(verdicts[question])
    for question in ("fifo", "deadline_before_takeover", "no_orphan"):
        assert verdicts[question].status == "unknown", "only the server could tell"


def waited(history: check.History) -> int:
    """How many saw another come in while they waited."""
    grants: Counter[str] = Counter()  # by name
    before: dict[str, int] = {}  # by ticket
    found = 0
    for event in history:
        if event.what == "asked":
            before[event.ticket] = grants[event.name]
        elif event.what == "granted":
            found += grants[event.name] > before[event.ticket]
            grants[event.name] += 1
    return found


class HandMade:
    """The lock that one writes in a minute: SETNX, EXPIRE of a second, and a DEL that asks nothing."""

    def __init__(self, server: Server, recorder: Recorder, name: str) -> None:
        self.server = server
        self.recorder = recorder
        self.name = name

    def take(self) -> str:
        ticket = self.recorder.asked(self.name, lease=1.0)
        wait_until(lambda: self.server.command("SETNX", self.name, "1") == 1, what="the key is free")
        self.server.command("EXPIRE", self.name, "1")
        self.recorder.granted(ticket, Claim(inf))  # it knows of no deadline
        return ticket

    def give(self, ticket: str) -> None:
        self.recorder.leaving(ticket)
        self.server.command("DEL", self.name)
        self.recorder.left(ticket)


@pytest.mark.slow
def test_a_lock_made_by_hand_is_caught_on_a_real_server(valkey_server: Server, tmp_path: Path, name: str) -> None:
    with Recorder(tmp_path / "history", "by hand") as recorder:
        lock = HandMade(valkey_server, recorder, name)
        lock.give(lock.take())
        quick = io.load(tmp_path / "history")
        slow = lock.take()
        second = lock.take()  # once the slow one's second is over
        lock.give(slow)  # and with it the key of the second
        third = lock.take()
        lock.give(second)
        lock.give(third)

    assert check.exclusion(quick).ok, "one at a time it works"
    history = io.load(tmp_path / "history")
    verdict = check.exclusion(history)
    assert verdict.bad
    assert [event.ticket for event in verdict.events] == [slow, second], "the slow holder does not know"
    verdict = check.exclusion([event for event in history if event.ticket != slow])
    assert verdict.bad
    assert [event.ticket for event in verdict.events] == [second, third], "a blind DEL lets a third in"
    assert check.fences_grow(history).status == "unknown", "it has no fences"
