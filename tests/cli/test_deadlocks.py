"""`lockfast deadlocks`: what it prints of circles, and how it ends."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

import pytest

from kit.servers import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable

    from cli.conftest import Runs
    from cli.processes import Process
    from kit.servers import FreshServer, Server

pytestmark = pytest.mark.slow

# Takes its first lock, says so, and takes the second when it is told to; without detection.
CROSSES = """
import sys
from lockfast import Lockfast
lf = Lockfast(label=sys.argv[1])
with lf.lock(*sys.argv[2].split("|")):
    print("held", flush=True)
    sys.stdin.readline()
    with lf.lock(*sys.argv[3].split("|")):
        print("served", flush=True)
"""


@pytest.fixture
def alone(fresh_server: FreshServer, runs_on: Callable[[Server], Runs]) -> Runs:
    """The command on a server where nothing else is held."""
    return runs_on(fresh_server())


def crossing(runs: Runs, label: str, first: str, second: str) -> Process:
    """A program that holds one lock and will want another."""
    process = runs.program("-c", CROSSES, label, first, second)
    assert process.line() == "held"
    return process


def go_on(runs: Runs, process: Process, name: str) -> None:
    assert process.stdin is not None
    process.stdin.write(b"\n")
    wait_until(lambda: runs.shown(name)["waiters"], what="queued")


def test_no_deadlock_is_silence_and_zero(alone: Runs) -> None:
    alone.holding("a")
    assert alone.end("deadlocks") == (0, "", "lockfast: no deadlock\n")
    assert alone.end("deadlocks", "--json") == (0, "[]\n", "")


def test_circle_is_told_and_broken_as_the_hint_says(alone: Runs) -> None:
    elder = crossing(alone, "the elder", "cart|item 1", "b")
    younger = crossing(alone, "the younger\u202e", "b", "cart|item 1")
    go_on(alone, elder, "b")
    go_on(alone, younger, "cart|item 1")
    code, out, err = alone.end("deadlocks")
    assert code == 1
    title, head, first, second = [re.split(r" {2,}", line.strip()) for line in out.splitlines()]
    assert title == ["deadlock: 2 wait in a circle"]
    assert head == ["HOST", "PID", "#", "WAITS FOR", "SINCE", "HELD BY", "LABEL"]
    assert (first[1], first[3], first[6]) == (str(younger.pid), "cart|item 1", first[6])
    assert (second[1], second[3], second[6]) == (str(elder.pid), "b", "the elder")
    assert first[6].startswith("the younger")
    assert "\u202e" not in out
    assert f"pid {elder.pid} #" in first[5]
    assert re.fullmatch(rf"hint: end \S+ pid {younger.pid}, or take from it what it holds: lockfast break b\n", err)

    code, out, err = alone.end("deadlocks", "--json")
    assert (code, err) == (1, "")
    ((mine, theirs),) = json.loads(out)
    assert (mine["who"]["pid"], mine["waits_for"], mine["held_by"]["pid"]) == (younger.pid, "cart|item 1", elder.pid)
    assert (theirs["who"]["pid"], theirs["ahead"]) == (elder.pid, False)

    assert alone.end("break", "b", "--yes")[0] == 0
    assert elder.line() == "served"
    assert alone.end("deadlocks")[0] == 0


def test_server_that_does_not_answer_is_not_a_deadlock(alone: Runs) -> None:
    code, out, err = alone.end("deadlocks", "--url", "redis://127.0.0.1:1")
    assert (code, out) == (69, "")
    assert "hint: " in err


def test_help_tells_exit_codes_and_limits(alone: Runs) -> None:
    code, out, _ = alone.end("deadlocks", "--help")
    assert code == 0
    for words in ("exit codes:", "--json", "--url", "cannot see"):
        assert words in out
