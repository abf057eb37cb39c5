"""The public side for asyncio. The twin for threads, with the same names, is `lockfast.sync`."""

from typing import TYPE_CHECKING

from lockfast._later import names_from
from lockfast.aio.client import Lockfast
from lockfast.aio.lock import Grant, Lock
from lockfast.aio.rlock import RLock
from lockfast.aio.rwlock import ReadLock, RWLock, WriteLock
from lockfast.aio.semaphore import Semaphore
from lockfast.aio.several import Grants, Locks

if TYPE_CHECKING:
    from lockfast.aio.barrier import Barrier
    from lockfast.aio.election import Campaign, Election, Leadership, Observation
    from lockfast.aio.latch import Latch
    from lockfast.aio.transaction import Transaction

__getattr__ = names_from(
    __name__,
    {
        "Barrier": "lockfast.aio.barrier",
        "Latch": "lockfast.aio.latch",
        "Transaction": "lockfast.aio.transaction",
        **dict.fromkeys(("Campaign", "Election", "Leadership", "Observation"), "lockfast.aio.election"),
    },
)

__all__ = [
    "Barrier",
    "Campaign",
    "Election",
    "Grant",
    "Grants",
    "Latch",
    "Leadership",
    "Lock",
    "Lockfast",
    "Locks",
    "Observation",
    "RLock",
    "RWLock",
    "ReadLock",
    "Semaphore",
    "Transaction",
    "WriteLock",
]
