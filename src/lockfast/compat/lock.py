"""redis-py's Lock for threads, on Lockfast."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Literal, Self

from lockfast.compat import clients
from lockfast.compat.shape import Shape, Token
from lockfast.errors import LeaseLost, NotAcquired, NotHeld, Refused, Unreachable
from lockfast.sync import Grant

if TYPE_CHECKING:
    from lockfast.sync import Lock as Native
    from lockfast.sync import Lockfast


class ThreadTokens(threading.local):
    """`local` of a lock whose holds belong to threads. A thread that has acquired nothing sees None."""

    token: Token | None = None


class Lock(Shape):
    """A distributed lock with the signature, the answers and the exceptions of `redis.lock.Lock`.

    Waiters are served in order and at once. It contends with every Lockfast lock of that name on that server, and not
    with redis-py's own Lock, which has other keys.
    """

    def _begin(self) -> None:
        self.local = ThreadTokens() if self.thread_local else SimpleNamespace(token=None)
        self._native: tuple[Lockfast, Native] | None = None
        self._lock()

    def acquire(
        self,
        sleep: float | None = None,
        blocking: bool | None = None,
        blocking_timeout: float | None = None,
        token: str | bytes | None = None,
    ) -> bool:
        """Hold the lock; False when it was busy for as long as the caller was willing to wait.

        sleep: without meaning, as nobody polls. token: text to be found in `local.token` instead of a random one.
        Raises ConnectionError or ResponseError of redis-py when the server does not answer, or refuses.
        """
        text = self._encoded(token)
        try:
            grant = self._lock()[1].acquire(wait=self._wait_s(blocking, blocking_timeout))
        except NotAcquired:
            return False
        except (Unreachable, Refused) as failure:
            raise self._as_redis(failure) from failure
        self._keep(grant, text)
        return True

    def locked(self) -> bool:
        """Whether anybody holds the lock."""
        return bool(self._holders())

    def owned(self) -> bool:
        """Whether this lock object (and thread, with thread_local) holds it, as this process and the server see it."""
        grant = self.grant
        return grant is not None and grant.held and grant.ticket in self._holders()

    def release(self) -> None:
        """Give the lock back; the next in the queue has it at once.

        Raises LockError when there is nothing to release, LockNotOwnedError when the lock had been lost before, and
        ConnectionError when the server did not confirm; it can then be called again.
        """
        grant = self._within_reach(self._to_release())
        try:
            grant.release()
        except (LeaseLost, NotHeld) as failure:
            self.local.token = None
            self._gone("release", failure)
        except (Unreachable, Refused) as failure:
            raise self._as_redis(failure) from failure
        self.local.token = None

    def extend(self, additional_time: float, replace_ttl: bool = False) -> Literal[True]:
        """Add seconds to what is left of the timeout, or (replace_ttl) have at least that many left. Never shortens.

        Raises LockError for a lock that is not held or has no timeout, LockNotOwnedError when it was lost.
        """
        token = self._to_extend("extend")
        with token.extending:
            grant = self._within_reach(token)
            return self._extend(grant, self._extended_s(grant, additional_time, replace_ttl), "extend")

    def reacquire(self) -> Literal[True]:
        """Have at least the whole timeout left. Raises what `extend` does."""
        token = self._to_extend("reacquire")
        with token.extending:
            return self._extend(self._within_reach(token), self._lease_s, "reacquire")

    def __enter__(self) -> Self:
        if self.acquire():
            return self
        raise self._lock_error("Unable to acquire lock within the time specified")

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        token = self.local.token
        try:
            self.release()
        except self._exceptions().LockError as failure:
            if self._left_badly(error, failure):
                raise
        except self._exceptions().ConnectionError:
            # The body ran under the lock to its end. The keeper goes on trying until the lease ends it.
            self.local.token = None
            token.grant._driver.keeper.finish(token.grant._hold)

    def _within_reach(self, token: Token) -> Grant:
        """The grant of a token, on a client that is open: a hold with a timeout outlives the one it was acquired by."""
        if token.grant._driver.closing:
            token.grant = Grant(token.grant._hold, self._lock()[0]._driver)
        grant: Grant = token.grant  # type: ignore[assignment]  # of this side, as all that are made here
        return grant

    def _new_mutex(self) -> Any:
        return threading.Lock()

    def _extend(self, grant: Any, lease_s: float, verb: str) -> Literal[True]:
        try:
            grant.extend(lease_s)
        except (LeaseLost, NotHeld) as failure:
            self._gone(verb, failure)
        except (Unreachable, Refused) as failure:
            raise self._as_redis(failure) from failure
        return True

    def _holders(self) -> list[str]:
        try:
            return [holder.ticket for holder in self._lock()[0].inspect(self._text).holders]
        except (Unreachable, Refused) as failure:
            raise self._as_redis(failure) from failure

    def _lock(self) -> tuple[Lockfast, Native]:
        """The client and the lock below; made anew when the client was closed meanwhile."""
        lf = clients.of(self.redis)
        if self._native is None or self._native[0] is not lf:
            self._native = lf, lf.lock(self._text, lease=self._lease_s, renew=self.timeout is None)
        return self._native
