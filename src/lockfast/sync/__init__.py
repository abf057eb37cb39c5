"""The public side for threads. The asyncio twin, with the same names, is `lockfast.aio`."""

from typing import TYPE_CHECKING

from lockfast._later import names_from
from lockfast.sync.client import Lockfast
from lockfast.sync.lock import Grant, Lock
from lockfast.sync.rlock import RLock
from lockfast.sync.rwlock import ReadLock, RWLock, WriteLock
from lockfast.sync.semaphore import Semaphore
from lockfast.sync.several import Grants, Locks

if TYPE_CHECKING:
    from lockfast.sync.barrier import Barrier
    from lockfast.sync.election import Campaign, Election, Leadership, Observation
    from lockfast.sync.latch import Latch
    from lockfast.sync.transaction import Transaction

__getattr__ = names_from(
    __name__,
    {
        "Barrier": "lockfast.sync.barrier",
        "Latch": "lockfast.sync.latch",
        "Transaction": "lockfast.sync.transaction",
        **dict.fromkeys(("Campaign", "Election", "Leadership", "Observation"), "lockfast.sync.election"),
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
