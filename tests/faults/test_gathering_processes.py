"""Processes that wait in latches and barriers, or lead, are interrupted and killed."""

from __future__ import annotations

import signal
import time
from typing import TYPE_CHECKING

import pytest

from faults.actors import Script
from faults.test_interrupts import program
from kit.servers import wait_until
from kit.sides import Spawned
from lockfast.errors import BrokenBarrier
from lockfast.sync import Lockfast

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kit.servers import Server
    from kit.sides import Side

pytestmark = pytest.mark.slow
AT_ONCE_S = 1.0
BARRIER = "lf.barrier(sys.argv[2], parties=3, lease={lease}).wait()"
LATCH = "lf.latch(sys.argv[2], count=1).wait()"
LEADER = "lf.election(sys.argv[2], value='first', lease=1).campaign().__enter__()"


@pytest.fixture
def near(valkey_server: Server) -> Iterator[Lockfast]:
    with Lockfast(valkey_server.url) as lf:
        yield lf


def waiting(lf: Lockfast, name: str) -> int:
    return len(lf.inspect(name).waiters)


@pytest.mark.parametrize("side_name", ["threads", "asyncio"])
def test_ctrl_c_at_a_barrier_is_told_to_the_others_at_once(
    valkey_server: Server, near: Lockfast, name: str, side_name: str
) -> None:
    with Script(program(side_name, BARRIER.format(lease=60)), valkey_server.url, name) as script:
        wait_until(lambda: waiting(near, name) == 1, what="a party that waits")
        other = Spawned(near.barrier(name, parties=3, lease=60).wait)
        wait_until(lambda: waiting(near, name) == 2, what="two parties that wait")
        script.send_signal(signal.SIGINT)
        assert isinstance(other.error(AT_ONCE_S), BrokenBarrier)
        assert [script.line(), script.line(5)] == ["warm", "interrupted"]
        script.say("")
        code, _, errors = script.end()
        assert (code, errors) == (0, "")


@pytest.mark.parametrize("side_name", ["threads", "asyncio"])
def test_ctrl_c_at_a_latch_leaves_nothing(valkey_server: Server, near: Lockfast, name: str, side_name: str) -> None:
    with Script(program(side_name, LATCH), valkey_server.url, name) as script:
        wait_until(lambda: waiting(near, name) == 1, what="a waiter")
        script.send_signal(signal.SIGINT)
        assert [script.line(), script.line(5)] == ["warm", "interrupted"]
        wait_until(lambda: waiting(near, name) == 0, what="nobody", timeout_s=AT_ONCE_S)
        script.say("")
        assert script.end()[0] == 0


def test_killed_party_breaks_the_barrier(valkey_server: Server, near: Lockfast, name: str) -> None:
    with Script(program("threads", BARRIER.format(lease=0.6)), valkey_server.url, name) as script:
        wait_until(lambda: waiting(near, name) == 1, what="a party that waits")
        other = Spawned(near.barrier(name, parties=3, lease=0.6).wait)
        wait_until(lambda: waiting(near, name) == 2, what="two parties that wait")
        script.kill()
        assert isinstance(other.error(0.6 + AT_ONCE_S), BrokenBarrier)


def test_killed_leader_is_followed(valkey_server: Server, side: Side, near: Lockfast, name: str) -> None:
    lf = side.client(valkey_server.url)
    observation = lf.election(name).observe()
    assert next(observation) is None
    with Script(program("threads", LEADER), valkey_server.url, name) as script:
        first = next(observation)
        assert first is not None
        assert first.value == "first"
        assert first.pid == script.pid
        script.kill()
        began = time.monotonic()
        with near.election(name, value="second").campaign(wait=10):
            assert time.monotonic() - began < 1 + AT_ONCE_S
            seen = next(observation) or next(observation)
            assert seen is not None
            assert seen.value == "second"
    observation.close()
