"""Bytes and errors, the same for both drivers: how a request is packed, and what a server's "no" means."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import hiredis

from lockfast.endpoints import Secret
from lockfast.errors import LockfastError, Refused, Unreachable
from lockfast.flows.effects import Push
from lockfast.flows.plain import PASSING
from lockfast.flows.scripts import VARIES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from lockfast.flows.scripts import Bound
    from lockfast.flows.swapping import Swap

pack: Callable[[tuple[Any, ...]], bytes] = hiredis.pack_command
PING = pack(("PING",))
_SIZES = [f"${size}\r\n" for size in range(200)]  # how a word of that size begins; tickets and numbers are short
Reader = hiredis.Reader
ReplyError = hiredis.ReplyError
ProtocolError = hiredis.ProtocolError

# What a server says that is no master any more, or cannot act as one: nothing was run. Where sentinels name the master,
# it is asked for again.
MOVING = ("READONLY", "NOREPLICAS", "MASTERDOWN")

_KINDS = {"lock": "a lock", "rwlock": "a read/write lock", "election": "an election"}
# Kinds that are the same name with another number, and what to do then.
_NUMBERED = {
    "semaphore": ("a semaphore with limit {}", "name that limit, or none, or resize it"),
    "latch": ("a latch with count {}", "name that count, or choose another name"),
    "barrier": ("a barrier of {} parties", "name that many, or choose another name"),
}
_NEXT_STEP = {
    "READONLY": "this is a replica: connect to the primary",
    "NOAUTH": "give the password in the URL or the client",
    "WRONGPASS": "check user name and password",
    "OOM": "the server is at its maxmemory: make room",
    "MISCONF": "the server cannot write to its disk: mend that first",
    "WRONGTYPE": "another program uses this key: choose another name or prefix",
    "NOREPLICAS": "the server wants more replicas than it has",
    "MOVED": "this is a cluster: write cluster://host:port",
    "CROSSSLOT": "in a cluster, what is done in one step must be in one slot: give the keys the name's {hash tag}",
}
# How Redis 6.2 begins what went wrong inside a script; what it was comes behind.
_INSIDE = re.compile(r"^ERR Error running script \(call to f_\w+\): (?:@user_script: ?\d+: )+-?")
_NAMELESS = re.compile(r"NOPERM|ERR unknown (?:sub)?command", re.IGNORECASE)


def evalsha(bound: Bound, args: tuple[str | int | bytes, ...]) -> bytes:
    """The request that runs a script the server is expected to know.

    Packed here and not by hiredis: most of it is the same for every call of a lock, and is put together only once.
    """
    start = bound.packed
    if not start:
        if bound.script.arg_count == VARIES:
            keys = bound.name.keys
            return pack(("EVALSHA", bound.script.sha, len(keys), *keys, *bound.args, *args))
        start = _pack_start(bound)
    try:
        # Sizes are in bytes, and a ticket may come from outside: one that is not ASCII must not end early.
        if len(args) == 1:  # a ticket: leave
            last = str(args[0])
            if last.isascii():
                return f"{start}{_SIZES[len(last)]}{last}\r\n".encode()
        elif len(args) == 2:  # a number and a ticket: admit, renew
            first, last = str(args[0]), str(args[1])
            if first.isascii() and last.isascii():
                return f"{start}{_SIZES[len(first)]}{first}\r\n{_SIZES[len(last)]}{last}\r\n".encode()
    except IndexError:
        pass  # a long word
    return f"{start}{_bulks(args)}".encode()


def swap(form: Swap, fence: int, ticket: str) -> bytes:
    """The request that gives a hold back without a script, put together in the same way."""
    if not 10**15 <= fence < 5 * 10**15:  # by a clock before 2001 or after 2128
        return pack(form.words(fence, ticket))
    start, middle, size, name, end = form.packed or _pack_swap(form)
    now, end_ms = str(fence), fence // 1000 + form.lease_ms
    return f"{start}{now}{middle}{size + len(ticket)}{name}{now}{form.held}{ticket} {end_ms} {now[:-3]}{end}".encode()


def _pack_swap(form: Swap) -> tuple[str, str, int, str, str]:
    """What stands around the numbers: fences have 16 digits, times 13."""
    *_, held, _ = form.words(10**15, "")
    start = f"*6\r\n{_bulks(('SET', form.key))}${len(form.name) + 16 + len(form.free)}\r\n{form.name}"
    middle = f"{form.free}\r\n{_bulks(('IFEQ',))}$"
    form.packed = start, middle, len(held.encode()), f"\r\n{form.name}", f"{form.owner}\r\n{_bulks(('KEEPTTL',))}"
    return form.packed


def _pack_start(bound: Bound) -> str:
    script, name = bound.script, bound.name
    if not script.packed:
        script.packed = _bulks(("EVALSHA", script.sha))
    if not name.packed:
        name.packed = _bulks((len(name.keys), *name.keys))
    size = 3 + len(name.keys) + script.arg_count
    bound.packed = f"*{size}\r\n{script.packed}{name.packed}{_bulks(bound.args)}"
    return bound.packed


def _bulks(words: Iterable[str | int | bytes]) -> str:
    texts = [str(word) for word in words]
    return "".join([f"${len(text) if text.isascii() else len(text.encode())}\r\n{text}\r\n" for text in texts])


def eval_text(bound: Bound, args: tuple[str | int | bytes, ...]) -> bytes:
    """The request that brings the script along, for a server that forgot it."""
    return pack(("EVAL", bound.script.text, len(bound.name.keys), *bound.name.keys, *bound.args, *args))


def greet(commands: list[tuple[str | Secret, ...]]) -> bytes:
    """The first request of a connection. The only place where a password is seen; hand it straight to the socket."""
    return b"".join(
        [pack(tuple(word.reveal() if isinstance(word, Secret) else word for word in words)) for words in commands]
    )


def check_greeting(commands: list[tuple[str | Secret, ...]], replies: list[Any], where: str) -> None:
    """Raise what the server has against this connection."""
    for command, reply in zip(commands, replies, strict=True):
        if command == ("HELLO",) and not isinstance(reply, ReplyError):
            check_master(reply, where)
        # An account may be allowed to lock and not to name its connection, and a server may not offer that.
        if isinstance(reply, ReplyError) and not (command[0] == "CLIENT" and _NAMELESS.match(str(reply))):
            raise failure(reply, where)


def check_master(reply: list[Any], where: str) -> None:
    """Raise Unreachable(sent=False) unless the server says in its reply to HELLO that it is a master."""
    told = dict(zip(reply[::2], reply[1::2], strict=False))
    role = told.get(b"role")
    if role != b"master":
        shown = role.decode(errors="replace") if isinstance(role, bytes) else "nothing known"
        raise Unreachable(f"{where} is a {shown}", sent=False)


def check_moved(replies: list[Any], where: str) -> None:
    """Raise Unreachable if a server that sentinels named says in one of its replies that it is no master any more."""
    for reply in replies:
        if isinstance(reply, ReplyError) and any(code in str(reply) for code in MOVING):
            # Where the last one failed as well, EXEC has discarded everything.
            raise Unreachable(f"{where} answers {str(reply)!r}", sent=not isinstance(replies[-1], ReplyError))


def not_connected(error: Exception, where: str) -> LockfastError:
    """What it means that no connection came about."""
    words = str(error) or "no answer in time"
    if type(error).__module__ == "ssl":
        from lockfast.drivers import diagnosis

        told = diagnosis.of_certificates(error, where)
        if told is not None:
            return told
    return Unreachable(f"cannot connect to {where}: {words}", sent=False)


def read_push(message: Any) -> tuple[str, Push | None]:
    """The ticket that a message of the push connection is for, and what it says; nobody and None if it is no push."""
    if type(message) is not list or message[0] not in (b"message", b"smessage"):
        return "", None
    kind, ticket, number = message[2].decode().split(" ")
    return ticket, Push(kind, int(number))


def is_noscript(reply: object) -> bool:
    return isinstance(reply, ReplyError) and str(reply).startswith("NOSCRIPT")


def failure(reply: Exception, where: str, bound: Bound | None = None, moves: bool = False) -> LockfastError:
    """What an error reply means to the caller, with the server's own words in it. bound: the script that was asked.

    moves: sentinels name the server, so one that cannot take writes now may soon have a successor.
    """
    words = _INSIDE.sub("", str(reply))
    name = "this name" if bound is None else repr(bound.name.shown)
    code = words.partition(" ")[0]
    if code in PASSING or "max number of clients" in words or (moves and code in MOVING):
        return Unreachable(f"{where} answers {words!r}", sent=False)
    if code == "LOCKFASTKIND":
        _, kind, limit = words.split(" ")
        use, step = _NUMBERED.get(kind, (_KINDS.get(kind, kind), "choose another name"))
        if bound is not None and bound.args[:1] != (kind,):  # asked for as something else: no number helps
            step = "choose another name"
        return Refused(f"{name} is in use as {use.format(limit)}: {step}", code="KIND")
    if code == "LOCKFASTLIMIT":
        limit = words.partition(" ")[2]
        if limit == "0":
            words = f"the semaphore {name} has no limit yet: name one (limit=…), or resize() it first"
            return Refused(words, code="LIMIT")
        words = f"the semaphore {name} has a limit of {limit}, which is less than was asked for"
        return Refused(words, code="LIMIT")
    if code == "LOCKFASTFORMAT":
        return Refused(
            f"the key of {name} holds something that this version of Lockfast does not know: {words[15:]!r}",
            code="FORMAT",
        )
    if "invalid password" in words or "invalid username-password" in words:
        code = "WRONGPASS"
    hint = _NEXT_STEP.get(code)
    if "cluster support disabled" in words:
        hint = "this server is no cluster: write redis://host:port"
    if hint is None:
        from lockfast.drivers import rights

        hint = rights.next_step(words, bound)
        if hint is not None:
            code = "NOPERM"
        else:
            hint = rights.not_offered(words, where)
            words = words.partition(", with args")[0]
    return Refused(f"{where} refuses: {words}" + (f" ({hint})" if hint else ""), code=code)
