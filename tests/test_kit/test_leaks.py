"""The leak check finds each kind of leak, and waits for what is only slow to end."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading

import pytest

from kit.leaks import no_leaks


def test_clean_code_passes() -> None:
    with no_leaks():
        thread = threading.Thread(target=len, args=("",))
        thread.start()
        thread.join()


def test_thread_that_lives_on_is_found() -> None:
    end = threading.Event()
    thread = threading.Thread(target=end.wait, name="left")
    with pytest.raises(AssertionError, match="thread left"), no_leaks(grace_s=0.05):
        thread.start()
    end.set()
    thread.join()


def test_thread_about_to_end_is_waited_for() -> None:
    end = threading.Event()
    with no_leaks():
        threading.Thread(target=end.wait, args=(10,)).start()
        threading.Timer(0.05, end.set).start()


def test_child_process_is_found() -> None:
    children: list[subprocess.Popen[bytes]] = []
    with pytest.raises(AssertionError, match="child process"), no_leaks(grace_s=0.05):
        children.append(subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]))
    for child in children:
        child.kill()
        child.wait()


def test_socket_is_found() -> None:
    ends: list[socket.socket] = []
    with pytest.raises(AssertionError, match="socket:"), no_leaks(grace_s=0.05):
        ends += socket.socketpair()
    for end in ends:
        end.close()


def test_pipe_is_found() -> None:
    ends: list[int] = []
    with pytest.raises(AssertionError, match="pipe:"), no_leaks(grace_s=0.05):
        ends += os.pipe()
    for end in ends:
        os.close(end)


def test_error_of_the_block_is_not_replaced() -> None:
    ends: list[socket.socket] = []
    with pytest.raises(LookupError), no_leaks(grace_s=0.05):
        ends += socket.socketpair()
        raise LookupError
    for end in ends:
        end.close()
