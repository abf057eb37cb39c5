"""What a checker says: ok, violated or unknown, why, and the events that show it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from lockfast.check.history import Event

Status = Literal["ok", "violated", "unknown"]


@dataclass(frozen=True, slots=True)
class Verdict:
    """The answer to one question about one history.

    excused: it is violated, but only where a server lost its memory or its clock jumped, where no lease can hold;
    `why` then starts with "documented limit:". Never set on a verdict that is not violated.
    """

    status: Status
    why: str
    events: tuple[Event, ...] = ()
    excused: bool = False

    @property
    def ok(self) -> bool:
        return self.status == "ok"

    @property
    def bad(self) -> bool:
        """Whether somebody has to mend something: violated, and not excused."""
        return self.status == "violated" and not self.excused

    def __str__(self) -> str:
        lines = [f"{self.status}: {self.why}" if self.why else self.status]
        return "\n".join(lines + [f"  {event}" for event in self.events])


OK = Verdict("ok", "")


def violated(why: str, *events: Event | None) -> Verdict:
    return Verdict("violated", why, tuple(event for event in events if event is not None))


def excused(why: str, *events: Event | None) -> Verdict:
    """Violated where no lease can hold."""
    return Verdict("violated", f"documented limit: {why}", tuple(e for e in events if e is not None), excused=True)


def unknown(why: str, *events: Event | None) -> Verdict:
    return Verdict("unknown", why, tuple(event for event in events if event is not None))
