"""The command: its exit code, environment, streams, process group and signals, and when it cannot be started."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
from typing import TYPE_CHECKING

import pytest

from cli.processes import children_of, hearing, is_running
from kit.servers import wait_until

if TYPE_CHECKING:
    from pathlib import Path

    from cli.conftest import FakeRuns


@pytest.mark.parametrize("code", [0, 1, 75, 255])
def test_exit_code_is_the_commands(fake: FakeRuns, code: int) -> None:
    assert fake.start("--", "sh", "-c", f"exit {code}").end() == (code, "", "")


@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGTERM, signal.SIGSEGV])
def test_command_ended_by_a_signal_gives_128_and_its_number(fake: FakeRuns, signum: int) -> None:
    assert fake.start("--", "sh", "-c", f"kill -{int(signum)} $$").end()[0] == 128 + signum


def test_lock_is_released_after_the_end(fake: FakeRuns) -> None:
    fake.start("--", "true").end()
    assert fake.notes[-1] == "released"


def test_command_sees_name_fence_and_ticket(fake: FakeRuns) -> None:
    _, out, _ = fake.start("--", "sh", "-c", "echo $LOCKFAST_LOCK $LOCKFAST_FENCE $LOCKFAST_TICKET").end()
    name, fence, ticket = out.split()
    assert (name, fence, ticket[:5]) == ("job", "7", "fake-")


@pytest.mark.parametrize(
    ("url", "seen"),
    [
        ("redis://cache:6379/0", "redis://cache:6379/0"),
        ("redis://:secret@cache:6379/0", ""),
        ("redis://cache/0?password=secret", ""),
    ],
)
def test_url_is_passed_on_only_without_a_password(fake: FakeRuns, url: str, seen: str) -> None:
    _, out, err = fake.start("--url", url, "--", "sh", "-c", "echo $LOCKFAST_URL; env | grep ^LOCKFAST").end()
    assert out.splitlines()[0] == seen
    assert "secret" not in out + err


def test_streams_are_the_commands_own(fake: FakeRuns) -> None:
    run = fake.start("--", "sh", "-c", "cat; echo talk >&2")
    run.say("data\n")
    assert run.end() == (0, "data\n", "talk\n")


def test_closed_standard_streams_do_no_harm(fake: FakeRuns) -> None:
    def close_two() -> None:
        os.close(0)
        os.close(2)

    run = fake.start("--", "sh", "-c", "cat && exit 5", preexec_fn=close_two, stdin=None)
    assert run.end()[:2] == (5, "")


def test_files_of_the_caller_reach_the_command_and_ours_do_not(fake: FakeRuns, tmp_path: Path) -> None:
    with (tmp_path / "file").open("w") as file:
        run = fake.start("--", "ls", "-l", "/proc/self/fd", pass_fds=(file.fileno(),))
        _, out, _ = run.end()
    targets = [line.split(" -> ")[1] for line in out.splitlines() if " -> " in line]
    extra = [target for target in targets if "pipe:" not in target and "/proc/" not in target]
    assert extra == [str(tmp_path / "file")]
    assert len([target for target in targets if "pipe:" in target]) == 3


def test_command_leads_a_group_of_its_own_in_the_callers_session(fake: FakeRuns) -> None:
    run = fake.start("--", "sh", "-c", "echo $$; read line")
    command = int(run.line())
    assert os.getpgid(command) == command
    assert os.getpgid(run.pid) != command
    assert os.getsid(command) == os.getsid(run.pid)
    run.say("\n")
    assert run.end()[0] == 0


@pytest.mark.parametrize(
    "signum",
    [
        signal.SIGTERM,
        signal.SIGHUP,
        signal.SIGINT,
        signal.SIGQUIT,
        signal.SIGUSR1,
        signal.SIGUSR2,
        signal.SIGWINCH,
        signal.SIGCONT,
    ],
)
def test_signal_is_passed_on_to_the_whole_group(fake: FakeRuns, signum: signal.Signals) -> None:
    outer = f'trap : {signum.name[3:]}; "$@"; exit 9'  # The shell hears it too, and goes on.
    run = fake.start("--", "sh", "-c", outer, "sh", *hearing(signum, "inner"))
    assert run.line() == "ready"
    run.send_signal(signum)
    assert run.line() == "inner"
    assert run.end()[0] == 9


def test_ended_by_a_signal_that_was_passed_on(fake: FakeRuns) -> None:
    run = fake.start("--", "sh", "-c", "echo ready; sleep 1000 & wait")
    assert run.line() == "ready"
    run.send_signal(signal.SIGTERM)
    assert run.end() == (128 + signal.SIGTERM, "", "")


def test_signals_have_their_usual_meaning_in_the_command(fake: FakeRuns) -> None:
    _, out, _ = fake.start("--", "grep", "^SigIgn:", "/proc/self/status").end()
    assert int(out.split()[1], 16) & sum(1 << (number - 1) for number in (2, 3, 13, 15)) == 0


def test_what_the_caller_ignores_stays_ignored(fake: FakeRuns) -> None:
    # As under nohup.
    hush = {"preexec_fn": lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN)}
    run = fake.start("--", "sh", "-c", "grep ^SigIgn: /proc/$$/status; read line; exit 5", **hush)
    assert int(run.line().split()[1], 16) & 1
    run.send_signal(signal.SIGHUP)
    run.say("go\n")
    assert run.end()[0] == 5


def test_command_that_is_not_found_gives_127_and_releases(fake: FakeRuns) -> None:
    code, out, err = fake.start("--", "no-such-command-anywhere").end()
    assert (code, out) == (127, "")
    assert "no-such-command-anywhere: command not found\nhint: " in err
    assert fake.notes[-1] == "released"


def test_file_without_the_right_to_execute_gives_126(fake: FakeRuns, tmp_path: Path) -> None:
    script = tmp_path / "script"
    script.write_text("#!/bin/sh\n")
    code, _, err = fake.start("--", str(script)).end()
    assert code == 126
    assert "Permission denied" in err
    assert f"hint: chmod +x {script}" in err


def test_script_without_an_interpreter_line_gives_126(fake: FakeRuns, tmp_path: Path) -> None:
    script = tmp_path / "script"
    script.write_text("echo hello\n")
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    code, _, err = fake.start("--", str(script)).end()
    assert code == 126
    assert "#!/bin/sh" in err


def test_script_with_a_missing_interpreter_says_so(fake: FakeRuns, tmp_path: Path) -> None:
    script = tmp_path / "script"
    script.write_text("#!/no/such/interpreter\n")
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    code, _, err = fake.start("--", str(script)).end()
    assert code == 127
    assert "interpreter was not found" in err


def test_arguments_reach_the_command_as_they_are(fake: FakeRuns) -> None:
    odd = ["--", "-v", "", "a b", "$HOME", "\udcff\udcfe", "--lease"]
    _, out, _ = fake.start("--", "printf", "[%s]", *odd[:5], *odd[6:]).end()
    assert out == "[--][-v][][a b][$HOME][--lease]"
    hexed = subprocess.run(
        [*fake.argv("job", "--", "printf", "%s"), odd[5]], capture_output=True, check=True, env=dict(os.environ)
    )
    assert hexed.stdout == b"\xff\xfe"


def test_run_that_is_killed_before_it_holds_the_lock_starts_nothing(fake: FakeRuns) -> None:
    fake.mood("slow")
    run = fake.start("--", "echo", "started")
    wait_until(lambda: len(children_of(run.pid)) == 2, what="stands by")
    waiting = children_of(run.pid)
    run.kill()
    assert run.end()[1:] == ("", "")
    wait_until(lambda: not any(is_running(pid) for pid in waiting), what="all gone")
