"""Semaphores, for threads."""

from __future__ import annotations

from typing import final

from lockfast import specs
from lockfast.flows import sizing
from lockfast.sync.lock import Lock


@final
class Semaphore(Lock):
    """Some of a number of permits: what to acquire, and how. It is used as a lock is."""

    __slots__ = ()

    @property
    def limit(self) -> int | None:
        """How many permits there are; None: as many as the server has stored."""
        return self._ask.limit or None

    @property
    def permits(self) -> int:
        """How many of them one acquire takes."""
        return self._ask.weight

    def resize(self, limit: int) -> None:
        """Change the limit of the name, also while it is in use. Nobody loses what they hold.

        New grants obey it at once, and waiters that want more than there is are refused. It stays for as long as
        anybody holds or waits; others that name a limit must name this one from now on, or none. Raises Unreachable
        when the server does not answer (the limit may have been changed), Refused when the name is no semaphore.
        """
        checked = specs.limit_count(limit)
        self._driver.run(sizing.resize(self._ask.name, self._ask.kind, checked, self._driver.env))
