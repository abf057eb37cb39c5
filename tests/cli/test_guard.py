"""The command is stopped before its lease can pass to another, whatever happens to whom."""

from __future__ import annotations

import math
import os
import signal
from typing import TYPE_CHECKING

import pytest

from cli.processes import children_of, freeze, hearing, is_running, state_of
from kit.servers import wait_until
from lockfast.cli import guard
from lockfast.cli.guard import KILL_LEAD_S, Fuse
from lockfast.clock import now

if TYPE_CHECKING:
    from collections.abc import Callable

    from cli.conftest import FakeRuns
    from cli.processes import Lifeline, Process


# Two processes beside the shell, all deaf to TERM.
STUBBORN = "trap '' TERM; sleep 1000 & sleep 1000 & echo ready $$; wait"
# The background process is started before the trap: forked after it, it could swallow a TERM before it is `sleep`.
POLITE = "sleep 1000 & trap 'echo asked; exit 3' TERM; echo ready $$; wait"

pytestmark = pytest.mark.slow


def command_of(run: Process) -> int:
    word, pid = run.line().split()
    assert word == "ready"
    return int(pid)


def guard_of(run: Process, command: int) -> int:
    (pid,) = set(children_of(run.pid)) - {command}
    return pid


@pytest.mark.parametrize("on_lost", ["term", "kill"])
def test_killed_run_takes_command_and_its_children_along_before_the_deadline(
    fake: FakeRuns, shell: Callable[[str], list[str]], lifeline: Lifeline, on_lost: str
) -> None:
    run = fake.start("--lease", "2s", "--on-lost", on_lost, *shell(STUBBORN))
    command_of(run)
    run.kill()
    assert lifeline.wait_cut() < fake.deadline


def test_killed_run_asks_its_command_to_end_at_once(
    fake: FakeRuns, shell: Callable[[str], list[str]], lifeline: Lifeline
) -> None:
    run = fake.start("--lease", "30s", *shell(POLITE))
    command_of(run)
    run.kill()
    assert run.line() == "asked"
    assert lifeline.wait_cut() < fake.deadline - 20
    assert "was killed" in run.error_line()


@pytest.mark.parametrize("on_lost", ["term", "kill"])
def test_stopped_run_has_its_command_killed_before_the_deadline(
    fake: FakeRuns, shell: Callable[[str], list[str]], lifeline: Lifeline, on_lost: str
) -> None:
    run = fake.start("--lease", "1s", "--on-lost", on_lost, *shell(STUBBORN))
    command_of(run)
    freeze(run.pid)
    deadline = fake.deadline
    assert lifeline.wait_cut() < deadline
    run.send_signal(signal.SIGCONT)
    code, _, err = run.end()
    assert code == 76
    assert "lost job" in err


def test_stopped_run_that_goes_on_in_time_loses_nothing(fake: FakeRuns, shell: Callable[[str], list[str]]) -> None:
    run = fake.start("--lease", "6s", *shell("echo ready $$; read line; exit 5"))
    command_of(run)
    freeze(run.pid)
    run.send_signal(signal.SIGCONT)
    run.say("go\n")
    assert run.end()[0] == 5


def test_silent_server_means_term_and_then_76(
    fake: FakeRuns, shell: Callable[[str], list[str]], lifeline: Lifeline
) -> None:
    run = fake.start("--lease", "1s", *shell(POLITE))
    command_of(run)
    fake.mood("silent")
    assert run.line() == "asked"
    deadline = fake.deadline
    assert lifeline.wait_cut() < deadline
    code, _, err = run.end()
    assert code == 76
    assert "lost job (fence 7): ending the command: no answer from the fake" in err
    assert "hint:" in err


def test_silent_server_means_kill_before_the_deadline_for_who_ignores_term(
    fake: FakeRuns, shell: Callable[[str], list[str]], lifeline: Lifeline
) -> None:
    run = fake.start("--lease", "1s", *shell(STUBBORN))
    command_of(run)
    fake.mood("silent")
    cut = lifeline.wait_cut()
    assert fake.deadline - 0.5 < cut < fake.deadline
    assert run.end()[0] == 76


def test_server_that_answers_again_in_time_is_no_loss(fake: FakeRuns, shell: Callable[[str], list[str]]) -> None:
    run = fake.start("--lease", "3s", "-v", *shell("echo ready $$; read line; exit 5"))
    command_of(run)
    fake.mood("silent")
    assert "embedded server" in run.error_line()
    assert "took job" in run.error_line()
    assert "could not renew job, trying again" in run.error_line()
    fake.mood("well")
    before = len(fake.notes)
    wait_until(lambda: len(fake.notes) > before, what="renewed")
    run.say("go\n")
    assert run.end()[0] == 5


def test_renewal_that_never_returns_does_not_keep_the_command_alive(
    fake: FakeRuns, shell: Callable[[str], list[str]], lifeline: Lifeline
) -> None:
    fake.mood("hung")
    run = fake.start("--lease", "1s", *shell(STUBBORN))
    command_of(run)
    assert lifeline.wait_cut() < fake.deadline


def test_signal_reaches_the_command_while_a_renewal_hangs(fake: FakeRuns) -> None:
    fake.mood("hung")
    run = fake.start("--lease", "6s", "--", *hearing(signal.SIGUSR1, "usr1"))
    assert run.line() == "ready"
    wait_until(lambda: now() > fake.deadline - 3.5, what="the renewal hangs")
    run.send_signal(signal.SIGUSR1)
    assert run.line() == "usr1"


def test_hold_taken_away_ends_the_command_at_the_next_renewal(
    fake: FakeRuns, shell: Callable[[str], list[str]], lifeline: Lifeline
) -> None:
    run = fake.start("--lease", "3s", *shell(POLITE))
    command_of(run)
    fake.mood("gone")
    assert run.line() == "asked"
    assert lifeline.wait_cut() < fake.deadline - 1
    code, _, err = run.end()
    assert code == 76
    assert "the fake took it away" in err


def test_whole_group_gets_its_grace_even_if_the_command_itself_ends_first(
    fake: FakeRuns, shell: Callable[[str], list[str]], lifeline: Lifeline
) -> None:
    slow = "sleep 1000 & trap 'sleep 0.1; echo child done; exit' TERM; echo child ready; wait"
    run = fake.start("--lease", "4s", *shell(f'sh -c "{slow}" & trap "exit 0" TERM; wait'))
    assert run.line() == "child ready"
    fake.mood("gone")
    assert run.line() == "child done"
    assert run.end()[0] == 76
    assert lifeline.is_cut


def test_on_lost_kill_does_not_ask(fake: FakeRuns, shell: Callable[[str], list[str]], lifeline: Lifeline) -> None:
    run = fake.start("--lease", "3s", "--on-lost", "kill", *shell(POLITE))
    command_of(run)
    fake.mood("gone")
    assert lifeline.wait_cut() < fake.deadline - 1
    code, out, err = run.end()
    assert (code, out) == (76, "")
    assert "killing the command" in err


@pytest.mark.parametrize("mood", ["gone", "silent"])
def test_on_lost_ignore_only_says_so(fake: FakeRuns, shell: Callable[[str], list[str]], mood: str) -> None:
    run = fake.start("--lease", "300ms", "--on-lost", "ignore", *shell("echo ready $$; read line; exit 5"))
    command_of(run)
    fake.mood(mood)
    assert "lost job (fence 7): the command goes on without the lock" in run.error_line()
    run.say("go\n")
    assert run.end()[0] == 5


def test_hold_found_gone_at_the_release_is_a_loss(fake: FakeRuns, shell: Callable[[str], list[str]]) -> None:
    run = fake.start("--lease", "30s", *shell("echo ready $$; read line; exit 0"))
    command_of(run)
    fake.mood("gone")
    run.say("go\n")
    code, _, err = run.end()
    assert code == 76
    assert "gone before the command ended with 0" in err


def test_process_that_left_the_group_is_found_and_killed(
    fake: FakeRuns, shell: Callable[[str], list[str]], lifeline: Lifeline
) -> None:
    run = fake.start("--lease", "2s", *shell("setsid sh -c 'trap \"\" TERM; echo ready $$; sleep 1000' & wait"))
    command_of(run)
    run.kill()
    assert lifeline.wait_cut() < fake.deadline


def test_stopped_command_is_ended_too(fake: FakeRuns, shell: Callable[[str], list[str]], lifeline: Lifeline) -> None:
    run = fake.start("--lease", "3s", *shell("trap 'echo asked; exit 3' TERM; echo ready $$; kill -STOP $$; :"))
    command = command_of(run)
    wait_until(lambda: state_of(command) == "T", what="stopped")
    fake.mood("gone")
    assert run.line() == "asked"
    assert run.end()[0] == 76


def test_guard_ignores_what_would_end_other_processes(
    fake: FakeRuns, shell: Callable[[str], list[str]], lifeline: Lifeline
) -> None:
    run = fake.start("--lease", "3s", *shell(STUBBORN))
    guard_pid = guard_of(run, command_of(run))
    assert os.getsid(guard_pid) == guard_pid
    for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1):
        os.kill(guard_pid, signum)
    run.kill()
    assert lifeline.wait_cut() < fake.deadline


def test_run_does_the_work_of_a_guard_that_was_killed(
    fake: FakeRuns, shell: Callable[[str], list[str]], lifeline: Lifeline
) -> None:
    run = fake.start("--lease", "3s", *shell(STUBBORN))
    os.kill(guard_of(run, command_of(run)), signal.SIGKILL)
    assert "guard process has died" in run.error_line()
    assert "hint:" in run.error_line()
    fake.mood("silent")
    cut = lifeline.wait_cut()
    assert cut < fake.deadline
    assert run.end()[0] == 76


def test_frozen_guard_does_not_outlive_the_run(fake: FakeRuns, shell: Callable[[str], list[str]]) -> None:
    run = fake.start(*shell("echo ready $$; read line; exit 5"))
    guard_pid = guard_of(run, command_of(run))
    freeze(guard_pid)
    run.say("go\n")
    assert run.end()[0] == 5
    assert not is_running(guard_pid)


def test_nothing_is_left_after_an_ordinary_end(fake: FakeRuns, shell: Callable[[str], list[str]]) -> None:
    run = fake.start(*shell("echo ready $$; read line"))
    command = command_of(run)
    guard_pid = guard_of(run, command)
    run.say("go\n")
    assert run.end() == (0, "", "")
    assert not is_running(guard_pid)
    assert fake.notes[-1] == "released"


def test_what_the_command_left_in_the_background_lives_on_without_the_lock(
    fake: FakeRuns, shell: Callable[[str], list[str]], lifeline: Lifeline
) -> None:
    run = fake.start(*shell("sleep 1000 >/dev/null 2>&1 & echo ready $!"))
    left = command_of(run)
    assert run.end()[0] == 0
    assert fake.notes[-1] == "released"
    assert is_running(left)
    os.kill(left, signal.SIGKILL)
    lifeline.wait_cut()


def test_lost_outer_run_leaves_nothing_of_an_inner_run(
    fake: FakeRuns, shell: Callable[[str], list[str]], lifeline: Lifeline
) -> None:
    inner = fake.argv("inner", "--lease", "60s", "--grace", "20s", *shell(STUBBORN))
    run = fake.start("--lease", "2s", "--", *inner)
    command_of(run)
    deadline = float(fake.notes[0])
    freeze(run.pid)
    cut = lifeline.wait_cut()
    assert cut < deadline + 1.5, "it was renewed twice at most"


class TestFuse:
    """When TERM and KILL are due, on a clock that the test moves."""

    @pytest.fixture
    def at(self, monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
        def move(moment: float) -> None:
            monkeypatch.setattr(guard, "now", lambda: moment)

        move(0)
        return move

    def test_term_one_grace_before_the_deadline_then_kill_each_once(self, at: Callable[[float], None]) -> None:
        fuse = Fuse(10, 30, ask_first=True)
        fuse.renewed(30)
        at(19.9)
        assert (fuse.due(), fuse.lit) == (0, False)
        at(20)
        assert (fuse.due(), fuse.due(), fuse.lit) == (signal.SIGTERM, 0, True)
        at(30 - KILL_LEAD_S)
        assert (fuse.due(), fuse.due(), fuse.burnt) == (signal.SIGKILL, 0, True)
        assert fuse.next_at == math.inf

    def test_renewal_puts_it_off_but_not_once_lit(self, at: Callable[[float], None]) -> None:
        fuse = Fuse(10, 30, ask_first=True)
        fuse.renewed(30)
        fuse.renewed(40)
        at(25)
        assert fuse.due() == 0
        at(31)
        assert fuse.due() == signal.SIGTERM
        fuse.renewed(100)
        at(40)
        assert fuse.due() == signal.SIGKILL

    def test_loss_does_not_wait_but_kills_no_later_than_the_deadline(self, at: Callable[[float], None]) -> None:
        fuse = Fuse(10, 30, ask_first=True)
        fuse.renewed(30)
        at(24)
        fuse.lost()
        assert fuse.due() == signal.SIGTERM
        assert fuse.next_at == 30 - KILL_LEAD_S
        early = Fuse(10, 30, ask_first=True)
        early.renewed(60)
        early.lost()
        early.due()
        assert early.next_at == 34

    def test_who_wakes_up_too_late_kills_without_asking(self, at: Callable[[float], None]) -> None:
        fuse = Fuse(10, 30, ask_first=True)
        fuse.renewed(30)
        at(500)
        assert (fuse.due(), fuse.due()) == (signal.SIGKILL, 0)

    def test_grace_and_lead_leave_room_for_renewals(self, at: Callable[[float], None]) -> None:
        fuse = Fuse(10, 0.3, ask_first=True)
        fuse.renewed(0.3)
        at(0.184)
        assert fuse.due() == 0
        at(0.186)
        assert fuse.due() == signal.SIGTERM
        assert fuse.next_at == pytest.approx(0.285)

    def test_without_asking_there_is_only_the_deadline(self, at: Callable[[float], None]) -> None:
        fuse = Fuse(10, 30, ask_first=False)
        fuse.renewed(30)
        assert fuse.next_at == 30 - KILL_LEAD_S
        fuse.lost()
        assert fuse.due() == signal.SIGKILL
