"""A cable between client and server that can be cut or pinched: it does not look at the bytes, so also for TLS."""

from __future__ import annotations

import socket
import struct
import threading
from typing import Self

FIRST = 5  # bytes: the header of a TLS record


class Cable:
    """Leads from `port` to the port of a server, both on 127.0.0.1. `cut()` resets everything that goes through it."""

    def __init__(self, to_port: int) -> None:
        self._to_port = to_port
        self._ends: list[socket.socket] = []
        self._wide = threading.Event()
        self._wide.set()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._start(self._accept)

    def cut(self) -> None:
        """In the middle of whatever is being said."""
        ends, self._ends = self._ends, []
        for end in ends:
            try:
                end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                end.shutdown(socket.SHUT_RDWR)  # wakes whoever reads it
            except OSError:
                pass
            end.close()

    def pinch(self) -> None:
        """From now on only the first bytes of what the server says come through; the rest when it is eased."""
        self._wide.clear()

    def ease(self) -> None:
        self._wide.set()

    def close(self) -> None:
        self.ease()
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _start(self, function: object, *arguments: object) -> None:
        threading.Thread(target=function, args=arguments, name="cable", daemon=True).start()  # type: ignore[arg-type]

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            server = socket.create_connection(("127.0.0.1", self._to_port))
            self._ends += (client, server)
            self._start(self._pass_on, client, server, False)
            self._start(self._pass_on, server, client, True)

    def _pass_on(self, source: socket.socket, target: socket.socket, is_reply: bool) -> None:
        try:
            while data := source.recv(65536):
                if is_reply and not self._wide.is_set():
                    target.sendall(data[:FIRST])
                    self._wide.wait()
                    data = data[FIRST:]
                target.sendall(data)
        except OSError:
            pass
        for end in (source, target):
            try:
                end.shutdown(socket.SHUT_RDWR)  # close() alone would not wake the thread that reads the other way
            except OSError:
                pass
            end.close()
