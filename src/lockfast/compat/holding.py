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
