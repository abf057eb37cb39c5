"""What is held: the state of one hold, and the rules by which it ends. No I/O here; both drivers share it.

    HELD ──release──▶ LEAVING ──confirmed──▶ RELEASED   (an export goes there at once: another process has it then)
      └──deadline passed, or the server no longer knows it──▶ LOST ──release──▶ RELEASED

Loss is final: a hold that was once found lost stays lost, whatever the server says later. A hold is found lost by
whoever looks first, the timer or the holder's own `check()`; the clock decides, not the thread that noticed.
"""

from __future__ import annotations

import threading
from math import inf
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from lockfast.clock import now
from lockfast.errors import LeaseLost, NotHeld

if TYPE_CHECKING:
    from collections.abc import Callable

    from lockfast.flows.admission import Held
    from lockfast.flows.asks import Ask
    from lockfast.flows.quorum import Voted
    from lockfast.flows.votes import Votes

D = TypeVar("D")
HELD, LEAVING, RELEASED, LOST = "held", "leaving", "released", "lost"
RENEW_BEFORE = 0.66 / 1000  # a hold is renewed when two thirds of its lease (in ms) are left


class Era:
    """One life of a client in one process. A fork ends it for the child, so that the child owns nothing."""

    __slots__ = ("ended", "mutex", "now")

    def __init__(self, now: Callable[[], float] = now) -> None:
        self.now = now  # the clock that deadlines are on
        self.ended = False
        self.mutex = threading.Lock()  # guards the state of every hold of the client; never held during I/O


class Hold:
    """The state behind a grant. `deadline` only rises, and only while HELD."""

    # What every hold starts with stands here once, and not in each.
    leave_sent = False  # a `leave` may have reached the server without our knowing
    leaving = 0  # releases that are under way at this moment
    left = False  # a `leave` has found it
    told = False  # whether the caller knows that it is released
    orphaned = False  # nobody can release it any more: the grant was garbage-collected
    by: object = None  # the thread or task that acquired it, where that matters
    ends_at = inf  # how far renewals go
    max_hold_s: float | None = None
    why_unrenewed = ""  # what the last renewal came to, if that failed
    is_failing = False  # whether it was logged that renewals fail
    revoked = False  # its holder was asked to let go
    handed_on = False  # another process has it now
    is_lowering = False  # a downgrade was asked for, and is not confirmed
    unchanged = True  # the server keeps what it wrote when it was granted, as far as this client has changed it
    votes: Votes | None = None  # where a majority of servers decides

    def __init__(self, ask: Ask, ticket: str, held: Held | Voted, era: Era, renews: bool) -> None:
        self.ask = ask
        self.ticket = ticket
        self.fence, deadline, self.unsure = held
        if type(held) is not tuple:
            self.votes = held.votes  # type: ignore[union-attr]
        self.deadline = deadline
        self.era = era
        self.lease_ms = lease_ms = ask.lease_ms
        self.renews = renews
        self.renew_at = deadline - lease_ms * RENEW_BEFORE
        self.state = HELD  # in each, like the next two: every release reads them
        self.why_lost = ""
        self.on_end: tuple[Callable[[], object], ...] = ()

    def held(self) -> bool:
        """Whether the hold is sure at this moment. Seeing that it is not makes the loss final."""
        if self.era.ended:
            return False
        if self.state is HELD:
            if self.era.now() < self.deadline:
                return True
            over = self.deadline >= self.ends_at
            unrenewed = f"its lease ended without a renewal{self.why_unrenewed}"
            self.lose(f"its max_hold of {self.max_hold_s:g} s is over" if over else unrenewed)
        return False

    def check(self) -> None:
        """Raise LeaseLost or NotHeld unless the hold is sure."""
        if self.held():
            return
        if self.era.ended:
            raise self._forked()
        if self.why_lost:
            raise self.loss()
        raise self._released()

    def loss(self) -> LeaseLost:
        """The error that tells how the hold was lost."""
        name = self.ask.name.shown
        words = f"the hold on {name!r} (fence {self.fence}) is lost: {self.why_lost}"
        return LeaseLost(words, name=name, fence=self.fence)

    def renewed(self, deadline: float) -> None:
        """A renewal was answered: the hold is sure until `deadline`, unless it had ended before."""
        with self.era.mutex:
            if self.state is not HELD or self.era.now() >= self.deadline:
                return
            self.why_unrenewed = ""
            self.unchanged = False
            self.deadline = min(max(self.deadline, deadline), self.ends_at)
            self.renew_at = inf if self.deadline >= self.ends_at else self.deadline - self.lease_ms * RENEW_BEFORE

    def end_after(self, max_hold_s: float) -> None:
        """Let nothing prolong the hold past this many seconds from now."""
        self.max_hold_s = max_hold_s
        self.ends_at = self.era.now() + max_hold_s
        if self.deadline >= self.ends_at:
            self.deadline, self.renew_at = self.ends_at, inf

    def revoke(self) -> None:
        """Somebody asks for it. What follows is up to the holder."""
        self.revoked = True

    def hand_on(self) -> None:
        """It belongs to whoever adopts it: it is over here, without a `leave`. Raises as `check` does."""
        self.check()
        with self.era.mutex:
            if self.state is not HELD:
                raise self._released()  # another thread has given it back in this very moment
            self.state, self.told, self.handed_on = RELEASED, True, True
            listeners, self.on_end = self.on_end, ()
        for listener in listeners:
            listener()

    def renewal_failed(self, reason: BaseException) -> None:
        """A renewal was not answered, or refused: try again soon."""
        left_s = self.deadline - self.era.now()
        self.why_unrenewed = f": {reason}"
        self.renew_at = self.era.now() + min(self.lease_ms / 10_000, 1.0)
        if not self.is_failing:  # a short lease is tried often: once is enough
            self.is_failing = True
            words = "renewal of %r failed, %.1f s of its lease left, trying again: %s"
            log().warning(words, self.ask.name.shown, left_s, reason)

    def renewal_worked(self) -> None:
        """A renewal was answered. If it was told that they fail, it is told that they do no more."""
        if self.is_failing and self.state is HELD:
            self.is_failing = False
            log().warning("renewal of %r works again", self.ask.name.shown)

    def lose(self, why: str) -> None:
        """Declare the hold lost, once, and tell whoever wants to know."""
        with self.era.mutex:
            if self.state is not HELD:
                return
            self.state = LOST
            self.why_lost = why
            listeners, self.on_end = self.on_end, ()
        for listener in listeners:
            listener()

    def when_lost(self, listener: Callable[[], object]) -> None:
        """Call `listener` if the hold is lost, at that moment."""

        def if_lost() -> None:
            if self.why_lost:
                listener()

        self.when_over(if_lost)

    def when_over(self, listener: Callable[[], object]) -> None:
        """Call `listener` when the hold is lost or given back, or at once if that has been; `why_lost` tells which."""
        with self.era.mutex:
            if self.state is HELD:
                self.on_end = (*self.on_end, listener)
                return
        listener()

    def begin_leave(self, moment: float | None = None) -> bool:
        """Decide to give it back. False when that has been done already; raises NotHeld when there is nothing.

        moment: what time it is, for a caller that has just looked.
        """
        era = self.era
        if era.ended:  # before the mutex: whoever held that at the fork is not in this process
            raise self._forked()
        if self.state is HELD and (era.now() if moment is None else moment) >= self.deadline:
            self.held()  # a loss, whoever sees it first
        with era.mutex:
            if self.state is RELEASED:
                if not self.told:
                    self.told = True  # the caller tries a second time what was finished behind its back
                    return False
                raise self._released()
            self.state = LEAVING
            self.leaving += 1
            listeners, self.on_end = self.on_end, ()
        for listener in listeners:
            listener()
        return True

    def end_leave(self, stood: bool, told: bool) -> None:
        """The server has confirmed. stood: the hold was there until now. told: the caller is about to know."""
        with self.era.mutex:
            self.state = RELEASED
            if self.leaving:
                self.leaving -= 1
            self.told = told
            self.left = self.left or stood
            # What another thread or task takes away is no loss. Of several at once the last one tells of a loss.
            if not (self.left or self.leave_sent or self.leaving or self.why_lost):
                self.why_lost = "the server no longer knew it at release (broken, flushed, or restarted empty)"

    def stop_leaving(self, sent: bool) -> None:
        """A release ended without an answer. sent: it may have run, or may run yet."""
        with self.era.mutex:
            self.leaving = max(self.leaving - 1, 0)
            self.leave_sent = self.leave_sent or sent

    def _released(self) -> NotHeld:
        how = "was handed on: whoever adopts it releases it" if self.handed_on else "was released before"
        return NotHeld(f"{self.ask.name.shown!r} {how}")

    def _forked(self) -> NotHeld:
        return NotHeld(f"{self.ask.name.shown!r} is held by the process that this one was forked from")


class GrantView(Generic[D]):
    """What a grant shows without asking the server; the same for threads and asyncio."""

    __slots__ = ("_driver", "_hold")

    def __init__(self, hold: Hold, driver: D) -> None:
        self._hold = hold
        self._driver = driver

    def __repr__(self) -> str:
        hold = self._hold
        return f"<Grant {hold.ask.name.shown!r} fence={hold.fence} {hold.state}>"

    def __del__(self) -> None:
        # Nobody can release it any more. The keeper gives it back; where there is none, the lease does.
        hold = self._hold
        if hold.state is HELD:
            hold.orphaned = True

    @property
    def _is_released(self) -> bool:
        """Whether the caller has given it back by itself, and knows it."""
        return self._hold.told

    @property
    def name(self) -> str:
        return self._hold.ask.name.shown

    @property
    def ticket(self) -> str:
        """The random identity of this acquire: what proves ownership to the server."""
        return self._hold.ticket

    @property
    def fence(self) -> int:
        """Larger than that of any earlier grant of this name: what the lock protects can refuse older ones by it."""
        return self._hold.fence

    @property
    def nodes(self) -> tuple[str, ...]:
        """Which servers keep the hold at this moment, as far as is known, where a majority decides; else empty."""
        votes = self._hold.votes
        return () if votes is None or not self._hold.held() else votes.where(self._hold.era.now())

    @property
    def deadline(self) -> float:
        """Until when the hold is sure, on `lockfast.clock.now()`. Renewals raise it."""
        return self._hold.deadline

    @property
    def remaining(self) -> float:
        """Seconds for which the hold is sure; 0 when it is not held."""
        return max(0.0, self._hold.deadline - self._hold.era.now()) if self._hold.held() else 0.0

    @property
    def held(self) -> bool:
        """Whether the hold is sure at this moment."""
        return self._hold.held()

    @property
    def lost(self) -> bool:
        """Whether it was held and is no longer sure. Final: it never becomes False again."""
        self._hold.held()
        return bool(self._hold.why_lost)

    @property
    def revoked(self) -> bool:
        """Whether somebody asked for this name (`Lockfast.revoke`). It is still held: release it when you can.

        Learned with each renewal, so within a third of the lease; `wait_revoked` hears of it at once.
        """
        return self._hold.revoked

    def check(self) -> None:
        """Raise LeaseLost if the hold is no longer sure, NotHeld if it was released."""
        self._hold.check()


log_handlers: list[Callable[[], object]] = []  # make the handlers of `lockfast run`, when there is something to log


def log() -> Any:
    """The library's logger, imported on first need: logging is a tenth of the start time of `lockfast run`."""
    import logging

    logger: Any = logging.getLogger("lockfast")
    while log_handlers:
        logger.addHandler(log_handlers.pop()())
    return logger
