"""The Valkey that a machine without a server gets by itself: one per user and host, shared by all that
user's processes.

What it keeps true:
- *At most one server*, whoever is killed while starting it, see `_launcher.py`.
- *Everybody finds the same one, and nobody else gets in*, see `_rendezvous.py`.
- *What was answered survives a kill -9*: the append-only file is written before the answer, see there.
- *It goes away by itself*, see `_reaper.py`, which also tells what the files in the directory are for.

Everything that fails here raises `Unreachable(sent=False)`: no request of the caller has run.
"""

from __future__ import annotations

import os
import sys
import time
from typing import TYPE_CHECKING, NamedTuple

from lockfast._launcher import ensure, no_binary
from lockfast._rendezvous import cannot, find_place
from lockfast.clock import now
from lockfast.errors import Misused

if sys.platform != "win32":
    import fcntl

    from lockfast._reaper import POLL_S, connect, shut_down

if TYPE_CHECKING:
    import socket

    from lockfast._rendezvous import Place

NOTICE = "embedded: this user on this host only"
START_S = 10.0  # A start takes about 50 ms; a long append-only file or a busy machine may need more.


class Status(NamedTuple):
    """What runs. `users` counts attached clients, None where the system does not tell."""

    pid: int
    version: str
    uptime_s: int
    users: int | None
    memory_bytes: int
    socket_path: str
    directory: str
    binary: str

    @property
    def url(self) -> str:
        """What other programs connect to: for a client of redis-py, or `--url`."""
        from urllib.parse import quote  # here, as `lockfast run` does not need it

        return f"unix://{quote(self.socket_path)}"


class Attachment:
    """A share in the embedded server: while it is open, the server is not stopped for want of users.

    `started` tells whether this call started the server. Close it when done; a dying process closes it too.

    The share is an `flock` on a file of our own. A forked child inherits that same open file, so it counts
    as a user for as long as it lives (or until it executes another program: the file is close-on-exec).
    Closing in one of the two never takes the share from the other, because close() only closes and never
    unlocks.
    """

    socket_path: str
    started: bool

    def __init__(self, *, wait_s: float) -> None:
        self._users_fd = -1
        deadline = now() + wait_s
        self._join(deadline)
        try:
            self.started = ensure(self._place, deadline)
        except BaseException:
            self.close()
            raise

    def revive(self, *, wait_s: float = START_S) -> None:
        """Start the server again if it died or was stopped; does nothing but ask when it is well."""
        if self._users_fd < 0:
            raise Misused("this attachment to the embedded server was closed")
        deadline = now() + wait_s
        if _file_id(self._place.path("users")) != self._file_id:
            self._join(deadline)  # Somebody removed the directory: our share is one in a file that is no more.
        self.started = ensure(self._place, deadline)

    def _join(self, deadline: float) -> None:
        place = find_place(create=True)
        assert place is not None
        fd = _take_share(place, deadline)
        self._place, self.socket_path = place, place.socket_path
        self.close()
        self._file_id = _file_id(fd)
        self._users_fd = fd

    def close(self) -> None:
        """Give the share back. Closing twice is fine."""
        fd, self._users_fd = self._users_fd, -1
        # A process that became a daemon may have closed every file under us and reused the number.
        if fd >= 0 and _file_id(fd) == self._file_id:
            os.close(fd)

    def __del__(self) -> None:
        if getattr(self, "_users_fd", -1) >= 0:
            self.close()


def attach(*, wait_s: float = START_S) -> Attachment:
    """Take a share in this user's server and start it if need be; safe from any thread and process at once.

    Raises `Unreachable` when there is no server binary, the directory is not safe, or the start fails; the
    message says what to do, and quotes the server's log.
    """
    _refuse_without_unix()
    return Attachment(wait_s=wait_s)


def start() -> Status:
    """Start the server if it does not run. With no user attached it stays for the grace time."""
    attachment = attach()
    try:
        running = status()
    finally:
        attachment.close()
    if running is None:
        raise cannot("was stopped by somebody while it started; try again")
    return running


def stop() -> bool:
    """Stop the server at once, users or not; False when it did not run. Clients in need start it again."""
    _refuse_without_unix()
    place = find_place(create=False)
    if place is None:
        return False
    try:
        return shut_down(place.directory, place.socket_path)
    except OSError as error:
        raise cannot(f"cannot be stopped: {error}") from error


def status() -> Status | None:
    """What runs now, or None. Starts nothing."""
    _refuse_without_unix()
    place = find_place(create=False)
    if place is None:
        return None
    try:
        with connect(place.socket_path, 2.0) as server:
            server.sendall(b"INFO\r\n")
            fields = _read_info(server)
    except (FileNotFoundError, ConnectionRefusedError, ConnectionResetError, BrokenPipeError, EOFError):
        return None
    except OSError as error:
        raise cannot(f"in {place.directory} does not answer: {error}") from error
    name = "valkey" if "valkey_version" in fields else "redis"
    return Status(
        pid=int(fields["process_id"]),
        version=f"{name} {fields[name + '_version']}",
        uptime_s=int(fields["uptime_in_seconds"]),
        users=_count_users(place),
        memory_bytes=int(fields["used_memory_rss"]),
        socket_path=place.socket_path,
        directory=place.directory,
        binary=fields["executable"],
    )


def _take_share(place: Place, deadline: float) -> int:
    try:
        # Close-on-exec (Python's default, spelled out): a daemon started under `lockfast run` is no user.
        fd = os.open(place.path("users"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise cannot(f"cannot be used in {place.directory}: {error}") from error
    try:
        while True:
            try:
                fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                # The reaper has it, to see whether anybody is left or to stop the server: some milliseconds.
                if now() > deadline:
                    raise cannot("is being stopped and does not end; try: lockfast server stop") from None
                time.sleep(POLL_S)
        # The reaper reads this time, to see that somebody came and went during its grace time.
        os.utime(fd)
    except BaseException:
        os.close(fd)
        raise
    return fd


def _refuse_without_unix() -> None:
    if sys.platform == "win32":
        raise no_binary()


def _read_info(server: socket.socket) -> dict[str, str]:
    reply = b""
    while b"\r\n" not in reply:
        reply += _receive(server)
    header, _, text = reply.partition(b"\r\n")
    if not header.startswith(b"$"):
        raise OSError(header.decode(errors="replace"))
    while len(text) < int(header[1:]):
        text += _receive(server)
    lines = text.decode(errors="replace").splitlines()
    return dict(line.split(":", 1) for line in lines if ":" in line and not line.startswith("#"))


def _receive(server: socket.socket) -> bytes:
    received = server.recv(1 << 16)
    if not received:
        raise EOFError
    return received


def _count_users(place: Place) -> int | None:
    """The shares of `users`, from lines of Linux like "1: FLOCK  ADVISORY  READ 4711 fe:00:131 0 EOF"."""
    try:
        inode = os.stat(place.path("users")).st_ino
        with open("/proc/locks", encoding="ascii") as file:
            locks = [line.split() for line in file]
    except OSError:
        return None
    return sum(1 for words in locks if words[1:4:2] == ["FLOCK", "READ"] and words[5].endswith(f":{inode}"))


def _file_id(file: int | str) -> tuple[int, int] | None:
    try:
        info = os.stat(file)
    except OSError:
        return None
    return info.st_dev, info.st_ino
