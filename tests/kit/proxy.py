"""A proxy that tells requests from replies, and loses, delays or forges the single one that a test names.

One thread serves all connections. Bytes are passed on exactly as they came and parsed only to find where
a message ends, which reply answers which request (in order, also when pipelined), and what nobody asked for.
Not understood: `CLIENT REPLY OFF|SKIP` and TLS. Replication and MONITOR streams are passed on unparsed.
"""

from __future__ import annotations

import math
import selectors
import socket
import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Protocol, Self

from kit.connection import Connection, ConnectionLost
from kit.rules import Match, Request, Rule, When, WhenPush

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from kit.servers import Server


class Proxy:
    """In front of `server`, at `url`. `when` is for single faults; `cut_all`, `refuse`, `blackhole` for all.

    `server` can be set to another one at run time: new connections go there.
    """

    def __init__(self, server: Server) -> None:
        self.server = server
        self.changed = threading.Condition()
        self.accepted = 0
        self.blackholed = False
        self.rules: list[Rule] = []
        self.selector = selectors.DefaultSelector()
        self._requests: list[Request] = []
        self._open: dict[int, Connection] = {}
        self._jobs: deque[Callable[[], None]] = deque()
        self._failure: BaseException | None = None
        self._stopping = False
        self._listener: socket.socket | None = None
        self.port = 0
        self._listen()
        self._waker, self._woken = socket.socketpair()
        self._waker.setblocking(False)
        self.selector.register(self._woken, selectors.EVENT_READ, lambda _: self._woken.recv(4096))
        self._thread = threading.Thread(target=self._serve, name="proxy", daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        userinfo = f":{self.server.requirepass}@" if self.server.requirepass else ""
        return f"redis://{userinfo}127.0.0.1:{self.port}/0"

    # Single faults

    def when(self, match: Match = None, *, containing: str | bytes = b"", nth: int = 1, times: int | None = 1) -> When:
        """The start of a rule: `proxy.when("EVALSHA", nth=3).drop_reply()` strikes the third from now.

        match: a command name, or a function of the Request (called in the proxy's thread), or None for any.
        containing: also somewhere in the request's bytes, such as a script's sha or a lock's name.
        nth, times: from the nth match on, that many times; None is without end.
        A request goes to the first rule that takes it and is not counted by later ones.
        """
        return When(match, _bytes(containing), nth, times, self.changed, self._wake, self._add_rule)

    def when_push(self, *, containing: str | bytes = b"", nth: int = 1, times: int | None = 1) -> WhenPush:
        """The start of a rule for pub/sub messages: `proxy.when_push(times=None).drop()`."""
        return WhenPush(None, _bytes(containing), nth, times, self.changed, self._wake, self._add_rule)

    # Faults of everything

    def cut_all(self, *, reset: bool = True) -> None:
        """Cuts every connection, by reset or in good order. What was held back is lost."""

        def cut_each() -> None:
            for connection in self._open.values():
                connection.cut(reset=reset)

        self._in_thread(cut_each)

    def refuse(self) -> None:
        """New connections are refused, existing ones cut, as if the server were down. `accept` ends it."""
        self._in_thread(self._stop_listening)
        self.cut_all()

    def accept(self) -> None:
        """Takes connections again, on the same port."""
        self._in_thread(self._listen)

    def blackhole(self) -> None:
        """Connections are accepted and stay open, nothing is passed on either way. Requests are recorded."""
        self._in_thread(lambda: setattr(self, "blackholed", True))

    def heal(self) -> None:
        """Ends all faults: rules are forgotten, what a black hole or a delay holds is delivered, late.

        Connections that lost a piece of their stream stay silent; only `cut_all` or their client ends them.
        """
        for rule in self.rules:
            rule.cancel()
            rule.let_go()
        self.rules = []
        self._in_thread(lambda: setattr(self, "blackholed", False))
        self.accept()

    # What was seen

    @property
    def requests(self) -> list[Request]:
        """Every request seen so far, oldest first."""
        with self.changed:
            return list(self._requests)

    @property
    def connections(self) -> int:
        """How many clients are connected."""
        with self.changed:
            return sum(not connection.client_gone for connection in self._open.values())

    def seen(self, match: Match = None, *, containing: str | bytes = b"", since: int = 0) -> list[Request]:
        """The requests that match, from number `since` on: take `len(proxy.requests)` as a mark."""
        needle = _bytes(containing)
        return [request for request in self.requests[since:] if request.matches(match, needle)]

    def wait_for(
        self,
        match: Match = None,
        *,
        containing: str | bytes = b"",
        count: int = 1,
        since: int = 0,
        timeout_s: float = 10.0,
    ) -> Request:
        """Waits until `count` such requests were seen, and returns the last of these."""
        self.wait_until(lambda: len(self.seen(match, containing=containing, since=since)) >= count, timeout_s)
        return self.seen(match, containing=containing, since=since)[count - 1]

    def wait_until(self, condition: Callable[[], object], timeout_s: float = 10.0) -> None:
        """Waits until the condition is true; it is asked after every message, connect and disconnect."""
        with self.changed:
            if not self.changed.wait_for(condition, timeout_s):
                seen = ", ".join(request.command for request in self._requests[-20:])
                raise TimeoutError(f"not true within {timeout_s} s; last requests: {seen or 'none'}")

    # The thread's side; everything below runs in it, but for `_in_thread`, `_wake` and `close`

    def request_rule(self, request: Request) -> Rule | None:
        """Records a request and finds the rule it falls under."""
        self._requests.append(request)
        for rule in self.rules:
            if rule.on != "push" and rule.takes(request.matches(rule.match, rule.containing)):
                return rule
        return None

    def push_rule(self, raw: bytes) -> Rule | None:
        for rule in self.rules:
            if rule.on == "push" and rule.takes(rule.containing in raw):
                return rule
        return None

    def next_number(self) -> int:
        return len(self._requests)

    def _serve(self) -> None:
        try:
            while not self._stopping:
                events = self.selector.select(self._patience_s())
                with self.changed:
                    for key, mask in events:
                        key.data(mask)
                    while self._jobs:
                        self._jobs.popleft()()
                    self._flush()
                    self.changed.notify_all()
        except BaseException as failure:
            self._failure = failure
        finally:
            for connection in list(self._open.values()):
                connection.drop()
            self._stop_listening()

    def _flush(self) -> None:
        now = time.monotonic()
        for number, connection in list(self._open.items()):
            try:
                connection.flush(now)
            except ConnectionLost:
                connection.drop()
            if connection.dropped:
                del self._open[number]

    def _patience_s(self) -> float | None:
        opens = min((connection.opens_at() for connection in self._open.values()), default=math.inf)
        return None if opens == math.inf or self.blackholed else max(0.0, opens - time.monotonic())

    def _accept(self, _: int) -> None:
        assert self._listener is not None
        client, _address = self._listener.accept()
        self.accepted += 1
        upstream = socket.socket(socket.AF_UNIX)
        try:
            upstream.connect(self.server.unix_path)
        except OSError:  # The server is down: its host would have refused, so hang up at once.
            upstream.close()
            client.close()
            return
        self._open[self.accepted] = Connection(self, self.accepted, client, upstream)

    def _listen(self) -> None:
        if self._listener is None:
            self._listener = socket.create_server(("127.0.0.1", self.port), backlog=512)
            self.port = self._listener.getsockname()[1]
            self.selector.register(self._listener, selectors.EVENT_READ, self._accept)

    def _stop_listening(self) -> None:
        if self._listener is not None:
            self.selector.unregister(self._listener)
            self._listener.close()
            self._listener = None

    def _add_rule(self, rule: Rule) -> None:
        with self.changed:
            self.rules = [*self.rules, rule]

    def _in_thread(self, job: Callable[[], object]) -> None:
        """Has the thread run the job, and waits for it: when a method returns, what it says is so."""
        if threading.current_thread() is self._thread:  # A match function may cut connections, say.
            job()
            return
        done = threading.Event()

        def run() -> None:
            job()
            done.set()

        self._jobs.append(run)
        self._wake()
        while not done.wait(0.1):
            if not self._thread.is_alive():
                raise RuntimeError("the proxy has ended") from self._failure

    def _wake(self) -> None:
        try:
            self._waker.send(b"w")
        except BlockingIOError:
            pass  # Enough wake-ups are waiting already.

    def close(self) -> None:
        """Ends the proxy; raises what went wrong in its thread, such as an error in a match function."""
        self._stopping = True
        self._wake()
        self._thread.join(10)
        for end in (self._waker, self._woken, self.selector):
            end.close()
        if self._failure is not None:
            raise RuntimeError("the proxy failed") from self._failure

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class ProxyFor(Protocol):
    """What the fixture `proxy_for` is: puts a proxy in front of any server, for one test."""

    def __call__(self, server: Server) -> Proxy: ...


def _bytes(text: str | bytes) -> bytes:
    return text.encode() if isinstance(text, str) else text
