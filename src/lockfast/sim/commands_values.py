"""Commands on strings and hashes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lockfast.sim.commands import (
    EXPIRY_UNITS,
    MANY,
    OK,
    command,
    in_range,
    integer,
    moment_ms,
    syntax_error,
    wrong_count,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lockfast.sim.commands import Reply
    from lockfast.sim.keyspace import Keyspace

# Strings


@command("GET", 1)
def _get(db: Keyspace, args: Sequence[bytes]) -> Reply:
    return db.string(args[0])


@command("MGET", 1, MANY)
def _mget(db: Keyspace, args: Sequence[bytes]) -> Reply:
    # A key of another type is no error here, it is as if it were not there.
    return [value if isinstance(value := db.get(key), bytes) else None for key in args]


@command("SET", 2, MANY, writes=True)
def _set(db: Keyspace, args: Sequence[bytes]) -> Reply:
    key, value = args[0], args[1]
    expiry: tuple[bytes, bytes] | None = None
    expected: bytes | None = None
    unless = only_if = want_old = keep_expiry = False
    words = iter(args[2:])
    for word in words:
        option = word.upper()
        if option in EXPIRY_UNITS and not expiry and not keep_expiry and (number := next(words, None)) is not None:
            expiry = (option, number)
        elif option == b"KEEPTTL" and not expiry:
            keep_expiry = True
        elif option == b"IFEQ" and not unless and not only_if and (value_now := next(words, None)) is not None:
            expected, only_if = value_now, True
        elif option == b"NX" and not only_if:
            unless = True
        elif option == b"XX" and not unless and expected is None:
            only_if = True
        elif option == b"GET":
            want_old = True
        else:
            raise syntax_error()
    expiry_ms = moment_ms(db, *expiry, "set", positive=True) if expiry else None
    old = db.string(key) if want_old or expected is not None else db.get(key)
    if (unless if old is not None else only_if) or (expected is not None and old != expected):
        return old if want_old else None
    if expiry_ms is not None and expiry_ms <= db.now_ms:  # it would be gone at once
        if old is not None:
            db.forget(key)
        return old if want_old else OK
    kept_ms = db.expires.get(key) if keep_expiry else expiry_ms
    db.put(key, value)
    if kept_ms is not None:
        db.expires[key] = kept_ms
    return old if want_old else OK


@command("SETNX", 2, writes=True)
def _setnx(db: Keyspace, args: Sequence[bytes]) -> Reply:
    if db.get(args[0]) is not None:
        return 0
    db.put(args[0], args[1])
    return 1


@command("GETSET", 2, writes=True)
def _getset(db: Keyspace, args: Sequence[bytes]) -> Reply:
    old = db.string(args[0])
    db.put(args[0], args[1])
    return old


@command("INCR", 1, writes=True)
def _incr(db: Keyspace, args: Sequence[bytes]) -> Reply:
    return _add(db, args[0], 1)


@command("INCRBY", 2, writes=True)
def _incrby(db: Keyspace, args: Sequence[bytes]) -> Reply:
    return _add(db, args[0], integer(args[1]))


def _add(db: Keyspace, key: bytes, step: int) -> int:
    text = db.string(key)
    number = 0 if text is None else integer(text)
    total = in_range(number + step, "ERR increment or decrement would overflow")
    db.data[key] = b"%d" % total  # not put(): the expiry stays
    if db.watched:
        db.touch(key)
    return total


# Hashes


@command("HGET", 2)
def _hget(db: Keyspace, args: Sequence[bytes]) -> Reply:
    fields = db.hash(args[0])
    return fields.get(args[1]) if fields else None


@command("HSET", 3, MANY, writes=True)
def _hset(db: Keyspace, args: Sequence[bytes]) -> Reply:
    if len(args) % 2 == 0:
        raise wrong_count("hset")
    key = args[0]
    fields = db.hash(key)
    if fields is None:
        fields = db.data[key] = {}
    before = len(fields)
    for i in range(1, len(args), 2):
        fields[args[i]] = args[i + 1]
    if db.watched:
        db.touch(key)
    return len(fields) - before


@command("HDEL", 2, MANY, writes=True)
def _hdel(db: Keyspace, args: Sequence[bytes]) -> Reply:
    fields = db.hash(args[0])
    if not fields:
        return 0
    before = len(fields)
    for field in args[1:]:
        fields.pop(field, None)
    count = before - len(fields)
    if count:
        db.changed(args[0], fields)
    return count


@command("HEXISTS", 2)
def _hexists(db: Keyspace, args: Sequence[bytes]) -> Reply:
    return int(args[1] in (db.hash(args[0]) or ()))


@command("HINCRBY", 3, writes=True)
def _hincrby(db: Keyspace, args: Sequence[bytes]) -> Reply:
    step, fields = integer(args[2]), db.hash(args[0])
    number = integer((fields or {}).get(args[1], b"0"), "ERR hash value is not an integer")
    total = in_range(number + step, "ERR increment or decrement would overflow")
    _hset(db, (args[0], args[1], b"%d" % total))
    return total


@command("HGETALL", 1)
def _hgetall(db: Keyspace, args: Sequence[bytes]) -> Reply:
    return [word for pair in (db.hash(args[0]) or {}).items() for word in pair]


@command("HLEN", 1)
def _hlen(db: Keyspace, args: Sequence[bytes]) -> Reply:
    return len(db.hash(args[0]) or ())
