"""Transactions in a cluster, for asyncio: see cluster_plain.py."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from lockfast.drivers.cluster_plain import OnSlot, redirected, slot_of_all
from lockfast.drivers.plain_aio import Lines, PlainAsyncio
from lockfast.errors import Unreachable

if TYPE_CHECKING:
    from lockfast.drivers.cluster_aio import ClusterAsyncio
    from lockfast.drivers.link import Link
    from lockfast.drivers.plain_aio import Runs
    from lockfast.drivers.slots import Address
    from lockfast.flows.plain import Env, Flow, Pipeline

R = TypeVar("R")


class ClusterPlainAsyncio(PlainAsyncio):
    """Runs transactions on whichever node owns their slot."""

    def __init__(self, driver: ClusterAsyncio) -> None:
        super().__init__([], driver.env.timeout_s)
        self._driver = driver
        self._lines_at: dict[Address, Lines] = {}

    def of(self, keys: tuple[str | bytes, ...]) -> Runs:
        return _On(self, slot_of_all(keys))

    async def run_on(self, slot: int, flow: Flow[R]) -> R:
        """Run a flow about one slot."""
        return await self._run(flow, OnSlot(slot))

    async def _lines_of(self, effect: Pipeline, private: dict[int, Link]) -> Lines:
        assert isinstance(private, OnSlot)
        if not effect.same or private.place is None:
            private.address = (await self._driver.owner_of(private.slot, effect.by)).address
            private.place = self._lines_at.get(private.address)
            if private.place is None:
                private.place = self._lines_at[private.address] = Lines(self._driver.endpoint.at(private.address))
                self._lines.append(private.place)
        lines = private.place
        assert isinstance(lines, Lines)
        return lines

    async def _pipeline(self, effect: Pipeline, private: dict[int, Link]) -> list[Any]:
        assert isinstance(private, OnSlot)
        try:
            replies = await super()._pipeline(effect, private)
        except Unreachable:
            self._driver.map.doubt(private.address)
            raise
        found = redirected(replies, private)
        if found is not None:
            redirect, reason = found
            if redirect.for_good:
                self._driver.map.move(redirect.slot, redirect.address)
            link = private.pop(effect.server, None)
            if link is not None:
                link.close()
            raise reason
        return replies


class _On:
    """Runs flows about one slot."""

    def __init__(self, plain: ClusterPlainAsyncio, slot: int) -> None:
        self.env: Env = plain.env
        self._plain = plain
        self._slot = slot

    async def run(self, flow: Flow[R]) -> R:
        return await self._plain.run_on(self._slot, flow)
