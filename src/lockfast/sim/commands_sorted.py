"""Commands on sorted sets."""

from __future__ import annotations

from bisect import bisect_left
from functools import lru_cache
from math import inf, isnan, nextafter
from typing import TYPE_CHECKING

from lockfast.sim.commands import MANY, command, integer, number_text, real, syntax_error
from lockfast.sim.keyspace import ReplyError, SortedSet

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from lockfast.sim.commands import Reply
    from lockfast.sim.keyspace import Keyspace

# Writing


@command("ZADD", 3, MANY, writes=True)
def _zadd(db: Keyspace, args: Sequence[bytes]) -> Reply:
    key = args[0]
    start, options = 1, set()
    while start < len(args) and (option := args[start].upper()) in (b"NX", b"XX", b"CH"):
        options.add(option)
        start += 1
    if start == len(args) or (len(args) - start) % 2:
        raise syntax_error()
    unless, only_if = b"NX" in options, b"XX" in options
    if unless and only_if:
        raise ReplyError("ERR XX and NX options at the same time are not compatible")
    scores = [real(args[i]) for i in range(start, len(args), 2)]
    found = db.sorted(key)
    if found is None and only_if:
        return 0
    members = SortedSet() if found is None else found
    added = changed = 0
    for member, score in zip(args[start + 1 :: 2], scores, strict=True):
        old = members.scores.get(member)
        if old is None:
            if not only_if:
                members.put(member, score)
                added += 1
        elif old != score and not unless:
            members.put(member, score)
            changed += 1
    if found is None:
        db.data[key] = members
    if (added or changed) and db.watched:
        db.touch(key)
    return added + changed if b"CH" in options else added


@command("ZINCRBY", 3, writes=True)
def _zincrby(db: Keyspace, args: Sequence[bytes]) -> Reply:
    key, step, member = args[0], real(args[1]), args[2]
    members = db.sorted(key)
    old = members.scores.get(member) if members is not None else None
    score = step if old is None else old + step
    if isnan(score):
        raise ReplyError("ERR resulting score is not a number (NaN)")
    if members is None:
        members = db.data[key] = SortedSet()
    members.put(member, score)
    if score != old and db.watched:
        db.touch(key)
    return number_text(score)


@command("ZREM", 2, MANY, writes=True)
def _zrem(db: Keyspace, args: Sequence[bytes]) -> Reply:
    members = db.sorted(args[0])
    if members is None:
        return 0
    count = sum([members.drop(member) for member in args[1:]])
    if count:
        db.changed(args[0], members)
    return count


@command("ZREMRANGEBYSCORE", 3, writes=True)
def _zremrangebyscore(db: Keyspace, args: Sequence[bytes]) -> Reply:
    low, high = _bound(args[1]), _bound(args[2])
    members = db.sorted(args[0])
    return _drop(db, args[0], members, *_between(members, low, high)) if members is not None else 0


@command("ZREMRANGEBYRANK", 3, writes=True)
def _zremrangebyrank(db: Keyspace, args: Sequence[bytes]) -> Reply:
    start, stop = integer(args[1]), integer(args[2])
    members = db.sorted(args[0])
    return _drop(db, args[0], members, *_ranks(start, stop, len(members))) if members is not None else 0


@command("ZPOPMIN", 1, MANY, writes=True)
def _zpopmin(db: Keyspace, args: Sequence[bytes]) -> Reply:
    if len(args) > 2:
        raise syntax_error()
    complaint = "ERR value is out of range, must be positive"
    count = integer(args[1], complaint) if len(args) > 1 else 1
    if count < 0:
        raise ReplyError(complaint)
    members = db.sorted(args[0])
    if members is None:
        return []
    popped = _with_scores(members.order[:count])
    _drop(db, args[0], members, 0, count)
    return popped


def _drop(db: Keyspace, key: bytes, members: SortedSet, start: int, stop: int) -> int:
    count = members.drop_slice(start, stop)
    if count:
        db.changed(key, members)
    return count


# Reading


@command("ZSCORE", 2)
def _zscore(db: Keyspace, args: Sequence[bytes]) -> Reply:
    members = db.sorted(args[0])
    score = members.scores.get(args[1]) if members is not None else None
    return None if score is None else number_text(score)


@command("ZRANK", 2)
def _zrank(db: Keyspace, args: Sequence[bytes]) -> Reply:
    members = db.sorted(args[0])
    return members.rank(args[1]) if members is not None else None


@command("ZCARD", 1)
def _zcard(db: Keyspace, args: Sequence[bytes]) -> Reply:
    return len(db.sorted(args[0]) or ())


@command("ZCOUNT", 3)
def _zcount(db: Keyspace, args: Sequence[bytes]) -> Reply:
    low, high = _bound(args[1]), _bound(args[2])
    members = db.sorted(args[0])
    if members is None:
        return 0
    start, stop = _between(members, low, high)
    return stop - start


@command("ZRANGE", 3, MANY)
def _zrange(db: Keyspace, args: Sequence[bytes]) -> Reply:
    """By rank only: by score there is ZRANGEBYSCORE."""
    first, last, with_scores, reverse = _zrange_words(*args[1:])
    members = db.sorted(args[0])
    if members is None:
        return []
    order = members.order[::-1] if reverse else members.order
    if first == last:  # the first or the last one: what scripts ask for most
        if not -len(order) <= first < len(order):
            return []
        score, member = order[first]
        return [member, number_text(score)] if with_scores else [member]
    start, stop = _ranks(first, last, len(order))
    return _with_scores(order[start:stop]) if with_scores else [member for _, member in order[start:stop]]


@lru_cache(256)
def _zrange_words(first: bytes, last: bytes, *options: bytes) -> tuple[int, int, bool, bool]:
    wanted = {option.upper() for option in options}
    if wanted - {b"WITHSCORES", b"REV"}:
        raise syntax_error()
    return integer(first), integer(last), b"WITHSCORES" in wanted, b"REV" in wanted


@command("ZRANGEBYSCORE", 3, MANY)
def _zrangebyscore(db: Keyspace, args: Sequence[bytes]) -> Reply:
    with_scores, offset, count = False, 0, -1
    words = list(args[3:])
    while words:
        option = words.pop(0).upper()
        if option == b"WITHSCORES":
            with_scores = True
        elif option == b"LIMIT" and len(words) >= 2:
            offset, count = integer(words.pop(0)), integer(words.pop(0))
        else:
            raise syntax_error()
    low, high = _bound(args[1]), _bound(args[2])
    members = db.sorted(args[0])
    if members is None or offset < 0:
        return []
    start, stop = _between(members, low, high)
    start += offset
    if count >= 0:
        stop = min(stop, start + count)
    found = members.order[start:stop]
    return _with_scores(found) if with_scores else [member for _, member in found]


def _with_scores(order: list[tuple[float, bytes]]) -> list[bytes]:
    return [word for score, member in order for word in (member, number_text(score))]


def _ranks(first: int, last: int, count: int) -> tuple[int, int]:
    """Start and end of a slice; negative ranks count from the highest."""
    if first < 0:
        first = max(first + count, 0)
    if last < 0:
        last += count
    return first, max(last + 1, 0)


_Bound = tuple[float, bool]  # a score, and whether it is left out itself


@lru_cache(256)
def _bound(text: bytes) -> _Bound:
    left_out = text.startswith(b"(")
    number = text[1:] if left_out else text
    return real(number or b"0", "ERR min or max is not a float"), left_out


def _between(members: SortedSet, low: _Bound, high: _Bound) -> tuple[int, int]:
    """Start and end of the slice with these scores."""
    start = _cut(members.order, low[0], after=low[1])
    return start, max(start, _cut(members.order, high[0], after=not high[1]))


def _cut(order: list[tuple[float, bytes]], score: float, *, after: bool) -> int:
    if after:
        if score == inf:
            return len(order)
        score = nextafter(score, inf)
    return bisect_left(order, (score,))  # a score alone sorts before all members that have it


# Combining


@command("ZINTERSTORE", 3, MANY, writes=True)
def _zinterstore(db: Keyspace, args: Sequence[bytes]) -> Reply:
    return _combine(db, args, "zinterstore", everywhere=True)


@command("ZUNIONSTORE", 3, MANY, writes=True)
def _zunionstore(db: Keyspace, args: Sequence[bytes]) -> Reply:
    return _combine(db, args, "zunionstore", everywhere=False)


def _sum(a: float, b: float) -> float:
    total = a + b
    return 0.0 if isnan(total) else total  # the two infinities cancel out


_AGGREGATES: dict[bytes, Callable[[float, float], float]] = {b"SUM": _sum, b"MIN": min, b"MAX": max}


def _combine(db: Keyspace, args: Sequence[bytes], name: str, *, everywhere: bool) -> int:
    """Store the members that are in all of some sorted sets, or in any of them."""
    key_count = integer(args[1])
    if key_count < 1:
        raise ReplyError(f"ERR at least 1 input key is needed for '{name}' command")
    if key_count > len(args) - 2:
        raise syntax_error()
    found = [db.sorted(key) for key in args[2 : 2 + key_count]]
    weights, aggregate = _options(list(args[2 + key_count :]), key_count)
    # The smallest first, as the servers add them up: the order of a sum shows in its last digit.
    weighted = sorted(zip(found, weights, strict=True), key=lambda pair: len(pair[0] or ()))
    result: dict[bytes, float] = {}
    for i, (members, weight) in enumerate(weighted):
        before, result = result, {} if everywhere else result
        for member, score in members.scores.items() if members else ():
            value = weight * score
            # Nothing times infinity is nothing; an intersection sees to that in its first set only.
            if isnan(value) and (i == 0 or not everywhere):
                value = 0.0
            if member in before:
                result[member] = aggregate(before[member], value)
            elif i == 0 or not everywhere:
                result[member] = value
    if result:
        db.put(args[0], SortedSet(result))
    elif db.get(args[0]) is not None:
        db.forget(args[0])
    return len(result)


def _options(words: list[bytes], key_count: int) -> tuple[list[float], Callable[[float, float], float]]:
    weights, aggregate = [1.0] * key_count, _AGGREGATES[b"SUM"]
    while words:
        option = words.pop(0).upper()
        if option == b"WEIGHTS" and len(words) >= key_count:
            weights = [real(words.pop(0), "ERR weight value is not a float") for _ in range(key_count)]
        elif option == b"AGGREGATE" and words and (chosen := words.pop(0).upper()) in _AGGREGATES:
            aggregate = _AGGREGATES[chosen]
        else:
            raise syntax_error()
    return weights, aggregate
