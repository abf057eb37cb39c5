"""Arguments checked once, before anything is sent: leases, waits, time-outs, durations."""

from __future__ import annotations

import math
import re

MIN_LEASE_S = 0.05  # below this the safety margin and a round trip eat the lease
MAX_LEASE_S = 7 * 86400.0  # a crashed holder blocks the name this long; more is surely a mistake
MAX_WAIT_S = 365 * 86400.0
MAX_LIMIT = 1_000_000
MAX_PARTIES = 10_000  # all of them are told in one run of a script
MIN_LATCH_LEASE_S = 60.0  # so long a request of a client that gave up may be under way
MAX_ATTEMPTS = 1_000_000
MAX_REPLICAS = 100

# A place in the queue lives this long without a heartbeat. It bounds how long a dead waiter at the head can hold
# up the others, and how long a live one may be paused before it goes to the back.
PLACE_S = 6.0
HEARTBEAT_S = 2.0

_DURATION = re.compile(r"\s*([0-9]+(?:\.[0-9]*)?|\.[0-9]+)\s*(ms|s|m|h|d)?\s*")
_UNITS_S = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, None: 1.0}


def seconds(value: object, what: str) -> float:
    """A finite number of seconds out of an int, float or timedelta; TypeError or ValueError naming `what`."""
    if isinstance(value, bool) or value is None or isinstance(value, (str, bytes)):
        raise TypeError(f"{what} must be a number of seconds, got {value!r}")
    if hasattr(value, "total_seconds"):
        value = value.total_seconds()
    try:
        number = float(value)  # type: ignore[arg-type]  # anything that is not a number raises here
    except (TypeError, OverflowError):
        raise TypeError(f"{what} must be a number of seconds, got {value!r}") from None
    if not math.isfinite(number):
        raise ValueError(f"{what} must be finite, got {value!r}")
    return number


def lease_seconds(value: object) -> float:
    """A lease that can be kept: at least 50 ms, at most 7 days, a whole number of ms."""
    lease_s = seconds(value, "lease")
    if not MIN_LEASE_S <= lease_s <= MAX_LEASE_S:
        raise ValueError(f"lease must be between {MIN_LEASE_S} and {MAX_LEASE_S:.0f} seconds, got {value!r}")
    return math.floor(lease_s * 1000 + 1e-6) / 1000


def grace_seconds(value: object) -> float:
    """How much longer than its lease an expired hold stays closed to others: 0 to 7 days, a whole number of ms."""
    grace_s = seconds(value, "grace")
    if not 0 <= grace_s <= MAX_LEASE_S:
        raise ValueError(f"grace must be between 0 and {MAX_LEASE_S:.0f} seconds, got {value!r}")
    return math.floor(grace_s * 1000 + 1e-6) / 1000


def max_hold_seconds(value: object) -> float | None:
    """For how long a hold may last in all, renewals included: None for as long as it is renewed."""
    if value is None:
        return None
    max_hold_s = seconds(value, "max_hold")
    if not MIN_LEASE_S <= max_hold_s <= MAX_WAIT_S:
        raise ValueError(f"max_hold must be None, or {MIN_LEASE_S} to {MAX_WAIT_S:.0f} seconds, got {value!r}")
    return max_hold_s


def wait_seconds(value: object) -> float | None:
    """How long to queue: None for as long as it takes, 0 to ask once."""
    if value is None:
        return None
    wait_s = seconds(value, "wait")
    if not 0 <= wait_s <= MAX_WAIT_S:
        raise ValueError(f"wait must be None, or between 0 and {MAX_WAIT_S:.0f} seconds, got {value!r}")
    return wait_s


def limit_count(value: object) -> int:
    """How many permits a semaphore has: a whole number from 1 to a million."""
    return _count(value, "limit", MAX_LIMIT)


def permit_count(value: object, limit: int | None) -> int:
    """How many permits one acquire takes: at least 1, at most the limit, if that is known."""
    permits = _count(value, "permits", MAX_LIMIT)
    if limit is not None and permits > limit:
        raise ValueError(f"permits must be at most the limit of {limit}, got {value!r}: it could never be had")
    return permits


def latch_count(value: object, what: str = "count") -> int:
    """How often a latch is to be counted down, or by how much at once: a whole number from 1 to a million."""
    return _count(value, what, MAX_LIMIT)


def party_count(value: object) -> int:
    """How many parties meet at a barrier: a whole number from 1 to ten thousand."""
    return _count(value, "parties", MAX_PARTIES)


def latch_lease_seconds(value: object) -> float:
    """How long a latch is kept after its last use: a minute at least, so that no late request makes it anew."""
    lease_s = lease_seconds(value)
    if lease_s < MIN_LATCH_LEASE_S:
        raise ValueError(f"the lease of a latch must be at least {MIN_LATCH_LEASE_S:.0f} seconds, got {value!r}")
    return lease_s


def attempt_count(value: object) -> int:
    """How often a transaction may be attempted: a whole number from 1 to a million."""
    return _count(value, "attempts", MAX_ATTEMPTS)


def escalate_after(value: object) -> int | None:
    """After how many conflicts a transaction takes the lock: a whole number, 0 for at once; None for never."""
    return None if value is None else _count(value, "escalate", MAX_ATTEMPTS, least=0)


def _count(value: object, what: str, most: int, least: int = 1) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{what} must be a whole number, got {value!r}")
    if not least <= value <= most:
        raise ValueError(f"{what} must be from {least} to {most}, got {value!r}")
    return value


def replica_count(value: object) -> int:
    """How many replicas must have what was granted: a whole number from 0 to 100."""
    return _count(value, "replicas", MAX_REPLICAS, least=0)


def label_text(value: object) -> str | None:
    """What a client is called in `lockfast show`."""
    if value is not None and not isinstance(value, str):
        raise TypeError(f"label must be a str, got {value!r}")
    return value


def timeout_seconds(value: object) -> float:
    """How long one request may take in all."""
    timeout_s = seconds(value, "timeout")
    if not 0.01 <= timeout_s <= 3600:
        raise ValueError(f"timeout must be between 0.01 and 3600 seconds, got {value!r}")
    return timeout_s


def max_lease_seconds(value: object) -> float:
    """The longest lease of a quorum: a second at least, for that is how servers count their uptime."""
    max_lease_s = seconds(value, "max_lease")
    if max_lease_s < 1:
        raise ValueError(f"max_lease must be at least 1 second, got {value!r}")
    if max_lease_s > MAX_LEASE_S:
        raise ValueError(f"max_lease must be at most {MAX_LEASE_S:.0f} seconds, got {value!r}")
    return lease_seconds(max_lease_s)


def node_timeout_seconds(value: object, is_local: bool, timeout_s: float) -> float:
    """How long one server of a quorum may take to answer before it counts as hung."""
    if value is None:
        return min(0.05 if is_local else 0.25, timeout_s / 2)
    node_timeout_s = seconds(value, "node_timeout")
    if not 0.005 <= node_timeout_s <= timeout_s:
        raise ValueError(f"node_timeout must be between 0.005 and the timeout of {timeout_s:g} seconds, got {value!r}")
    return node_timeout_s


def parse_duration(text: str) -> float:
    """Seconds from "500ms", "30s", "5m", "2h", "1d" or a bare number of seconds; ValueError otherwise."""
    match = _DURATION.fullmatch(text)
    if match is None:
        raise ValueError(f"not a duration: {text!r} (write 500ms, 30s, 5m, 2h, or a number of seconds)")
    return float(match[1]) * _UNITS_S[match[2]]
