"""`server start|status|stop`: the embedded server of this user on this host."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from lockfast.cli.connect import failure
from lockfast.cli.talk import duration, say
from lockfast.errors import LockfastError

if TYPE_CHECKING:
    from argparse import Namespace

    from lockfast.embedded import Status

NOT_RUNNING = 3  # As `systemctl status` has it.


def server(options: Namespace) -> int:
    """The verb. `status` ends with 3 when nothing runs."""
    from lockfast import embedded

    try:
        if options.action == "start":
            sys.stdout.write(_describe(embedded.start()))
            return 0
        if options.action == "stop":
            say("the embedded server is stopped" if embedded.stop() else "the embedded server did not run")
            return 0
        status = embedded.status()
    except LockfastError as error:
        raise failure(error, None) from error
    if status is None:
        say("the embedded server does not run; it starts by itself when it is needed")
        return NOT_RUNNING
    sys.stdout.write(_describe(status))
    return 0


def _describe(status: Status) -> str:
    users = "unknown" if status.users is None else str(status.users)
    rows = {
        "pid": str(status.pid),
        "version": status.version,
        "up for": duration(status.uptime_s),
        "users": users,
        "memory": f"{status.memory_bytes / 1e6:.1f} MB",
        "url": status.url,
        "socket": status.socket_path,
        "directory": status.directory,
        "program": status.binary,
    }
    return "".join(f"{name:<10}{value}\n" for name, value in rows.items())
