"""The admission protocol in plain Python, for one name: what the scripts are compared with.

Nobody listens to pushes here, so that a grant lasts no longer than the place it came from unless its own client asked.
"""

from __future__ import annotations

from dataclasses import dataclass, field

LATE_MS = 60_000


@dataclass
class Place:
    ticket: str
    weight: int
    lease: int
    seen: int
    end: int


@dataclass
class Hold:
    fence: int
    weight: int
    end: int


@dataclass
class Model:
    """limit: the stored one; 0 until somebody has named one."""

    limit: int = 0
    now_us: int = 0
    fence: int = 0
    holders: dict[str, Hold] = field(default_factory=dict)
    queue: list[Place] = field(default_factory=list)
    tombstones: dict[str, int] = field(default_factory=dict)
    wanted: int = 0

    @property
    def now(self) -> int:
        return self.now_us // 1000

    @property
    def used(self) -> int:
        return sum(hold.weight for hold in self.holders.values())

    def admit(
        self, ticket: str, weight: int, lease: int, place: int, seen: int, asked: int
    ) -> tuple[int, int, int, int] | str:
        """asked: the limit that the caller names; 0 for the stored one. Returns a word and a limit for an error."""
        changed = self._settle(ticket)
        limit = self.limit
        if asked and asked != limit and ticket not in self.holders and not self._place_of(ticket):
            if self.holders or self.queue:
                return f"KIND {limit}"
            limit = asked  # kept only if something else is written too
        if changed and self.limit:
            self.limit = limit
        if hold := self.holders.get(ticket):
            return 1, hold.fence, hold.end - self.now, 0
        if weight > limit:
            return f"LIMIT {limit}"
        if self.tombstones.get(ticket, 0) > self.now:
            return -1, self.fence, 0, 0
        if not self.queue and self.used + weight <= limit:
            self.limit = limit
            self._grant(ticket, weight, self.now + lease, seen)
            return 1, self.fence, lease, 0
        due = min((hold.end for hold in self.holders.values()), default=self.now) - self.now
        if not place:
            return 0, self.fence, due, 0
        mine = self._place_of(ticket)
        if mine is None:
            mine = Place(ticket, weight, lease, seen, 0)
            self.queue.append(mine)
        mine.end, mine.lease, mine.seen = self.now + place, lease, seen
        return 0, self.fence, due, self.queue.index(mine) + 1

    def leave(self, ticket: str, lease: int, unsure: bool) -> int:
        found = 0
        if self.holders.pop(ticket, None):
            found = 1
        for queued in self.queue:
            if queued.ticket == ticket:
                self.queue.remove(queued)
                found = 2
                break
        if not found or unsure:
            self._bury(ticket, lease)
        self._settle("")
        return found

    def renew(self, ticket: str, fence: int, lease: int, weight: int, heir: str = "") -> list[int]:
        if heir in self.holders:
            ticket, heir = heir, ""
        elif heir in self.tombstones:
            return [0, 0]
        hold = self.holders.get(ticket)
        if hold is None or hold.fence != fence or hold.end <= self.now:
            return [0, 0]
        hold.end = max(hold.end, self.now + lease)
        if heir:
            self.holders[heir] = self.holders.pop(ticket)
            self._bury(ticket, LATE_MS)
        if 0 < weight < hold.weight:
            hold.weight = weight
            self._settle("")
        return [2 if fence <= self.wanted else 1, hold.end - self.now]

    def revoke(self) -> int:
        self._settle("")
        if self.holders:
            self.wanted = self.fence
        return len(self.holders)

    def resize(self, limit: int) -> int:
        before, self.limit = self.limit, limit
        self.queue = [queued for queued in self.queue if queued.weight <= limit]
        self._settle("")
        return before

    def _bury(self, ticket: str, length: int) -> None:
        self.tombstones = {ticket: end for ticket, end in self.tombstones.items() if end > self.now}
        self.tombstones[ticket] = self.now + length

    def _place_of(self, ticket: str) -> Place | None:
        return next((queued for queued in self.queue if queued.ticket == ticket), None)

    def _settle(self, asker: str) -> bool:
        before = len(self.holders), len(self.queue)
        self.holders = {ticket: hold for ticket, hold in self.holders.items() if hold.end > self.now}
        while self.queue and self.used < self.limit:
            head = self.queue[0]
            if head.end <= self.now and head.ticket != asker:
                self.queue.pop(0)
            elif self.used + head.weight > self.limit:
                break
            else:
                self.queue.pop(0)
                end = self.now + head.lease
                self._grant(head.ticket, head.weight, end if head.ticket == asker else min(end, head.end), head.seen)
        return (len(self.holders), len(self.queue)) != before

    def _grant(self, ticket: str, weight: int, end: int, seen: int) -> None:
        self.fence = max(self.fence + 1, seen + 1, self.now_us)
        self.holders[ticket] = Hold(self.fence, weight, end)

    def living_holders(self) -> dict[str, int]:
        return {ticket: hold.weight for ticket, hold in self.holders.items() if hold.end > self.now}

    def living_waiters(self) -> list[str]:
        return [queued.ticket for queued in self.queue if queued.end > self.now]
