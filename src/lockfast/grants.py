"""What is held: the state of one hold, and the rules by which it ends. No I/O here; both drivers share it.

    HELD ──release──▶ LEAVING ──confirmed──▶ RELEASED
      └──deadline passed, or the server no longer knows it──▶ LOST ──release──▶ RELEASED

Loss is final: a hold that was once found lost stays lost, whatever the server says later. A hold is found lost by
whoever looks first, the timer or the holder's own `check()`; the clock decides, not the thread that noticed.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from lockfast.clock import now
from lockfast.errors import LeaseLost, NotHeld

if TYPE_CHECKING:
    from collections.abc import Callable

    from lockfast.flows.admission import Held
    from lockfast.specs import Ask

HELD, LEAVING, RELEASED, LOST = "held", "leaving", "released", "lost"


class Era:
    """One life of a client in one process. A fork ends it for the child, so that the child owns nothing."""

    __slots__ = ("ended", "mutex")

    def __init__(self) -> None:
        self.ended = False
        self.mutex = threading.Lock()  # guards the state of every hold of the client; never held during I/O


class Hold:
    """The state behind a grant. `deadline` only rises, and only while HELD."""

    __slots__ = (
        "ask",
        "deadline",
        "era",
        "fence",
        "leave_sent",
        "lease_ms",
        "on_loss",
        "orphaned",
        "renew_at",
        "renews",
        "state",
        "ticket",
        "unsure",
        "why_lost",
    )

    def __init__(self, ask: Ask, held: Held, era: Era, renews: bool) -> None:
        self.ask = ask
        self.ticket = held.ticket
        self.fence = held.fence
        self.deadline = held.deadline
        self.unsure = held.unsure
        self.era = era
        self.lease_ms = ask.lease_ms
        self.renews = renews
        self.renew_at = held.deadline - ask.lease_s * 0.66
        self.state = HELD
        self.why_lost = ""
        self.leave_sent = False  # a `leave` may have reached the server
        self.orphaned = False  # nobody can release it any more: the grant was garbage-collected
        self.on_loss: list[Callable[[], None]] = []

    def held(self) -> bool:
        """Whether the hold is sure at this moment. Seeing that it is not makes the loss final."""
        if self.era.ended:
            return False
        if self.state is HELD:
            if now() < self.deadline:
                return True
            self.lose("its lease ended without a renewal")
        return False

    def check(self) -> None:
        """Raise LeaseLost or NotHeld unless the hold is sure."""
        if self.held():
            return
        if self.era.ended:
            raise NotHeld(f"{self.ask.name.shown!r} is held by the process that this one was forked from")
        if self.state is LOST:
            raise self.loss()
        raise NotHeld(f"{self.ask.name.shown!r} was released before")

    def loss(self) -> LeaseLost:
        """The error that tells how the hold was lost."""
        name = self.ask.name.shown
        return LeaseLost(f"the hold on {name!r} (fence {self.fence}) is lost: {self.why_lost}", name=name, fence=self.fence)

    def renewed(self, deadline: float, lease_ms: int) -> None:
        """A renewal was answered: the hold is sure until `deadline`, unless it had ended before."""
        with self.era.mutex:
            if self.state is not HELD or now() >= self.deadline:
                return
            self.deadline = max(self.deadline, deadline)
            self.renew_at = self.deadline - lease_ms / 1000 * 0.66

    def lose(self, why: str) -> None:
        """Declare the hold lost, once, and tell whoever wants to know."""
        with self.era.mutex:
            if self.state is not HELD:
                return
            self.state = LOST
            self.why_lost = why
            listeners, self.on_loss = self.on_loss, []
        for listener in listeners:
            listener()

    def when_lost(self, listener: Callable[[], None]) -> None:
        """Call `listener` at the moment of loss, or at once if that has been."""
        with self.era.mutex:
            if self.state is HELD:
                self.on_loss.append(listener)
                return
            is_lost = self.state is LOST
        if is_lost:
            listener()

    def begin_leave(self) -> bool:
        """Take the decision to give it back. True when it was still sure; raises NotHeld when there is nothing."""
        if self.era.ended:
            raise NotHeld(f"{self.ask.name.shown!r} is held by the process that this one was forked from")
        self.held()  # a deadline that has passed is a loss, whoever sees it first
        with self.era.mutex:
            if self.state is RELEASED:
                raise NotHeld(f"{self.ask.name.shown!r} was released before")
            was_lost = self.state is LOST
            if not was_lost:
                self.state = LEAVING
                self.on_loss = []
        return not was_lost
