"""Commands on keys whatever they hold, and those that touch no key."""

from __future__ import annotations

from fnmatch import translate
from re import compile as compile_pattern
from typing import TYPE_CHECKING

from lockfast.sim.commands import MANY, OK, Status, command, integer, moment_ms, syntax_error
from lockfast.sim.keyspace import ReplyError, SortedSet

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lockfast.sim.commands import Reply, Run
    from lockfast.sim.keyspace import Keyspace

# Keys


@command("DEL", 1, MANY, writes=True)
def _del(db: Keyspace, args: Sequence[bytes]) -> Reply:
    count = 0
    for key in args:
        if db.get(key) is not None:
            db.forget(key)
            count += 1
    return count


@command("EXISTS", 1, MANY)
def _exists(db: Keyspace, args: Sequence[bytes]) -> Reply:
    return sum([db.get(key) is not None for key in args])


@command("TYPE", 1)
def _type(db: Keyspace, args: Sequence[bytes]) -> Reply:
    return _TYPES[type(db.get(args[0]))]


_TYPES = {type(None): Status(b"none"), bytes: Status(b"string"), dict: Status(b"hash"), SortedSet: Status(b"zset")}
_TYPE_NAMES = frozenset(b"string list set zset hash stream".split())


def _expire(name: str, option: bytes) -> Run:
    def run(db: Keyspace, args: Sequence[bytes]) -> Reply:
        if len(args) > 2:
            raise ReplyError(f"ERR Unsupported option {args[2].decode(errors='replace')}")
        at_ms = moment_ms(db, option, args[1], name)
        key = args[0]
        if db.get(key) is None:
            return 0
        if at_ms <= db.now_ms:
            db.forget(key)
            return 1
        db.expires[key] = at_ms
        if db.watched:
            db.touch(key)
        return 1

    return run


for _name, _option in (("expire", b"EX"), ("pexpire", b"PX"), ("expireat", b"EXAT"), ("pexpireat", b"PXAT")):
    command(_name.upper(), 2, MANY, writes=True)(_expire(_name, _option))


def _ms_left(db: Keyspace, key: bytes) -> int:
    if db.get(key) is None:
        return -2
    at_ms = db.expires.get(key)
    return -1 if at_ms is None else at_ms - db.now_ms


@command("PTTL", 1)
def _pttl(db: Keyspace, args: Sequence[bytes]) -> Reply:
    return _ms_left(db, args[0])


@command("TTL", 1)
def _ttl(db: Keyspace, args: Sequence[bytes]) -> Reply:
    ms = _ms_left(db, args[0])
    return ms if ms < 0 else (ms + 500) // 1000


@command("PERSIST", 1, writes=True)
def _persist(db: Keyspace, args: Sequence[bytes]) -> Reply:
    if db.get(args[0]) is None or db.expires.pop(args[0], None) is None:
        return 0
    if db.watched:
        db.touch(args[0])
    return 1


@command("DBSIZE", 0)
def _dbsize(db: Keyspace, args: Sequence[bytes]) -> Reply:
    db.drop_expired()
    return len(db.data)


@command("SCAN", 1, MANY)
def _scan(db: Keyspace, args: Sequence[bytes]) -> Reply:
    """All keys in one answer; servers may answer so too."""
    if not args[0].isdigit():
        raise ReplyError("ERR invalid cursor")
    matches = wanted = None
    for i in range(1, len(args), 2):
        option, value = args[i].upper(), args[i + 1] if i + 1 < len(args) else None
        if value is None or (option == b"COUNT" and integer(value) < 1):
            raise syntax_error()
        if option == b"MATCH":
            matches = compile_pattern(translate(value.decode("latin-1")))
        elif option == b"TYPE":
            wanted = value.lower()
            if wanted not in _TYPE_NAMES:
                raise ReplyError(f"ERR unknown type name '{value.decode(errors='replace')}'")
        elif option != b"COUNT":
            raise syntax_error()
    db.drop_expired()
    keys = [key for key, value in db.data.items() if wanted is None or _TYPES[type(value)] == wanted]
    if matches:
        keys = [key for key in keys if matches.match(key.decode("latin-1"))]
    return [b"0", keys if args[0] == b"0" else []]


@command("FLUSHALL", 0, 1, writes=True)
def _flushall(db: Keyspace, args: Sequence[bytes]) -> Reply:
    if args and args[0].upper() not in (b"SYNC", b"ASYNC"):
        raise syntax_error()
    db.clear()
    return OK


# No key


@command("PUBLISH", 2, writes=True)  # not a write of keys, but refused where writes are
def _publish(db: Keyspace, args: Sequence[bytes]) -> Reply:
    return db.publish(args[0], args[1])


@command("TIME", 0)
def _time(db: Keyspace, args: Sequence[bytes]) -> Reply:
    seconds, micros = divmod(db.now_us, 1_000_000)
    return [b"%d" % seconds, b"%d" % micros]


@command("PING", 0, 1)
def _ping(db: Keyspace, args: Sequence[bytes]) -> Reply:
    return args[0] if args else Status(b"PONG")


@command("ECHO", 1)
def _echo(db: Keyspace, args: Sequence[bytes]) -> Reply:
    return args[0]


@command("WAIT", 2)
def _wait(db: Keyspace, args: Sequence[bytes]) -> Reply:
    """There are no replicas that could have acknowledged anything."""
    integer(args[0])
    if integer(args[1], "ERR timeout is not an integer or out of range") < 0:
        raise ReplyError("ERR timeout is negative")
    return 0
