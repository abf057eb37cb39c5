"""Cyclic barriers, for threads."""

from __future__ import annotations

from typing import TYPE_CHECKING, final

from lockfast import specs
from lockfast.errors import Misused
from lockfast.flows import barrier

if TYPE_CHECKING:
    from lockfast.drivers.threads import Threads
    from lockfast.flows.barrier import BarrierSpec


@final
class Barrier:
    """A place where a number of parties wait for each other, again and again. Share it: who waits is on the server."""

    __slots__ = ("_driver", "_spec")

    def __init__(self, driver: Threads, spec: BarrierSpec) -> None:
        self._driver = driver
        self._spec = spec

    def __repr__(self) -> str:
        return f"<Barrier {self.name!r}>"

    @property
    def name(self) -> str:
        return self._spec.name.shown

    @property
    def parties(self) -> int:
        """How many have to come."""
        return self._spec.parties

    def wait(self, *, wait: float | None = None) -> int:
        """Wait until all parties have come, up to `wait` seconds (None as long as it takes).

        Returns how many came before this one: each party of a generation has another number, from 0 on. Raises
        BrokenBarrier when a party that waited is dead, gave up or was cancelled, or the barrier was broken before;
        NotAcquired when the wait is over and Unreachable when the server does not answer, and the barrier is broken
        then for the others.
        """
        wait_s = specs.wait_seconds(wait)
        driver = self._driver
        ticket = driver.new_ticket()
        driver.acquiring.add(ticket)
        try:
            if driver.closing:
                raise Misused("this client is closed")
            return driver.run(barrier.wait(self._spec, ticket, wait_s, driver.env))
        finally:  # `close()` waits until nobody is left waiting
            driver.acquiring.discard(ticket)

    def abort(self) -> None:
        """Break the barrier: all who wait, and all who come, get BrokenBarrier until somebody resets it."""
        self._driver.run(barrier.abort(self._spec, self._driver.new_ticket(), self._driver.env))

    def reset(self) -> None:
        """Make the barrier whole and empty, also for another number of parties. Who waits now gets BrokenBarrier."""
        self._driver.run(barrier.reset(self._spec, self._driver.new_ticket(), self._driver.env))

    def n_waiting(self) -> int:
        """How many wait at this moment."""
        found = self._driver.run(barrier.look(self._spec, self._driver.new_ticket(), self._driver.env))
        return found[1]

    def is_broken(self) -> bool:
        """Whether it is broken at this moment."""
        found = self._driver.run(barrier.look(self._spec, self._driver.new_ticket(), self._driver.env))
        return found[0]
