"""The simulated server beside a real one: the same commands to both, and every reply compared.

A run is a list of steps. When replies differ, steps are left out as long as some reply still differs, and what remains
is shown. Where Redis 7.0 and Valkey differ in words or digits, the simulated server is held to Valkey's, and Redis'
are translated here.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from kit.resp import ServerError, pack
from lockfast.sim.keyspace import ReplyError
from lockfast.sim.server import Server as SimServer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kit.resp import Argument, Wire
    from kit.servers import Server

    Words: TypeAlias = tuple[Argument, ...]

CLOSE_MS = 60_000  # so much may pass on the real server while the other's clock stands still

# What Redis 7.0 says, and Valkey for the same.
_REDIS_WORDS = (
    (r"Unknown Redis command", "Unknown command"),
    (r"calling Redis command", "calling command"),
    (r"This Redis command", "This Valkey command"),
    (r"for this redis lib call", "for this call"),
    (r"Lua redis lib command arguments", "Command arguments"),
    (r"script: [0-9a-f]{40}, on", "script: on"),
    (r" Please use EVAL\.", ""),
    (r"Unexpected engine in script shebang: #!(\w+)", r"Could not find scripting engine '\1'"),
)


@dataclass(frozen=True)
class Step:
    """One command on one of the connections.

    inside: the commands whose replies are the items of its reply. instead: the command whose reply is its reply.
    """

    connection: int
    words: Words
    inside: tuple[Words, ...] = ()
    instead: Words = ()

    def __str__(self) -> str:
        return f"{self.connection}: " + " ".join([w if isinstance(w, str) else repr(w) for w in self.words])


def compare(server: Server, steps: Sequence[Step], *, connections: int = 1) -> None:
    """Fails with the shortest run that was found to differ."""
    difference = first_difference(server, steps, connections)
    if difference is None:
        return
    shortest = list(steps[: difference[0] + 1])
    for size in (256, 64, 16, 4, 1, 1):  # at last once more, for steps that only made up for others
        for at in range(len(shortest) - size, -1, -size):
            shorter = shortest[:at] + shortest[at + size :]
            found = first_difference(server, shorter, connections)
            if found is not None:
                shortest, difference = shorter[: found[0] + 1], found
    _, ours, theirs = difference
    told = "\n  ".join(map(str, shortest))
    raise AssertionError(f"replies differ after\n  {told}\nsimulated: {ours!r}\n{server!r}: {theirs!r}")


def first_difference(server: Server, steps: Sequence[Step], connections: int) -> tuple[int, Any, Any] | None:
    """Where replies differ first, with both of them. Starts on empty servers and new connections."""
    server.command("FLUSHALL")
    sim = SimServer(clock_of(server))
    sessions = [sim.open(lambda message: None) for _ in range(connections)]
    wires = [server.wire() for _ in range(connections)]
    try:
        for i, theirs in enumerate(_real_replies(wires, steps)):
            step = steps[i]
            ours = sim.execute(sessions[step.connection], step.words)
            if not same(step, plain(ours), plain(theirs)):
                return i, ours, theirs
    finally:
        for wire in wires:
            wire.close()
    return None


def _real_replies(wires: list[Wire], steps: Sequence[Step]) -> list[Any]:
    """In one write as long as the connection is the same."""
    replies: list[Any] = []
    start = 0
    for end in range(1, len(steps) + 1):
        here = steps[start].connection
        if end == len(steps) or steps[end].connection != here or end - start == 200:
            wires[here].socket.sendall(b"".join([pack(*step.words) for step in steps[start:end]]))
            replies += [wires[here].read() for _ in range(start, end)]
            start = end
    return replies


def clock_of(server: Server) -> Any:
    """A clock that stands at the time which the server has now."""
    seconds, micros = server.command("TIME")
    now_us = int(seconds) * 1_000_000 + int(micros)
    return lambda: now_us


def plain(reply: Any) -> Any:
    """A reply of either side as a value that can be compared."""
    if isinstance(reply, str):
        return reply.encode()
    if isinstance(reply, list):
        return [plain(item) for item in reply]
    if isinstance(reply, ServerError | ReplyError):
        text = str(reply)
        for theirs, ours in _REDIS_WORDS:
            text = re.sub(theirs, ours, text)
        # The line of a call in `return redis.call(…)` is known to real servers only.
        return ("error", re.sub(r"on @user_script:[\d?]+\.$", "on its line.", text))
    return reply


def same(step: Step, ours: Any, theirs: Any) -> bool:
    if isinstance(ours, list) and isinstance(theirs, list) and len(ours) == len(theirs) == len(step.inside) > 0:
        pairs = zip(step.inside, ours, theirs, strict=True)
        return all(_same_reply(words, our_item, their_item) for words, our_item, their_item in pairs)
    return _same_reply(step.instead or step.words, ours, theirs)


def _same_reply(words: Words, ours: Any, theirs: Any) -> bool:
    name = str(words[0]).upper()
    if ours == theirs:
        return type(ours) is type(theirs)
    if name in ("PTTL", "TTL") and isinstance(ours, int) and isinstance(theirs, int):
        return min(ours, theirs) > 0 and abs(ours - theirs) <= CLOSE_MS
    if name == "HGETALL" and isinstance(ours, list) and isinstance(theirs, list):
        return _pairs(ours) == _pairs(theirs)
    if name == "SCAN" and isinstance(ours, list) and isinstance(theirs, list):
        return sorted(ours[1]) == sorted(theirs[1])
    if isinstance(ours, list) and isinstance(theirs, list) and len(ours) == len(theirs):
        return all(_same_score(a, b) for a, b in zip(ours, theirs, strict=True))
    return _same_score(ours, theirs)


def _pairs(flat: list[Any]) -> list[tuple[Any, Any]]:
    return sorted(zip(flat[::2], flat[1::2], strict=True))


def _same_score(ours: Any, theirs: Any) -> bool:
    """Equal, or the same number in other digits: Redis 7.0 prints 0.1 with seventeen."""
    if isinstance(ours, bytes) and isinstance(theirs, bytes):
        try:
            return ours == theirs or (float(ours) == float(theirs) and len(theirs) > 4)
        except ValueError:
            return ours == theirs
    return type(ours) is type(theirs) and bool(ours == theirs)
