"""The wire format of Redis (RESP2 and RESP3), read frame by frame with its exact bytes, and a small client.

Nothing here is shared with the library or with redis-py, so that a mistake there cannot hide from the tests.
"""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING, Any, NamedTuple, Self, TypeAlias

if TYPE_CHECKING:
    from types import TracebackType

Argument: TypeAlias = str | bytes | int | float


class ServerError(Exception):
    """An error reply; the message is the server's own words."""


class Frame(NamedTuple):
    """One whole message: its bytes as they came, and their meaning. Bulk strings are bytes, statuses str."""

    raw: bytes
    value: Any


class _Incomplete(Exception):
    """The rest of the frame has not arrived yet."""


def pack(*arguments: Argument) -> bytes:
    """A request as clients send it: an array of bulk strings."""
    parts = [b"*%d\r\n" % len(arguments)]
    for argument in arguments:
        data = argument if isinstance(argument, bytes) else str(argument).encode()
        parts.append(b"$%d\r\n%s\r\n" % (len(data), data))
    return b"".join(parts)


class FrameReader:
    """Cuts a stream of bytes into frames. `inline` also takes plain lines such as `PING`, as servers do."""

    def __init__(self, *, inline: bool = False) -> None:
        self._buffer = bytearray()
        self._inline = inline

    def feed(self, data: bytes) -> list[Frame]:
        """Every frame that is whole now; what is left waits for more bytes."""
        self._buffer += data
        frames = []
        while self._buffer:
            try:
                value, end = self._parse(0)
            except _Incomplete:
                break
            frames.append(Frame(bytes(self._buffer[:end]), value))
            del self._buffer[:end]
        return frames

    def take_rest(self) -> bytes:
        """The bytes that are no whole frame, for a stream that stops being frames (replication, MONITOR)."""
        rest = bytes(self._buffer)
        self._buffer.clear()
        return rest

    def _line(self, start: int) -> tuple[bytes, int]:
        end = self._buffer.find(b"\n", start)
        if end < 0:
            raise _Incomplete
        return bytes(self._buffer[start:end]).removesuffix(b"\r"), end + 1

    def _parse(self, start: int) -> tuple[Any, int]:
        line, end = self._line(start)
        mark, rest = line[:1], line[1:]
        if self._inline and start == 0 and mark != b"*":
            return line.split(), end
        match mark:
            case b"+":
                return rest.decode(errors="replace"), end
            case b"-":
                return ServerError(rest.decode(errors="replace")), end
            case b":":
                return int(rest), end
            case b"$" | b"=" | b"!":
                return self._bulk(mark, int(rest), end)
            case b"*" | b"~" | b">":
                return self._array(int(rest), end)
            case b"%":
                flat, end = self._array(2 * int(rest), end)
                return dict(zip(flat[::2], flat[1::2], strict=True)), end
            case b"|":  # Attributes belong to the reply behind them; together they are one frame.
                _, end = self._array(2 * int(rest), end)
                return self._parse(end)
            case b"_":
                return None, end
            case b"#":
                return rest == b"t", end
            case b",":
                return float(rest), end
            case b"(":
                return int(rest), end
        raise ValueError(f"not RESP: {line[:80]!r}")

    def _bulk(self, mark: bytes, length: int, start: int) -> tuple[Any, int]:
        if length < 0:
            return None, start
        end = start + length + 2
        if len(self._buffer) < end:
            raise _Incomplete
        data = bytes(self._buffer[start : end - 2])
        return (ServerError(data.decode(errors="replace")) if mark == b"!" else data), end

    def _array(self, length: int, start: int) -> tuple[Any, int]:
        if length < 0:
            return None, start
        items = []
        for _ in range(length):
            item, start = self._parse(start)
            items.append(item)
        return items, start


class Wire:
    """A plain blocking connection: `call` for request and reply, `send` and `read` for anything else."""

    def __init__(self, address: str | tuple[str, int], *, timeout_s: float = 5.0, password: str = "") -> None:
        family = socket.AF_UNIX if isinstance(address, str) else socket.AF_INET
        self.socket = socket.socket(family, socket.SOCK_STREAM)
        self._reader = FrameReader()
        self._ready: list[Frame] = []
        try:
            self.socket.settimeout(timeout_s)
            self.socket.connect(address)
            if password:
                self.call("AUTH", password)
        except BaseException:
            self.socket.close()
            raise

    def send(self, *arguments: Argument) -> None:
        self.socket.sendall(pack(*arguments))

    def read(self) -> Any:
        """The next reply or push; error replies are returned as ServerError values, also inside arrays."""
        return self.read_frame().value

    def read_frame(self) -> Frame:
        while not self._ready:
            data = self.socket.recv(65536)
            if not data:
                raise ConnectionError("the server closed the connection")
            self._ready += self._reader.feed(data)
        return self._ready.pop(0)

    def call(self, *arguments: Argument) -> Any:
        self.send(*arguments)
        reply = self.read()
        if isinstance(reply, ServerError):
            raise reply
        return reply

    def close(self) -> None:
        self.socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
