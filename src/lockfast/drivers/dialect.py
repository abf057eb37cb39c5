"""What is said differently to Redis 6.2, which takes the first line of a script, `#!lua flags=…`, for a mistake in it.

There is one source of every script. A server that does not know the line is found out by its answer to EVAL; from then
on the connection, and new ones to that endpoint, send the scripts without it, by the SHA that they have then. Nothing
rests on what is remembered: a server that is asked for a SHA it does not know says so, and is brought the text in its
newest form first. So a server that was upgraded gets the flags again.
"""

from __future__ import annotations

from hashlib import sha1
from typing import Any

from lockfast.drivers.wire import ReplyError
from lockfast.flows import scripts

# What the flags do, for a server without them: at maxmemory it refuses a script at its first write that needs memory,
# unless it has written before. Both of these write nothing, for no ticket is empty, and count all the same.
# Let it go on (`allow-oom`). The last key is a sorted set in every such script but leave_all, hence pcall.
_GOES_ON = "redis.pcall('ZREM', KEYS[#KEYS], '')"
# Let it be refused before anything is done (no flag). admit_all needs nothing: its first write is refused by itself.
_REFUSED = "redis.call('ZADD', KEYS[2], 'XX', 0, '')"

_plain: dict[bytes, bytes] = {}  # SHAs and texts of our scripts, and what they are without the line


def plain_text(text: str) -> str:
    """A script without its first line, with as many lines as before."""
    first, newline, rest = text.partition("\n")
    assert first.startswith("#!lua"), first
    line = "--"
    if first == "#!lua" and "KEYS[2]" in rest:
        line = _REFUSED
    elif "allow-oom" in first:
        line = _GOES_ON
    return line + newline + rest


def knows_no_flags(reply: object) -> bool:
    """Whether this is how a server that is too old for the first line answers EVAL."""
    return isinstance(reply, ReplyError) and "compiling script" in str(reply) and str(reply).endswith("near '#'")


def plainly(request: bytes) -> bytes:
    """Requests as they were packed, with our scripts named and written as such a server knows them."""
    if not _plain:
        _learn()
    parts: list[Any] = []
    done = at = 0
    while at < len(request):
        end = request.index(b"\r\n", at)
        count = int(request[at + 1 : end])
        at = end + 2
        is_script = False
        for i in range(count):
            end = request.index(b"\r\n", at)
            size = int(request[at + 1 : end])
            after = end + 2 + size + 2
            if i == 0:
                is_script = request[end + 2 : after - 2] in (b"EVALSHA", b"EVAL")
            elif i == 1 and is_script:
                word = _plain.get(request[end + 2 : after - 2])
                if word is not None:
                    parts += (request[done:at], b"$%d\r\n%b\r\n" % (len(word), word))
                    done = after
            at = after
    return b"".join((*parts, request[done:]))


def _learn() -> None:
    known: dict[bytes, bytes] = {}
    for script in vars(scripts).values():
        if isinstance(script, scripts.Script):
            text = plain_text(script.text)
            known[script.text.encode()] = text.encode()
            known[script.sha.encode()] = sha1(text.encode(), usedforsecurity=False).hexdigest().encode()
    _plain.update(known)
