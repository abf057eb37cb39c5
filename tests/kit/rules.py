"""What a test says to the proxy: which request, and what happens to it.

    lost = proxy.when("EVALSHA", containing="orders", nth=2).drop_reply()
    lost.wait_hit()

A stream cannot lose a piece in its middle: after a dropped reply or a swallowed request the connection stays
open but carries nothing more in that direction, as when a network path dies. What is behind a delayed message
waits with it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable
    from threading import Condition

Match: TypeAlias = "str | Callable[[Request], bool] | None"
Fault = Literal["drop_reply", "drop_reply_and_cut", "cut_request", "swallow_request", "delay", "inject", "drop_push"]


@dataclass(slots=True, eq=False)
class Request:
    """One request as the proxy saw it. `reply` is the server's answer once there is one."""

    number: int
    connection: int
    command: str  # In capitals.
    arguments: tuple[bytes, ...]
    raw: bytes
    answered: bool = False
    reply: Any = None

    def matches(self, match: Match, containing: bytes = b"") -> bool:
        if containing not in self.raw:
            return False
        if match is None:
            return True
        return self.command == match.upper() if isinstance(match, str) else match(self)


class Gate:
    """Holds one message back until a time, or until let go."""

    __slots__ = ("opens_at",)

    def __init__(self, opens_at: float) -> None:
        self.opens_at = opens_at


@dataclass(slots=True, eq=False)
class Rule:
    """One fault that waits for its request (or push). `hits` counts how often it struck."""

    fault: Fault
    on: Literal["request", "reply", "push"]
    match: Match
    containing: bytes
    nth: int
    times: int | None
    changed: Condition
    wake: Callable[[], None]
    delay_s: float = 0.0
    reply: bytes = b""
    reset: bool = True
    hits: int = 0
    cancelled: bool = False
    _seen: int = 0
    _fired: int = 0
    _gates: list[Gate] = field(default_factory=list)

    def takes(self, matching: bool) -> bool:
        """Counts a message that matches, and tells if this is one the rule is for."""
        if not matching or self.cancelled:
            return False
        if self.times is not None and self._fired >= self.times:
            return False
        self._seen += 1
        if self._seen < self.nth:
            return False
        self._fired += 1
        return True

    def hit(self) -> None:
        """The fault has happened: for replies, the server has run the request and its answer is gone."""
        with self.changed:
            self.hits += 1
            self.changed.notify_all()

    def gate(self, now: float) -> Gate:
        gate = Gate(now + self.delay_s)
        self._gates.append(gate)
        return gate

    def wait_hit(self, count: int = 1, *, timeout_s: float = 10.0) -> None:
        """Returns when the fault has struck `count` times."""
        with self.changed:
            if not self.changed.wait_for(lambda: self.hits >= count, timeout_s):
                raise TimeoutError(f"{self.fault} struck {self.hits} times of {count} within {timeout_s} s")

    def let_go(self) -> None:
        """Delivers what this rule holds back, now. Later matches of a rule with `times` left wait anew."""
        with self.changed:
            for gate in self._gates:
                gate.opens_at = -math.inf
            self._gates.clear()
        self.wake()

    def cancel(self) -> None:
        """No more strikes. What it holds back stays held until `let_go`."""
        self.cancelled = True


@dataclass(slots=True, frozen=True)
class When:
    """Half of a sentence: `proxy.when(...)`. Its methods say what happens, and put the rule into force."""

    match: Match
    containing: bytes
    nth: int
    times: int | None
    changed: Condition
    wake: Callable[[], None]
    add: Callable[[Rule], None]

    def drop_reply(self) -> Rule:
        """The server runs it, the client never hears; the connection stays open and silent."""
        return self._rule("drop_reply", "reply")

    def drop_reply_and_cut(self, *, reset: bool = True) -> Rule:
        """The server runs it, then the connection is reset (or closed in good order)."""
        return self._rule("drop_reply_and_cut", "reply", reset=reset)

    def cut_request(self, *, reset: bool = True) -> Rule:
        """It never reaches the server, and the connection is reset (or closed in good order)."""
        return self._rule("cut_request", "request", reset=reset)

    def swallow_request(self) -> Rule:
        """It never reaches the server, nor does what follows on this connection, which stays open."""
        return self._rule("swallow_request", "request")

    def delay_reply(self, seconds: float = math.inf) -> Rule:
        """The server runs it at once, the answer comes late: after `seconds`, or at `rule.let_go()`."""
        return self._rule("delay", "reply", delay_s=seconds)

    def delay_request(self, seconds: float = math.inf) -> Rule:
        """It reaches the server late, even if the client has closed by then (as packets under way do)."""
        return self._rule("delay", "request", delay_s=seconds)

    def inject_reply(self, reply: bytes) -> Rule:
        """The server never sees it; the client gets these bytes, in their turn: `b"-OOM no memory\\r\\n"`."""
        return self._rule("inject", "request", reply=reply)

    def _rule(
        self,
        fault: Fault,
        on: Literal["request", "reply", "push"],
        *,
        delay_s: float = 0.0,
        reply: bytes = b"",
        reset: bool = True,
    ) -> Rule:
        rule = Rule(
            fault,
            on,
            self.match,
            self.containing,
            self.nth,
            self.times,
            self.changed,
            self.wake,
            delay_s=delay_s,
            reply=reply,
            reset=reset,
        )
        self.add(rule)
        return rule


@dataclass(slots=True, frozen=True)
class WhenPush(When):
    """`proxy.when_push(...)`: messages of subscriptions, which no request asked for."""

    def drop(self) -> Rule:
        """The message vanishes; the subscription lives on."""
        return self._rule("drop_push", "push")

    def delay(self, seconds: float = math.inf) -> Rule:
        """The message and what follows on its connection come late: after `seconds` or at `rule.let_go()`."""
        return self._rule("delay", "push", delay_s=seconds)
