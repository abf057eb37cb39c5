"""Real private servers for the lab: started in the run's directory, killed, started again empty, taken over, misdated.

Clients know a server by an address: a link to the socket of whichever process serves there now. A restart and a
failover are a new process and a link that points to it. Nothing is kept on disk, so every start is an empty one.
The processes themselves belong to the stagehand (real_stagehand.py), which ends them whatever happens here.
"""

from __future__ import annotations

import asyncio
import glob
import json
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import lockfast
from lockfast._launcher import find_binary

if TYPE_CHECKING:
    from types import TracebackType

START_S = 15.0
LONGEST_PATH = 60  # of the run's directory: the path of a socket has 104 characters at most, on macOS


class Unplayable(Exception):
    """Nothing can be played on this machine as it is; the message says why."""


class Crew:
    """Our side of the stagehand. Use it in an `async with`: leaving it ends every process of the run."""

    directory: Path

    def __init__(self) -> None:
        self._turn = asyncio.Lock()  # orders are answered one by one, in their order

    async def __aenter__(self) -> Self:
        source = str(Path(lockfast.__file__).parents[1])
        path = os.pathsep.join([source, *filter(None, [os.environ.get("PYTHONPATH")])])
        self._process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-P", "-m", "lockfast.lab.real_stagehand"),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            env=os.environ | {"PYTHONPATH": path},
            start_new_session=True,  # Ctrl-C at the terminal is for us; the stagehand then tidies up
        )
        try:
            self.directory = Path((await self._answer())["directory"])
            if len(str(self.directory)) > LONGEST_PATH:
                raise Unplayable(f"{self.directory.parent} is too long a path for sockets; set TMPDIR to a shorter one")
        except BaseException:
            await self._end()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._end()

    async def _end(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        await asyncio.shield(self._process.wait())

    async def order(self, what: str, group: str, **details: Any) -> dict[str, Any]:
        """Have something done. Done it is also when the caller is cancelled meanwhile."""
        return await asyncio.shield(self._exchange({"do": what, "group": group} | details))

    async def _exchange(self, order: dict[str, Any]) -> dict[str, Any]:
        async with self._turn:
            assert self._process.stdin is not None
            self._process.stdin.write(json.dumps(order).encode() + b"\n")
            return await self._answer()

    async def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = await self._process.stdout.readline()
        if not line:
            raise RuntimeError("the process that starts servers and players has died")
        answer: dict[str, Any] = json.loads(line)
        return answer


class Server:
    """One server. fakes_time: start it on a clock that `jump` can set."""

    def __init__(self, crew: Crew, directory: Path, name: str, fakes_time: bool = False) -> None:
        self.name = name
        self._crew = crew
        self._directory = directory
        self._file_name = name.replace(" ", "")
        self._address = directory / self._file_name
        self._lives = 0
        self._pid: int | None = None
        self._standby: tuple[int, Path] | None = None
        self._clock_file = directory / f"{self._file_name}.clock"
        self._fakes_time = fakes_time
        if fakes_time:
            self._clock_file.write_text("+0\n")

    @property
    def path(self) -> str:
        return str(self._address)

    async def start(self) -> None:
        """Start it, empty, and return when it answers."""
        self._pid, socket_path = await self._launch()
        self._point_to(socket_path)

    async def kill(self) -> None:
        """kill -9."""
        pid, self._pid = self._pid, None
        if pid is not None:
            await self._crew.order("signal", self._directory.name, pid=pid, signal="SIGKILL")

    async def restart(self) -> None:
        """Kill it and start it again. It has nothing on disk, so it has forgotten everything."""
        await self.kill()
        await self.start()

    async def prepare_standby(self) -> None:
        """Start a second one, which never hears what the first is told."""
        self._standby = await self._launch()

    async def fail_over(self) -> None:
        """The first one dies, and the second takes over its address."""
        assert self._standby is not None, "prepare_standby() first"
        await self.kill()
        self._pid, socket_path = self._standby
        self._point_to(socket_path)

    async def jump(self, by_s: float) -> None:
        """Set its clock, and return when it lives in the new time."""
        assert self._fakes_time, "start it with fakes_time"
        fresh = self._clock_file.with_suffix(".new")
        fresh.write_text(f"{by_s:+f}\n")
        fresh.replace(self._clock_file)  # in one step: a reader must never find half a number
        # It notes the time once per turn of its loop, and nobody tells us of it.
        while abs(await self._time_s() - time.time() - by_s) > by_s / 2:  # noqa: ASYNC110
            await asyncio.sleep(0.002)

    async def _launch(self) -> tuple[int, Path]:
        self._lives += 1
        socket_path = self._directory / f"{self._file_name}.{self._lives}"
        log = self._directory / f"{self._file_name}.log"
        options = {"port": "0", "unixsocket": str(socket_path), "unixsocketperm": "700", "dir": str(self._directory)}
        options |= {"save": "", "appendonly": "no", "daemonize": "no", "logfile": str(log)}
        env = {key: os.environ[key] for key in ("PATH", "LD_LIBRARY_PATH") if key in os.environ}
        if self._fakes_time:
            env |= faketime_env(self._clock_file)
        argv = [find_binary(), *(word for key, value in options.items() for word in (f"--{key}", value))]
        answer = await self._crew.order("server", self._directory.name, argv=argv, env=env)
        gives_up_at = time.monotonic() + START_S
        while not await _is_answering(socket_path):
            if time.monotonic() > gives_up_at:
                said = log.read_text(errors="replace")[-500:] if log.exists() else "nothing"
                raise RuntimeError(f"a server does not start; its log says: {said}")
            await asyncio.sleep(0.005)
        return answer["pid"], socket_path

    def _point_to(self, socket_path: Path) -> None:
        fresh = self._address.with_suffix(".new")
        fresh.symlink_to(socket_path)
        fresh.replace(self._address)

    async def _time_s(self) -> float:
        reply = await _ask(self._address, b"TIME\r\n", lines=5)
        seconds, micros = reply.split(b"\r\n")[2:5:2]
        return int(seconds) + int(micros) / 1e6


def faketime_library() -> str | None:
    """Path of libfaketime, which gives a program another time than it is; None where it is not installed."""
    found = [path for root in ("lib/*", "lib*") for path in glob.glob(f"/usr/{root}/faketime/libfaketimeMT.so.1")]
    return found[0] if found else None


def faketime_env(clock_file: Path) -> dict[str, str]:
    """Variables that put a program on the clock of this file. Only its wall clock: time goes on as it does."""
    library = faketime_library()
    assert library is not None, "libfaketime is not installed"
    return {
        "LD_PRELOAD": library,
        "FAKETIME_TIMESTAMP_FILE": str(clock_file),
        "FAKETIME_NO_CACHE": "1",
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
    }


async def _is_answering(socket_path: Path) -> bool:
    try:
        return await _ask(socket_path, b"PING\r\n") == b"+PONG\r\n"
    except (OSError, asyncio.IncompleteReadError):
        return False


async def _ask(socket_path: Path, request: bytes, lines: int = 1) -> bytes:
    reader, writer = await asyncio.open_unix_connection(socket_path)
    try:
        writer.write(request)
        return b"".join([await reader.readuntil(b"\n") for _ in range(lines)])
    finally:
        writer.close()
