"""`lockfast sim`: what it prints, where, and how it ends."""

from __future__ import annotations

import argparse
import json
import os
import pty
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import lockfast
from lockfast.cli import progress, sim
from lockfast.cli.talk import Failure
from sim.planted import ALL, planted
from sim.quorum_planted import ALL as OF_QUORUMS

if TYPE_CHECKING:
    from collections.abc import Callable

BLIND = next(bug for bug in ALL if bug.name == "blind release")
MINORITY = next(bug for bug in OF_QUORUMS if bug.name == "a minority is enough")
WHOLE = """
import argparse, sys
from lockfast.cli import sim
if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    sim.add_arguments(parser)
    sys.exit(sim.main(parser.parse_args()))
"""


def parse(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser(exit_on_error=False)
    sim.add_arguments(parser)
    return parser.parse_args(words)


def started(*words: str, **popen: object) -> subprocess.Popen[str]:
    env = os.environ | {"PYTHONPATH": str(Path(lockfast.__file__).parents[1])}
    pipe = subprocess.PIPE
    popen = {"stdout": pipe, "stderr": pipe} | popen
    return subprocess.Popen([sys.executable, "-c", WHOLE, *words], env=env, text=True, **popen)  # type: ignore[call-overload, no-any-return]


@pytest.fixture
def read(capsys: pytest.CaptureFixture[str]) -> Callable[[], tuple[str, str]]:
    return lambda: tuple(capsys.readouterr())  # type: ignore[return-value]  # a pair of texts


def test_seeds_that_pass_are_counted(read: Callable[[], tuple[str, str]]) -> None:
    assert sim.main(parse("--seeds", "3", "--from", "5")) == 0
    out, err = read()
    assert re.fullmatch(r"3 seeds, \d+ script runs, \d+\.\d s: none failed\n", out)
    assert err == ""


def test_for_machines_it_is_json(read: Callable[[], tuple[str, str]]) -> None:
    assert sim.main(parse("--seeds", "2", "--json")) == 0
    told = json.loads(read()[0])
    assert (told["from"], told["seeds"], told["failures"], told["interrupted"]) == (0, 2, [], False)
    assert told["script_runs"] > 0


def test_a_seed_that_fails_ends_with_1_and_the_command_that_replays_it(read: Callable[[], tuple[str, str]]) -> None:
    with planted(BLIND):
        assert sim.main(parse("--seeds", "30")) == sim.FAILED
        out, err = read()
        seed = re.search(r"^seed (\d+): .*exclusion", out, re.MULTILINE)
        assert seed is not None
        assert err.endswith(f"hint: replay it with `lockfast sim --seed {out.split()[1].rstrip(':')}`\n")
        assert sim.main(parse("--seeds", "30", "--json")) == sim.FAILED
        failures = json.loads(read()[0])["failures"]
        assert int(seed[1]) in [failure["seed"] for failure in failures]


def test_a_replay_tells_options_faults_trace_and_verdicts(read: Callable[[], tuple[str, str]]) -> None:
    assert sim.main(parse("--seed", "4")) == 0
    out, err = read()
    assert out.startswith("seed 4\n  clients = ")
    assert "client a: " in out
    assert "asks for 'n1' (ticket a.1)" in out
    assert re.search(r"^exclusion +ok$", out, re.MULTILINE)
    assert "shorter" not in out
    assert err == ""
    assert sim.main(parse("--seed", "4")) == 0
    assert read()[0] == out


def test_a_replay_of_a_seed_that_fails_also_tells_a_shorter_one(read: Callable[[], tuple[str, str]]) -> None:
    with planted(BLIND):
        sim.main(parse("--seeds", "30", "--json"))
        failures = json.loads(read()[0])["failures"]
        seed = next(failure["seed"] for failure in failures if "exclusion" in failure["checkers"])
        assert sim.main(parse("--seed", str(seed), "--json")) == sim.FAILED
    out, err = read()
    told = json.loads(out)
    assert "exclusion" in told["failed"]
    assert len(told["shrunk"]["trace"]) < len(told["trace"])
    assert set(told["shrunk"]["failed"]) & set(told["failed"])
    assert f"seed {seed} fails: " in err


def test_a_run_that_breaks_is_a_find_too(read: Callable[[], tuple[str, str]], monkeypatch: pytest.MonkeyPatch) -> None:
    from lockfast.sim import batch

    def broken(seed: int, choices: object) -> None:
        raise RuntimeError(f"seed {seed} goes round in circles")

    monkeypatch.setattr(batch, "run_seed", broken)
    assert sim.main(parse("--seeds", "12")) == sim.FAILED
    out, _ = read()
    assert "seed 0: error: RuntimeError: seed 0 goes round in circles\n" in out
    assert "… and 2 more\n12 seeds" in out


def test_worlds_of_several_servers_are_run_and_replayed(read: Callable[[], tuple[str, str]]) -> None:
    assert sim.main(parse("--seeds", "3", "--servers", "3")) == 0
    assert re.fullmatch(r"3 seeds, \d+ script runs, \d+\.\d s: none failed\n", read()[0])
    assert sim.main(parse("--seed", "4", "--servers", "5")) == 0
    out, _ = read()
    assert "  servers = 5\n" in out
    assert "server s5: " in out
    assert "asks for a vote for 'n" in out
    assert sim.main(parse("--seed", "4", "--servers", "5")) == 0
    assert read()[0] == out


def test_a_find_among_several_servers_is_replayed_and_made_short(read: Callable[[], tuple[str, str]]) -> None:
    with planted(MINORITY):
        assert sim.main(parse("--seeds", "60", "--servers", "3")) == sim.FAILED
        out, err = read()
        seed = re.search(r"^seed (\d+): exclusion", out, re.MULTILINE)
        assert seed is not None
        assert re.search(r"hint: replay it with `lockfast sim --seed \d+ --servers 3`\n$", err)
        assert sim.main(parse("--seed", seed[1], "--servers", "3", "--json")) == sim.FAILED
    told = json.loads(read()[0])
    assert "exclusion" in told["failed"]
    assert len(told["shrunk"]["plan"]) < len(told["plan"])
    assert set(told["shrunk"]["failed"]) & set(told["failed"])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--seeds", "0"], "a whole number from 1 to"),
        (["--seeds", "many"], "got 'many'"),
        (["--from", "-1"], "expected one argument|got '-1'"),
        (["--seed", "99999999999999999999"], "from 0 to 9223372036854775807"),
        (["--servers", "10"], "a whole number from 1 to 9"),
        (["--jobs", "0"], "a whole number from 1 to 256"),
    ],
)
def test_numbers_out_of_range_are_refused(words: list[str], message: str) -> None:
    with pytest.raises(argparse.ArgumentError, match=message):
        parse(*words)


def test_without_lupa_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sim, "find_spec", lambda _name: None)
    with pytest.raises(Failure, match="needs lupa") as caught:
        sim.main(parse())
    assert caught.value.hint == "pip install 'lockfast[lab]'"


@pytest.mark.slow
def test_several_processes_find_what_one_does(read: Callable[[], tuple[str, str]]) -> None:
    told = []
    for jobs in ("1", "2"):
        assert sim.main(parse("--seeds", "60", "--from", "100", "--jobs", jobs, "--json")) == 0
        told.append(json.loads(read()[0]))
    assert (told[0]["seeds"], told[0]["steps"]) == (told[1]["seeds"], told[1]["steps"]) == (60, told[0]["steps"])


@pytest.mark.slow
@pytest.mark.parametrize("jobs", ["1", "2"])
def test_an_interrupt_ends_it_with_what_is_known(jobs: str) -> None:
    """On a terminal, so that the bar shows when it is under way."""
    ours, theirs = pty.openpty()
    run = started("--seeds", "1000000", "--jobs", jobs, "--json", stderr=theirs)
    os.close(theirs)
    try:
        shown = b""
        while b"seeds, " not in shown:
            shown += os.read(ours, 1000)
        run.send_signal(signal.SIGINT)
        out, _ = run.communicate(timeout=30)
    finally:
        run.kill()
        run.wait()
        os.close(ours)
    told = json.loads(out)
    assert told["interrupted"] is True
    assert 0 < told["seeds"] < 1_000_000
    assert run.returncode == (1 if told["failures"] else 130)


@pytest.mark.slow
def test_without_a_terminal_there_are_lines_and_no_bar(
    monkeypatch: pytest.MonkeyPatch, read: Callable[[], tuple[str, str]]
) -> None:
    monkeypatch.setattr(progress, "LINE_EVERY_S", 0.0)
    sim.main(parse("--seeds", "50", "--from", "200"))
    _, err = read()
    line = r"lockfast: \d+ of 50 seeds, \d+ s to go, (none|\d+) failed\n"
    assert re.fullmatch(f"({line})+(hint: .*\n)?", err)
    assert "\x1b" not in err
