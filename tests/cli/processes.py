"""Real processes for the command line's tests: started, read line by line, and gone at the end of the test."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import lockfast.cli
from kit.servers import wait_until
from lockfast.clock import now

if TYPE_CHECKING:
    from types import TracebackType

SOURCE = str(Path(lockfast.cli.__file__).parents[2])
LOCKFAST = [sys.executable, "-m", "lockfast"]
FAKE = [sys.executable, str(Path(__file__).with_name("fake_lock.py"))]
PATIENCE_S = 20.0


def environment(**more: str) -> dict[str, str]:
    """This process's variables without any of ours, and a way to the package."""
    env = {key: value for key, value in os.environ.items() if not key.startswith("LOCKFAST_")}
    return env | {"PYTHONPATH": SOURCE} | more


def hearing(signum: int, word: str, *, code: int = 0, into: str = "/dev/stdout") -> list[str]:
    """A command that says "ready", and at this signal writes a word and ends.

    Not a shell with a trap: dash can lose a signal that comes just as it starts another command.
    """
    script = (
        "import os, signal, sys\n"
        "def end(*_):\n"
        f"    open({into!r}, 'a').write({word!r} + '\\n')\n"
        f"    sys.exit({code})\n"
        f"signal.signal({int(signum)}, end)\n"
        "os.write(1, b'ready\\n')\n"
        "while True:\n"
        "    signal.pause()\n"
    )
    return [sys.executable, "-S", "-c", script]


class Process(subprocess.Popen[bytes]):
    """A process whose output is read line by line, with a limit on patience."""

    def __init__(self, argv: list[str], env: dict[str, str], **options: Any) -> None:
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | options
        self._unread = {"stdout": b"", "stderr": b""}
        super().__init__(argv, env=env, bufsize=0, **pipes)

    def line(self, stream: str = "stdout") -> str:
        """The next line that it, or the command it runs, writes; "" when it has closed the stream."""
        descriptor = getattr(self, stream).fileno()
        while b"\n" not in self._unread[stream]:
            assert select.select([descriptor], [], [], PATIENCE_S)[0], "it says nothing"
            data = os.read(descriptor, 65536)
            if not data:
                break
            self._unread[stream] += data
        line, _, self._unread[stream] = self._unread[stream].partition(b"\n")
        return line.decode()

    def error_line(self) -> str:
        """The next line of talk."""
        return self.line("stderr")

    def say(self, text: str) -> None:
        """Write to its stdin."""
        assert self.stdin is not None
        self.stdin.write(text.encode())

    def end(self) -> tuple[int, str, str]:
        """Waits for its end: exit code, rest of stdout, rest of stderr."""
        out, err = self.communicate(timeout=PATIENCE_S)
        unread = self._unread
        return (
            self.returncode,
            (unread["stdout"] + (out or b"")).decode(),
            (unread["stderr"] + (err or b"")).decode(),
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.poll() is None:
            self.send_signal(signal.SIGCONT)
            self.kill()  # Its guard ends the command.
        self.wait()
        for stream in (self.stdin, self.stdout, self.stderr):
            if stream is not None:
                stream.close()


class Lifeline:
    """A FIFO that commands open for writing as `3>PATH`: readable to its end only when all who have it are dead."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / "lifeline"
        os.mkfifo(self.path)
        self._reader = os.open(self.path, os.O_RDONLY | os.O_NONBLOCK)
        self._poller = select.poll()
        self._poller.register(self._reader, select.POLLIN)

    def wait_cut(self) -> float:
        """Returns the time (lockfast.clock) at which the last process that had it open was gone."""
        while True:
            assert self._poller.poll(PATIENCE_S * 1000), "somebody is still alive"
            if not os.read(self._reader, 4096):
                return now()

    @property
    def is_cut(self) -> bool:
        """Whether everybody who had it open is gone. Ask only when somebody has had it."""
        try:
            return os.read(self._reader, 4096) == b""
        except BlockingIOError:
            return False

    def close(self) -> None:
        os.close(self._reader)


def shown(name: str, env: dict[str, str]) -> dict[str, Any]:
    """What `lockfast show --json` tells of a name."""
    answer = subprocess.run([*LOCKFAST, "show", name, "--json"], env=env, capture_output=True, check=True)
    value: dict[str, Any] = json.loads(answer.stdout)
    return value


def is_stopped(pid: int) -> bool:
    return state_of(pid) == "T"


def state_of(pid: int) -> str:
    """One letter as in ps; "" when there is no such process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""


def is_running(pid: int) -> bool:
    """Whether it exists and has not ended; a zombie has."""
    return state_of(pid) not in ("", "Z")


def children_of(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def freeze(pid: int) -> None:
    os.kill(pid, signal.SIGSTOP)
    wait_until(lambda: is_stopped(pid), what="stopped")
