"""Fixtures of the command line's tests."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from typing import TYPE_CHECKING, Any

import pytest

from cli.processes import FAKE, LOCKFAST, Lifeline, Process, environment, shown

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from kit.servers import Server


class FakeRuns:
    """Starts `lockfast run` on a lock without a server; `mood` says how that lock behaves from now on."""

    def __init__(self, directory: Path) -> None:
        self._mood = directory / "mood"
        self._notes = directory / "mood.notes"
        self._started: list[Process] = []
        self.mood("well")

    def mood(self, mood: str) -> None:
        fresh = self._mood.with_suffix(".new")
        fresh.write_text(mood)
        fresh.replace(self._mood)

    def argv(self, name: str, *options: str) -> list[str]:
        return [*FAKE, str(self._mood), "run", name, *options]

    def start(self, *options: str, **popen: Any) -> Process:
        process = Process(self.argv("job", *options), environment(), **popen)
        self._started.append(process)
        return process

    @property
    def notes(self) -> list[str]:
        return self._notes.read_text().split()

    @property
    def deadline(self) -> float:
        """Until when the lock was sure, as last promised."""
        return float([note for note in self.notes if note != "released"][-1])

    def close(self) -> None:
        for process in self._started:
            with process:
                pass


@pytest.fixture
def fake(tmp_path: Path) -> Iterator[FakeRuns]:
    """`lockfast run` without a server."""
    runs = FakeRuns(tmp_path)
    yield runs
    runs.close()


class Runs:
    """Starts the command `lockfast` on a real server."""

    def __init__(self, **variables: str) -> None:
        self.env = environment(**variables)
        self._started: list[Process] = []

    def start(self, *words: str, **popen: Any) -> Process:
        process = Process([*LOCKFAST, *words], self.env, **popen)
        self._started.append(process)
        return process

    def program(self, *words: str) -> Process:
        """A Python program that uses the library on the same server."""
        process = Process([sys.executable, *words], self.env)
        self._started.append(process)
        return process

    def end(self, *words: str, **popen: Any) -> tuple[int, str, str]:
        """Exit code, stdout and stderr of a whole call."""
        return self.start(*words, **popen).end()

    def holding(self, name: str, *options: str) -> Process:
        """A run that holds the lock until its stdin is closed."""
        run = self.start("run", name, *options, "--", "sh", "-c", "echo held; cat")
        assert run.line() == "held"
        return run

    def shown(self, name: str) -> dict[str, Any]:
        return shown(name, self.env)

    def close(self) -> None:
        for process in self._started:
            with process:
                pass


@pytest.fixture
def runs(valkey_server: Server) -> Iterator[Runs]:
    """The command on the Valkey that tests share."""
    started = Runs(LOCKFAST_URL=valkey_server.unix_url)
    yield started
    started.close()


@pytest.fixture
def runs_on() -> Iterator[Callable[[Server], Runs]]:
    """The command on a server that the test may break."""
    made: list[Runs] = []

    def make(server: Server) -> Runs:
        made.append(Runs(LOCKFAST_URL=server.unix_url))
        return made[-1]

    yield make
    for one in made:
        one.close()


@pytest.fixture
def embedded_runs() -> Iterator[Runs]:
    """The command on an embedded server of the test's own."""
    # A short path: that of a socket has a limit.
    with tempfile.TemporaryDirectory(prefix="lockfast-test-") as home:
        started = Runs(LOCKFAST_HOME=home, LOCKFAST_GRACE_S="5")
        yield started
        started.close()
        subprocess.run([*LOCKFAST, "server", "stop"], env=started.env, capture_output=True, check=True)


@pytest.fixture
def lifeline(tmp_path: Path) -> Iterator[Lifeline]:
    """Tells when every process that opened it is dead."""
    line = Lifeline(tmp_path)
    yield line
    line.close()


@pytest.fixture
def shell(lifeline: Lifeline) -> Callable[[str], list[str]]:
    """A command line for a shell script that holds the lifeline, and with it all that it starts."""
    return lambda script: ["--", "sh", "-c", f"exec 3>{lifeline.path}; {script}"]
