"""What the recipes hand out: the proof that something was taken, and the outcome of an update."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf


@dataclass(frozen=True)
class Taken:
    """What a recipe took, and what it needs in order to give it back. It is a note, not a guarantee.

    name: as the recipe has it. token: the random value that names the owner. at: the client's wall clock when the
    winning try began. valid_s: seconds it is good for from then on (Redlock: from when it was handed out); inf when
    nothing ends it. attempts: how many tries it took. slot: which permit, where a semaphore has a key for each.
    """

    name: str
    token: str
    at: float
    valid_s: float = inf
    attempts: int = 1
    slot: int = 0


@dataclass(frozen=True)
class Updated:
    """A value that was changed.

    value: what was written. attempts: how many tries it took in all. conflicts: tries that were in vain because
    somebody else was faster or had it.
    """

    value: str | int | float | bytes
    attempts: int
    conflicts: int
