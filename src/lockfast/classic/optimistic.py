"""Optimistic locking: WATCH, read, and write only if nobody else has written since.

From: "Transactions" in the Redis documentation; Redis in Action, section 4.4.
Promises: an update is made of the value that it was computed from, or not at all. No lock, nothing to release, and a
client that dies in between is in nobody's way.
Breaks: it locks nobody out, it only notices. With many clients on one key most tries are in vain and are done again,
and whoever is slower than the others may never get through before `acquire_timeout`. It guards a whole key: writers
of different fields of one hash collide although they have nothing to do with each other.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING

from lockfast.classic.arguments import check_name, check_prefix, check_wait
from lockfast.classic.taken import Updated
from lockfast.flows.plain import transact, unwatch, watch

if TYPE_CHECKING:
    from collections.abc import Callable

    from lockfast.flows.plain import Env, Flow, Word


@dataclass(frozen=True)
class OptimisticLock:
    """Change one value by compare-and-set.

    name: the key that holds the value; it is the value itself that is watched. field: the value is this field of the
    hash `name`; what is watched is still the whole hash. acquire_timeout: seconds to go on trying.
    """

    name: str
    field: str | None = None
    _: KW_ONLY
    acquire_timeout: float = 10.0
    prefix: str = ""

    def __post_init__(self) -> None:
        check_name(self.name)
        if self.field is not None:
            check_name(self.field, "field")
        check_wait(self.acquire_timeout, "acquire_timeout")
        check_prefix(self.prefix)

    @property
    def key(self) -> str:
        return self.prefix + self.name

    def update(self, change: Callable[[bytes | None], Word | None], env: Env) -> Flow[Updated | None]:
        """Set the value to `change(value)`. None when `acquire_timeout` passed, or when `change` returned None.

        `change` is called once for each try, with None when there is no value yet; it should do nothing but compute.
        """
        ends_at = env.now() + self.acquire_timeout
        read = ("GET", self.key) if self.field is None else ("HGET", self.key, self.field)
        attempts = 0
        while True:
            attempts += 1
            new = change((yield from watch(env, self.key, *read)))
            if new is None:
                yield from unwatch(env)
                return None
            write = ("SET", self.key, new) if self.field is None else ("HSET", self.key, self.field, new)
            if (yield from transact(env, write, watched=True)) is not None:
                return Updated(new, attempts, attempts - 1)
            if env.now() >= ends_at:
                return None
