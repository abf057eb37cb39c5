"""The scripts of elections, latches and barriers straight on a server, by hand, and what they push."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lockfast import names

if TYPE_CHECKING:
    from kit.servers import Server
    from lua.scripts import Scripts

CHANNEL = "push"
OVER_MS = 62_000
LIFE_MS = 86_400_000
PLACE_MS = 6_000


class Told:
    """Everything that is pushed to CHANNEL."""

    def __init__(self, server: Server) -> None:
        self._wire = server.wire(timeout_s=5)
        self._wire.call("SUBSCRIBE", CHANNEL)
        self._marks = server.wire(timeout_s=5)
        self._count = 0

    def since_last(self) -> set[tuple[str, str, int]]:
        """What was pushed since the last look: word, ticket and number."""
        self._count += 1
        mark = f"mark mark {self._count}"
        self._marks.call("PUBLISH", CHANNEL, mark)
        found = set()
        while (text := self._wire.read()[2].decode()) != mark:
            word, ticket, number = text.split(" ")
            found.add((word, ticket, int(number)))
        return found

    def close(self) -> None:
        self._wire.close()
        self._marks.close()


class Gathering:
    """One name, with the arguments of all four scripts at hand."""

    def __init__(self, scripts: Scripts, name: str) -> None:
        self.scripts = scripts
        self.plain = names.make("lockfast", (name,))
        self.keys = names.watched(self.plain).keys

    def latch(self, ticket: str, *, count: int, down: int = 0, place: int = 0, life: int = LIFE_MS) -> list[int]:
        reply: list[int] = self.scripts.call(
            "latch", self.keys, count=count, life_ms=life, channel=CHANNEL, owner="host 1", down=down, place_ms=place,
            ticket=ticket,
        )  # fmt: skip
        return reply

    def barrier(self, verb: str, ticket: str, *, parties: int, known: int = 0, lease: int = PLACE_MS) -> list[int]:
        reply: list[int] = self.scripts.call(
            "barrier", self.keys, parties=parties, lease_ms=lease, over_ms=OVER_MS, channel=CHANNEL, owner="host 1",
            verb=verb, known=known, ticket=ticket,
        )  # fmt: skip
        return reply

    def observe(self, ticket: str, watch: int = PLACE_MS) -> list[Any]:
        reply: list[Any] = self.scripts.call("observe", self.keys, watch_ms=watch, channel=CHANNEL, ticket=ticket)
        return reply

    def proclaim(self, ticket: str, fence: int, value: str, number: int) -> int:
        stood: int = self.scripts.call("proclaim", self.keys, value=value, number=number, fence=fence, ticket=ticket)
        return stood
