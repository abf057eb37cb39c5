"""One seed, one run, byte for byte; and a failing run made short."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import lockfast
from lockfast.check import Verdict
from lockfast.sim import shrink as shrink_module
from lockfast.sim.faults import Fault
from lockfast.sim.runs import Result, play, run_seed
from lockfast.sim.shrink import shrink

if TYPE_CHECKING:
    import pytest

    from lockfast.sim.swarm import Plan

SEED = 11  # one with a queue, a lost hold and a crash in it
TELL = f"""
from lockfast.sim.runs import run_seed
result = run_seed({SEED}, trace=True)
print("\\n".join([*result.plan.options.lines(), *result.plan.lines(), *result.trace, *map(repr, result.history)]))
"""


def told(hash_seed: str) -> str:
    env = os.environ | {"PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(Path(lockfast.__file__).parents[1])}
    return subprocess.run([sys.executable, "-c", TELL], env=env, capture_output=True, text=True, check=True).stdout


def test_a_seed_gives_the_same_trace_in_any_process() -> None:
    here = run_seed(SEED, trace=True)
    words = [*here.plan.options.lines(), *here.plan.lines(), *here.trace, *map(repr, here.history)]
    assert len(here.trace) > 50
    assert told("0") == told("4242") == "\n".join(words) + "\n"


def test_runs_before_it_and_the_trace_itself_change_nothing() -> None:
    for seed in range(30):
        first = run_seed(seed)
        run_seed(seed + 1000)
        again = run_seed(seed, trace=True)
        assert first.history == again.history
        assert (first.steps, first.script_runs) == (again.steps, again.script_runs)
        assert not first.trace
        assert again.trace


def test_other_seeds_are_other_runs() -> None:
    assert len({tuple(map(repr, run_seed(seed).history)) for seed in range(20)}) == 20


def failing_with(plan: Plan, trace: bool = False) -> Result:
    """A stand-in for a run: it fails as long as both guilty faults and client `b` are in the plan."""
    guilty = {fault.nth for fault in plan.faults if fault.who == "b"} >= {3, 17}
    status = "violated" if guilty and any(client.name == "b" for client in plan.clients) else "ok"
    return Result(plan, {"exclusion": Verdict(status, "")}, (), (), 0, 0)  # type: ignore[arg-type]


def test_shrinking_keeps_what_is_guilty_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shrink_module, "play", failing_with)
    plan = run_seed(5, {"clients": 5, "faults": 0}).plan
    faults = tuple(Fault("slow", who, nth=nth, length_s=1.0) for who in "abcde" for nth in range(1, 20))
    tries: list[int] = []
    short = shrink(failing_with(replace(plan, faults=faults)), tell=tries.append)
    assert [client.name for client in short.clients] == ["b"]
    assert sorted((fault.who, fault.nth) for fault in short.faults) == [("b", 3), ("b", 17)]
    assert short.options.spread_s == 0.0
    assert not any(visits for client in short.clients for visits in client.visits)
    assert tries == list(range(1, len(tries) + 1))


def test_shrinking_stops_when_its_runs_are_used_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shrink_module, "play", failing_with)
    plan = run_seed(5, {"clients": 5, "faults": 0}).plan
    faults = tuple(Fault("slow", who, nth=nth, length_s=1.0) for who in "abcde" for nth in range(1, 20))
    tries: list[int] = []
    short = shrink(failing_with(replace(plan, faults=faults)), max_runs=5, tell=tries.append)
    assert len(tries) == 5
    assert failing_with(short).failed


def test_a_plan_replays_as_its_seed_does() -> None:
    result = run_seed(SEED)
    assert play(result.plan).history == result.history
