"""One blocking connection of our own: a request goes out, its reply comes back, by a deadline.

A connection counts the replies it is owed. One that is owed a reply is never used for anything but the `leave`
that undoes the unanswered request, and is then left alone for a while, so that what was written still runs.
"""

from __future__ import annotations

import os
import socket
import struct
from typing import TYPE_CHECKING, Any

from lockfast.clock import now
from lockfast.drivers.dialect import knows_no_flags, plainly
from lockfast.drivers.wire import ProtocolError, Reader, check_greeting, greet, not_connected
from lockfast.errors import Unreachable

if TYPE_CHECKING:
    from collections.abc import Callable

    from lockfast.drivers.sentinel import Scout
    from lockfast.endpoints import Endpoint

TICK_S = 0.25  # a blocked read looks at its deadline at least this often
SEND_S = 1  # the longest that writing may be held up: a server that reads nothing is hung
LEAST_S = 0.01  # what a step of connecting is given, however late it is
SHORT = 448  # bytes read at first: a reply fits, and Python's own allocator serves buffers of this size


class Connection:
    """A socket with a reader. Not shared: whoever took it from the pool is alone with it."""

    __slots__ = (
        "__weakref__",
        "_in_kernel",
        "_is_ticking",
        "_receive_now",
        "_send_all",
        "_set_s",
        "_tick_s",
        "address",
        "endpoint",
        "feed",
        "next_reply",
        "owed",
        "sock",
        "where",
    )

    def __init__(self, sock: socket.socket, endpoint: Endpoint, tick_s: float = TICK_S) -> None:
        self.sock = sock
        self.endpoint = endpoint
        self.where = endpoint.where
        self.address: tuple[str, int] | None = None  # where a sentinel said that the master is
        self.owed = 0
        reader = Reader()
        self.feed, self.next_reply = reader.feed, reader.gets
        self._send_all: Callable[[bytes], None] = sock.sendall
        self._receive_now = sock.recv
        if endpoint.plain:
            self._speak_plainly()
        # The kernel's own receive time-out saves the poll() that Python makes before every recv() of a socket with
        # a time-out. TLS and gevent sockets are non-blocking inside and need Python's.
        self._in_kernel = os.name == "posix" and type(sock).__module__ == "socket"
        self._tick_s = tick_s
        self._set_s = 0.0  # the time-out that the kernel has now
        self._is_ticking = False  # whether that is the tick
        if self._in_kernel:
            self._set_tick(tick_s)
            # A hung server whose buffers are full must not hold up a large request for ever.
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", SEND_S, 0))

    def call(self, request: bytes, by: float, replies: int = 1) -> Any:
        """Send, and return the last of the `replies` that answer it. Raises Unreachable when none comes by `by`."""
        # Counted before it is written: an interrupt in between must not make the connection look clean.
        self.owed += replies
        try:
            self._send_all(request)
        except OSError as error:
            raise Unreachable(f"connection to {self.where} lost: {error}") from error
        try:
            if self._is_ticking:  # Most replies are short, and come within a tick and all at once.
                data = self._receive_now(SHORT)
                if data:
                    self.feed(data)
                    reply = self.next_reply()
                    while reply is not False:
                        self.owed -= 1
                        if not self.owed:
                            return reply
                        reply = self.next_reply()
        except BlockingIOError:
            pass
        except OSError as error:
            raise Unreachable(f"connection to {self.where} lost: {error}") from error
        except ProtocolError as error:
            raise self._garbled(error) from error
        return self.read(by)

    def bring(self, request: bytes, by: float) -> Any:
        """The reply to an EVAL, for a server that did not know the script: in the form that this server takes."""
        self._send_all = self.sock.sendall
        answer = self.call(request, by)
        self.endpoint.plain = knows_no_flags(answer)
        if self.endpoint.plain:
            self._speak_plainly()
            answer = self.call(request, by)
        return answer

    def _speak_plainly(self) -> None:
        send_all = self.sock.sendall
        self._send_all = lambda request: send_all(plainly(request))

    def send(self, request: bytes, replies: int) -> None:
        """Only send; `read_each` gets the replies."""
        self.owed += replies
        try:
            self.sock.sendall(plainly(request) if self.endpoint.plain else request)
        except OSError as error:
            del request  # a greeting holds a password, and tracebacks may show what was in a frame
            raise Unreachable(f"connection to {self.where} lost: {error}") from error

    def read(self, by: float) -> Any:
        """The last of the replies that are owed."""
        reply: Any = None
        while self.owed:
            reply = self._read_one(by)
        return reply

    def read_each(self, by: float) -> list[Any]:
        """All replies that are owed."""
        return [self._read_one(by) for _ in range(self.owed)]

    def _read_one(self, by: float) -> Any:
        reply = self._gets()
        while reply is False:
            self.feed(self._receive(by))
            reply = self._gets()
        self.owed -= 1
        return reply

    def _gets(self) -> Any:
        try:
            return self.next_reply()
        except ProtocolError as error:
            raise self._garbled(error) from error

    def _garbled(self, error: Exception) -> Unreachable:
        return Unreachable(f"{self.where} does not speak the Redis protocol: {error}")

    def pushes(self, by: float) -> list[Any]:
        """The next messages of a subscribed connection: all that came together; none when nothing comes by `by`."""
        messages: list[Any] = []
        try:
            message = self.next_reply()
            while message is False:
                self.feed(self._receive(by))
                message = self.next_reply()
            while message is not False:
                messages.append(message)
                message = self.next_reply()
        except TimeoutError:
            pass
        except ProtocolError as error:
            raise self._garbled(error) from error
        return messages

    def _receive(self, by: float) -> bytes:
        left_s = max(by - now(), 0.001)
        if self._in_kernel:
            if self._set_s != min(left_s, self._tick_s):
                self._set_tick(min(left_s, self._tick_s))
        else:
            self.sock.settimeout(left_s)
        while True:
            try:
                data = self.sock.recv(16384)
            except (BlockingIOError, TimeoutError):
                left_s = by - now()
                if left_s <= 0:
                    raise _NoAnswer(f"{self.where} does not answer") from None
                if self._in_kernel and left_s < self._tick_s:
                    self._set_tick(left_s)
                continue
            except OSError as error:
                raise Unreachable(f"connection to {self.where} lost: {error}") from error
            if not data:
                raise Unreachable(f"{self.where} closed the connection")
            return data

    def _set_tick(self, tick_s: float) -> None:
        whole_s = int(tick_s)
        micros = max(int((tick_s - whole_s) * 1_000_000), 1000)
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", whole_s, micros))
        self._set_s = tick_s
        self._is_ticking = tick_s == self._tick_s

    def share(self) -> None:
        """Let one thread read pushes while another writes. Nothing may be under way."""
        if type(self.sock).__module__ == "ssl":
            from lockfast.drivers.duplex import Duplex

            self.sock = Duplex(self.sock)  # type: ignore[assignment,arg-type]  # it has all that is used of a socket

    def wake(self) -> None:
        """End a read that another thread is blocked in."""
        try:
            # That of TLS would leave the reader without its key.
            socket.socket.shutdown(getattr(self.sock, "raw", self.sock), socket.SHUT_RDWR)
        except OSError:
            pass

    cut = wake

    @property
    def is_open(self) -> bool:
        return self.sock.fileno() >= 0

    def close(self) -> None:
        self.sock.close()


class _NoAnswer(Unreachable, TimeoutError):
    """Unreachable because time ran out, with the connection still standing."""


def connect(endpoint: Endpoint, socket_path: str, by: float, tick_s: float = TICK_S) -> Connection:
    """A connection that is let in. Raises Unreachable(sent=False), or Refused when the account is turned down."""
    scout: Scout | None = None
    address: tuple[str, int] | None = None
    if endpoint.sentinels:
        from lockfast.drivers.sentinel import scout_of  # only where it is used: most programs start faster without

        scout = scout_of(endpoint)
        address = scout.master(by)
    where = endpoint.where_at(address)
    try:
        sock = _open(endpoint, socket_path, address, by)
    except OSError as error:
        if endpoint.tls is not None and not isinstance(error, (TimeoutError, ConnectionRefusedError, socket.gaierror)):
            _explain(endpoint, error)
        raise not_connected(error, where) from error
    connection = Connection(sock, endpoint, tick_s)
    connection.address, connection.where = address, where
    greeting = endpoint.greeting()
    try:
        connection.send(greet(greeting), len(greeting))
        check_greeting(greeting, connection.read_each(by), where)
    except Unreachable as error:
        connection.close()
        if not isinstance(error, TimeoutError) and not socket_path:
            _explain(endpoint, error)
        raise Unreachable(str(error), sent=False) from error
    except BaseException:
        connection.close()
        raise
    endpoint.spoken = True
    if scout is not None:
        scout.watch(connection)
    return connection


def _explain(endpoint: Endpoint, error: Exception) -> None:
    """Raise what is wrong for good with a server that breaks off; see diagnosis.py."""
    from lockfast.drivers import diagnosis

    told = diagnosis.explain(endpoint, error)
    if told is not None:
        raise told from error


def deliver(endpoint: Endpoint, socket_path: str, by: float, request: bytes, count: int = 1) -> Connection:
    """A connection on which requests follow the greeting at once: they will run, whenever the server answers.

    Where a sentinel names the server, that has to say first that it is a master.
    """
    if endpoint.sentinels:
        connection = connect(endpoint, socket_path, by)
        connection.send(request, count)
        return connection
    where = endpoint.where
    try:
        connection = Connection(_open(endpoint, socket_path, None, by), endpoint)
    except OSError as error:
        raise not_connected(error, where) from error
    greeting = endpoint.greeting()
    try:
        connection.send(greet(greeting) + request, len(greeting) + count)
    except BaseException:
        connection.close()
        raise
    return connection


def _open(endpoint: Endpoint, socket_path: str, address: tuple[str, int] | None, by: float) -> socket.socket:
    if socket_path:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            sock.settimeout(max(by - now(), LEAST_S))
            sock.connect(socket_path)
        except BaseException:
            sock.close()
            raise
        sock.settimeout(None)
        return sock
    host, port = address or (endpoint.host, endpoint.port)
    sock = reach(host, port, by)
    try:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        keep_alive(sock)
        context = endpoint.tls_context()
        if context is not None:
            from lockfast.drivers.diagnosis import shake_hands

            secured = context.wrap_socket(sock, server_hostname=host, do_handshake_on_connect=False)
            sock = secured
            shake_hands(secured, endpoint, by)
        else:
            sock.settimeout(None)
    except BaseException:
        sock.close()
        raise
    return sock


def reach(host: str, port: int, by: float) -> socket.socket:
    """A TCP connection to the first of the host's addresses that answers. Leaves no socket behind if interrupted."""
    failure: OSError | None = None
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        for place, (family, kind, protocol, _, address) in enumerate(found):
            sock = socket.socket(family, kind, protocol)
            try:  # the time is shared out: an address that is dead must not use up that of the others
                sock.settimeout(max((by - now()) / (len(found) - place), LEAST_S))
                sock.connect(address)
            except OSError as error:
                sock.close()
                failure = error
            except BaseException:
                sock.close()
                raise
            else:
                return sock
        raise failure or OSError(f"{host} has no address")
    finally:
        del failure  # its traceback leads here: see Threads.acquire


def keep_alive(sock: socket.socket) -> None:
    """Let the kernel find out that the other side is gone, also while nothing is being asked."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (("TCP_KEEPIDLE", 10), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3)):
        if hasattr(socket, option):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
