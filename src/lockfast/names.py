"""The only place that spells keys and channels.

A name is one or more parts. Its keys share a hash tag, so that a cluster keeps them on one node, and two names
that differ in any way have different keys: braces, the percent sign, the bar between parts and control characters
are written as %XX. The same spelling, parts joined by "|", is how tools print a name.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

MAX_NAME_BYTES = 1024

_ODD = re.compile(r"[%|{}\x00-\x1f\x7f]")
_ESCAPED = re.compile(r"%([0-9A-Fa-f]{2})")
_PREFIX = re.compile(r"[A-Za-z0-9_.:-]{1,64}")

Parts = tuple[str, ...]


class Name:
    """One name, ready for use: what people read, and the keys that scripts are given."""

    __slots__ = ("keys", "packed", "shown")

    def __init__(self, shown: str, keys: tuple[str, ...]) -> None:
        self.shown = shown
        self.keys = keys
        self.packed = ""  # the keys as they go over the wire; filled in by drivers/wire.py


class Names(Name):
    """Several names, for scripts that look at their states only: KEYS[i] is the first key of the i-th."""

    __slots__ = ("names",)

    def __init__(self, names: Iterable[Name]) -> None:
        self.names = tuple(names)
        super().__init__(", ".join(name.shown for name in self.names), tuple(name.keys[0] for name in self.names))


def make(prefix: str, parts: tuple[str | int, ...]) -> Name:
    """Check the parts of a name and spell its keys. Raises TypeError or ValueError with the offending part."""
    texts = [_part(part) for part in parts]
    printed = join(texts)
    if len(printed) > MAX_NAME_BYTES // 4 and len(printed.encode()) > MAX_NAME_BYTES:
        raise ValueError(f"a name may have {MAX_NAME_BYTES} bytes at most, this one has {len(printed.encode())}")
    base = f"{prefix}:{{{printed}}}"
    return Name("|".join(texts), (base, base + ":queue", base + ":entries", base + ":shared", base + ":tombs"))


def watched(name: Name) -> Name:
    """The same name with a sixth key, for scripts that push to more than the queue: see lua/watchers.lua."""
    return Name(name.shown, (*name.keys, name.keys[0] + ":watchers"))


def _part(part: object) -> str:
    if type(part) is int:
        return str(part)
    if not isinstance(part, str):
        raise TypeError(f"a name is made of str (or int) parts, got {part!r}")
    if not part:
        raise ValueError("a name, and each part of it, needs at least one character")
    if "\0" in part:
        raise ValueError(f"a name may not contain NUL: {part[:80]!r}")
    if not part.isascii():
        try:
            part.encode()
        except UnicodeEncodeError:
            raise ValueError(f"a name must be encodable as UTF-8: {part[:80]!r}") from None
    return part


def join(parts: Iterable[str]) -> str:
    """The printed form of a name: its escaped parts with "|" between them."""
    return "|".join([_ODD.sub(_escape, part) if _ODD.search(part) else part for part in parts])


def _escape(odd: re.Match[str]) -> str:
    return f"%{ord(odd[0]):02X}"


def spelled(name: Name) -> tuple[str, str]:
    """The prefix and the printed form of a name."""
    prefix, _, rest = name.keys[0].partition(":{")
    return prefix, rest[:-1]


def split(printed: str) -> Parts:
    """The parts of a printed name; what `join` wrote, `split` reads."""
    return tuple(_ESCAPED.sub(lambda code: chr(int(code[1], 16)), part) for part in printed.split("|"))


def parts_of_key(prefix: str, key: str) -> Parts | None:
    """The parts of the name whose state key this is; None for any other key."""
    start = f"{prefix}:{{"
    if not key.startswith(start) or not key.endswith("}"):
        return None
    return split(key[len(start) : -1])


def scan_pattern(prefix: str) -> str:
    """What to SCAN for to find every name's state key."""
    return f"{prefix}:{{*}}"


def channel(prefix: str, client_id: str) -> str:
    """The pub/sub channel on which one client hears of its grants."""
    return f"{prefix}:push:{client_id}"


def in_slot_of(name: Name, channel: str) -> str:
    """A channel as it is spelled where it must be in the cluster slot of a name; see `push` in lua/state.lua."""
    prefix, printed = spelled(name)
    start = f"{prefix}:push:"
    return f"{start}{{{printed}}}:{channel.removeprefix(start)}"


def never_key(name: Name) -> str:
    """A key of the name that nobody ever makes; see drivers/slots.py."""
    return f"{name.keys[0]}:never"


def ran_key(name: Name, operation: str) -> str:
    """The key under which the replies of one guard are kept for a moment."""
    return f"{name.keys[0]}:ran:{operation}"


def waits_key(prefix: str, agent: str) -> str:
    """Where a thread or task that detects deadlocks announces what it waits for."""
    return f"{prefix}:waits:{agent}"


def check_prefix(prefix: str) -> str:
    """The prefix itself if it is fit for keys, patterns and ACL rules; ValueError otherwise."""
    if not isinstance(prefix, str) or not _PREFIX.fullmatch(prefix):
        raise ValueError(f"prefix may have 1 to 64 letters, digits and _ . : - only, got {prefix!r}")
    return prefix
