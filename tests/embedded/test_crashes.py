"""Kill anybody at any moment: one server, nothing lost that was answered, nothing left running."""

from __future__ import annotations

import os
import random
import signal
import socket
import stat
import time
from typing import TYPE_CHECKING

import pytest

from embedded.machine import (
    ask,
    ask_on,
    finish,
    kill,
    processes,
    python,
    servers,
    wait_until,
)
from lockfast import _launcher, embedded
from lockfast.errors import Unreachable

if TYPE_CHECKING:
    import subprocess
    from pathlib import Path

# Says "ready", waits for the signal to go, attaches, and says which server it got.
CONTENDER = """
import sys
from lockfast import embedded
print("ready", flush=True)
sys.stdin.readline()
attachment = embedded.attach()
print(embedded.status().pid, attachment.started, flush=True)
sys.stdin.read()
"""


@pytest.mark.slow
def test_what_was_answered_survives_fifty_kills_of_the_server(home: Path) -> None:
    attachment = embedded.attach()
    for number in range(50):
        with socket.socket(socket.AF_UNIX) as server:
            server.connect(attachment.socket_path)
            server.settimeout(5)
            (pid,) = servers(home)
            assert ask_on(server, "SET", f"lease:{number}", "held", "PX", "3600000") == "+OK"
            assert ask_on(server, "INCR", "fence") == f":{number + 1}"
            os.kill(pid, signal.SIGKILL)
        wait_until(lambda: not servers(home))
        attachment.revive()
        assert attachment.started
        assert ask(attachment.socket_path, "GET", "fence") == str(number + 1)
        assert ask(attachment.socket_path, "DBSIZE") == f":{number + 2}"
    assert 0 < int(ask(attachment.socket_path, "PTTL", "lease:0")[1:]) < 3_600_000
    attachment.close()


def test_the_file_is_written_before_the_answer_even_while_the_disk_syncs(home: Path) -> None:
    """With `everysec` a kill -9 during a slow fdatasync lost hundreds of answered writes."""
    attachment = embedded.attach()
    setting = ask(attachment.socket_path, "CONFIG", "GET", "appendfsync")
    assert setting == "no"
    log = home / "appendonlydir" / "appendonly.aof.1.incr.aof"
    for number in range(100):
        assert ask(attachment.socket_path, "SET", f"written:{number}", "1") == "+OK"
        assert f"written:{number}".encode() in log.read_bytes()
    attachment.close()


def test_a_file_cut_off_by_a_crash_is_still_loaded(home: Path) -> None:
    attachment = embedded.attach()
    for number in range(3):
        ask(attachment.socket_path, "SET", f"key:{number}", "value")
    embedded.stop()
    log = home / "appendonlydir" / "appendonly.aof.1.incr.aof"
    os.truncate(log, log.stat().st_size - 4)
    attachment.revive()
    assert ask(attachment.socket_path, "DBSIZE") == ":2"
    attachment.close()


def test_a_start_that_fails_shows_the_end_of_the_log(home: Path) -> None:
    attachment = embedded.attach()
    ask(attachment.socket_path, "SET", "key", "value")
    embedded.stop()
    log = home / "appendonlydir" / "appendonly.aof.1.incr.aof"
    log.write_bytes(b"rubbish\r\n" + log.read_bytes())
    with pytest.raises(Unreachable, match=r"(?s)did not start.*server\.log:\n.*Bad file format") as caught:
        attachment.revive()
    assert not caught.value.sent
    attachment.close()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("#!/bin/sh\necho 'Fatal: No space left on device' >&2\nexit 1\n", "No space left on device"),
        ("#!/nonexistent/interpreter\n", "not found"),
        ("#!/bin/sh\nexit 1\n", "disk full"),
    ],
)
def test_a_program_that_does_not_run_is_quoted(
    text: str, said: str, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "valkey-server"
    program.write_text(text)
    program.chmod(stat.S_IRWXU)
    monkeypatch.setattr(_launcher, "find_binary", lambda: str(program))
    began = time.monotonic()
    with pytest.raises(Unreachable, match=f"(?s)did not start.*{said}"):
        embedded.attach()
    assert time.monotonic() - began < 5


@pytest.mark.slow
def test_forty_start_at_once_and_half_are_killed_and_all_others_see_one_server(home: Path) -> None:
    rng = random.Random(os.environ.get("LOCKFAST_SEED", "40"))
    for _ in range(3):
        contenders = _ready(40)
        for contender in contenders:
            assert contender.stdin is not None
            contender.stdin.write("go\n")
            contender.stdin.flush()
        victims = rng.sample(contenders, 20)
        for victim in victims:
            time.sleep(rng.expovariate(1 / 0.008))
            victim.kill()
        survivors = [contender for contender in contenders if contender not in victims]
        seen = [_line(contender).split() for contender in survivors]
        assert {int(pid) for pid, _ in seen} == set(servers(home))
        assert len(servers(home)) == 1
        assert sum(started == "True" for _, started in seen) <= 1
        for contender in victims:
            kill(contender)
        assert len(servers(home)) == 1
        for contender in survivors:
            assert finish(contender) == 0
        wait_until(lambda: not processes(home))


@pytest.mark.slow
def test_the_starter_killed_at_any_moment_leaves_nothing_running_and_nothing_in_the_way(home: Path) -> None:
    rng = random.Random(os.environ.get("LOCKFAST_SEED", "41"))
    for _ in range(25):
        (starter,) = _ready(1)
        assert starter.stdin is not None
        starter.stdin.write("go\n")
        starter.stdin.flush()
        time.sleep(rng.uniform(0, 0.05))
        kill(starter)
        wait_until(lambda: not processes(home))
    attachment = embedded.attach()
    assert attachment.started
    attachment.close()


@pytest.mark.slow
def test_users_who_come_and_go_never_meet_a_server_on_its_way_out(home: Path) -> None:
    """Without grace time every moment without users stops the server, right between the comings of others."""
    script = """
import random, socket, time
from lockfast import embedded
for _ in range(25):
    time.sleep(random.expovariate(1 / 0.02))
    attachment = embedded.attach()
    with socket.socket(socket.AF_UNIX) as server:
        server.settimeout(5)
        server.connect(attachment.socket_path)
        for _ in range(5):
            server.sendall(b"INCR count\\r\\n")
            assert server.recv(64).startswith(b":")
    attachment.close()
"""
    visitors = [python(script) for _ in range(2)]
    assert [finish(visitor) for visitor in visitors] == [0] * 2
    attachment = embedded.attach()
    assert ask(attachment.socket_path, "GET", "count") == "250"
    attachment.close()


def _ready(number: int) -> list[subprocess.Popen[str]]:
    contenders = [python(CONTENDER) for _ in range(number)]
    for contender in contenders:
        assert _line(contender) == "ready\n"
    return contenders


def _line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline()
