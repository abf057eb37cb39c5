"""redis-py's Lock for asyncio, on Lockfast."""

from __future__ import annotations

import asyncio
import weakref
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Literal, Self

from lockfast.aio import Grant
from lockfast.compat import clients_aio
from lockfast.compat.clients_aio import aclose
from lockfast.compat.shape import Shape, Token
from lockfast.errors import LeaseLost, NotAcquired, NotHeld, Refused, Unreachable
from lockfast.grants import RELEASED

if TYPE_CHECKING:
    from lockfast.aio import Lock as Native
    from lockfast.aio import Lockfast

__all__ = ["Lock", "aclose"]
MAX_LEFT = 16


class TaskTokens:
    """`local` of a lock whose holds belong to tasks: each sees the token that it acquired itself.

    A token whose task has ended is seen by whoever asks, if it is the only one: before Python 3.12,
    `asyncio.wait_for(lock.acquire(), 5)` acquires in a task of its own.
    """

    def __init__(self) -> None:
        self._entries: list[tuple[weakref.ref[asyncio.Task[Any]], Token]] = []

    @property
    def token(self) -> Token | None:
        me = _current_task()
        mine = [found for task, found in self._entries if me is not None and task() is me]
        if mine:
            return mine[-1]
        left = [found for task, found in self._entries if _has_ended(task) and found.grant._hold.state is not RELEASED]
        return left[0] if len(left) == 1 else None

    @token.setter
    def token(self, token: Token | None) -> None:
        me = _current_task()
        if token is None:
            gone = self.token
            self._entries = [entry for entry in self._entries if entry[1] is not gone]
        elif me is not None:
            entries = [entry for entry in self._entries if entry[0]() is not me]
            # Programs that let their locks end by timeout never take a token away.
            left = [entry for entry in entries if _has_ended(entry[0])][:-MAX_LEFT]
            self._entries = [*(entry for entry in entries if entry not in left), (weakref.ref(me), token)]


def _current_task() -> asyncio.Task[Any] | None:
    try:
        return asyncio.current_task()
    except RuntimeError:
        return None  # no loop runs in this thread


def _has_ended(task: weakref.ref[asyncio.Task[Any]]) -> bool:
    found = task()
    return found is None or found.done()


class Lock(Shape):
    """A distributed lock with the signature, the answers and the exceptions of `redis.asyncio.lock.Lock`.

    Waiters are served in order and at once. It contends with every Lockfast lock of that name on that server, and not
    with redis-py's own Lock, which has other keys.
    """

    def _begin(self) -> None:
        self.local = TaskTokens() if self.thread_local else SimpleNamespace(token=None)
        self._native: tuple[Lockfast, Native] | None = None

    async def acquire(
        self,
        blocking: bool | None = None,
        blocking_timeout: float | None = None,
        token: str | bytes | None = None,
    ) -> bool:
        """Hold the lock; False when it was busy for as long as the caller was willing to wait.

        token: text to be found in `local.token` instead of a random one.
        Raises ConnectionError or ResponseError of redis-py when the server does not answer, or refuses.
        """
        text = self._encoded(token)
        _, lock = await self._lock()
        try:
            grant = await lock.acquire(wait=self._wait_s(blocking, blocking_timeout))
        except NotAcquired:
            return False
        except (Unreachable, Refused) as failure:
            raise self._as_redis(failure) from failure
        self._keep(grant, text)
        return True

    async def locked(self) -> bool:
        """Whether anybody holds the lock."""
        return bool(await self._holders())

    async def owned(self) -> bool:
        """Whether this lock object (and task, with thread_local) holds it, as this process and the server see it."""
        grant = self.grant
        return grant is not None and grant.held and grant.ticket in await self._holders()

    async def release(self) -> None:
        """Give the lock back; the next in the queue has it at once.

        Raises LockError when there is nothing to release, LockNotOwnedError when the lock had been lost before, and
        ConnectionError when the server did not confirm; it can then be called again. So it can when it is cancelled.
        """
        grant = await self._within_reach(self._to_release())
        try:
            await grant.release()
        except (LeaseLost, NotHeld) as failure:
            self.local.token = None
            self._gone("release", failure)
        except (Unreachable, Refused) as failure:
            raise self._as_redis(failure) from failure
        self.local.token = None

    async def extend(self, additional_time: float, replace_ttl: bool = False) -> Literal[True]:
        """Add seconds to what is left of the timeout, or (replace_ttl) have at least that many left. Never shortens.

        Raises LockError for a lock that is not held or has no timeout, LockNotOwnedError when it was lost.
        """
        token = self._to_extend("extend")
        async with token.extending:
            grant = await self._within_reach(token)
            return await self._extend(grant, self._extended_s(grant, additional_time, replace_ttl), "extend")

    async def reacquire(self) -> Literal[True]:
        """Have at least the whole timeout left. Raises what `extend` does."""
        token = self._to_extend("reacquire")
        async with token.extending:
            return await self._extend(await self._within_reach(token), self._lease_s, "reacquire")

    async def __aenter__(self) -> Self:
        if await self.acquire():
            return self
        raise self._lock_error("Unable to acquire lock within the time specified")

    async def __aexit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        token = self.local.token
        try:
            await self.release()
        except self._exceptions().LockError as failure:
            if self._left_badly(error, failure):
                raise
        except self._exceptions().ConnectionError:
            # The body ran under the lock to its end. The keeper goes on trying until the lease ends it.
            self.local.token = None
            token.grant._driver.keeper.finish(token.grant._hold)

    async def _within_reach(self, token: Token) -> Grant:
        """The grant of a token, on a client that is open: a hold with a timeout outlives the one it was acquired by."""
        driver = token.grant._driver
        if driver.closing or driver._loop.is_closed():
            lf, _ = await self._lock()
            token.grant = Grant(token.grant._hold, lf._driver)
        grant: Grant = token.grant  # type: ignore[assignment]  # of this side, as all that are made here
        return grant

    def _new_mutex(self) -> Any:
        return asyncio.Lock()

    async def _extend(self, grant: Any, lease_s: float, verb: str) -> Literal[True]:
        try:
            await grant.extend(lease_s)
        except (LeaseLost, NotHeld) as failure:
            self._gone(verb, failure)
        except (Unreachable, Refused) as failure:
            raise self._as_redis(failure) from failure
        return True

    async def _holders(self) -> list[str]:
        lf, _ = await self._lock()
        try:
            return [holder.ticket for holder in (await lf.inspect(self._text)).holders]
        except (Unreachable, Refused) as failure:
            raise self._as_redis(failure) from failure

    async def _lock(self) -> tuple[Lockfast, Native]:
        """The client and the lock below; made anew for another loop, or when the client was closed meanwhile."""
        lf = await clients_aio.of(self.redis)
        if self._native is None or self._native[0] is not lf:
            self._native = lf, lf.lock(self._text, lease=self._lease_s, renew=self.timeout is None)
        return self._native
