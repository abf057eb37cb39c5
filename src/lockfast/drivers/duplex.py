"""A TLS socket that one thread reads while another writes: OpenSSL allows one of them at a time."""

from __future__ import annotations

import select
import threading
from typing import TYPE_CHECKING, Any

from lockfast.clock import now

if TYPE_CHECKING:
    import ssl

WRITE_S = 1.0  # the longest that writing may be held up


class Duplex:
    """Stands in for the socket. Nobody is inside OpenSSL while waiting for the network."""

    def __init__(self, sock: ssl.SSLSocket) -> None:
        import ssl

        self.raw = sock
        self._turn = threading.Lock()
        self._wants: tuple[Any, ...] = (ssl.SSLWantReadError, ssl.SSLWantWriteError)
        self._timeout_s = 0.0
        sock.settimeout(0.0)

    def settimeout(self, timeout_s: float) -> None:
        """How long one read may take."""
        self._timeout_s = timeout_s

    def recv(self, size: int) -> bytes:
        ends_at = now() + self._timeout_s
        while True:
            with self._turn:
                try:
                    return self.raw.recv(size)
                except self._wants:
                    pass
            if not self._wait(select.POLLIN, ends_at):
                raise TimeoutError

    def sendall(self, data: bytes) -> None:
        ends_at = now() + WRITE_S
        with self._turn:
            while data:
                try:
                    data = data[self.raw.send(data) :]
                except self._wants:
                    if not self._wait(select.POLLOUT, ends_at):
                        raise TimeoutError("the server reads nothing") from None

    def _wait(self, event: int, ends_at: float) -> bool:
        poll = select.poll()
        poll.register(self.raw, event)
        return bool(poll.poll(max(ends_at - now(), 0.0) * 1000))

    def close(self) -> None:
        self.raw.close()
