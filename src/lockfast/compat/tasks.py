"""Lockfast's locks with the call shapes of `asyncio`: for code that is handed a lock and knows nothing of leases.

Made of a client and a name: `Lock(lf, "orders")`. They are renewed while they are held. `acquire` raises Unreachable
or Refused, the end of an `async with` block LeaseLost. `locked()` and `repr` are plain calls and cannot ask the
server: they tell what the tasks of this process hold by this object.

`release()` is a plain call too. It raises LeaseLost if the loss is known here; the rest is done by a task, in the
order of the calls and before this object's next acquire is sent. What goes wrong there is told to the loop's
exception handler; a release that the server does not confirm is tried again until the lease ends it. `async with`
waits for the release.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from lockfast import errors
from lockfast.aio import Lockfast
from lockfast.compat.holding import Holding, check_client, permits
from lockfast.errors import LockfastError, NotHeld
from lockfast.flows import ending

if TYPE_CHECKING:
    from collections.abc import Callable

    from lockfast.aio import Grant
    from lockfast.aio import Lock as Native

_errors: Any = errors
__all__ = ["Barrier", "BoundedSemaphore", "Lock", "Semaphore"]


class _Held:
    """What locks and semaphores have in common: grants in the object, and releases that nobody awaits."""

    TOO_MANY: tuple[type[Exception], str]

    def __init__(self, native: Native) -> None:
        self._native = native
        self._holding: Holding[Grant] = Holding()
        self._leaving: set[asyncio.Future[Any]] = set()

    def __repr__(self) -> str:
        return f"<{type(self).__module__}.{type(self).__name__} object at {id(self):#x} [{self._state()}]>"

    def _state(self) -> str:
        raise NotImplementedError

    async def acquire(self) -> bool:
        """Wait until it is had; returns True."""
        if self._leaving:  # what was released before goes first
            await asyncio.wait(set(self._leaving))
        grant = await self._native.acquire(wait=None)
        self._holding.put(asyncio.current_task(), grant)
        return True

    def release(self) -> None:
        """Give back what a task acquired by this object; see the head of this module for what becomes of it."""
        grant = self._take()
        hold, driver = grant._hold, grant._driver
        is_lost = grant.lost
        try:
            is_to_be_sent = ending.begin(hold, driver.keeper)
        except NotHeld:
            return  # the client was closed, and has given it back
        if is_to_be_sent:
            task = asyncio.get_running_loop().create_task(_finish(grant), name="lockfast-release")
            running: set[asyncio.Future[Any]]
            for running in (self._leaving, driver._undoing):  # the client waits for the latter when it is closed
                running.add(task)
                task.add_done_callback(running.discard)
        if is_lost:
            raise hold.loss()

    async def __aenter__(self) -> None:
        await self.acquire()

    async def __aexit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        grant = self._take()
        try:
            await grant.release()
        except LockfastError as failure:
            if ending.conclude(grant._hold, grant._driver.keeper, error, failure):
                raise

    def _take(self) -> Grant:
        if not self._holding:
            kind, words = self.TOO_MANY
            raise kind(words)
        driver = self._native._driver
        if driver.closed or driver.era.ended:
            asyncio.get_running_loop()  # raises outside of one, before anything is taken
        else:
            driver.enter()  # so it does in another loop than the client's
        return self._holding.take(asyncio.current_task())[0]


async def _finish(grant: Grant) -> None:
    """The rest of a plain release."""
    hold, driver = grant._hold, grant._driver
    was_lost = bool(hold.why_lost)
    try:
        await driver.run(ending.finish(hold, driver.keeper, driver.env))
    except LockfastError as failure:
        # Not confirmed: the keeper goes on.
        if ending.conclude(hold, driver.keeper, None, failure) and not was_lost:
            words = f"a lock was lost before it was released: {failure}"
            asyncio.get_running_loop().call_exception_handler({"message": words, "exception": failure})


class Lock(_Held):
    """`asyncio.Lock` across processes: not re-entrant, and any task may release it. RuntimeError if it is not held.

    lease: seconds the server keeps it if this process dies; on_lost: called with the grant when it is no longer sure.
    """

    TOO_MANY = (RuntimeError, "Lock is not acquired.")

    def __init__(
        self, lf: Lockfast, name: str, *, lease: float = 30.0, on_lost: Callable[[Grant], object] | None = None
    ) -> None:
        check_client(lf, Lockfast, self, "threads")
        super().__init__(lf.lock(name, lease=lease, on_lost=on_lost))

    def locked(self) -> bool:
        """Whether a task of this process holds it by this object."""
        return bool(self._holding)

    def _state(self) -> str:
        return "locked" if self.locked() else "unlocked"


class Semaphore(_Held):
    """`asyncio.Semaphore` across processes: `value` permits for all users of the name, who all must name as many.

    Any task may release what any task acquired by this object. More than that cannot be released (ValueError): the
    number of permits is fixed. lease, on_lost: as for `Lock`.
    """

    TOO_MANY = (ValueError, "Semaphore released too many times")

    def __init__(
        self,
        lf: Lockfast,
        name: str,
        value: int = 1,
        *,
        lease: float = 30.0,
        on_lost: Callable[[Grant], object] | None = None,
    ) -> None:
        check_client(lf, Lockfast, self, "threads")
        self._value = permits(value)
        super().__init__(lf.semaphore(name, limit=self._value, lease=lease, on_lost=on_lost))

    def locked(self) -> bool:
        """Whether the tasks of this process hold all permits by this object."""
        return len(self._holding) >= self._value

    def _state(self) -> str:
        return "locked" if self.locked() else f"unlocked, value:{self._value - len(self._holding)}"


class BoundedSemaphore(Semaphore):
    """`asyncio.BoundedSemaphore` across processes. Every Lockfast semaphore is bounded; this one says so."""


class Barrier:
    """`asyncio.Barrier` across processes: `parties` tasks wait until all of them do.

    `n_waiting` and `broken` are plain properties and cannot ask the server: they tell how many tasks wait by this
    object, and whether it was found broken. lease: seconds after which a party that died breaks the barrier.
    """

    def __init__(self, lf: Lockfast, name: str, parties: int, *, lease: float = 30.0) -> None:
        check_client(lf, Lockfast, self, "threads")
        if isinstance(parties, int) and parties < 1:
            raise ValueError("parties must be > 0")
        client: Any = lf
        self._native = client.barrier(name, parties=parties, lease=lease)
        self._parties = parties
        self._waiting = 0
        self._broken = False

    def __repr__(self) -> str:
        state = "broken" if self._broken else f"filling, waiters:{self._waiting}/{self._parties}"
        return f"<{type(self).__module__}.{type(self).__name__} object at {id(self):#x} [{state}]>"

    async def wait(self) -> int:
        """Wait for the others; every one of them gets another index from 0 to parties - 1.

        Raises asyncio.BrokenBarrierError when it was reset or aborted meanwhile.
        """
        self._waiting += 1
        try:
            index: int = await self._native.wait(wait=None)
        except _errors.BrokenBarrier as failure:
            try:
                self._broken = await self._native.is_broken()
            except LockfastError:
                self._broken = True  # nobody answers; the caller must hear what was known before
            raise asyncio.BrokenBarrierError(str(failure)) from failure
        finally:
            self._waiting -= 1
        return index

    async def __aenter__(self) -> int:
        return await self.wait()

    async def __aexit__(self, *_: object) -> None:
        pass

    async def reset(self) -> None:
        """Empty again; tasks that wait have a BrokenBarrierError."""
        await self._native.reset()
        self._broken = False

    async def abort(self) -> None:
        """Break it: whoever waits, now or later, has a BrokenBarrierError until somebody resets it."""
        await self._native.abort()
        self._broken = True

    @property
    def parties(self) -> int:
        """How many are needed."""
        return self._parties

    @property
    def n_waiting(self) -> int:
        """How many tasks of this process wait by this object."""
        return self._waiting

    @property
    def broken(self) -> bool:
        """Whether this object has found it broken, or has broken it."""
        return self._broken
