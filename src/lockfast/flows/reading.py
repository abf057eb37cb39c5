"""Which keys a command reads, and which commands have no place in a transaction.

A read is carried out at once, before the transaction. Of a key that is not watched it would be a silent bug: nobody
notices when it changes. So only commands whose keys are known here are run as they are.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lockfast.flows.plain import Word, Words


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


# Their first argument is the key.
_ONE_KEY = _names("""
    BITCOUNT BITFIELD_RO BITPOS DUMP EXPIRETIME GEODIST GEOHASH GEOPOS GEOSEARCH GET GETBIT GETRANGE HEXISTS
    HEXPIRETIME HGET HGETALL HKEYS HLEN HMGET HPEXPIRETIME HPTTL HRANDFIELD HSCAN HSTRLEN HTTL HVALS LINDEX LLEN LPOS
    LRANGE PEXPIRETIME PTTL SCARD SISMEMBER SMEMBERS SMISMEMBER SRANDMEMBER SSCAN STRLEN SUBSTR TTL TYPE XLEN XRANGE
    XREVRANGE ZCARD ZCOUNT ZLEXCOUNT ZMSCORE ZRANDMEMBER ZRANGE ZRANGEBYLEX ZRANGEBYSCORE ZRANK ZREVRANGE
    ZREVRANGEBYLEX ZREVRANGEBYSCORE ZREVRANK ZSCAN ZSCORE
""")
# All of their arguments are keys.
_ONLY_KEYS = _names("EXISTS MGET SDIFF SINTER SUNION")
# Which argument says how many keys follow it.
_COUNTED = dict.fromkeys(_names("SINTERCARD ZDIFF ZINTER ZINTERCARD ZUNION"), 1)
_COUNTED |= dict.fromkeys(_names("EVAL_RO EVALSHA_RO FCALL_RO"), 2)
# They change the connection, or the transaction itself.
_NOT_HERE = _names("""
    ASKING AUTH CLIENT DISCARD EXEC HELLO MONITOR MULTI PSUBSCRIBE PSYNC PUNSUBSCRIBE QUIT READONLY READWRITE RESET
    SELECT SSUBSCRIBE SUBSCRIBE SUNSUBSCRIBE SYNC UNSUBSCRIBE UNWATCH WATCH
""")


def command(words: Sequence[object]) -> Words:
    """The command, its name in capitals. TypeError or ValueError for what cannot be sent, or not in a transaction."""
    if not words or not isinstance(words[0], str) or not words[0]:
        raise TypeError(f"a command begins with its name, got {words!r}")
    for word in words:
        if isinstance(word, bool) or not isinstance(word, (str, bytes, int, float)):
            raise TypeError(f"a command is made of str, bytes, int and float, got {word!r} in {words[0]}")
    name = words[0].upper()
    if name in _NOT_HERE:
        raise ValueError(f"{name} cannot be part of a transaction: it changes the connection or the transaction itself")
    return (name, *words[1:])  # type: ignore[arg-type]  # each was looked at


def keys_read(words: Words) -> tuple[Word, ...] | None:
    """The keys that a command reads; None when it is not known here as one that only reads."""
    name = words[0]
    if name in _ONE_KEY:
        return words[1:2]
    if name in _ONLY_KEYS:
        return words[1:]
    place = _COUNTED.get(str(name))
    if place is None:
        return None
    try:
        count = int(words[place])
    except (IndexError, ValueError):
        return ()  # the server will say what is wrong with it
    return words[place + 1 : place + 1 + count]
