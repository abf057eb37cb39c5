"""At a terminal: Ctrl-C, Ctrl-Z, reading the keyboard, and what is said there."""

from __future__ import annotations

import os
import pty
import select
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Self

import pytest

from cli.processes import LOCKFAST, PATIENCE_S, environment, hearing, is_stopped, shown
from kit.servers import wait_until

if TYPE_CHECKING:
    from cli.conftest import FakeRuns, Runs
    from kit.servers import Server

JOB_SHELL = str(Path(__file__).with_name("job_shell.py"))
CTRL_C, CTRL_Z, CTRL_BACKSLASH = b"\x03", b"\x1a", b"\x1c"


class Terminal:
    """A terminal with a shell on it that runs one job; `lead=True` runs the job without a shell."""

    def __init__(self, argv: list[str], *, lead: bool = False, env: dict[str, str] | None = None) -> None:
        self.master, slave = pty.openpty()
        self._reports, reports = os.pipe()
        orders, self._orders = os.pipe()
        descriptors = (slave, reports, orders)
        words = [*map(str, descriptors), *(["--lead"] if lead else []), *argv]
        self.process = subprocess.Popen(
            [sys.executable, JOB_SHELL, *words], pass_fds=descriptors, env=env or environment()
        )
        for descriptor in descriptors:
            os.close(descriptor)
        self.screen = ""
        self.seen = ""

    def type(self, keys: bytes) -> None:
        os.write(self.master, keys)

    def wait_for(self, text: str) -> None:
        """Until the screen shows it; what was before it is dropped."""
        while text not in self.screen:
            assert select.select([self.master], [], [], PATIENCE_S)[0], f"no {text!r} in {self.screen!r}"
            try:
                text_shown = os.read(self.master, 4096).decode()
            except OSError:
                raise AssertionError(f"the terminal was closed with {self.screen!r}") from None
            self.screen += text_shown
            self.seen += text_shown
        self.screen = self.screen.partition(text)[2]

    def report(self) -> str:
        assert select.select([self._reports], [], [], PATIENCE_S)[0], "the shell says nothing"
        return os.read(self._reports, 64).decode().strip()

    def continue_in_foreground(self) -> None:
        os.write(self._orders, b"fg")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for descriptor in (self.master, self._reports, self._orders):
            os.close(descriptor)  # Hangs up on whoever is left.
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()


def test_ctrl_c_is_for_the_command(fake: FakeRuns) -> None:
    with Terminal(fake.argv("job", "--", *hearing(signal.SIGINT, "heard", code=3, into="/dev/tty"))) as terminal:
        terminal.wait_for("ready")
        terminal.type(CTRL_C)
        terminal.wait_for("heard")
        assert terminal.report() == "ended 3 True"
    assert fake.notes[-1] == "released"


@pytest.mark.parametrize(("key", "code"), [(CTRL_C, 130), (CTRL_BACKSLASH, 131)])
def test_command_ended_from_the_keyboard_gives_128_and_the_signal(fake: FakeRuns, key: bytes, code: int) -> None:
    # Not a shell: dash loses a Ctrl-C that comes just as it starts another command.
    script = "import signal; signal.signal(signal.SIGINT, signal.SIG_DFL); print('ready', flush=True); signal.pause()"
    with Terminal(
        ["sh", "-c", 'ulimit -c 0; exec "$@"', "sh", *fake.argv("job", "--", sys.executable, "-c", script)]
    ) as terminal:
        terminal.wait_for("ready")
        terminal.type(key)
        assert terminal.report() == f"ended {code} True"


def test_command_can_read_the_keyboard(fake: FakeRuns) -> None:
    with Terminal(fake.argv("job", "--", "sh", "-c", "echo ready; read word; exit $word")) as terminal:
        terminal.wait_for("ready")
        terminal.type(b"7\n")
        assert terminal.report() == "ended 7 True"


@pytest.mark.slow
def test_ctrl_z_gives_the_shell_back_and_fg_goes_on(fake: FakeRuns) -> None:
    with Terminal(fake.argv("job", "--", "sh", "-c", "echo ready; read word; exit $word")) as terminal:
        terminal.wait_for("ready")
        for _ in range(2):
            terminal.type(CTRL_Z)
            assert terminal.report() == "stopped"
            terminal.wait_for("continue within")
            terminal.continue_in_foreground()
            wait_until(lambda: command_has_the_terminal(terminal), what="the command to go on in the foreground")
        terminal.type(b"7\n")
        assert terminal.report() == "ended 7 True"


def command_has_the_terminal(terminal: Terminal) -> bool:
    """Only then is Ctrl-Z for the command; a moment earlier it would be for `lockfast run`, or undone by its CONT."""
    foreground = os.tcgetpgrp(terminal.master)
    return foreground not in (terminal.process.pid, job_of(terminal)) and not is_stopped(foreground)


def job_of(terminal: Terminal) -> int:
    (job,) = Path(f"/proc/{terminal.process.pid}/task/{terminal.process.pid}/children").read_text().split()
    return int(job)


@pytest.mark.slow
def test_ctrl_z_without_a_shell_above_does_not_leave_the_command_stopped(fake: FakeRuns) -> None:
    with Terminal(fake.argv("job", "--", "sh", "-c", "echo ready; read word; exit $word"), lead=True) as terminal:
        terminal.wait_for("ready")
        terminal.type(CTRL_Z)
        terminal.wait_for("continue within")
        terminal.type(b"7\n")
        assert terminal.process.wait(PATIENCE_S) == 7


@pytest.mark.slow
def test_job_stopped_for_longer_than_its_lease_is_lost(fake: FakeRuns) -> None:
    with Terminal(fake.argv("job", "--lease", "1s", "--", "sh", "-c", "echo ready; read word")) as terminal:
        terminal.wait_for("ready")
        terminal.type(CTRL_Z)
        assert terminal.report() == "stopped"
        job = job_of(terminal)
        children = Path(f"/proc/{job}/task/{job}/children")
        commands = [int(pid) for pid in children.read_text().split() if os.getsid(int(pid)) != int(pid)]
        wait_until(lambda: not any(is_stopped(pid) for pid in commands), what="the guard ended the command")
        terminal.continue_in_foreground()
        assert terminal.report() == "ended 76 True"


def test_end_of_the_terminal_ends_the_command(fake: FakeRuns, tmp_path: Path) -> None:
    note = tmp_path / "note"
    with Terminal(fake.argv("job", "--", *hearing(signal.SIGHUP, "hup", into=str(note)))) as terminal:
        terminal.wait_for("ready")
    wait_until(lambda: note.exists() and note.read_text().startswith("hup"), what="hung up")
    wait_until(lambda: fake.notes[-1] == "released", what="released")


@pytest.mark.slow
def test_waiting_is_told_and_ctrl_c_leaves_the_queue(valkey_server: Server, name: str) -> None:
    env = environment(LOCKFAST_URL=valkey_server.unix_url)
    holder = subprocess.Popen(
        [*LOCKFAST, "run", name, "--label", "the first", "--", "cat"], env=env, stdin=subprocess.PIPE
    )
    try:
        wait_until(lambda: shown(name, env)["holders"], what="held")
        with Terminal([*LOCKFAST, "run", name, "--", "true"], env=env) as terminal:
            wait_until(lambda: shown(name, env)["waiters"], what="queued")
            terminal.wait_for(f"lockfast: waiting for {name}, held by ")
            terminal.wait_for("(the first) since ")
            terminal.type(CTRL_C)
            assert terminal.report() == "ended 130 True"
            assert not shown(name, env)["waiters"]
    finally:
        holder.communicate()
    assert holder.returncode == 0


@pytest.mark.slow
def test_embedded_server_is_announced_when_it_starts_and_not_again(embedded_runs: Runs) -> None:
    argv = [*LOCKFAST, "run", "x", "--", "echo", "ran"]
    with Terminal(argv, env=embedded_runs.env) as terminal:
        terminal.wait_for("embedded server: this user on this host only")
        terminal.wait_for("ran")
        assert terminal.report() == "ended 0 True"
    with Terminal(argv, env=embedded_runs.env) as terminal:
        assert terminal.report() == "ended 0 True"
        terminal.wait_for("ran")
        assert "embedded" not in terminal.seen


@pytest.mark.parametrize(("answer", "code", "left"), [(b"y\n", 0, 0), (b"n\n", 1, 1), (b"\n", 1, 1)])
@pytest.mark.slow
def test_break_asks_and_takes_only_yes_for_yes(
    valkey_server: Server, name: str, answer: bytes, code: int, left: int
) -> None:
    env = environment(LOCKFAST_URL=valkey_server.unix_url)
    holder = subprocess.Popen(
        [*LOCKFAST, "run", name, "-q", "--", "cat"], env=env, stdin=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    try:
        wait_until(lambda: shown(name, env)["holders"], what="held")
        with Terminal([*LOCKFAST, "break", name], env=env) as terminal:
            terminal.wait_for(f"Take {name} away? [y/N] ")
            terminal.type(answer)
            if code == 0:
                terminal.wait_for("Why?")
                terminal.type(b"it hung\n")
            assert terminal.report() == f"ended {code} True"
        snapshot = shown(name, env)
        assert len(snapshot["holders"]) == left
        if code == 0:
            assert snapshot["broken"]["reason"] == "it hung"
    finally:
        holder.communicate()
