"""Drop-ins: Lockfast under the call shapes that programs already use.

    from lockfast.compat import Lock                    # redis.lock.Lock: Lock(redis_client, "name", timeout=10)
    from lockfast.compat.aio import Lock                # redis.asyncio.lock.Lock
    from lockfast.compat.threads import Semaphore       # threading.Semaphore: Semaphore(lf, "name", 4)
    from lockfast.compat.tasks import Semaphore         # asyncio.Semaphore

Signatures, return values and exceptions are those of the originals; the locks are Lockfast's. Where that makes a
difference, docs/primitives/migrating.md (redis-py) and docs/primitives/drop-in.md (threading, asyncio) say so.
redis-py is imported when its exceptions are needed and not before.
"""

from __future__ import annotations

from typing import Any

from lockfast.compat import threads
from lockfast.compat.clients import close
from lockfast.compat.lock import Lock

__all__ = ["Lock", "aio", "close", "tasks", "threads"]


def __getattr__(name: str) -> Any:
    if name in ("aio", "tasks"):  # on first need: they load asyncio
        import importlib

        return importlib.import_module(f"lockfast.compat.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
