"""What these tests need from the machine: raw requests, processes, and waiting for events."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

ATTACH_AND_STAY = """
import sys
from lockfast import embedded
attachment = embedded.attach()
print(embedded.status().pid, flush=True)
sys.stdin.read()
"""


def ask(socket_path: str, *words: str) -> str:
    """One request on a connection of its own."""
    with socket.socket(socket.AF_UNIX) as server:
        server.settimeout(5)
        server.connect(socket_path)
        return ask_on(server, *words)


def ask_on(server: socket.socket, *words: str) -> str:
    """The answer as it came, of a bulk string the text, of an array the last item."""
    request = f"*{len(words)}\r\n" + "".join(f"${len(word)}\r\n{word}\r\n" for word in words)
    server.sendall(request.encode())
    with server.makefile("r", encoding="utf-8", newline="\r\n") as replies:
        line = replies.readline().rstrip()
        for _ in range(int(line[1:]) if line.startswith("*") else 0):
            line = replies.readline() and replies.readline().rstrip()
        if not line:
            raise ConnectionResetError("the server has gone")
        return replies.readline().rstrip() if line.startswith("$") and line != "$-1" else line


def python(code: str, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", code, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


def finish(process: subprocess.Popen[str]) -> int:
    """Let a process that reads its input to the end go on to its own."""
    process.communicate(timeout=20)
    return process.returncode


def kill(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.communicate(timeout=20)


def processes(directory: object) -> dict[int, str]:
    """Every process that names the directory on its command line, and the name of its program.

    One that is dead but not yet collected by its parent has no program any more, and is not counted.
    """
    found = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit() and int(entry) != os.getpid():
            try:
                with open(f"/proc/{entry}/cmdline", "rb") as file:
                    command = file.read()
                if os.fsencode(str(directory)) + b"/server.sock" in command:
                    found[int(entry)] = os.path.basename(os.readlink(f"/proc/{entry}/exe"))
            except OSError:
                pass  # It ended while we looked.
    return found


def servers(directory: object) -> list[int]:
    return [pid for pid, program in processes(directory).items() if "-server" in program or "-check-" in program]


def reapers(directory: object) -> list[int]:
    return [pid for pid, program in processes(directory).items() if "python" in program]


def wait_until(happened: Callable[[], object], *, within_s: float = 10.0) -> None:
    deadline = time.monotonic() + within_s
    while not happened():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.003)
