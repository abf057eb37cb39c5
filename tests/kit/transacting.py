"""Transactions in one test body for both sides: the function is a plain one, its `tx` blocks."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from kit.sides import AsyncioSide

if TYPE_CHECKING:
    from collections.abc import Callable

    from kit.sides import Side
    from lockfast import Outcome, Transaction
    from lockfast.sync import Lockfast


def transact(side: Side, lf: Lockfast, fn: Callable[[Transaction], Any], *keys: Any, **options: Any) -> Outcome[Any]:
    """`lf.transaction(fn, ...)`. On asyncio the function runs in a thread, and what it is given is a Twin."""
    if not isinstance(side, AsyncioSide):
        return lf.transaction(fn, *keys, **options)
    on_loop = side

    async def body(tx: Any) -> Any:
        return await asyncio.to_thread(fn, on_loop.wrap(tx))

    return lf.transaction(body, *keys, **options)


def plus_one(key: str) -> Callable[[Transaction], int]:
    """Reads a number and queues the next; returns what it read."""

    def increment(tx: Transaction) -> int:
        number = int(tx.get(key) or 0)
        tx.set(key, number + 1)
        return number

    return increment
