"""The table of the commands that clients, transactions and scripts may run, and how their words are read.

A command is a function of the keyspace and its arguments (without its name, all bytes). It checks everything before it
changes anything, raises `ReplyError` in the words of the real servers, and answers int, bytes, None, a list or a
`Status`. Where Valkey and Redis differ, these speak as Valkey does.
"""

from __future__ import annotations

from decimal import Decimal
from functools import lru_cache
from math import isinf, isnan
from sys import maxsize
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from lockfast.sim.keyspace import ReplyError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from lockfast.sim.keyspace import Keyspace

Reply: TypeAlias = Any
Run: TypeAlias = "Callable[[Keyspace, Sequence[bytes]], Reply]"

_INT64_MAX = 2**63 - 1
_INT64_MIN = -(2**63)


class Status(bytes):
    """A status reply: bytes to a client, a table with the field `ok` to a script."""

    __slots__ = ()


OK = Status(b"OK")


class Command(NamedTuple):
    run: Run
    least: int  # arguments, without the name
    most: int
    writes: bool


COMMANDS: dict[bytes, Command] = {}


def command(name: str, least: int, most: int | None = None, *, writes: bool = False) -> Callable[[Run], Run]:
    """Put a function in the table. It takes exactly `least` arguments, or up to `most`."""

    def register(run: Run) -> Run:
        COMMANDS[name.encode()] = Command(run, least, least if most is None else most, writes)
        return run

    return register


MANY = maxsize

# Numbers, as the servers read and print them. The same few come again and again.

_RECENT = 4096


@lru_cache(_RECENT)
def integer(text: bytes, complaint: str = "ERR value is not an integer or out of range") -> int:
    """Decimal digits and nothing else: no plus, no leading zero, no blank, within 64 bits."""
    try:
        number = int(text)
    except ValueError:
        raise ReplyError(complaint) from None
    if b"%d" % number != text or not _INT64_MIN <= number <= _INT64_MAX:
        raise ReplyError(complaint)
    return number


@lru_cache(_RECENT)
def real(text: bytes, complaint: str = "ERR value is not a valid float") -> float:
    try:
        number = float(text)
    except ValueError:
        raise ReplyError(complaint) from None
    # Python also takes blanks around a number, underscores in it, and numbers too large for it as infinity.
    if isnan(number) or b"_" in text or text.strip() != text or (isinf(number) and b"n" not in text.lower()):
        raise ReplyError(complaint)
    return number


@lru_cache(_RECENT)
def number_text(number: float) -> bytes:
    """A score in a reply, or a number that a script gives as an argument: the shortest text that reads back the same.

    Whole numbers of up to 62 bits have all their digits; others get zeros or an exponent by the rules of the servers'
    fpconv library. That one does not always find the shortest: of a thousand, a few have other digits there.
    """
    if isinf(number):
        return b"inf" if number > 0 else b"-inf"
    if isnan(number):
        return b"nan"
    if -(2**62) <= number <= 2**62 and number == int(number):
        return b"%d" % number
    sign, digits, shift = Decimal(repr(number)).normalize().as_tuple()
    assert isinstance(shift, int)
    text = "".join(map(str, digits))
    exponent = shift + len(text) - 1
    minus = "-" if sign else ""
    if shift >= 0 and exponent < len(text) + 7:
        return f"{minus}{text}{'0' * shift}".encode()
    if shift < 0 and (shift > -7 or abs(exponent) < 4):
        whole = text[:shift] if len(text) > -shift else "0"
        return f"{minus}{whole}.{text[shift:].rjust(-shift, '0')}".encode()
    tail = f".{text[1:]}" if len(text) > 1 else ""
    return f"{minus}{text[0]}{tail}e{exponent:+d}".encode()


def in_range(number: int, complaint: str) -> int:
    if not _INT64_MIN <= number <= _INT64_MAX:
        raise ReplyError(complaint)
    return number


def wrong_count(name: str) -> Exception:
    return ReplyError(f"ERR wrong number of arguments for '{name}' command")


def syntax_error() -> Exception:
    return ReplyError("ERR syntax error")


EXPIRY_UNITS = {b"EX": (1000, True), b"PX": (1, True), b"EXAT": (1000, False), b"PXAT": (1, False)}


def moment_ms(db: Keyspace, option: bytes, number: bytes, name: str, *, positive: bool = False) -> int:
    """The moment, in ms of the server's clock."""
    unit_ms, from_now = EXPIRY_UNITS[option]
    ms = integer(number) * unit_ms
    at_ms = ms + db.now_ms if from_now else ms
    if (positive and ms <= 0) or not _INT64_MIN <= ms <= _INT64_MAX or at_ms > _INT64_MAX:
        raise ReplyError(f"ERR invalid expire time in '{name}' command")
    return at_ms
