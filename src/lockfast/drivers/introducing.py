"""How a server of a quorum introduces itself on a new connection, the same for both drivers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lockfast.clock import now
from lockfast.drivers import wire
from lockfast.drivers.dialect import knows_no_flags, plain_text
from lockfast.drivers.undelivered import packed
from lockfast.flows.fleet import BLANK_S
from lockfast.flows.introduction import greeting, marking, read_greeting

if TYPE_CHECKING:
    from collections.abc import Generator

    from lockfast.drivers.undelivered import Undelivered
    from lockfast.endpoints import Endpoint
    from lockfast.errors import LockfastError
    from lockfast.flows.fleet import Fleet

Step = tuple[bytes, int] | None


def introducing(
    fleet: Fleet, place: int, prefix: str, endpoint: Endpoint, undelivered: Undelivered
) -> Generator[Step, list[Any], None]:
    """What to send, as bytes and the number of replies to it; None: pause, and come back. Raises what is refused.

    Ends when the fleet knows the server, and the server the scripts, in the form that it takes, and what it has missed.
    """

    def refused(reply: Any) -> LockfastError | None:
        return wire.failure(reply, endpoint.where) if isinstance(reply, wire.ReplyError) else None

    while True:
        offer_ms = fleet.offer_ms
        commands = greeting(prefix, offer_ms)
        sent = now()
        replies = yield b"".join([wire.pack(command) for command in commands]), len(commands)
        heard = now()
        told = read_greeting(prefix, replies, refused)
        old = [command for command, reply in zip(commands, replies, strict=True) if knows_no_flags(reply)]
        if old:  # see dialect.py
            yield b"".join([wire.pack((*command[:2], plain_text(str(command[2])))) for command in old]), len(old)
        if old or not isinstance(replies[-1], wire.ReplyError):
            endpoint.plain = bool(old)
        mark = told.new_mark
        if told.max_lease_ms and mark is not None:
            (reply,) = yield wire.pack(marking(prefix, mark)), 1
            failure = refused(reply)
            if failure is not None and not mark:
                raise failure  # without a mark it only waits for longer; one that is wrong must not stay
        if fleet.introduce(place, told, sent, heard):
            break
        asks_again_at = heard + BLANK_S / 2  # what it told is not believed for long
        while fleet.offer_ms == offer_ms and now() < asks_again_at:
            yield None
    missed = undelivered.take(place)
    if missed:
        undelivered.heard(place, missed, (yield packed(missed), len(missed)))
