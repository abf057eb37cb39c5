"""`lockfast run` on real servers: waiting, being busy, losing, and every exit code."""

from __future__ import annotations

import re
import signal
import socket
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest

from cli.processes import Lifeline, freeze
from kit.servers import wait_until
from lockfast.errors import NotAcquired
from lockfast.sync import Lockfast

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from cli.conftest import Runs
    from kit.servers import FreshServer, Server

    RunsOn = Callable[[Server], Runs]
    Shell = Callable[[str], list[str]]

STUBBORN = "trap '' TERM; sleep 1000 & sleep 1000 & echo held; wait"

pytestmark = pytest.mark.slow


def test_command_runs_and_the_lock_is_free_afterwards(runs: Runs, name: str) -> None:
    assert runs.end("run", name, "--", "sh", "-c", "echo out; exit 3") == (3, "out\n", "")
    assert runs.shown(name)["holders"] == []


def test_without_two_dashes_the_command_begins_at_the_second_word(runs: Runs, name: str) -> None:
    assert runs.end("run", name, "-w", "5s", "printf", "%s", "--lease")[1] == "--lease"


def test_fence_grows_and_is_the_servers(runs: Runs, name: str) -> None:
    fences = [int(runs.end("run", name, "--", "sh", "-c", "echo $LOCKFAST_FENCE")[1]) for _ in range(2)]
    assert fences[0] < fences[1] <= runs.shown(name)["fence"]


def test_busy_gives_75_and_one_line_about_the_holder(runs: Runs, name: str) -> None:
    holder = runs.holding(name, "--label", "nightly report")
    code, out, err = runs.end("run", name, "-n", "--", "echo", "ran")
    assert (code, out) == (75, "")
    host = re.escape(socket.gethostname())
    assert re.fullmatch(
        rf"lockfast: {name} is held by {host} pid {holder.pid} \(nightly report\) since \d\d:\d\d:\d\d"
        r" \(\d.*\), lease (30|29|28|27)s left\n",
        err,
    )


def test_busy_line_counts_who_waits(runs: Runs, name: str) -> None:
    runs.holding(name)
    runs.start("run", name, "--", "true")
    wait_until(lambda: runs.shown(name)["waiters"], what="queued")
    assert "left, 1 waiting" in runs.end("run", name, "-n", "--", "true")[2]


@pytest.mark.parametrize(("options", "code"), [(["-E", "9"], 9), (["--skip-ok"], 0), (["--conflict-exit-code=0"], 0)])
def test_exit_code_of_busy_can_be_chosen(runs: Runs, name: str, options: list[str], code: int) -> None:
    runs.holding(name)
    assert runs.end("run", name, "-n", "-q", *options, "--", "echo", "ran") == (code, "", "")


def test_wait_has_an_end(runs: Runs, name: str) -> None:
    runs.holding(name)
    began = time.monotonic()
    code, _, err = runs.end("run", name, "-w", "300ms", "--", "true")
    assert code == 75
    assert "is held by" in err
    assert 0.3 < time.monotonic() - began < 5
    assert runs.shown(name)["waiters"] == []


def test_waits_by_default_and_is_next(runs: Runs, name: str) -> None:
    holder = runs.holding(name)
    second = runs.start("run", name, "--", "echo", "second")
    wait_until(lambda: runs.shown(name)["waiters"], what="queued")
    holder.end()
    assert second.end() == (0, "second\n", "")


def test_waiting_is_told_with_verbose(runs: Runs, name: str) -> None:
    holder = runs.holding(name)
    second = runs.start("run", name, "-v", "--", "echo", "second")
    assert second.error_line().startswith(f"lockfast: waiting for {name}, held by ")
    holder.end()
    assert second.error_line().startswith(f"lockfast: took {name}, fence ")
    assert second.end() == (0, "second\n", "")


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT])
def test_signal_while_waiting_leaves_the_queue(runs: Runs, name: str, signum: int) -> None:
    runs.holding(name)
    second = runs.start("run", name, "--", "echo", "ran")
    wait_until(lambda: runs.shown(name)["waiters"], what="queued")
    second.send_signal(signum)
    assert second.end() == (128 + signum, "", "")
    assert runs.shown(name)["waiters"] == []


def test_name_of_parts_is_the_librarys_name_of_parts(runs: Runs, valkey_server: Server, name: str) -> None:
    runs.holding(f"{name}|item:7|50%25")
    with Lockfast(valkey_server.unix_url) as client:
        assert client.lock(name, "item:7", "50%").try_acquire() is None


def test_run_inside_a_run_of_the_same_lock_is_refused(runs: Runs, name: str) -> None:
    inner = [sys.executable, "-m", "lockfast", "run", name, "--", "true"]
    code, _, err = runs.end("run", name, "--", *inner)
    assert code == 64
    assert "it would wait for itself" in err
    assert "hint:" in err
    assert runs.end("run", "other-" + name, "--", *inner) == (0, "", "")


def test_what_outlived_a_run_may_take_its_lock_again(runs: Runs, name: str) -> None:
    _, out, _ = runs.end("run", name, "--", "sh", "-c", "echo $LOCKFAST_HELD")
    runs.env["LOCKFAST_HELD"] = out.strip()
    assert runs.end("run", name, "--", "true")[0] == 0


def test_server_that_is_not_there_gives_69(runs: Runs) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        url = f"redis://:secret@127.0.0.1:{closed.getsockname()[1]}/0"
        for words in (["run", "x", "--", "echo", "ran"], ["ls"], ["show", "x"], ["break", "x", "--yes"]):
            code, out, err = runs.end(*words[:1], "--url", url, *words[1:])
            assert (code, out) == (69, "")
            assert "hint: is the server up" in err
            assert "secret" not in err


def test_server_that_refuses_gives_77(fresh_server: FreshServer, runs_on: RunsOn) -> None:
    server = fresh_server(requirepass="right")
    runs = runs_on(server)
    wrong = server.unix_url.replace("right", "wrong")
    for words in (["run", "x", "--", "echo", "ran"], ["ls"]):
        code, out, err = runs.end(*words[:1], "--url", wrong, *words[1:])
        assert (code, out) == (77, "")
        assert "hint:" in err
        assert "wrong@" not in err


def test_bad_url_gives_64(runs: Runs) -> None:
    code, out, err = runs.end("run", "x", "--url", "ftp://host", "--", "echo", "ran")
    assert (code, out) == (64, "")
    assert "ftp" in err


def next_holder_finds_nobody(server: Server, name: str, lifeline: Lifeline) -> None:
    """Take the lock that another lost; by the time it is ours, nobody of the other may run."""
    with Lockfast(server.unix_url) as client, client.lock(name, wait=15):
        assert lifeline.is_cut


@pytest.mark.parametrize("blow", ["kill", "freeze"])
def test_killed_or_frozen_run_never_overlaps_with_the_next_holder(
    runs: Runs, valkey_server: Server, name: str, lifeline: Lifeline, shell: Shell, blow: str
) -> None:
    run = runs.start("run", name, "--lease", "1500ms", *shell(STUBBORN))
    assert run.line() == "held"
    if blow == "kill":
        run.kill()
    else:
        freeze(run.pid)
    next_holder_finds_nobody(valkey_server, name, lifeline)
    if blow == "freeze":
        run.send_signal(signal.SIGCONT)
        assert run.end()[0] == 76


@pytest.mark.parametrize("blow", ["pause", "kill9"])
def test_dead_or_frozen_server_means_the_end_within_the_lease(
    fresh_server: FreshServer, runs_on: RunsOn, name: str, lifeline: Lifeline, shell: Shell, blow: str
) -> None:
    server = fresh_server()
    run = runs_on(server).start("run", name, "--lease", "1500ms", *shell(STUBBORN))
    assert run.line() == "held"
    getattr(server, blow)()
    since = time.monotonic()
    lifeline.wait_cut()
    assert time.monotonic() - since < 1.5
    code, _, err = run.end()
    assert code == 76
    assert f"lost {name} (fence " in err


def test_server_that_comes_back_in_time_costs_nothing(fresh_server: FreshServer, runs_on: RunsOn, name: str) -> None:
    server = fresh_server()
    run = runs_on(server).start("run", name, "--lease", "3s", "-v", "--", "sh", "-c", "echo held; cat; exit 5")
    assert run.line() == "held"
    assert "took" in run.error_line()
    server.pause()
    assert f"could not renew {name}, trying again" in run.error_line()
    server.resume()
    code, _, err = run.end()
    assert code == 5
    assert "lost" not in err


def test_release_that_fails_tells_when_the_lock_is_free_again(
    fresh_server: FreshServer, runs_on: RunsOn, name: str
) -> None:
    server = fresh_server()
    runs = runs_on(server)
    run = runs.start("run", name, "--lease", "6s", "--", "sh", "-c", "echo held; read line")
    assert run.line() == "held"
    asked_at = time.monotonic()
    (holder,) = runs.shown(name)["holders"]
    server.pause()
    run.say("end\n")
    line = run.error_line()
    left_s = holder["lease_left"] - (time.monotonic() - asked_at)
    told = re.match(rf"lockfast: could not release {name}, it is free again in at most (\d\.\d)s: ", line)
    assert told is not None, line
    assert left_s - 0.05 <= float(told[1]) <= 5.3, "a second has passed while it was tried"
    assert run.end()[0] == 0


def test_broken_lock_ends_the_command(runs: Runs, name: str) -> None:
    run = runs.holding(name, "--lease", "1s")
    assert runs.end("break", name, "--yes", "--reason", "it hung")[0] == 0
    code, _, err = run.end() if run.wait(20) is not None else (0, "", "")
    assert code == 76
    assert f"lost {name}" in err
    assert runs.shown(name)["broken"]["reason"] == "it hung"


def test_long_command_is_renewed(runs: Runs, valkey_server: Server, name: str) -> None:
    run = runs.holding(name, "--lease", "1s")
    with Lockfast(valkey_server.unix_url) as client, pytest.raises(NotAcquired):
        client.lock(name, wait=1.8).acquire()
    assert run.end()[0] == 0


def test_many_runs_take_turns(runs: Runs, name: str, tmp_path: Path) -> None:
    counter = tmp_path / "counter"
    counter.write_text("0")
    script = f"n=$(cat {counter}); sleep 0.01; echo $((n + 1)) > {counter}"
    started = [runs.start("run", name, "--", "sh", "-c", script) for _ in range(10)]
    assert [run.end() for run in started] == [(0, "", "")] * 10
    assert counter.read_text().strip() == "10"


def test_nothing_heavy_is_imported(runs: Runs, name: str) -> None:
    look = (
        "import sys; from lockfast.cli.main import main; main(sys.argv[1:]);"
        "print(sorted({'redis', 'asyncio', 'ssl', 'dataclasses', 'inspect', 'logging', 'subprocess'} & {*sys.modules}))"
    )
    command = [sys.executable, "-c", look, "run", name, "--", "true"]
    assert subprocess.run(command, env=runs.env, capture_output=True, check=True).stdout == b"[]\n"


def test_embedded_server_starts_by_itself_and_says_whom_it_excludes(embedded_runs: Runs) -> None:
    code, out, err = embedded_runs.end("run", "x", "-v", "--", "echo", "ran")
    assert (code, out) == (0, "ran\n")
    assert "lockfast: embedded server: this user on this host only\n" in err
    assert embedded_runs.end("run", "x", "--", "echo", "ran") == (0, "ran\n", "")


def test_dead_embedded_server_is_started_again_and_nothing_is_lost(embedded_runs: Runs) -> None:
    run = embedded_runs.holding("x", "--lease", "3s")
    status = dict(line.split(maxsplit=1) for line in embedded_runs.end("server", "status")[1].splitlines())
    subprocess.run(["kill", "-9", status["pid"]], check=True)
    wait_until(lambda: embedded_runs.end("server", "status")[0] == 0, what="renewed, and so started again")
    assert embedded_runs.shown("x")["holders"]
    assert run.end()[0] == 0
