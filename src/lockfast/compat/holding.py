"""What an object with the shape of a standard lock has: grants, which are not in its callers' hands.

`threading` and `asyncio` let anybody release. So a release takes, of the grants that this object has, the newest of
the caller's own; else the oldest that is still held; else the oldest. A caller whose own hold was lost thereby hears
of it, and never gives back what another has acquired meanwhile.
"""

from __future__ import annotations

import threading
from typing import Any, Generic, TypeVar

from lockfast import specs
from lockfast.grants import GrantView

CLIENTS = ("lockfast.Lockfast", "lockfast.aio.Lockfast")

G = TypeVar("G", bound=GrantView[Any])


class Holding(Generic[G]):
    """The grants of one object, each with the thread or task that acquired it."""

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._grants: list[tuple[object, G]] = []

    def __len__(self) -> int:
        return len(self._grants)

    def put(self, who: object, grant: G) -> None:
        """Keep a grant that was just acquired."""
        self._grants.append((who, grant))

    def take(self, who: object, count: int = 1) -> list[G]:
        """Take grants out, to be released; nothing, and none of them, when there are fewer than `count`."""
        with self._mutex:
            if count > len(self._grants):
                return []
            return [self._take_one(who) for _ in range(count)]

    def _take_one(self, who: object) -> G:
        grants = self._grants
        for i in range(len(grants) - 1, -1, -1):
            if grants[i][0] == who:
                return grants.pop(i)[1]
        for i, (_, grant) in enumerate(grants):
            if grant.held:
                return grants.pop(i)[1]
        return grants.pop(0)[1]


def permits(value: object) -> int:
    """The number of permits that a semaphore of the standard library was told; ValueError when it cannot be had."""
    if isinstance(value, int) and value < 0:
        raise ValueError("semaphore initial value must be >= 0")
    return specs.limit_count(value)


def check_client(lf: object, wanted: type, shape: object, other: str) -> None:
    """Refuse what is no client of this side: on the other one, `acquire` would be true and nothing locked.

    other: the module for clients of the other side.
    """
    if isinstance(lf, wanted):
        return
    kind = f"{type(shape).__module__.rpartition('.')[2]}.{type(shape).__name__}"
    step = f"use compat.{other}" if called(lf) in CLIENTS else "the client comes first, then the name"
    raise TypeError(f"{kind} wants a {_public(wanted)}, got {called(lf)}: {step}")


def called(thing: object) -> str:
    """What somebody handed over instead of what was wanted, in words that they know it by."""
    kind = type(thing)
    if kind.__module__.startswith("lockfast."):
        return _public(kind)
    return f"a {kind.__name__}"


def _public(kind: type) -> str:
    side = "lockfast.aio" if kind.__module__.startswith("lockfast.aio.") else "lockfast"
    return f"{side}.{kind.__name__}"
