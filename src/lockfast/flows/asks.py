"""What a primitive asks the admission protocol for. A new primitive is a new line here, and a public class."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lockfast.flows.scripts import ADMIT, LEAVE, Bound
from lockfast.specs import PLACE_S, lease_seconds

if TYPE_CHECKING:
    from lockfast.flows.effects import Env
    from lockfast.names import Name

PLACE_MS = round(PLACE_S * 1000)


class Ask:
    """A name, a kind, a limit, a weight and a lease: all of an acquire but its ticket, the same for every one."""

    __slots__ = ("_admit", "_ask_once", "_me", "kind", "lease_ms", "lease_s", "leave", "limit", "name", "weight")

    def __init__(self, name: Name, kind: str, limit: int, weight: int, lease_s: float) -> None:
        self.name = name
        self.kind = kind
        self.limit = limit
        self.weight = weight
        self.lease_s = lease_s
        self.lease_ms = round(lease_s * 1000)
        self.leave = Bound(LEAVE, name, (self.lease_ms, 0, ""))
        self._me: tuple[str, str] | None = None
        self._admit = self._ask_once = self.leave  # until `admit` has seen who is asking

    def admit(self, env: Env, wait_s: float | None) -> Bound:
        """The admission script, bound to this name and to the client that asks (a forked child is another)."""
        if self._me is not env.me:
            me = env.me
            what = (self.kind, self.limit, self.weight, self.lease_ms, *me)
            self._admit = Bound(ADMIT, self.name, (*what, PLACE_MS))
            self._ask_once = Bound(ADMIT, self.name, (*what, 0))
            self._me = me  # last: another thread that sees it finds the bindings in place
        return self._ask_once if wait_s == 0 else self._admit


def lock(name: Name, lease: object) -> Ask:
    """A lock: limit 1, weight 1."""
    return Ask(name, "lock", 1, 1, lease_seconds(lease))
