"""Transactions in a cluster, for threads: all keys in one slot, on the node that owns it.

A slot that moves, or is being moved, between WATCH and EXEC makes the server refuse the transaction as a whole: nothing
was written, and the attempt is made again, on the new owner.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from lockfast.drivers import slots
from lockfast.drivers.connection import TICK_S
from lockfast.drivers.plain_threads import PlainThreads, Pool
from lockfast.errors import LockfastError, Refused, Unreachable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lockfast.drivers.cluster_threads import ClusterThreads
    from lockfast.drivers.connection import Connection
    from lockfast.drivers.plain_threads import Runs
    from lockfast.drivers.slots import Address
    from lockfast.flows.plain import Env, Flow, Pipeline

R = TypeVar("R")


class OnSlot(dict[int, Any]):
    """What one flow keeps to itself: its connection, the slot that it is about, and where that was found."""

    def __init__(self, slot: int) -> None:
        super().__init__()
        self.slot = slot
        self.address: Address = ("", 0)
        self.place: Any = None  # the pool, or the lines, of that address


def slot_of_all(keys: Sequence[str | bytes]) -> int:
    """The slot that all keys are in. Raises ValueError if that is not one."""
    found = {slots.slot_of(key) for key in keys}
    if len(found) > 1:
        raise ValueError(
            f"these keys are in {len(found)} slots of the cluster, and a transaction runs on one node: give them the "
            f"same {{hash tag}}: {', '.join(map(repr, keys[:4]))}"
        )
    return found.pop()


def redirected(replies: list[Any], private: OnSlot) -> tuple[slots.Redirect, LockfastError] | None:
    """The redirect among the replies, and what it means to the transaction: nothing was written."""
    for reply in replies:
        redirect = slots.redirect(reply, private.address) if isinstance(reply, Exception) else None
        if redirect is not None and redirect.slot != private.slot:
            words = "a key that it writes is in another slot than those it watches: give them the same {hash tag}"
            return redirect, Refused(f"nothing was written: {words}", code="CROSSSLOT")
        if redirect is not None:
            return redirect, Unreachable(f"slot {redirect.slot} is not, or not only, on this node any more", sent=False)
    return None


class ClusterPlainThreads(PlainThreads):
    """Runs transactions on whichever node owns their slot."""

    def __init__(self, driver: ClusterThreads) -> None:
        super().__init__([], driver.env.timeout_s)
        self._driver = driver
        self._pool_at: dict[Address, Pool] = {}

    def of(self, keys: tuple[str | bytes, ...]) -> Runs:
        return _On(self, slot_of_all(keys))

    def run_on(self, slot: int, flow: Flow[R]) -> R:
        """Run a flow about one slot."""
        return self._run(flow, OnSlot(slot))

    def _pool_of(self, effect: Pipeline, private: dict[int, Connection]) -> Pool:
        assert isinstance(private, OnSlot)
        if not effect.same or private.place is None:
            private.address = self._driver.owner_of(private.slot, effect.by).address
            private.place = self._pool_at.get(private.address)
            if private.place is None:
                pool = Pool(self._driver.endpoint.at(private.address), min(TICK_S, self.env.timeout_s / 8))
                private.place = self._pool_at.setdefault(private.address, pool)
                if private.place is pool:
                    self._pools.append(pool)
        pool = private.place
        assert isinstance(pool, Pool)
        return pool

    def _pipeline(self, effect: Pipeline, private: dict[int, Connection]) -> list[Any]:
        assert isinstance(private, OnSlot)
        try:
            replies = super()._pipeline(effect, private)
        except Unreachable:
            self._driver.map.doubt(private.address)
            raise
        found = redirected(replies, private)
        if found is not None:
            redirect, reason = found
            if redirect.for_good:
                self._driver.map.move(redirect.slot, redirect.address)
            connection = private.pop(effect.server, None)
            if connection is not None:
                connection.close()
            raise reason
        return replies


class _On:
    """Runs flows about one slot."""

    def __init__(self, plain: ClusterPlainThreads, slot: int) -> None:
        self.env: Env = plain.env
        self._plain = plain
        self._slot = slot

    def run(self, flow: Flow[R]) -> R:
        return self._plain.run_on(self._slot, flow)
