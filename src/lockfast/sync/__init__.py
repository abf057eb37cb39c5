"""The public side for threads. The asyncio twin, with the same names, is `lockfast.aio`."""

from lockfast.sync.barrier import Barrier
from lockfast.sync.client import Lockfast
from lockfast.sync.election import Campaign, Election, Leadership, Observation
from lockfast.sync.latch import Latch
from lockfast.sync.lock import Grant, Lock
from lockfast.sync.rlock import RLock
from lockfast.sync.rwlock import ReadLock, RWLock, WriteLock
from lockfast.sync.semaphore import Semaphore
from lockfast.sync.several import Grants, Locks
from lockfast.sync.transaction import Transaction

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
