"""The public side for asyncio. The twin for threads, with the same names, is `lockfast.sync`."""

from lockfast.aio.barrier import Barrier
from lockfast.aio.client import Lockfast
from lockfast.aio.election import Campaign, Election, Leadership, Observation
from lockfast.aio.latch import Latch
from lockfast.aio.lock import Grant, Lock
from lockfast.aio.rlock import RLock
from lockfast.aio.rwlock import ReadLock, RWLock, WriteLock
from lockfast.aio.semaphore import Semaphore
from lockfast.aio.several import Grants, Locks
from lockfast.aio.transaction import Transaction

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
