"""SET NX PX with a plain DEL: what becomes of the lock with a lease when its release does not look.

From: the mistake that the Redlock page of the Redis documentation warns of, and that many articles make.
Promises: what set_nx_px.py does, as long as every holder is done before its lease ends.
Breaks: a holder that comes late deletes the lock of the next one, and lets a third in beside it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from lockfast.classic.set_nx_px import SetNxPxLock
from lockfast.flows.plain import ask

if TYPE_CHECKING:
    from lockfast.classic.taken import Taken
    from lockfast.flows.plain import Env, Flow


@dataclass(frozen=True)
class BlindDelLock(SetNxPxLock):
    """A lock with a lease that anybody's release deletes. The parameters are those of SetNxPxLock."""

    def release(self, taken: Taken, env: Env) -> Flow[bool]:
        """Delete the key, whoever has it: that `taken` is not looked at is the mistake. False when nobody had it."""
        return bool((yield from ask(env, "DEL", self.key)))
