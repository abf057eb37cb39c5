"""`replicas=k`: what was written counts only once k replicas have it too, which a WAIT behind it tells."""

from __future__ import annotations

from typing import NamedTuple

from lockfast.errors import LockfastError, Refused


class Copies(NamedTuple):
    """How many replicas must have a write, and how long to wait for them."""

    replicas: int
    wait_ms: int


def copies(replicas: int, span_s: float, lease_ms: int) -> Copies | None:
    """What to ask for behind a request that may take `span_s`; None where nobody wants replicas to have it.

    Well within the lease, and with time left for the reply: too few is an answer, and no answer is not.
    """
    return Copies(replicas, max(1, min(int(span_s * 500), lease_ms // 4))) if replicas else None


def shortage(shown: str, copied: int | LockfastError, wanted: Copies | None) -> LockfastError | None:
    """What is said when not enough replicas have it in time, or the server would not tell; None if all is well."""
    if wanted is None:
        return None
    if isinstance(copied, LockfastError):
        return copied
    if copied >= wanted.replicas:
        return None
    return Refused(
        f"{shown!r}: {copied} of the {wanted.replicas} replicas that replicas={wanted.replicas} asks for had it in "
        f"time ({wanted.wait_ms} ms at most); see why they do not follow (INFO replication), or ask for fewer",
        code="REPLICAS",
    )
