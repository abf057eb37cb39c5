"""What recipes may be given, checked when they are made: nothing is sent before. The value is in every message."""

from __future__ import annotations

from lockfast.specs import MAX_LEASE_S, MAX_WAIT_S


def check_name(value: object, what: str = "name") -> None:
    """A text that can be part of a key."""
    if not isinstance(value, str):
        raise TypeError(f"{what} must be a text, got {value!r}")
    if not value:
        raise ValueError(f"{what} must not be empty")
    check_prefix(value, what)


def check_prefix(value: object, what: str = "prefix") -> None:
    """A text that can be sent; it may be empty."""
    if not isinstance(value, str):
        raise TypeError(f"{what} must be a text, got {value!r}")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise ValueError(f"{what} cannot be written as UTF-8: {value!r}") from None


def check_lease(value: object, what: str) -> None:
    """How long something lasts without its owner: at least a millisecond, the smallest that servers count."""
    _check_number(value, what, 0.001, MAX_LEASE_S)


def check_wait(value: object, what: str) -> None:
    """How long to go on trying; 0 tries once."""
    _check_number(value, what, 0.0, MAX_WAIT_S)


def check_delay(value: object, what: str) -> None:
    """A pause between tries, or a time-out of one: more than nothing, or it would be a busy loop."""
    _check_number(value, what, 0.0001, 3600.0)


def check_limit(value: object) -> None:
    """How many may hold a semaphore at once."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"limit must be a whole number, got {value!r}")
    if value < 1:
        raise ValueError(f"limit must be at least 1, got {value!r}")


def check_choice(value: object, what: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise ValueError(f"{what} must be one of {', '.join(map(repr, choices))}, got {value!r}")


def _check_number(value: object, what: str, least: float, most: float) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{what} must be a number of seconds, got {value!r}")
    if not least <= value <= most:  # also true of NaN
        raise ValueError(f"{what} must be between {least:g} and {most:g} seconds, got {value!r}")
