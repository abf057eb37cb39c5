"""What a transaction is asked for and what comes of it, on both sides; checked before anything is sent."""

from __future__ import annotations

from hashlib import sha1
from typing import Any, Generic, NamedTuple, TypeVar

from lockfast import specs
from lockfast.locks import CO_COROUTINE

R = TypeVar("R")
CO_GENERATORS = 0x20 | 0x200  # plain and async: their body runs after the call, if at all
MAX_NAME = 300  # bytes of a key that are spelled out in the name of its lock


class Outcome(NamedTuple, Generic[R]):
    """What came of a transaction.

    value: what the function returned. replies: what the server answered to the queued commands, in their order; empty
    when none was queued. attempts: how often the function was called. conflicts: how many of the calls were in vain
    because another had written first (the rest was lost to broken connections). escalated: whether it took the lock.
    """

    value: R
    replies: tuple[Any, ...]
    attempts: int
    conflicts: int
    escalated: bool


class Plan(NamedTuple):
    """What the caller wants. keys: what is watched. wait_s: for how long attempts may begin; None for ever."""

    keys: tuple[str | bytes, ...]
    attempts: int
    wait_s: float | None
    escalate: int | None


def plan(fn: object, keys: tuple[Any, ...], attempts: object, wait: object, escalate: object) -> Plan:
    """The arguments of `Lockfast.transaction`, checked. Raises TypeError or ValueError."""
    if not callable(fn):
        raise TypeError(f"the first argument is the function to call with the transaction, got {fn!r}")
    if _flags(fn) & CO_GENERATORS:
        raise TypeError(f"{fn!r} is a generator function: its body would not run within the transaction")
    if not keys:
        raise ValueError("name at least one key that the transaction reads")
    once: dict[bytes, str | bytes] = {}
    for key in keys:
        if not isinstance(key, (str, bytes)):
            raise TypeError(f"a key is str or bytes, got {key!r}")
        once.setdefault(as_key(key), key)
    attempts = specs.attempt_count(attempts)
    return Plan(tuple(once.values()), attempts, specs.wait_seconds(wait), specs.escalate_after(escalate))


def check_plain(fn: object) -> None:
    """Refuse a function that threads cannot call."""
    if _flags(fn) & CO_COROUTINE:
        raise TypeError(f"{fn!r} is async, and nobody would await it here: use lockfast.aio")


def _flags(fn: object) -> int:
    flags: int = getattr(getattr(fn, "__code__", None), "co_flags", 0)
    return flags


def as_key(word: str | bytes | float) -> bytes:
    """A key as the server has it."""
    return word if isinstance(word, bytes) else str(word).encode()


def lock_name(key: str | bytes) -> tuple[str, str]:
    """The name of the lock that escalated transactions on a key take."""
    raw = as_key(key)
    try:
        text = raw.decode()
    except UnicodeDecodeError:
        text = ""
    if not text or "\0" in text or len(raw) > MAX_NAME:
        text = sha1(raw, usedforsecurity=False).hexdigest()
    return ("transaction", text)
