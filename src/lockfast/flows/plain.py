"""Effects over plain commands, for the textbook algorithms in `classic/`, and the few steps that they are made of.

They are run by drivers/plain_threads.py and drivers/plain_aio.py on real servers, and by the simulator on its own.
As in effects.py, a failure of the world is thrown in at the yield; an error reply is a value in the answer.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any, TypeVar

from lockfast.errors import LockfastError, Refused, Unreachable
from lockfast.flows import denials
from lockfast.flows.effects import Sleep

R = TypeVar("R")
Word = str | int | float | bytes
Words = tuple[Word, ...]

# Said by a server that will be fit again soon: ask again within the caller's time. Nothing was run.
PASSING = ("LOADING", "BUSY", "TRYAGAIN", "CLUSTERDOWN", "MASTERDOWN")


class Pipeline:
    """Send plain commands in one write. Answer: the list of their replies. Throws Unreachable as Call does.

    by: when to stop waiting for the replies, on the flow's clock.
    private: on a clean connection that only this flow uses from then on; a WATCH is undone by what others send.
    server: which of the client's servers, counted from 0.
    same: on the connection where the last private one left a WATCH. Where that is gone, what it guards must not be sent
    on another: Unreachable(sent=False).
    """

    __slots__ = ("by", "commands", "private", "same", "server")

    def __init__(
        self, commands: list[Words], by: float, private: bool = False, server: int = 0, same: bool = False
    ) -> None:
        self.commands = commands
        self.by = by
        self.private = private
        self.server = server
        self.same = same


class Everywhere:
    """Send one command to every server at once: all are written to before any reply is read.

    Answer: for each server its reply, an error reply, Unreachable, or Refused when it does not let us in. It comes as
    soon as all have answered, and at `by` at the latest. What was written to a server that did not answer may still
    run there.
    """

    __slots__ = ("by", "command")

    def __init__(self, command: Words, by: float) -> None:
        self.command = command
        self.by = by


class Do:
    """Call something that is not a flow: code of the caller's, or another part of the client. Answer: what it returns.

    It is given a function that runs a flow on the connections that this one keeps to itself. In asyncio what it
    returns is awaited, in the simulator it is run as a flow. Throws whatever it raises.
    """

    __slots__ = ("call",)

    def __init__(self, call: Callable[[Callable[[Flow[Any]], Any]], Any]) -> None:
        self.call = call


Effect = Pipeline | Everywhere | Sleep | Do
Flow = Generator[Effect, Any, R]


class Env:
    """What a classic may read without asking.

    now: seconds on a clock that never steps back. wall: the client's wall clock in seconds, which may be wrong.
    token: a new random text, 20 bytes in hex. jitter: a number in [0, 1). servers: how many the client has.
    timeout_s: how long one trip to a server may take, where the algorithm has no opinion of its own.
    """

    __slots__ = ("jitter", "now", "servers", "timeout_s", "token", "wall")

    def __init__(
        self,
        now: Callable[[], float],
        wall: Callable[[], float],
        token: Callable[[], str],
        jitter: Callable[[], float],
        servers: int = 1,
        timeout_s: float = 2.0,
    ) -> None:
        self.now = now
        self.wall = wall
        self.token = token
        self.jitter = jitter
        self.servers = servers
        self.timeout_s = timeout_s


def ask(env: Env, *words: Word) -> Flow[Any]:
    """One command, one trip. Returns its reply; raises Refused for an error reply."""
    (reply,) = yield Pipeline([words], env.now() + env.timeout_s)
    if reply == b"QUEUED":
        raise Refused("the server has only queued it: a transaction was left open on this connection", code="QUEUED")
    return checked(reply)


def watch(env: Env, key: str, *read: Word) -> Flow[Any]:
    """WATCH a key, then read. Returns the reply of `read`; `transact` or `unwatch` must follow."""
    watched, reply = yield Pipeline([("WATCH", key), read], env.now() + env.timeout_s, private=True)
    checked(watched)
    return checked(reply)


def unwatch(env: Env) -> Flow[None]:
    """Give up a WATCH without a transaction."""
    (reply,) = yield Pipeline([("UNWATCH",)], env.now() + env.timeout_s, private=True, same=True)
    checked(reply)


def transact(env: Env, *commands: Words, watched: bool = False) -> Flow[list[Any] | None]:
    """MULTI, the commands, EXEC in one trip. Returns their replies, or None when what was watched has changed."""
    by = env.now() + env.timeout_s
    replies = yield Pipeline([("MULTI",), *commands, ("EXEC",)], by, private=watched, same=watched)
    for reply in replies[:-1]:
        checked(reply)  # says which command was refused; the reply of EXEC only says that one was
    results: list[Any] | None = checked(replies[-1])
    return None if results is None else [checked(result) for result in results]


def pause(delay_s: float, ends_at: float, env: Env) -> Sleep:
    """Sleep, but not past `ends_at`."""
    return Sleep(max(0.0, min(delay_s, ends_at - env.now())))


def checked(reply: Any) -> Any:
    """The reply, unless it is an error: then raises Refused with the server's words."""
    if isinstance(reply, LockfastError):
        raise reply
    if isinstance(reply, Exception):
        words = str(reply)
        raise Refused(f"the server refuses: {words}{step_after(words)}", code=words.partition(" ")[0])
    return reply


def step_after(words: str) -> str:
    """What to do about a refusal, in brackets; "" when there is nothing to say."""
    if not denials.is_denial(words):
        return ""
    return f" ({denials.next_step(words, '~KEY for each key that you use', '&CHANNEL')})"


def gone(where: str) -> Unreachable:
    """What a Pipeline that wants the same connection is told when that is no more."""
    return Unreachable(f"the connection to {where} that kept a WATCH is gone", sent=False)


def is_clean(commands: list[Words], replies: list[Any], was_clean: bool) -> bool:
    """Whether a connection watches nothing and is in no transaction after these commands. When in doubt, it is not."""
    clean = was_clean
    for command, reply in zip(commands, replies, strict=True):
        if command[0] in ("WATCH", "MULTI"):
            clean = False
        elif command[0] in ("EXEC", "DISCARD", "UNWATCH"):
            # Between MULTI and EXEC an UNWATCH is only queued; then EXEC decides, which comes after it.
            clean = not isinstance(reply, Exception) and reply != b"QUEUED"
    return clean
