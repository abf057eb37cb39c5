"""When the embedded server comes, how long it stays, and how it goes."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING

import pytest

from embedded.machine import (
    ATTACH_AND_STAY,
    ask,
    finish,
    kill,
    processes,
    python,
    reapers,
    servers,
    wait_until,
)
from lockfast import _launcher, _reaper, embedded
from lockfast.errors import Misused, Unreachable

if TYPE_CHECKING:
    from pathlib import Path


def test_the_first_to_attach_starts_it_and_the_next_share_it(home: Path) -> None:
    assert embedded.status() is None
    first = embedded.attach()
    second = embedded.attach()
    assert (first.started, second.started) == (True, False)
    assert first.socket_path == second.socket_path == str(home / "server.sock")
    other = python(ATTACH_AND_STAY)
    assert other.stdout is not None
    assert [int(other.stdout.readline())] == servers(home)
    finish(other)
    first.close()
    second.close()
    second.close()


def test_status_tells_what_runs(home: Path) -> None:
    attachments = [embedded.attach() for _ in range(3)]
    status = embedded.status()
    assert status is not None
    assert status.pid == servers(home)[0]
    assert status.version.startswith("valkey 9.")
    assert status.users == 3
    assert 0 <= status.uptime_s < 60
    assert 1_000_000 < status.memory_bytes < 100_000_000
    assert status.directory == str(home)
    assert status.socket_path == attachments[0].socket_path
    assert os.access(status.binary, os.X_OK)
    for attachment in attachments:
        attachment.close()


def test_neither_status_nor_stop_makes_a_directory(home: Path) -> None:
    assert embedded.status() is None
    assert embedded.stop() is False
    assert not home.exists()


def test_it_is_closed_to_the_network_and_never_evicts(home: Path) -> None:
    attachment = embedded.attach()
    info = ask(attachment.socket_path, "CONFIG", "GET", "port")
    assert info == "0"
    policy = ask(attachment.socket_path, "CONFIG", "GET", "maxmemory-policy")
    assert policy == "noeviction"
    assert os.stat(attachment.socket_path).st_mode & 0o077 == 0
    attachment.close()


def test_it_ends_with_its_last_user(home: Path) -> None:
    first, second = embedded.attach(), embedded.attach()
    first.close()
    assert ask(second.socket_path, "PING") == "+PONG"
    second.close()
    wait_until(lambda: not processes(home))


def test_it_ends_when_the_last_user_is_killed(home: Path) -> None:
    user = python(ATTACH_AND_STAY)
    assert user.stdout is not None
    user.stdout.readline()
    kill(user)
    wait_until(lambda: not processes(home))


def test_a_dropped_attachment_is_no_user(home: Path) -> None:
    attachment = embedded.attach()
    del attachment
    wait_until(lambda: not processes(home))


def test_it_stays_for_the_grace_time_and_a_visit_starts_that_anew(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCKFAST_GRACE_S", "0.6")
    embedded.attach().close()
    time.sleep(0.4)
    visitor = embedded.attach()
    assert not visitor.started
    visitor.close()
    left = time.monotonic()
    wait_until(lambda: not processes(home))
    assert 0.55 < time.monotonic() - left < 3


@pytest.mark.parametrize("text", ["soon", "-1", "nan", "inf"])
def test_a_grace_time_that_is_none_is_refused(home: Path, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCKFAST_GRACE_S", text)
    with pytest.raises(ValueError, match="LOCKFAST_GRACE_S"):
        embedded.attach()


def test_start_leaves_it_running_for_the_grace_time(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCKFAST_GRACE_S", "60")
    started = embedded.start()
    assert embedded.start().pid == started.pid
    # Stopping it also ends the reaper, long before the grace time: there is nothing left to wait for.
    assert embedded.stop() is True
    assert embedded.status() is None
    wait_until(lambda: not processes(home))


def test_stop_ends_it_under_its_users_and_revive_brings_it_back(home: Path) -> None:
    attachment = embedded.attach()
    (pid,) = servers(home)
    assert embedded.stop() is True
    assert servers(home) == []
    assert embedded.stop() is False
    attachment.revive()
    assert attachment.started
    (new_pid,) = servers(home)
    assert new_pid != pid
    attachment.revive()
    assert servers(home) == [new_pid]
    attachment.close()
    with pytest.raises(Misused):
        attachment.revive()


def test_stop_is_not_fooled_by_users_who_start_the_next_one_at_once(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Looking this seldom, it does not see the moment between the two servers.
    monkeypatch.setattr(_reaper, "POLL_S", 0.3)
    attachment = embedded.attach()
    (pid,) = servers(home)
    over = threading.Event()

    def insist() -> None:
        while not over.is_set():
            attachment.revive()

    user = threading.Thread(target=insist)
    user.start()
    try:
        asked = time.monotonic()
        assert embedded.stop() is True
        assert time.monotonic() - asked < 2
        wait_until(lambda: servers(home) not in ([], [pid]))
    finally:
        over.set()
        user.join()
    attachment.close()


def test_a_frozen_server_is_an_error_in_time_and_can_be_stopped(home: Path) -> None:
    attachment = embedded.attach()
    (pid,) = servers(home)
    os.kill(pid, signal.SIGSTOP)
    asked = time.monotonic()
    with pytest.raises(Unreachable, match="does not answer"):
        embedded.attach(wait_s=0.2)
    assert time.monotonic() - asked < 2
    assert embedded.stop() is True
    assert servers(home) == []
    attachment.close()


def test_a_killed_server_is_restarted_by_revive_and_by_the_next_to_attach(home: Path) -> None:
    attachment = embedded.attach()
    for bring_back in (attachment.revive, embedded.attach):
        (pid,) = servers(home)
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: not servers(home))
        other = bring_back()
        assert servers(home) not in ([], [pid])
        assert ask(attachment.socket_path, "PING") == "+PONG"
    assert other is not None
    other.close()
    attachment.close()


def test_a_killed_reaper_is_replaced_by_the_next_to_attach(home: Path) -> None:
    first = embedded.attach()
    wait_until(lambda: len(reapers(home)) == 1)
    (pid,) = reapers(home)
    os.kill(pid, signal.SIGKILL)
    wait_until(
        lambda: not reapers(home) and not _reaper.is_held(str(home / "reaper.ready"))
    )  # a dying process lets go last
    second = embedded.attach()
    assert not second.started
    first.close()
    second.close()
    wait_until(lambda: not processes(home))


def test_a_starter_killed_with_the_reapers_lock_in_hand_leaves_the_others_a_reaper(home: Path) -> None:
    script = """
import fcntl, os, sys
fd = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)
fcntl.flock(fd, fcntl.LOCK_EX)
print("locked", flush=True)
sys.stdin.read()
"""
    home.mkdir(mode=0o700)
    starter = python(script, str(home / "reaper.lock"))
    assert starter.stdout is not None
    assert starter.stdout.readline() == "locked\n"
    user = python(ATTACH_AND_STAY)
    time.sleep(0.1)  # The user waits for the reaper before starting a server; nothing is to happen.
    assert servers(home) == []
    kill(starter)
    assert user.stdout is not None
    user.stdout.readline()
    kill(user)
    wait_until(lambda: not processes(home))


def test_without_an_interpreter_for_the_reaper_nothing_is_started(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_launcher, "_python", lambda: "/bin/false")
    with pytest.raises(Unreachable, match="nobody to watch"):
        embedded.attach()
    embedded.stop()


def test_a_removed_directory_is_made_again_by_revive(home: Path) -> None:
    attachment = embedded.attach()
    embedded.stop()
    shutil.rmtree(home)
    attachment.revive()
    assert ask(attachment.socket_path, "PING") == "+PONG"
    status = embedded.status()
    assert status is not None
    assert status.users == 1
    attachment.close()


def test_a_forked_child_is_a_user_while_it_lives_and_leaves_the_parent_alone(home: Path) -> None:
    script = """
import os, sys
from lockfast import embedded
attachment = embedded.attach()
reading, writing = os.pipe()
child = os.fork()
if child == 0:
    os.close(writing)
    os.read(reading, 1)
    attachment.close()
    os._exit(0)
print("forked", flush=True)
sys.stdin.readline()
attachment.close()
print("parent closed", flush=True)
sys.stdin.readline()
os.write(writing, b"x")
os.waitpid(child, 0)
print("child closed", flush=True)
sys.stdin.read()
"""
    process = python(script)
    assert process.stdout is not None
    assert process.stdin is not None
    assert process.stdout.readline() == "forked\n"
    process.stdin.write("\n")
    process.stdin.flush()
    assert process.stdout.readline() == "parent closed\n"
    time.sleep(0.1)  # Nothing is to happen, so there is no event to wait for.
    assert len(servers(home)) == 1
    process.stdin.write("\n")
    process.stdin.flush()
    assert process.stdout.readline() == "child closed\n"
    wait_until(lambda: not processes(home))
    finish(process)


def test_a_forked_childs_close_leaves_the_parent_a_user(home: Path) -> None:
    script = """
import os, sys
from lockfast import embedded
attachment = embedded.attach()
if os.fork() == 0:
    attachment.close()
    os._exit(0)
os.wait()
print("child closed", flush=True)
sys.stdin.read()
"""
    process = python(script)
    assert process.stdout is not None
    assert process.stdout.readline() == "child closed\n"
    time.sleep(0.1)  # Nothing is to happen, so there is no event to wait for.
    assert len(servers(home)) == 1
    finish(process)
    wait_until(lambda: not processes(home))


def test_a_fork_during_the_start_does_not_keep_the_servers_lock(home: Path) -> None:
    script = """
import os, sys, threading, time, warnings
warnings.simplefilter("ignore")
from lockfast import embedded
starter = threading.Thread(target=lambda: globals().update(kept=embedded.attach()))
starter.start()
children = []
while starter.is_alive():
    child = os.fork()
    if child == 0:
        time.sleep(60)
        os._exit(0)
    children.append(child)
    time.sleep(0.001)
print(len(children), flush=True)
os.kill(embedded.status().pid, 9)
kept.revive(wait_s=5)
print("revived", flush=True)
for child in children:
    os.kill(child, 9)
"""
    process = python(script)
    output, _ = process.communicate(timeout=30)
    assert output.split()[1:] == ["revived"]
    wait_until(lambda: not processes(home))


def test_a_command_started_by_a_user_is_no_user(home: Path) -> None:
    attachment = embedded.attach()
    commands = [subprocess.Popen(["sleep", "60"], close_fds=False)]
    commands[0:0] = [subprocess.Popen(["sleep", "60"])]
    attachment.close()
    wait_until(lambda: not processes(home))
    for command in commands:
        command.kill()
        command.wait()


def test_it_holds_no_pipe_directory_session_or_child_of_the_one_who_started_it(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOCKFAST_GRACE_S", "60")
    reading, writing = os.pipe()
    script = """
import os
from lockfast import embedded
embedded.attach().close()
try:
    os.waitpid(-1, os.WNOHANG)
    print("has a child")
except ChildProcessError:
    print("has no child", os.getsid(0))
"""
    # `run` returns only when nobody has its end of standard output and error any more.
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        timeout=20,
        pass_fds=(writing,),
        cwd=tmp_path,
    )
    os.close(writing)
    assert os.read(reading, 1) == b""
    os.close(reading)
    assert done.stdout.startswith("has no child")
    assert done.stderr == ""
    wait_until(lambda: len(processes(home)) == 2)
    for pid in processes(home):
        assert os.getsid(pid) != int(done.stdout.split()[-1])
        assert os.readlink(f"/proc/{pid}/cwd") in ("/", str(home))
        assert b"LOCKFAST" not in _read(f"/proc/{pid}/environ")


def _read(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()


def test_threads_that_attach_at_once_get_one_server(home: Path) -> None:
    barrier = threading.Barrier(16)
    attachments: list[embedded.Attachment] = []

    def attach() -> None:
        barrier.wait()
        attachments.append(embedded.attach())

    threads = [threading.Thread(target=attach) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(attachments) == 16
    assert sum(attachment.started for attachment in attachments) == 1
    assert len(servers(home)) == 1
    for attachment in attachments:
        attachment.close()


def test_a_file_number_reused_by_someone_else_is_not_closed(home: Path) -> None:
    attachment = embedded.attach()
    fd = attachment._users_fd
    os.dup2(2, fd)
    attachment.close()
    os.fstat(fd)
    os.close(fd)


def test_attaching_to_a_running_server_takes_less_than_a_millisecond(home: Path) -> None:
    keeper = embedded.attach()
    times_s = []
    for _ in range(50):
        began = time.perf_counter()
        attachment = embedded.attach()
        times_s.append(time.perf_counter() - began)
        attachment.close()
    assert sorted(times_s)[5] < 0.001
    keeper.close()


def test_a_long_file_is_made_short_at_the_next_start(home: Path) -> None:
    attachment = embedded.attach()
    with socket.socket(socket.AF_UNIX) as server:
        server.connect(attachment.socket_path)
        server.sendall(b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$1048576\r\n" + b"x" * (1 << 20) + b"\r\n")
        for _ in range(8):
            server.sendall(b"*3\r\n$6\r\nAPPEND\r\n$1\r\nj\r\n$1048576\r\n" + b"x" * (1 << 20) + b"\r\n")
        server.sendall(b"DEL j\r\n")
        received = b""
        while received.count(b"\r\n") < 10:
            received += server.recv(4096)
    embedded.stop()
    attachment.revive()

    def size() -> int:
        with contextlib.suppress(FileNotFoundError):  # The server removes the old file while we look.
            return sum(file.stat().st_size for file in (home / "appendonlydir").iterdir())
        return 1 << 30

    wait_until(lambda: size() < 2 << 20)
    assert ask(attachment.socket_path, "STRLEN", "k") == ":1048576"
    attachment.close()
