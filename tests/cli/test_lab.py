"""`lockfast lab`: the matrix, a story, files, and what is refused."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from kit.servers import wait_until
from lockfast.cli.main import main


def test_one_row_is_printed_with_its_verdicts(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["lab", "lockfast", "--seeds", "4", "--jobs", "1"]) == 0
    told = capsys.readouterr().out
    assert "lockfast" in told
    assert "overlap, refused by the fence" in told
    assert "updates" not in told


def test_fine_grained_row_is_compared_with_watch_on_the_whole(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["lab", "fine-grained", "--seeds", "1", "--jobs", "1"]) == 0
    assert "160 updates in 160 attempts" in capsys.readouterr().out


def test_json_has_algorithm_fault_verdict_counts_and_seed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["lab", "set-nx-px", "--seeds", "2", "--jobs", "1", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    cell = next(cell for cell in told["cells"] if cell["fault"] == "paused-holder")
    assert (cell["algorithm"], cell["verdict"], cell["seeds"], cell["bad"], cell["seed"]) == (
        "set-nx-px", "violated", 2, 2, 1,
    )  # fmt: skip
    assert told["fine_grained"] == []


def test_json_of_the_fine_grained_row_has_the_conflicts_of_both(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["lab", "fine-grained", "--seeds", "1", "--jobs", "1", "--json"]) == 0
    locks, watch = json.loads(capsys.readouterr().out)["fine_grained"]
    assert locks["conflicts"] == 0
    assert watch["conflicts"] > 0


def test_story_is_told_step_by_step_and_drawn(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    picture = tmp_path / "story.svg"
    assert main(["lab", "set-nx-px-blind-del", "blind-release", "--seed", "2", "--svg", str(picture)]) == 0
    told = capsys.readouterr()
    assert "B no longer has it, because of what A sent" in told.out
    assert "lockfast lab set-nx-px-blind-del blind-release --seed 2" in told.out
    assert "wrote" in told.err
    assert ET.parse(picture).getroot().tag.endswith("svg")


def test_story_without_a_seed_takes_one_that_shows_the_verdict(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["lab", "counting-semaphore", "clocks-0.3s", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["verdict"] == "violated"


def test_page_is_written(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    assert main(["lab", "redlock", "--seeds", "1", "--jobs", "1", "--html", str(page)]) == 0
    written = page.read_text()
    assert "Redlock" in written
    assert written.count("<svg") > 5
    assert str(page) in capsys.readouterr().err


def test_verdict_that_was_not_expected_ends_with_1_and_a_way_to_look(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from lockfast.lab import expected, model

    table = expected.table()
    table["setnx", "holder-dies"] = model.Expected("safe", "or so it was thought")
    monkeypatch.setattr(expected, "table", lambda: table)
    assert main(["lab", "setnx", "--seeds", "1", "--jobs", "1"]) == 1
    told = capsys.readouterr().err
    assert "setnx under holder-dies: stuck in 1 of 1 seed, expected safe: or so it was thought" in told
    assert "hint: look at it with `lockfast lab setnx holder-dies --seed 1`" in told


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["redlok"], "known: optimistic, setnx"),
        (["paused-holder", "redlock"], "'paused-holder' is a fault"),
        (["redlock", "holder-dies", "--svg", "-"], "a file is needed"),
        (["redlock", "meteor"], "known: holder-dies, "),
        (["redlock", "holder-dies", "--seed", "0"], "a whole number from 1 to"),
        (["redlock", "holder-dies", "--seed", "99999999999"], "a whole number from 1 to"),
        (["redlock", "holder-dies", "--seed", "one"], "a whole number from 1 to"),
        (["--seeds", "0"], "a whole number from 1 to"),
        (["--seed", "1"], "name an algorithm and a fault"),
        (["--svg", "x.svg"], "name an algorithm and a fault"),
        (["redlock", "holder-dies", "--html", "x.html"], "leave out the fault"),
        (["lockfast", "node-restart"], "it has one server"),
        (["--html", "/nowhere/at/all/report.html"], "cannot write /nowhere/at/all/report.html"),
        (["redlock", "holder-dies", "--svg", "/"], "cannot write /"),
    ],
)
def test_what_cannot_be_done_is_refused_with_what_can(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["lab", *arguments]) == 64
    told = capsys.readouterr()
    assert words in told.err
    assert "hint:" in told.err
    assert not told.out


def test_help_teaches(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["lab", "--help"])
    assert "lockfast lab set-nx-px paused-holder" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize("verb", [["lab", "--seeds", "50"], ["sim", "--seeds", "100000"]])
@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGKILL, signal.SIGINT])
def test_workers_end_with_the_command_however_it_ends(verb: list[str], signum: int) -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "lockfast", *verb, "--jobs", "2"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as command:
        try:
            wait_until(lambda: len(children(command.pid)) >= 2, what="workers", timeout_s=20)
            workers = children(command.pid)
            command.send_signal(signum)
            command.wait(20)
            wait_until(lambda: not any(alive(pid) for pid in workers), what="workers have ended", timeout_s=20)
        finally:
            command.kill()


def children(pid: int) -> list[int]:
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(stat.read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
        if parent == pid:
            found.append(int(stat.parent.name))
    return found


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
