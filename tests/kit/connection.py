"""One client's connection through the proxy: two streams of messages, and which reply is whose."""

from __future__ import annotations

import math
import selectors
import socket
import struct
import time
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kit.resp import Frame, FrameReader, ServerError
from kit.rules import Gate, Request, Rule

if TYPE_CHECKING:
    from kit.proxy import Proxy

_SUBSCRIPTIONS = {"SUBSCRIBE", "PSUBSCRIBE", "SSUBSCRIBE", "UNSUBSCRIBE", "PUNSUBSCRIBE", "SUNSUBSCRIBE"}
_MESSAGES = {"MESSAGE", "PMESSAGE", "SMESSAGE"}
_ENDLESS = {"SYNC", "PSYNC", "MONITOR"}
_RESET_ON_CLOSE = struct.pack("ii", 1, 0)


class ConnectionLost(Exception):
    """The server's end broke."""


@dataclass(slots=True)
class _Pending:
    """A request whose reply is still to come: `left` frames of it, or `injected` instead of any."""

    request: Request
    rule: Rule | None
    left: int = 1
    injected: bytes | None = None


class _Outlet:
    """The sending half of one direction: messages in order, some behind a gate, then perhaps the end."""

    def __init__(self, end: socket.socket) -> None:
        self.socket = end
        self.queue: deque[tuple[bytes, Gate | None]] = deque()
        self.buffer = bytearray()
        self.mute = False
        self.finishing = False
        self.finished = False

    def put(self, raw: bytes, gate: Gate | None = None) -> None:
        if not self.mute:
            self.queue.append((raw, gate))

    def opens_at(self) -> float:
        gate = self.queue[0][1] if self.queue else None
        return gate.opens_at if gate else math.inf

    def flush(self, now: float) -> None:
        while self.queue:
            raw, gate = self.queue[0]
            if gate is not None and gate.opens_at > now:
                break
            self.buffer += raw
            self.queue.popleft()
        while self.buffer:
            try:
                del self.buffer[: self.socket.send(self.buffer)]
            except BlockingIOError:
                return
        if self.finishing and not self.queue and not self.finished:
            self.finished = True
            self.socket.shutdown(socket.SHUT_WR)


class Connection:
    """Everything here runs in the proxy's thread."""

    def __init__(self, proxy: Proxy, number: int, client: socket.socket, upstream: socket.socket) -> None:
        self.proxy = proxy
        self.number = number
        self.client = client
        self.upstream = upstream
        self.client_gone = False  # Nothing can be sent to it any more.
        self.dropped = False
        self._client_ended = False  # It will send nothing more.
        self._server_ended = False
        self._to_server = _Outlet(upstream)
        self._to_client = _Outlet(client)
        self._requests = FrameReader(inline=True)
        self._replies = FrameReader()
        self._pending: deque[_Pending] = deque()
        self._channels: dict[str, set[bytes]] = {"": set(), "P": set(), "S": set()}
        self._subscribed = False
        self._endless = False
        self._interests = {client: 0, upstream: 0}
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for end in (client, upstream):
            end.setblocking(False)

    # Bytes from either side

    def _on_client(self, mask: int) -> None:
        if self.client_gone or not mask & selectors.EVENT_READ:
            return
        try:
            data = self.client.recv(65536)
        except BlockingIOError:
            return
        except OSError:
            self._lose_client()
            return
        if not data:
            # What it wrote before is still delivered, and only then the end: so does a network.
            self._client_ended = True
            self._to_server.finishing = True
            return
        if self._endless:
            self._to_server.put(data)
            return
        for frame in self._requests.feed(data):
            self._on_request(frame)
            if self.client_gone:
                return
        if self._endless:
            self._to_server.put(self._requests.take_rest())

    def _on_upstream(self, mask: int) -> None:
        if self.dropped or not mask & selectors.EVENT_READ:
            return
        try:
            data = self.upstream.recv(65536)
        except BlockingIOError:
            return
        except OSError:
            self.drop(reset=True)
            return
        if not data:
            self._on_server_end()
        elif self._endless:
            self._to_client.put(data)
        else:
            for frame in self._replies.feed(data):
                self._on_reply(frame)
            if self._endless:
                self._to_client.put(self._replies.take_rest())

    def _on_server_end(self) -> None:
        self._server_ended = True
        self._to_server.mute = True
        # Behind a lost reply the news would never arrive either, so then the client is not told.
        self._to_client.finishing = not self._to_client.mute

    # Messages

    def _on_request(self, frame: Frame) -> None:
        if not frame.value:  # An empty line or array: servers pass over it and answer nothing.
            self._to_server.put(frame.raw)
            return
        command = frame.value[0].decode(errors="replace").upper()
        number = self.proxy.next_number()
        request = Request(number, self.number, command, tuple(frame.value[1:]), frame.raw)
        rule = self.proxy.request_rule(request)
        if rule is not None and rule.on == "request":
            self._on_faulty_request(request, rule)
        else:
            self._forward(request, rule)

    def _on_faulty_request(self, request: Request, rule: Rule) -> None:
        rule.hit()  # First: whoever sees the effect finds it counted.
        match rule.fault:
            case "cut_request":
                self.cut(reset=rule.reset)
            case "swallow_request":
                self._to_server.mute = True
            case "inject":
                self._pending.append(_Pending(request, rule, injected=rule.reply))
                self._answer_injected()
            case _:
                self._forward(request, None, rule.gate(time.monotonic()))

    def _forward(self, request: Request, rule: Rule | None, gate: Gate | None = None) -> None:
        if self._to_server.mute:
            return
        self._to_server.put(request.raw, gate)
        if request.command in _ENDLESS:
            self._endless = True
            return
        self._pending.append(_Pending(request, rule, left=self._replies_to(request)))

    def _replies_to(self, request: Request) -> int:
        """One frame per request, but one per channel for subscriptions."""
        if request.command not in _SUBSCRIPTIONS:
            return 1
        self._subscribed = True
        starts = "UNSUBSCRIBE" not in request.command
        channels = self._channels[request.command.removesuffix("SUBSCRIBE").removesuffix("UN")]
        if starts:
            channels.update(request.arguments)
            return len(request.arguments) or 1
        count = len(request.arguments or channels) or 1
        channels.difference_update(request.arguments or tuple(channels))
        return count

    def _on_reply(self, frame: Frame) -> None:
        if self._is_push(frame):
            self._on_push(frame)
            return
        if not self._pending:  # Such as "max number of clients reached", said before anything was asked.
            self._to_client.put(frame.raw)
            return
        pending = self._pending[0]
        pending.left -= 1
        if pending.left == 0 or isinstance(frame.value, ServerError):
            self._pending.popleft()
            pending.request.reply = frame.value
            pending.request.answered = True
        if pending.rule is None:
            self._to_client.put(frame.raw)
        else:
            self._on_faulty_reply(frame, pending.rule)
        self._answer_injected()

    def _on_faulty_reply(self, frame: Frame, rule: Rule) -> None:
        rule.hit()
        match rule.fault:
            case "delay":
                self._to_client.put(frame.raw, rule.gate(time.monotonic()))
            case "drop_reply":
                self._to_client.mute = True
            case _:
                self.cut(reset=rule.reset)

    def _answer_injected(self) -> None:
        while self._pending and (reply := self._pending[0].injected) is not None:
            self._pending.popleft()
            self._to_client.put(reply)

    def _is_push(self, frame: Frame) -> bool:
        marked = frame.raw[:1] == b">"
        if not (marked or self._subscribed) or not isinstance(frame.value, list) or not frame.value:
            return False
        kind = frame.value[0].decode(errors="replace").upper() if isinstance(frame.value[0], bytes) else ""
        if kind in _SUBSCRIPTIONS:  # The reply to a request, unless the server ends a subscription by itself.
            return not self._pending or self._pending[0].request.command != kind
        return marked or kind in _MESSAGES

    def _on_push(self, frame: Frame) -> None:
        rule = self.proxy.push_rule(frame.raw)
        if rule is None:
            self._to_client.put(frame.raw)
            return
        rule.hit()
        if rule.fault == "delay":
            self._to_client.put(frame.raw, rule.gate(time.monotonic()))

    # Sending and ending

    def opens_at(self) -> float:
        return min(self._to_server.opens_at(), self._to_client.opens_at())

    def flush(self, now: float) -> None:
        """Sends what may be sent; raises ConnectionLost when the server's end broke."""
        if not self.proxy.blackholed and not self.dropped:
            try:
                self._to_server.flush(now)
            except OSError as error:
                raise ConnectionLost from error
            if not self.client_gone:
                try:
                    self._to_client.flush(now)
                except OSError:
                    self._lose_client()
            silent = self.client_gone or self._to_client.mute
            if self._to_client.finished or (self._server_ended and self._client_ended and silent):
                self.drop()
        if not self.dropped:
            self._watch_both()

    def cut(self, *, reset: bool) -> None:
        """Ends the client's side. What went before still reaches the server; what is held back is lost."""
        if not self.proxy.blackholed:
            try:
                self._to_server.flush(time.monotonic())
            except OSError:
                pass  # The server's end broke too; the next flush finds out and drops the connection.
        self._to_server.queue.clear()
        self._lose_client(reset=reset)

    def drop(self, *, reset: bool = False) -> None:
        """Closes both ends at once."""
        if self.dropped:
            return
        if not self.client_gone:
            self._lose_client(reset=reset)
        self.dropped = True
        self._watch(self.upstream, 0)
        self.upstream.close()

    def _lose_client(self, *, reset: bool = False) -> None:
        if self.client_gone:
            return
        self.client_gone = self._client_ended = True
        self._watch(self.client, 0)
        if reset:
            self.client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
        self.client.close()
        # Replies are read to the end and thrown away: closing with unread bytes would reset the server's side
        # too, and what the client had written might then not run.
        self._to_client.mute = True
        self._to_client.queue.clear()
        self._to_server.finishing = True

    def _watch_both(self) -> None:
        if not self.client_gone:
            wants = 0 if self._client_ended else selectors.EVENT_READ
            self._watch(self.client, wants | (selectors.EVENT_WRITE if self._to_client.buffer else 0))
        wants = 0 if self._server_ended else selectors.EVENT_READ
        self._watch(self.upstream, wants | (selectors.EVENT_WRITE if self._to_server.buffer else 0))

    def _watch(self, end: socket.socket, wants: int) -> None:
        if wants == self._interests[end]:
            return
        listener = self._on_client if end is self.client else self._on_upstream
        if not self._interests[end]:
            self.proxy.selector.register(end, wants, listener)
        elif not wants:
            self.proxy.selector.unregister(end)
        else:
            self.proxy.selector.modify(end, wants, listener)
        self._interests[end] = wants
