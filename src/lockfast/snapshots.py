"""Who holds a name and who waits for it: one frozen value, as `inspect` found it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from lockfast.names import Name

MAX_WAITERS = 1000  # listed in one snapshot; `queue_length` counts all


class Owner(NamedTuple):
    """Where a ticket comes from, as its client described itself."""

    host: str
    pid: int
    label: str


class Holder(NamedTuple):
    """One hold. since: the server's wall clock, in seconds. lease_left: seconds until it ends, with its grace."""

    ticket: str
    fence: int
    weight: int
    owner: Owner
    since: float
    lease_left: float


class Waiter(NamedTuple):
    """One place in the queue. place_left: seconds until it counts as dead unless it is heard of again."""

    ticket: str
    weight: int
    owner: Owner
    since: float
    place_left: float


class Broken(NamedTuple):
    """The last hold that an operator took away: when (server's wall clock), who did it, and why."""

    at: float
    by: str
    reason: str


class Snapshot(NamedTuple):
    """Holders, and waiters in order. kind is "" for a name that the server does not know.

    standing: of a latch, how much is left to count; of a barrier, "whole" or "broken". Nobody holds those.
    """

    name: str
    kind: str
    limit: int
    fence: int
    at: float
    holders: tuple[Holder, ...]
    waiters: tuple[Waiter, ...]
    queue_length: int
    broken: Broken | None
    standing: str = ""

    def as_dict(self) -> dict[str, Any]:
        """The same as plain dicts and lists, for JSON."""
        out: dict[str, Any] = self._asdict()
        for key in ("holders", "waiters"):
            out[key] = [{**item._asdict(), "owner": item.owner._asdict()} for item in out[key]]
        out["broken"] = self.broken._asdict() if self.broken else None
        return out


def read(name: Name, reply: list[Any]) -> Snapshot:
    """The snapshot in a reply of `inspect.lua`."""
    now_ms, raw, shared, queue, broken, length = reply
    kind, limit, fence, standing, holders = "", 0, 0, "", []
    if raw:
        fields = raw.decode().split(" ", 10)
        kind, limit, fence = fields[1], int(fields[2]), int(fields[3])
        ticket, end_ms, since_ms, owner = fields[7], int(fields[8]), int(fields[9]), fields[10]
        if kind in ("latch", "barrier"):
            standing = _standing(ticket) if end_ms > now_ms else ""
        elif ticket != "-" and end_ms > now_ms:
            left_s = (end_ms - now_ms) / 1000
            holders.append(Holder(ticket, fence, int(fields[4]) or limit, _owner(owner), since_ms / 1000, left_s))
    for ticket, end, entry in zip(shared[::3], shared[1::3], shared[2::3], strict=True):
        if entry and float(end) > now_ms:
            own_fence, weight, since, owner = _padded(entry, 4)
            left_s = (float(end) - now_ms) / 1000
            holders.append(
                Holder(ticket.decode(), int(own_fence), int(weight), _owner(owner), int(since) / 1000, left_s)
            )
    waiters = []
    for ticket, entry in zip(queue[::2], queue[1::2], strict=True):
        if not entry:
            continue  # its entry was evicted or deleted by hand; the next grant loop drops such a place
        place_end, weight, _, since, _, _, owner = _padded(entry, 7)
        left_s = (int(place_end) - now_ms) / 1000
        if left_s > 0:
            waiters.append(Waiter(ticket.decode(), int(weight), _owner(owner), int(since) / 1000, left_s))
    return Snapshot(
        name.shown, kind, limit, fence, now_ms / 1000, tuple(holders), tuple(waiters), length, _broken(broken), standing
    )


def _standing(condition: str) -> str:
    """What stands in the place of the holder of a latch ("left:2") or a barrier ("whole:…"), in words."""
    word, _, rest = condition.partition(":")
    return f"{rest} left" if word == "left" else word


def _padded(entry: bytes, count: int) -> list[str]:
    return entry.decode().split(" ", count - 1)


def _owner(text: str) -> Owner:
    host, _, rest = text.partition(" ")
    pid, _, label = rest.partition("\t")[0].partition(" ")  # behind the tab is what a leader has said
    return Owner(host, int(pid) if pid.isdigit() else 0, label)


def _broken(note: bytes) -> Broken | None:
    if not note:
        return None
    at_ms, by, reason = _padded(note, 3)
    return Broken(int(at_ms) / 1000, by, reason)
