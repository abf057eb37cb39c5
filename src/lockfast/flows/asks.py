"""What a primitive asks the admission protocol for. A new primitive is a new line here, and a public class."""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING

from lockfast.flows.scripts import ADMIT, LEAVE, VOTE, Bound
from lockfast.flows.swapping import Swap
from lockfast.specs import MAX_LIMIT, PLACE_S, grace_seconds, lease_seconds, limit_count, permit_count

if TYPE_CHECKING:
    from lockfast.flows.effects import Env
    from lockfast.names import Name

PLACE_MS = round(PLACE_S * 1000)
CROWDED_S = 5.0  # for how long a name counts as wanted by others, once they were met
STORED = 0  # stands for a limit: the one that the server has
READERS = MAX_LIMIT  # how many may read at once
READER = 1


class Ask:
    """A name, a kind, a limit, a weight and a lease: all of an acquire but its ticket, the same for every one.

    grace_ms is how much longer than the lease the server keeps a hold that was not given back. The server knows only
    the sum; the holder counts on the lease alone.
    """

    __slots__ = (
        "_admit",
        "_ask_once",
        "_me",
        "_vote",
        "crowded_until",
        "detect",
        "grace_ms",
        "kind",
        "lease_ms",
        "lease_s",
        "leave",
        "limit",
        "name",
        "swap",
        "weight",
    )
    swap: Swap  # what gives back a hold that nobody else has joined; known once `admit` has seen who is asking

    def __init__(self, name: Name, kind: str, limit: int, weight: int, lease_s: float, grace_s: float = 0.0) -> None:
        self.name = name
        self.kind = kind
        self.limit = limit
        self.weight = weight
        self.lease_s = lease_s
        self.lease_ms = round(lease_s * 1000)
        self.grace_ms = round(grace_s * 1000)
        self.detect = False  # whether a waiter looks for deadlocks; see detection.py
        self.crowded_until = inf  # until when others are likely to want the name too; see swapping.py
        self.leave = Bound(LEAVE, name, (self.lease_ms + self.grace_ms, 0, ""))
        self._me: tuple[str, str] | None = None
        self._admit = self._ask_once = self._vote = self.leave  # until `admit` has seen who is asking

    def admit(self, env: Env, wait_s: float | None) -> Bound:
        """The admission script, bound to this name and to the client that asks (a forked child is another)."""
        if self._me is not env.me:
            me = env.me
            what = (self.kind, self.limit, self.weight, self.lease_ms + self.grace_ms, env.channel(self.name), me[1])
            self._admit = Bound(ADMIT, self.name, (*what, PLACE_MS))
            self._ask_once = Bound(ADMIT, self.name, (*what, 0))
            self.swap = Swap(self.name, *what[:4], me[1])
            # Who leaves the limit to the server does not know what that keeps, so that a swap is never tried.
            self.crowded_until = 0.0 if self.limit else inf
            self._vote = Bound(VOTE, self.name, (*what[:4], me[1]))
            self._me = me  # last: another thread that sees it finds the bindings in place
        return self._ask_once if wait_s == 0 else self._admit

    def meet_others(self, moment: float) -> None:
        """Somebody else holds the name, or waits for it."""
        self.crowded_until = max(self.crowded_until, moment + CROWDED_S)

    def vote(self, env: Env) -> Bound:
        """The request for one server's vote."""
        self.admit(env, None)
        return self._vote


def lock(name: Name, lease: object, grace: object = 0) -> Ask:
    """A lock: limit 1, weight 1."""
    return Ask(name, "lock", 1, 1, lease_seconds(lease), grace_seconds(grace))


class Permits:
    """Some permits of a semaphore. Without a limit: of the one that is stored."""

    __slots__ = ("_limit", "_permits")

    def __init__(self, limit: object, permits: object) -> None:
        self._limit = None if limit is None else limit_count(limit)
        self._permits = permit_count(permits, self._limit)

    def __call__(self, name: Name, lease: object, grace: object = 0) -> Ask:
        return Ask(name, "semaphore", self._limit or STORED, self._permits, lease_seconds(lease), grace_seconds(grace))


def read(name: Name, lease: object, grace: object = 0) -> Ask:
    """One of the readers of a read/write lock."""
    return Ask(name, "rwlock", READERS, READER, lease_seconds(lease), grace_seconds(grace))


def write(name: Name, lease: object, grace: object = 0) -> Ask:
    """The writer of a read/write lock: it takes what all readers together could."""
    return Ask(name, "rwlock", READERS, READERS, lease_seconds(lease), grace_seconds(grace))
