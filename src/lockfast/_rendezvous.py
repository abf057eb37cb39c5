"""Where the embedded server of this user on this host is found: a private directory, and a socket in it.

The place depends on the user id and the host name alone, never on $HOME, $TMPDIR or $XDG_RUNTIME_DIR, which
differ between a login shell and cron: two places would mean two servers and no exclusion. Only
LOCKFAST_HOME, set on purpose, moves it. For the same reason a home that cannot be used is an error and not
a reason to go elsewhere.
"""

from __future__ import annotations

import os
import stat
import sys
from typing import NamedTuple

from lockfast.errors import Unreachable

if sys.platform != "win32":
    import pwd

SOCKET_PATH_BYTES = 107 if sys.platform == "linux" else 103


class Place(NamedTuple):
    directory: str
    socket_path: str

    def path(self, name: str) -> str:
        return os.path.join(self.directory, name)


def find_place(*, create: bool) -> Place | None:
    """The directory and socket of this user's server; None when there is none yet and none is to be made."""
    explicit = os.environ.get("LOCKFAST_HOME")
    if explicit:
        if not os.path.isabs(explicit):
            raise ValueError(f"LOCKFAST_HOME must be an absolute path, not {explicit!r}: it names a meeting place")
        directory = os.path.normpath(explicit)
        private = [directory]
    else:
        state = os.path.join(_home(), ".local", "state", "lockfast")
        directory = os.path.join(state, _host_name())
        private = [state, directory]
    if not create and not os.path.lexists(directory):
        return None
    for path in private:
        _make_private(path)
    socket_path = os.path.join(directory, "server.sock")
    if len(os.fsencode(socket_path)) > SOCKET_PATH_BYTES:
        # The kernel's limit. The lock stays where it is, so a /tmp that is not shared means an error, not
        # two servers.
        short = f"/tmp/lockfast-{os.geteuid()}"
        _make_private(short)
        info = os.stat(directory)
        socket_path = f"{short}/{info.st_dev:x}-{info.st_ino:x}.sock"
    return Place(directory, socket_path)


def _home() -> str:
    try:
        home = pwd.getpwuid(os.geteuid()).pw_dir
    except KeyError:
        home = ""
    if not os.path.isdir(home):
        raise cannot(
            f"needs a home directory and user {os.geteuid()} has none here; set LOCKFAST_HOME to a "
            "directory, the same for all processes that are to share locks, or name a server (LOCKFAST_URL)"
        )
    return home


def _host_name() -> str:
    """The host's name as one path component. A home directory on the network has one server for each host."""
    name = "".join(letter if letter.isalnum() or letter in "-_." else "_" for letter in os.uname().nodename)
    return name if name.strip(".") else "localhost"


def _make_private(path: str) -> None:
    """Make sure of a real directory, ours and closed to all others; refuse what others may have laid."""
    try:
        info = os.lstat(path)
    except FileNotFoundError:
        try:
            os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
            os.mkdir(path, 0o700)
        except FileExistsError:
            pass  # Another process was faster; what it made is checked like any other.
        except OSError as error:
            raise cannot(f"cannot make its directory {path}: {error}") from error
        info = os.lstat(path)
    if not stat.S_ISDIR(info.st_mode):
        what = "a symbolic link" if stat.S_ISLNK(info.st_mode) else "not a directory"
        raise cannot(f"refuses {path}: it is {what}; remove it, or set LOCKFAST_HOME")
    if info.st_uid != os.geteuid():
        raise cannot(f"refuses {path}: it belongs to user {info.st_uid}, not to {os.geteuid()}")
    if info.st_mode & 0o077:
        raise cannot(
            f"refuses {path}: others may enter it (mode {stat.S_IMODE(info.st_mode):o}); if nobody "
            f"tampered with it, run: chmod 700 {path}"
        )


def cannot(what: str) -> Unreachable:
    return Unreachable(f"the embedded server {what}", sent=False)
