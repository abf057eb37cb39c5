"""Count-down latches, for threads."""

from __future__ import annotations

from typing import TYPE_CHECKING, final

from lockfast import specs
from lockfast.errors import Misused
from lockfast.flows import latch

if TYPE_CHECKING:
    from lockfast.drivers.threads import Threads
    from lockfast.flows.latch import LatchSpec


@final
class Latch:
    """Closed until it has been counted down to zero, open from then on. Share it: what is counted is on the server."""

    __slots__ = ("_driver", "_spec")

    def __init__(self, driver: Threads, spec: LatchSpec) -> None:
        self._driver = driver
        self._spec = spec

    def __repr__(self) -> str:
        return f"<Latch {self.name!r}>"

    @property
    def name(self) -> str:
        return self._spec.name.shown

    def count_down(self, n: int = 1, *, once: str | None = None) -> int:
        """Count down by `n`; at zero the latch opens, and stays open. Returns what is left.

        It is counted once, however often the request had to be sent. once: a word of the caller's own, such as the
        number of the work that is done: whoever counts down with the same word again, after a crash too, counts
        nothing. Raises Unreachable when the server does not answer: it may have been counted, so call again only
        with such a word. Raises Refused when the name is in use with another count, or as something else.
        """
        down = specs.latch_count(n, "n")
        ticket = self._driver.new_ticket() if once is None else latch.ticket_of(once)
        return self._driver.run(latch.count_down(self._spec, ticket, down, self._driver.env))

    def count(self) -> int:
        """How much is left to count; 0 when it is open. Raises as `count_down`."""
        return self._driver.run(latch.count(self._spec, self._driver.new_ticket(), self._driver.env))

    def wait(self, *, wait: float | None = None) -> None:
        """Wait until it is open, up to `wait` seconds (None as long as it takes, 0 to look once).

        Raises NotAcquired when the wait is over, Unreachable when the server does not answer, Refused when the name
        is in use as something else, or when the server has forgotten what was counted.
        """
        wait_s = specs.wait_seconds(wait)
        driver = self._driver
        ticket = driver.new_ticket()
        driver.acquiring.add(ticket)
        try:
            if driver.closing:
                raise Misused("this client is closed")
            driver.run(latch.wait(self._spec, ticket, wait_s, driver.env))
        finally:  # `close()` waits until nobody is left waiting
            driver.acquiring.discard(ticket)
