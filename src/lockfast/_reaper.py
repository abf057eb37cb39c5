"""The process that stops the embedded server a grace time after its last user is gone, however that user
went.

Run as a program by `lockfast.embedded`, with a bare interpreter (`python -I -S`), so it imports the
standard library only. Four files of the server's directory are locks of the kernel (`flock`), which a
dying process always gives back:

    server.lock   exclusive, inherited by the server: held just as long as a server lives or is starting
    reaper.lock   exclusive, inherited by this process: there is one reaper or none, or one is being started
    reaper.ready  exclusive, by this process: it is there, whatever happens to the one who started it
    users         shared, by every attached client; this process sleeps until it could have it exclusively

The server is only ever stopped while `users` is held exclusively, and a client looks for the server only
once it has its share of `users`. So no client is handed a server that is about to be stopped for want of
users.
"""

from __future__ import annotations

import fcntl
import os
import signal
import socket
import sys
import time

POLL_S = 0.002
SHUTDOWN_S = 3.0  # Time to end by itself. The AOF is already written, so force after that loses nothing.


def main(directory: str, socket_path: str, lock_fd: int, grace_s: float) -> None:
    users_fd = os.open(os.path.join(directory, "users"), os.O_RDWR | os.O_CLOEXEC)
    ready_fd = os.open(os.path.join(directory, "reaper.ready"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    fcntl.flock(ready_fd, fcntl.LOCK_EX)
    while True:  # Ends when the last user has been gone for the grace time; users are what keeps it going.
        fcntl.flock(users_fd, fcntl.LOCK_EX)
        attached_ns = os.fstat(users_fd).st_mtime_ns
        fcntl.flock(users_fd, fcntl.LOCK_UN)
        server_ended = linger(directory, socket_path, grace_s)
        try:
            fcntl.flock(users_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            continue
        # Attaching touches the file: somebody who came and went meanwhile starts the grace time anew.
        if server_ended or os.fstat(users_fd).st_mtime_ns == attached_ns:
            break
    shut_down(directory, socket_path)
    # In this order: whoever gets a share of `users` after us must find that the reaper's place is vacant.
    fcntl.flock(ready_fd, fcntl.LOCK_UN)
    fcntl.flock(lock_fd, fcntl.LOCK_UN)
    fcntl.flock(users_fd, fcntl.LOCK_UN)


def linger(directory: str, socket_path: str, grace_s: float) -> bool:
    """Wait for the grace time without waking up; True as soon as there is no server left to stop."""
    deadline = time.monotonic() + grace_s
    while is_held(os.path.join(directory, "server.lock")):
        left_s = deadline - time.monotonic()
        if left_s <= 0:
            return False
        try:
            with connect(socket_path, left_s) as server:
                server.recv(1)  # The server has nothing to say to us: this returns when it ends.
        except TimeoutError:
            return False
        except OSError:
            pass  # It is still starting, or just ending.
        time.sleep(min(0.05, left_s))
    return True


def shut_down(directory: str, socket_path: str) -> bool:
    """End the server by asking, then by force; False when there was none. The next one is left alone."""
    lock_path = os.path.join(directory, "server.lock")
    if not is_held(lock_path):
        return False
    deadline = time.monotonic() + SHUTDOWN_S
    pid = server_pid(directory)
    asked: socket.socket | None = None
    killed = False
    try:
        while is_held(lock_path):
            current_pid = server_pid(directory)
            pid = pid or current_pid
            if current_pid not in (0, pid):
                return True
            if asked is None:
                asked = _ask_to_end(socket_path)
            if time.monotonic() > deadline:
                if killed or not current_pid:
                    raise TimeoutError(f"the embedded server in {directory} did not end")
                os.kill(current_pid, signal.SIGKILL)
                killed = True
                deadline = time.monotonic() + SHUTDOWN_S
            time.sleep(POLL_S)
    finally:
        if asked is not None:
            asked.close()
    return True


def _ask_to_end(socket_path: str) -> socket.socket | None:
    """The connection that asked, to be kept open until the server has ended; None without a server."""
    try:
        server = connect(socket_path, SHUTDOWN_S)
    except OSError:
        return None
    try:
        # Not SIGTERM: with `hz 1` the server looks for signals only once a second.
        server.sendall(b"SHUTDOWN NOSAVE\r\n")
    except OSError:
        server.close()
        return None
    return server


def is_held(lock_path: str) -> bool:
    """Whether some process has the lock. This takes a share for a moment, so lockers try more than once."""
    try:
        fd = os.open(lock_path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False


def server_pid(directory: str) -> int:
    """The pid of the server that holds the lock, 0 if unknown. Each start removes the old pid first."""
    try:
        with open(os.path.join(directory, "server.pid"), encoding="ascii") as file:
            pid = int(file.read() or 0)
        # A pid of another container means someone else here. The server works in its own directory.
        if os.path.isdir("/proc/self") and not os.path.samefile(f"/proc/{pid}/cwd", directory):
            return 0
    except (OSError, ValueError):
        return 0
    return pid


def connect(socket_path: str, timeout_s: float) -> socket.socket:
    server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        server.settimeout(timeout_s)
        server.connect(socket_path)
    except BaseException:
        server.close()
        raise
    return server


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), float(sys.argv[4]))
