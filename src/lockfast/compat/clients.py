"""One Lockfast client for each redis-py client that locks are made with: they share its connections and its keeper.

It lives as long as the redis-py client, which is held weakly here. It is then closed in a thread of its own, as a
garbage collection may strike at any line. Nothing is sent when the process ends: leases do what is left to do.
"""

from __future__ import annotations

import os
import threading
import weakref
from typing import Any

from lockfast.compat import shape
from lockfast.sync import Lockfast

_mutex = threading.RLock()  # re-entrant: the end of another client may be noticed while it is held
_clients: weakref.WeakKeyDictionary[Any, tuple[Lockfast, weakref.finalize[Any, Any]]] = weakref.WeakKeyDictionary()


def of(redis: Any) -> Lockfast:
    """The client for locks made with `redis`. Raises TypeError for what is no client of one server."""
    with _mutex:
        if redis not in _clients:
            lf = Lockfast(redis, timeout=shape.TIMEOUT_S, label="compat")
            end = weakref.finalize(redis, _close_beside, lf)
            end.atexit = False
            _clients[redis] = lf, end
        return _clients[redis][0]


def close(redis: Any) -> None:
    """Give back the locks without a timeout that were made with this redis-py client, and close their connections.

    Locks with a timeout stay until then or until they are released, as with redis-py. Without this it happens when
    the redis-py client is garbage-collected; locks that are made or acquired later begin anew.
    """
    with _mutex:
        lf, end = _clients.pop(redis, (None, None))
    if lf is not None and end is not None:
        end.detach()
        lf.close()


def _forget() -> None:
    """In a forked child: whoever had the mutex is not in this process. The clients forget by themselves."""
    global _mutex
    _mutex = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)


def _close_beside(lf: Lockfast) -> None:
    try:
        threading.Thread(target=lf.close, name="lockfast-compat-close", daemon=True).start()
    except RuntimeError:
        pass  # the interpreter is on its way out, and the sockets with it
