"""The public side for threads. The asyncio twin, with the same names, is `lockfast.aio`."""

from lockfast.sync.client import Lockfast
from lockfast.sync.lock import Grant, Lock
from lockfast.sync.rlock import RLock
from lockfast.sync.rwlock import ReadLock, RWLock, WriteLock
from lockfast.sync.semaphore import Semaphore
from lockfast.sync.several import Grants, Locks
from lockfast.sync.transaction import Transaction

__all__ = [
    "Grant",
    "Grants",
    "Lock",
    "Lockfast",
    "Locks",
    "RLock",
    "RWLock",
    "ReadLock",
    "Semaphore",
    "Transaction",
    "WriteLock",
]
