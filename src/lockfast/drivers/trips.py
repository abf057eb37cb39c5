"""Several scripts in one trip, the same for both drivers; and the WAIT that tells how many replicas have it.

WAIT counts the writes of its own connection only, so it goes out behind them, in the same write.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lockfast.clock import now
from lockfast.drivers import wire
from lockfast.drivers.dialect import knows_no_flags
from lockfast.errors import LockfastError, Unreachable

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

    from lockfast.drivers.connection import Connection
    from lockfast.drivers.link import Link
    from lockfast.endpoints import Endpoint
    from lockfast.flows.copying import Copies
    from lockfast.flows.effects import Call

    Answers = tuple[list[Any], int | LockfastError]  # the number of replicas, or why the server does not tell it


def on_connection(connection: Connection, calls: Sequence[Call], copies: Copies | None, by: float) -> Answers:
    """For each call its reply or what that means, and how many replicas have what they wrote (0 if nobody asks)."""
    trip = _trip(calls, copies, by, connection.endpoint, connection.address is not None)
    request, count = next(trip)
    while True:
        connection.send(request, count)
        try:
            request, count = trip.send(connection.read_each(by))
        except StopIteration as stop:
            answers: Answers = stop.value
            return answers


async def on_link(link: Link, calls: Sequence[Call], copies: Copies | None, by: float) -> Answers:
    """The same for asyncio."""
    trip = _trip(calls, copies, by, link.endpoint, link.address is not None)
    request, count = next(trip)
    while True:
        replies = await link.request_many(request, count, by)
        try:
            request, count = trip.send(replies)
            link.plain = link.endpoint.plain
        except StopIteration as stop:
            answers: Answers = stop.value
            return answers


def only(answers: Answers) -> tuple[Any, int | LockfastError]:
    """What a trip with one call came to. Raises what its reply means if that is an error."""
    (answer,), copied = answers
    if isinstance(answer, LockfastError):
        raise answer
    return answer, copied


def _trip(
    calls: Sequence[Call], copies: Copies | None, by: float, endpoint: Endpoint, moves: bool
) -> Generator[tuple[bytes, int], list[Any], Answers]:
    """What to send, as bytes and the number of replies to it; ends with the answers.

    moves: a sentinel named the server. One that is no master any more has run nothing: Unreachable, for all of them.
    """
    where = endpoint.where
    waits = 0 if copies is None else 1
    asks = b"".join([wire.evalsha(call.bound, call.args) for call in calls])
    replies = yield asks + _wait(copies, by), len(calls) + waits
    copied: Any = replies.pop() if waits else 0
    again = [place for place, reply in enumerate(replies) if wire.is_noscript(reply)]
    if again:  # the second WAIT counts for what was written before the first, too
        texts = b"".join([wire.eval_text(calls[place].bound, calls[place].args) for place in again])
        told = yield texts + _wait(copies, by), len(again) + waits
        if any(knows_no_flags(reply) for reply in told):
            endpoint.plain = True  # see dialect.py: whoever sends them now writes them as this server knows them
            told = yield texts + _wait(copies, by), len(again) + waits
        copied = told.pop() if waits else 0
        for place, reply in zip(again, told, strict=True):
            replies[place] = reply
    answers = [
        wire.failure(reply, where, call.bound, moves) if isinstance(reply, wire.ReplyError) else reply
        for call, reply in zip(calls, replies, strict=True)
    ]
    for answer in answers:
        if moves and isinstance(answer, Unreachable):
            raise answer
    if isinstance(copied, wire.ReplyError):
        if str(copied).startswith("UNBLOCKED"):  # it has become a replica while it waited for its own
            raise Unreachable(f"{where} answers {str(copied)!r}")
        copied = wire.failure(copied, where, None, moves)
    return answers, copied


def _wait(copies: Copies | None, by: float) -> bytes:
    """The WAIT for copies, if they are asked for; with time left for the reply, however late in the trip it is sent."""
    if copies is None:
        return b""
    left_ms = int((by - now()) * 500)
    return wire.pack(("WAIT", copies.replicas, max(1, min(copies.wait_ms, left_ms))))  # 0 would be without end
