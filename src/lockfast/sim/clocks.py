"""Clocks that disagree: each machine of a world counts its own seconds.

True time is the world's, and nobody in it can read that. A clock shows `skew_s + rate × true time`; a jump changes
the skew. What a client counts deadlines on only drifts: it never jumps, and goes on while the machine sleeps.
"""

from __future__ import annotations

EPOCH_S = 1_700_000_000  # what a wall clock without skew shows when a world begins
SETTLE_S = 1e-6  # timers fire late, never early: rounding must not make one fire before its moment


class Clock:
    """One machine's seconds."""

    __slots__ = ("rate", "skew_s")

    def __init__(self, skew_s: float = 0.0, rate: float = 1.0) -> None:
        if not rate > 0:
            raise ValueError(f"a clock's rate is above 0, got {rate!r}")
        self.skew_s = skew_s
        self.rate = rate

    def __repr__(self) -> str:
        return f"Clock(skew_s={self.skew_s!r}, rate={self.rate!r})"

    def read(self, true_s: float) -> float:
        """What it shows at this moment of true time."""
        return self.skew_s + self.rate * true_s

    def true_at(self, shown_s: float) -> float:
        """The moment of true time at which it shows (or showed) this, if it does not jump again."""
        return (shown_s - self.skew_s) / self.rate

    def fires_at(self, shown_s: float) -> float:
        """The moment of true time at which a timer set for `shown_s` fires."""
        return self.true_at(shown_s) + SETTLE_S

    def jump(self, by_s: float) -> None:
        """Somebody sets the clock."""
        self.skew_s += by_s

    def wall_us(self, true_s: float) -> int:
        """Microseconds since 1970, as a server's wall clock has them."""
        return EPOCH_S * 1_000_000 + int(self.read(true_s) * 1_000_000)

    def true_of_wall_ms(self, wall_ms: int) -> float:
        """The moment of true time at which the wall clock shows this."""
        return self.true_at(wall_ms / 1000 - EPOCH_S)
