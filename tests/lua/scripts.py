"""The scripts straight on a server, by hand, with the arguments spelled out and a clock of the test's own if it wants.

name = Scripts(server).name("orders", limit=4)
name.admit("a", weight=2)      # Admitted(code=1, fence=…, ms=30000, position=0)
"""

from __future__ import annotations

import re
from hashlib import sha1
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import lockfast
from lockfast import names, snapshots
from lockfast.drivers.dialect import plain_text
from lockfast.flows import scripts

if TYPE_CHECKING:
    from kit.resp import Argument, Wire
    from kit.servers import Server

LEASE_MS = 30_000
PLACE_MS = 6_000
DAY_MS = 86_400_000
LUA = Path(lockfast.__file__).parent / "lua"
SCRIPTS = ("admit", "vote", "leave", "renew", "resize", "revoke", "inspect", "proclaim", "observe", "latch", "barrier")


class Admitted(NamedTuple):
    """What `admit` answers; a bare fence is spelled out: it holds from now on, with the whole lease."""

    code: int
    fence: int
    ms: int
    position: int


class Voted(NamedTuple):
    """What `vote` answers."""

    code: int
    fence: int
    ms: int
    server_us: int


class Scripts:
    """The scripts on one connection.

    clocked: the scripts take the time from `clock_us` instead of the server, so that a test can let hours pass.
    quick: False cuts the quick way out of admit, leave and vote.
    """

    def __init__(self, server: Server, *, clocked: bool = False, quick: bool = True) -> None:
        self.server = server
        self.wire: Wire = server.wire(timeout_s=20)
        self.clocked = clocked
        seconds, micros = self.wire.call("TIME")
        self.clock_us = int(seconds) * 1_000_000 + int(micros)
        self._shas = {}
        self._order = {script: argument_names(script) for script in SCRIPTS}
        for script in SCRIPTS:
            text = getattr(scripts, script.upper()).text
            if not quick:
                text = without_quick_way(script, text)
            if clocked:
                assert "redis.call('TIME')" in text
                text = text.replace("redis.call('TIME')", "{ARGV[#ARGV - 1], ARGV[#ARGV]}")
            text = self.spoken(text)
            self._shas[script] = sha1(text.encode()).hexdigest()
            self.wire.call("SCRIPT", "LOAD", text)

    def spoken(self, text: str) -> str:
        """A script as this server takes it; see drivers/dialect.py."""
        return plain_text(text) if self.server.version < (7,) else text

    def name(self, *parts: str, kind: str = "lock", limit: int = 1) -> Named:
        return Named(self, parts, kind, limit)

    def request(self, script: str, keys: tuple[str, ...], **named: Argument) -> tuple[Argument, ...]:
        """The EVALSHA, for pipelines by `send` and `read`. The arguments go by the names in the script's header."""
        args: tuple[Argument, ...] = tuple(named.pop(name) for name in self._order[script])
        assert not named, f"{script} has no {', '.join(named)}"
        if self.clocked:
            args = (*args, *divmod(self.clock_us, 1_000_000))
        return ("EVALSHA", self._shas[script], len(keys), *keys, *args)

    def call(self, script: str, keys: tuple[str, ...], **named: Argument) -> Any:
        return self.wire.call(*self.request(script, keys, **named))

    def pass_ms(self, ms: float) -> None:
        """Let time pass on the test's own clock."""
        assert self.clocked
        self.clock_us += round(ms * 1000)

    @property
    def now_ms(self) -> int:
        return self.clock_us // 1000

    def close(self) -> None:
        self.wire.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Named:
    """One name, of one kind and limit, with every argument of the scripts at hand."""

    def __init__(self, scripts: Scripts, parts: tuple[str, ...], kind: str, limit: int) -> None:
        self.scripts = scripts
        self.made = names.make("lockfast", parts)
        self.keys = self.made.keys
        self.kind = kind
        self.limit = limit

    def admit_request(
        self,
        ticket: str,
        *,
        weight: int = 1,
        lease: int = LEASE_MS,
        place: int = PLACE_MS,
        seen: int = 0,
        channel: str = "nobody",
        owner: str = "host 1",
        limit: int | None = None,
    ) -> tuple[Argument, ...]:
        return self.scripts.request(
            "admit",
            self.keys,
            kind=self.kind,
            limit=self.limit if limit is None else limit,
            weight=weight,
            lease_ms=lease,
            ticket=ticket,
            place_ms=place,
            seen=seen,
            channel=channel,
            owner=owner,
        )

    def admit(self, ticket: str, **options: Any) -> Admitted:
        reply = self.scripts.wire.call(*self.admit_request(ticket, **options))
        if isinstance(reply, int):
            return Admitted(1, reply, options.get("lease", LEASE_MS), 0)
        return Admitted(*reply)

    def vote(
        self, ticket: str, *, weight: int = 1, lease: int = LEASE_MS, proposal: int = 0, owner: str = "host 1"
    ) -> Voted:
        reply = self.scripts.call(
            "vote",
            self.keys,
            kind=self.kind,
            limit=self.limit,
            weight=weight,
            lease_ms=lease,
            owner=owner,
            proposal=proposal,
            ticket=ticket,
        )
        return Voted(*reply)

    def leave(self, ticket: str, *, lease: int = LEASE_MS, unsure: bool = False, note: str = "") -> int:
        found: int = self.scripts.wire.call(*self.leave_request(ticket, lease=lease, unsure=unsure, note=note))
        return found

    def leave_request(
        self, ticket: str, *, lease: int = LEASE_MS, unsure: bool = False, note: str = ""
    ) -> tuple[Argument, ...]:
        return self.scripts.request("leave", self.keys, ticket=ticket, lease_ms=lease, unsure=int(unsure), note=note)

    def renew(self, ticket: str, fence: int, lease: int = LEASE_MS, weight: int = 0, heir: str = "") -> list[int]:
        reply: list[int] = self.scripts.call(
            "renew", self.keys, ticket=ticket, fence=fence, lease_ms=lease, weight=weight, heir=heir
        )
        return reply

    def revoke(self) -> int:
        asked: int = self.scripts.call("revoke", self.keys, what="push:")
        return asked

    def resize(self, limit: int) -> int:
        before: int = self.scripts.call("resize", self.keys, kind=self.kind, limit=limit)
        self.limit = limit
        return before

    def inspect(self) -> snapshots.Snapshot:
        return snapshots.read(self.made, self.scripts.call("inspect", self.keys, how=1000))

    @property
    def holders(self) -> list[str]:
        return [holder.ticket for holder in self.inspect().holders]

    @property
    def waiters(self) -> list[str]:
        return [waiter.ticket for waiter in self.inspect().waiters]

    @property
    def state(self) -> str:
        """The string that the name is."""
        return (self.scripts.wire.call("GET", self.keys[0]) or b"").decode()

    def fields(self) -> dict[str, str]:
        """The same by the names that state.lua gives its fields; the owner is the last and may have blanks."""
        described = re.search(r'"(FORMAT [^"]+)"', (LUA / "state.lua").read_text())
        assert described is not None
        order = described[1].split()
        return dict(zip(order, self.state.split(" ", len(order) - 1), strict=True))

    def everything(self) -> list[Any]:
        """The content of all five keys."""
        call = self.scripts.wire.call
        entries = call("HGETALL", self.keys[2])
        zsets = [call("ZRANGE", self.keys[i], 0, -1, "WITHSCORES") for i in (1, 3, 4)]
        return [self.state, *zsets, dict(zip(entries[::2], entries[1::2], strict=True))]


def header_of(script: str) -> str:
    """The comment at the top of a script's file, and the shebang before it."""
    lines = (LUA / f"{script}.lua").read_text().splitlines(keepends=True)
    return "".join(lines[: next(i for i, line in enumerate(lines) if not line.startswith(("--", "#!")))])


def argument_names(script: str) -> list[str]:
    """The first word behind each ARGV[i] of the header, in order."""
    found = dict(re.findall(r"ARGV\[(\d+)\] (\w+)", header_of(script)))
    return [found[str(i)] for i in range(1, len(found) + 1)]


def without_quick_way(script: str, text: str) -> str:
    """The script as it would be if it had no quick way: what stands between its header and the shared part is cut."""
    if script not in ("admit", "leave", "vote"):
        return text
    before, shared, after = text.partition((LUA / "state.lua").read_text())
    assert shared, "the shared part is not in the script"
    header = header_of(script)
    quick = before.removeprefix(header)
    assert "return" in quick, "no quick way was found to cut"
    return header + "local raw = redis.call('GET', KEYS[1])\n" + shared + after
