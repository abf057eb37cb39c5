"""Plain questions to one server, each with a deadline of its own and allowed to be refused or left unanswered.

A server that stops answering costs two time-outs at most: after the second it is asked nothing more.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Self

from lockfast.clock import now
from lockfast.drivers.connection import Connection, connect
from lockfast.drivers.door import Door
from lockfast.drivers.wire import ReplyError, pack
from lockfast.errors import Refused, Unreachable

if TYPE_CHECKING:
    from types import TracebackType

    from lockfast.endpoints import Endpoint

Words = tuple[str | int, ...]
MOST_SILENCES = 2


class NotTold(NamedTuple):
    """Why a question has no answer: the server's words, or that there were none."""

    command: str
    words: str
    silent: bool = False

    @property
    def code(self) -> str:
        """The first word of a refusal: NOPERM, READONLY, OOM …"""
        return "" if self.silent else self.words.partition(" ")[0]


class Asker:
    """One server, in a `with`. Entering connects: it raises Unreachable or Refused when nobody is let in.

    Making it reads the certificates: Refused (SETTINGS) when that fails.
    """

    def __init__(self, endpoint: Endpoint, timeout_s: float, by: float) -> None:
        self.endpoint = endpoint
        self.silences: list[str] = []
        self._timeout_s = timeout_s
        self._by = by
        try:
            self._door = Door(endpoint)
        except (OSError, ValueError) as error:
            raise Refused(f"its TLS settings cannot be used: {error}", code="SETTINGS") from error
        self._connection: Connection | None = None

    def __enter__(self) -> Self:
        try:
            self._connection = self._connect()
        except BaseException:
            self._door.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.hang_up()
        self._door.close()

    def ask(self, *words: str | int) -> Any:
        """The reply, or NotTold."""
        return self.ask_all([words])[0]

    def ask_all(self, questions: list[Words]) -> list[Any]:
        """A reply or NotTold for each, in one trip."""
        names = [" ".join(str(word) for word in words[: 2 if words[0] in _CONTAINERS else 1]) for words in questions]
        if len(self.silences) >= MOST_SILENCES or now() >= self._by:
            return [NotTold(name, "was not asked any more", silent=True) for name in names]
        by = min(now() + self._timeout_s, self._by)
        try:
            if self._connection is None:
                self._connection = self._connect()
            self._connection.send(b"".join([pack(words) for words in questions]), len(questions))
            replies = self._connection.read_each(by)
        except Unreachable as error:
            self.hang_up()  # it is owed replies: what comes next needs a connection of its own
            self.silences.append(names[0] if len(names) == 1 else f"{names[0]} … {names[-1]}")
            return [NotTold(name, str(error), silent=True) for name in names]
        return [
            NotTold(name, str(reply)) if isinstance(reply, ReplyError) else reply
            for name, reply in zip(names, replies, strict=True)
        ]

    def _connect(self) -> Connection:
        by = min(now() + self._timeout_s, self._by)
        try:
            return connect(self.endpoint, self._door.path(), by)
        except Unreachable as failure:
            self._door.revive(failure, by)
            return connect(self.endpoint, self._door.path(), by)

    def hang_up(self) -> None:
        """Close the connection; the next question has a new one."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()


_CONTAINERS = ("CONFIG", "ACL", "CLUSTER", "SENTINEL", "CLIENT")


def text(reply: Any) -> str:
    """A reply as text; "" for what is none."""
    return reply.decode(errors="replace") if isinstance(reply, bytes) else ""


def pairs(reply: Any) -> dict[str, str]:
    """A flat list of names and values, as CONFIG GET and SENTINEL MASTER give it."""
    words = [text(word) for word in reply] if isinstance(reply, list) else []
    return dict(zip(words[::2], words[1::2], strict=False))


def lines(reply: Any) -> dict[str, str]:
    """Lines of "name:value", as INFO and CLUSTER INFO give them."""
    found = [line.partition(":") for line in text(reply).splitlines() if not line.startswith("#")]
    return {name: value for name, colon, value in found if colon}
