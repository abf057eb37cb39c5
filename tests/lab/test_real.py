"""`lockfast lab --real`: what is seen on real servers agrees with the simulator, and nothing is left behind."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import lockfast
from kit.servers import wait_until
from lockfast.cli import lab, lab_real
from lockfast.cli.talk import Failure
from lockfast.lab import real, real_faults, scenarios
from lockfast.lab.expected import table
from lockfast.lab.real import NOT_PLAYED, Company, RealCell
from lockfast.lab.stage import Happening

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

# One or two for every way to provoke something, and both verdicts where the algorithm is what makes the difference.
SEEN = {
    ("setnx", "holder-dies"): "stuck",
    ("lockfast", "holder-dies"): "safe",
    ("setnx-expire-falsy", "dies-in-between"): "stuck",
    ("set-nx-px", "dies-in-between"): "safe",
    ("redlock", "slow-holder"): "safe",
    ("set-nx-px", "blind-release"): "safe",
    ("set-nx-px-blind-del", "blind-release"): "violated",
    ("lockfast", "expiry-rush"): "safe",
    ("getset", "clocks-2s"): "violated",
    ("getset", "getset-stretch"): "safe",
    ("counting-semaphore", "slow-clock"): "violated",
    ("setnx", "reply-lost"): "stuck",
    ("lockfast", "reply-lost"): "safe",
    ("set-nx-px", "restart-empty"): "violated",
    ("lockfast", "restart-empty"): "fenced",
    ("optimistic", "restart-empty"): "safe",
    ("set-nx-px", "failover"): "violated",
    ("redlock", "node-restart"): "violated",
    ("redlock", "minority-down"): "safe",
    ("redlock", "majority-down"): "stuck",
    ("set-nx-px-blind-del", "connection-cut"): "violated",
    ("lockfast", "connection-cut"): "safe",
    ("set-nx-px", "paused-holder"): "violated",
    ("lockfast", "paused-holder"): "fenced",
    ("optimistic", "paused-holder"): "safe",
    ("fine-grained", "crossed-order"): "violated",
    ("lockfast-several", "crossed-order"): "safe",
    ("lockfast-semaphore", "expiry-rush"): "safe",
    ("lockfast-rlock", "paused-holder"): "fenced",
    ("lockfast-election", "holder-dies"): "safe",
    ("lockfast-transaction", "paused-holder"): "safe",
    ("lockfast-guard", "paused-holder"): NOT_PLAYED,
}
Played = dict[tuple[str, str], RealCell]


AT_ONCE = 8


@pytest.fixture(scope="module")
def played() -> Played:
    """Many at once: they mostly sleep. One that came out otherwise is played again by itself: with so many at once,
    a busy machine may have held up just the one that had to be quick.
    """
    cells = dict(zip(SEEN, real.run(list(SEEN), at_once=AT_ONCE), strict=True))
    again = [cell for cell in SEEN if cells[cell].verdict != SEEN[cell]]
    return cells | dict(zip(again, real.run(again, at_once=1), strict=True)) if again else cells


@pytest.mark.slow
@pytest.mark.parametrize(("algorithm", "fault"), SEEN)
def test_what_is_seen_on_real_servers(played: Played, algorithm: str, fault: str) -> None:
    cell = played[algorithm, fault]
    assert (cell.verdict, cell.agrees) == (SEEN[algorithm, fault], True), cell


@pytest.mark.slow
def test_a_paused_holder_writes_after_another_has_begun(played: Played) -> None:
    """It was stopped for real, after its look and before its write."""
    told = [(one.who, one.kind) for one in played["lockfast", "paused-holder"].steps]
    stopped, refused = told.index(("A", "pauses")), told.index(("A", "refused"))
    assert told.count(("A", "write")) == 1
    assert [what for who, what in told[stopped:refused] if who != "A"][:2] == ["takes", "write"]
    paused_s = played["lockfast", "paused-holder"].steps[refused].at - _at(
        played, "lockfast", "paused-holder", "pauses"
    )
    assert paused_s > 0.5


@pytest.mark.slow
def test_a_lost_reply_was_carried_out_and_not_heard(played: Played) -> None:
    told = [(one.who, one.kind) for one in played["setnx", "reply-lost"].steps]
    assert ("A", "fails") in told
    assert "takes" not in [what for _, what in told]
    told = [(one.who, one.kind) for one in played["lockfast", "reply-lost"].steps]
    assert next(who for who, what in told if what == "takes") == "A", "it asked again, and had it all the time"


@pytest.mark.slow
def test_a_cut_connection_is_silent_and_what_was_sent_arrives_late(played: Played) -> None:
    steps = played["set-nx-px-blind-del", "connection-cut"].steps
    gave = next(one for one in steps if (one.who, one.kind) == ("A", "gives"))
    assert "does not answer" in gave.words
    assert steps[-1].at - gave.at > 1.0, "its DEL let another in long after it had given up"


@pytest.mark.slow
@pytest.mark.needs_faketime
def test_a_server_whose_clock_jumps(read: Callable[[], str]) -> None:
    assert lab.main(parse("--real", "--json", "lockfast", "clock-jump")) == 0
    (cell,) = json.loads(read())["cells"]
    assert cell["verdict"] == "fenced"
    assert any("clock set" in one["words"] for one in cell["steps"])


def _at(played: Played, algorithm: str, fault: str, kind: str) -> float:
    return next(one.at for one in played[algorithm, fault].steps if one.kind == kind)


# How often a cell is played.


def company(*verdicts: tuple[str, float]) -> Company:
    """A company whose tries end like this: a verdict, and by how much the machine was late."""
    made = Company(None)  # type: ignore[arg-type]  # nobody is started
    left = list(verdicts)

    async def one_try(algorithm: str, fault: str, number: int, wish: str) -> tuple[RealCell, float]:
        verdict, late_s = left.pop(0)
        return RealCell(algorithm, fault, verdict, wish, f"try {number}"), late_s

    made._try = one_try  # type: ignore[method-assign]
    return made


def play(of: Company, algorithm: str = "set-nx-px", fault: str = "paused-holder") -> RealCell:
    return asyncio.run(of.play(algorithm, fault))


def test_what_needs_chance_is_tried_again_until_it_is_seen() -> None:
    cell = play(company(("safe", 0.0), ("safe", 0.0), ("violated", 0.0)))
    assert (cell.verdict, cell.tries, cell.agrees) == ("violated", 3, True)


def test_what_was_never_seen_is_not_claimed() -> None:
    cell = play(company(*[("safe", 0.0)] * 4))
    assert (cell.verdict, cell.tries, cell.agrees) == ("safe", 4, False)


def test_a_violation_that_nobody_expected_is_told_after_one_try() -> None:
    cell = play(company(("violated", 0.0)), "lockfast", "paused-holder")
    assert (cell.verdict, cell.tries, cell.agrees) == ("violated", 1, False)


def test_a_try_that_the_machine_spoilt_is_made_again() -> None:
    cell = play(company(("violated", 0.5), ("safe", 0.0)), "lockfast", "holder-dies")
    assert (cell.verdict, cell.tries, cell.late, cell.agrees) == ("safe", 2, 1, True)


def test_a_machine_that_is_always_late_gives_no_verdict() -> None:
    cell = play(company(*[("violated", 0.5)] * 4), "lockfast", "holder-dies")
    assert (cell.verdict, cell.tries, cell.late, cell.agrees) == ("unknown", 4, 4, False)


def test_one_contender_plays_with_its_clock_ahead_and_behind() -> None:
    assert play(company(("safe", 0.0), ("safe", 0.0)), "fair-semaphore", "clocks-0.3s").tries == 2


def test_a_player_that_broke_is_no_verdict() -> None:
    made = company()

    async def broken(*_: object) -> tuple[RealCell, float]:
        raise RuntimeError("player A broke:\nZeroDivisionError")

    made._try = broken  # type: ignore[method-assign, assignment]
    cell = play(made)
    assert (cell.verdict, cell.agrees) == ("unknown", False)
    assert "ZeroDivisionError" in cell.detail


def test_every_fault_can_be_provoked() -> None:
    assert set(real_faults.TALES) == set(scenarios.BY_KEY)


# The command.


def parse(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser(exit_on_error=False)
    lab.add_arguments(parser)
    return parser.parse_args(words)


@pytest.fixture
def read(capsys: pytest.CaptureFixture[str]) -> Callable[[], str]:
    return lambda: capsys.readouterr().out


def seen(monkeypatch: pytest.MonkeyPatch, **verdicts: str) -> None:
    """Let the command see these verdicts of set-nx-px, and otherwise what is expected."""

    def run(cells: list[tuple[str, str]], _at_once: int, tick: Callable[[RealCell], None]) -> list[RealCell]:
        made = []
        for algorithm, fault in cells:
            wish = table()[algorithm, fault].verdict
            verdict = verdicts.get(fault.replace("-", "_"), wish)
            made.append(RealCell(algorithm, fault, verdict, wish, "", 1, 0, (Happening(0.1, "A", "takes", "has it"),)))
            tick(made[-1])
        return made

    monkeypatch.setattr(real, "run", run)


def test_a_row_that_agrees_ends_with_0(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    seen(monkeypatch)
    assert lab.main(parse("--real", "set-nx-px")) == 0
    out, err = capsys.readouterr()
    assert "paused-holder" in out
    assert "DIFFER" not in out
    assert "n/a" not in out, "what does not apply is not listed"
    assert "agree, none differ" in err


def test_a_verdict_that_differs_is_marked_and_ends_with_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    seen(monkeypatch, paused_holder="safe")
    assert lab.main(parse("--real", "set-nx-px")) == 1
    out, err = capsys.readouterr()
    (line,) = [line for line in out.splitlines() if "DIFFER" in line]
    assert line.split() == ["set-nx-px", "paused-holder", "safe", "violated", "DIFFER"]
    assert "1 differ" in err
    assert "lockfast lab --real set-nx-px paused-holder" in err


def test_one_cell_is_told_step_by_step(monkeypatch: pytest.MonkeyPatch, read: Callable[[], str]) -> None:
    seen(monkeypatch)
    lab.main(parse("--real", "set-nx-px", "paused-holder"))
    assert "0.100  A  has it" in read()


def test_without_libfaketime_the_clock_is_said_to_be_out_of_reach(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(real_faults, "faketime_library", lambda: None)
    assert lab.main(parse("--real", "set-nx-px", "clock-jump")) == 0
    out, err = capsys.readouterr()
    assert "not possible here: libfaketime is not installed" in out
    assert "1 not possible here" in err
    assert play(company(), "set-nx-px", "clock-jump").verdict == NOT_PLAYED


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("nonsense",), "there is no algorithm 'nonsense'"),
        (("set-nx-px", "nonsense"), "there is no fault 'nonsense'"),
        (("set-nx-px", "node-restart"), "node-restart does not apply to set-nx-px: it has one server"),
        (("set-nx-px", "failover", "--seed", "3"), "--seed is about the simulator"),
        (("set-nx-px", "failover", "--svg", "/tmp/never.svg"), "--svg is about the simulator"),
        (("--html", "/tmp/never.html"), "--html is about the simulator"),
    ],
)
def test_what_cannot_be_done_is_refused_before_anything_starts(words: tuple[str, ...], message: str) -> None:
    with pytest.raises(Failure, match=message.replace("(", r"\(")):
        lab.main(parse("--real", *words))


def test_a_machine_without_a_server_is_told_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    from lockfast._launcher import no_binary

    def nowhere() -> str:
        raise no_binary()

    monkeypatch.setattr(lab_real, "find_binary", nowhere)
    with pytest.raises(Failure) as failure:
        lab.main(parse("--real"))
    assert failure.value.hint == "pip install 'lockfast[lab]'"


# The end.


@pytest.fixture
def short_tmp() -> Iterator[Path]:
    """A directory for the run's own, with a path that is short enough for sockets."""
    path = Path(tempfile.mkdtemp(prefix="lf-"))
    yield path
    shutil.rmtree(path, ignore_errors=True)


def processes_of(tmp: Path) -> list[int]:
    """Whoever was started with this directory for its temporary files, or serves in it."""
    mark, found = str(tmp).encode(), []
    for entry in Path("/proc").iterdir():
        try:
            known = (entry / "environ").read_bytes() + (entry / "cmdline").read_bytes() if entry.name.isdigit() else b""
            running = "(zombie)" not in (entry / "status").read_text() if mark in known else False
        except OSError:
            continue
        if running:
            found.append(int(entry.name))
    return found


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="looks for processes in Linux' /proc")
@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_an_interrupted_run_leaves_no_process_and_no_directory(short_tmp: Path, ending: signal.Signals) -> None:
    env = os.environ | {"TMPDIR": str(short_tmp), "PYTHONPATH": str(Path(lockfast.__file__).parents[1])}
    command = subprocess.Popen(
        [sys.executable, "-m", "lockfast", "lab", "--real", "redlock", "majority-down"],
        env=env,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    try:
        # The command, the stagehand, five servers and three players; some seconds later the play would end by itself.
        wait_until(lambda: len(processes_of(short_tmp)) >= 10, timeout_s=30, what="a play is on")
        command.send_signal(ending)
        _, err = command.communicate(timeout=20)
    finally:
        command.kill()
    assert command.returncode == (130 if ending == signal.SIGINT else -ending)
    assert b"Traceback" not in err
    if ending == signal.SIGINT:
        assert not list(short_tmp.iterdir()), "it waits until all is tidy"
    wait_until(lambda: not processes_of(short_tmp), timeout_s=10, what="all have ended")
    wait_until(lambda: not list(short_tmp.iterdir()), timeout_s=10, what="the directory is gone")


@pytest.mark.slow
def test_a_path_that_is_too_long_for_sockets_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    deep = tmp_path / ("x" * 80)
    deep.mkdir()
    monkeypatch.setenv("TMPDIR", str(deep))
    started = time.monotonic()
    with pytest.raises(Failure, match="set TMPDIR to a shorter one"):
        lab.main(parse("--real", "set-nx-px", "failover"))
    assert time.monotonic() - started < 10
    assert not list(deep.iterdir())
