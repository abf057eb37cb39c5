"""Other processes for the fault tests: holders and waiters that can be killed, frozen and interrupted.

`Script` runs any text as a Python program. `Actor` is one that acquires and releases as it is told, on the side that
it is told; both answer in lines of JSON.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import lockfast
from kit.servers import wait_until

if TYPE_CHECKING:
    from types import TracebackType

assert lockfast.__file__ is not None
_PATHS = (Path(lockfast.__file__).parents[1], Path(__file__).parents[1])
_PATIENCE_S = 30.0

# What an actor does: each line of its input is a command, each line of its output the answer.
_ACTOR = """
import json, sys, threading
from kit.sides import make_side
from lockfast.clock import now
from lockfast.errors import LockfastError

side = make_side(sys.argv[1])
lf = side.client(sys.argv[2], **json.loads(sys.argv[3]))
grants = {}

def answer(do, name, options):
    if do == "acquire":
        wait = options.pop("wait", None)
        grants[name] = lf.lock(name, **options).acquire(wait=wait)
    elif do != "state":
        getattr(grants[name], do)()
    grant = grants[name]
    view = {key: getattr(grant, key) for key in ("fence", "ticket", "deadline", "held", "lost")}
    return {**view, "at": now()}

for line in sys.stdin:
    do, name, options = json.loads(line)
    if do == "end":
        break
    try:
        said = answer(do, name, options)
    except LockfastError as error:
        said = {"error": type(error).__name__, "words": str(error), "at": now()}
    print(json.dumps(said), flush=True)
side.close()
"""


def environment(**more: str) -> dict[str, str]:
    """This process's variables without the library's own, and a way to the package and to the kit."""
    env = {key: value for key, value in os.environ.items() if not key.startswith("LOCKFAST_")}
    return env | {"PYTHONPATH": os.pathsep.join(map(str, _PATHS))} | more


class Script(subprocess.Popen[bytes]):
    """A Python program given as text; it is gone when the `with` ends, whatever state it is in."""

    def __init__(self, text: str, *arguments: str, env: dict[str, str] | None = None, flags: tuple[str, ...] = ()):
        pipes: dict[str, Any] = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
        argv = [sys.executable, *flags, "-c", text, *arguments]
        super().__init__(argv, env=environment(**(env or {})), bufsize=0, **pipes)
        self._unread = b""

    def line(self, timeout_s: float = _PATIENCE_S) -> str:
        """The next line of its output."""
        assert self.stdout is not None
        while b"\n" not in self._unread:
            assert select.select([self.stdout], [], [], timeout_s)[0], f"it said nothing for {timeout_s} s"
            data = os.read(self.stdout.fileno(), 65536)
            if not data:
                raise AssertionError(f"it ended with {self.wait(5)}: {self._errors()}")
            self._unread += data
        line, _, self._unread = self._unread.partition(b"\n")
        return line.decode()

    def say(self, text: str) -> None:
        """Write a line to its input."""
        assert self.stdin is not None
        self.stdin.write(text.encode() + b"\n")

    def end(self, timeout_s: float = _PATIENCE_S) -> tuple[int, str, str]:
        """Waits for its end: exit code, what is left of stdout, stderr."""
        out, err = self.communicate(timeout=timeout_s)
        return self.returncode, (self._unread + out).decode(), err.decode()

    def stop(self) -> None:
        """SIGSTOP, and returns once it stands."""
        self.send_signal(signal.SIGSTOP)
        stat = Path(f"/proc/{self.pid}/stat")
        wait_until(lambda: stat.read_text().rpartition(")")[2].split()[0] == "T", what="process stopped")

    def resume(self) -> None:
        self.send_signal(signal.SIGCONT)

    def _errors(self) -> str:
        assert self.stderr is not None
        return self.stderr.read().decode()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.poll() is None:
            self.send_signal(signal.SIGCONT)
            self.kill()
        self.wait()
        for stream in (self.stdin, self.stdout, self.stderr):
            if stream is not None:
                stream.close()


class Actor(Script):
    """A process with one client. `ask` gives the grant's state after the command, or the error's name and words."""

    def __init__(self, side_name: str, url: str, *, env: dict[str, str] | None = None, **options: Any) -> None:
        super().__init__(_ACTOR, side_name, url, json.dumps(options), env=env)

    def tell(self, do: str, name: str = "", **options: Any) -> None:
        """Give a command: acquire (with the lock's options, and wait), release, extend, check, state, end."""
        self.say(json.dumps([do, name, options]))

    def answer(self, timeout_s: float = _PATIENCE_S) -> dict[str, Any]:
        said: dict[str, Any] = json.loads(self.line(timeout_s))
        return said

    def ask(self, do: str, name: str = "", **options: Any) -> dict[str, Any]:
        self.tell(do, name, **options)
        return self.answer()
