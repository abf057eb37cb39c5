"""The fine-grained lock: SET NX PX on a key for one part of a thing, such as one field of a hash.

From: Redis in Action, section 6.2.4 (Fine-grained locking).
Promises: what set_nx_px.py does, for each part by itself: clients with different parts never wait for each other.
A WATCH cannot do that, it sees the whole key: `OptimisticLock(name, field)` is the same update in that way, and both
count their attempts and conflicts, so that they can be compared under the same load.
Breaks: as set_nx_px.py does; and two clients that each hold one part and want the other's wait for each other until a
lease or their patience ends. Take parts in one order.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from lockfast.classic.arguments import check_name
from lockfast.classic.set_nx_px import SetNxPxLock
from lockfast.classic.taken import Updated
from lockfast.errors import LockfastError
from lockfast.flows.plain import ask

if TYPE_CHECKING:
    from collections.abc import Callable

    from lockfast.flows.plain import Env, Flow, Word


@dataclass(frozen=True)
class FineGrainedLock(SetNxPxLock):
    """A lock on one part of a thing. The other parameters are those of SetNxPxLock."""

    part: str

    def __post_init__(self) -> None:
        super().__post_init__()
        check_name(self.part, "part")

    @property
    def key(self) -> str:
        return f"{self.prefix}{self.name}:{self.part}"

    def update(self, change: Callable[[bytes | None], Word | None], env: Env) -> Flow[Updated | None]:
        """Set field `part` of the hash `name` to `change(value)`, holding the lock meanwhile.

        None when the lock was not to be had within `acquire_timeout`, or when `change` returned None.
        """
        taken = yield from self.acquire(env)
        if taken is None:
            return None
        try:
            new = change((yield from ask(env, "HGET", self.name, self.part)))
            if new is not None:
                yield from ask(env, "HSET", self.name, self.part, new)
        except GeneratorExit:
            raise
        except BaseException:
            try:
                yield from self.release(taken, env)
            except LockfastError:
                pass  # the lease ends it
            raise
        yield from self.release(taken, env)
        return None if new is None else Updated(new, taken.attempts, taken.attempts - 1)
