"""The race-free semaphore: the fair one inside a short lock, so that counter and place are taken by one at a time.

From: Redis in Action, section 6.3.4 (acquire_semaphore_with_lock).
Promises: what fair_semaphore.py does, and the earlier counter always looks first: never more than `limit` are in,
while clocks agree within the time-out and the inner lock is not outlived.
Breaks: slower, since all who try come one by one; who does not get the inner lock within `lock_wait` is refused, also
when a place is free. Otherwise as the inner lock and fair_semaphore.py do.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, Literal

from lockfast.classic.arguments import check_choice, check_lease, check_wait
from lockfast.classic.fair_semaphore import FairSemaphore
from lockfast.classic.set_nx_px import SetNxPxLock
from lockfast.classic.timed import TimeoutLock
from lockfast.errors import LockfastError

if TYPE_CHECKING:
    from lockfast.classic.taken import Taken
    from lockfast.flows.plain import Env, Flow


@dataclass(frozen=True)
class RaceFreeSemaphore(FairSemaphore):
    """Up to `limit` holders at once, first come, first in, each for up to `timeout` seconds.

    lock: which lock to take meanwhile. lock_wait: seconds to try for it. lock_timeout: seconds that it lasts.
    """

    _: KW_ONLY
    lock: Literal["setnx-expire", "set-nx-px"] = "setnx-expire"
    lock_wait: float = 0.01
    lock_timeout: float = 10.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice(self.lock, "lock", ("setnx-expire", "set-nx-px"))
        check_wait(self.lock_wait, "lock_wait")
        check_lease(self.lock_timeout, "lock_timeout")

    @property
    def inner(self) -> TimeoutLock | SetNxPxLock:
        """The lock around every acquire."""
        if self.lock == "setnx-expire":
            return TimeoutLock(self.times_key, acquire_timeout=self.lock_wait, lock_timeout=self.lock_timeout)
        return SetNxPxLock(
            self.times_key, acquire_timeout=self.lock_wait, lease=self.lock_timeout, retry_delay=0.002, prefix="lock:"
        )

    def acquire(self, env: Env) -> Flow[Taken | None]:
        """Take a place if one is free; None otherwise, or when the inner lock was not free within `lock_wait`."""
        inner = self.inner
        alone = yield from inner.acquire(env)
        if alone is None:
            return None
        try:
            taken = yield from super().acquire(env)
        except GeneratorExit:
            raise
        except BaseException:
            try:
                yield from inner.release(alone, env)
            except LockfastError:
                pass  # its time-out ends it
            raise
        yield from inner.release(alone, env)
        return taken
