"""What a server remembers: values under keys, when they expire, who watches them, who listens on which channel.

A string is `bytes`, a hash is a `dict`, a sorted set is a `SortedSet`; an empty hash or sorted set is never kept.
Time comes from outside and stands still while a command, a script or a transaction runs. A key lives through the
millisecond of its expiry and is gone after it; one that is gone is deleted by whoever looks at it next, which also
tells the watchers of the key, as the real servers do it.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import hiredis

if TYPE_CHECKING:
    from collections.abc import Callable

Value: TypeAlias = "bytes | dict[bytes, bytes] | SortedSet"
Snapshot: TypeAlias = tuple[dict[bytes, Value], dict[bytes, int]]

ReplyError: type[Exception] = hiredis.ReplyError


def wrong_type() -> Exception:
    return ReplyError("WRONGTYPE Operation against a key holding the wrong kind of value")


class Watcher(Protocol):
    """A session, as far as keys concern it."""

    watching: dict[bytes, bool]
    stale: bool
    push: Callable[[list[Any]], None]


class SortedSet:
    """Members in the order of (score, member)."""

    __slots__ = ("order", "scores")

    def __init__(self, scores: dict[bytes, float] | None = None) -> None:
        self.scores: dict[bytes, float] = scores or {}
        self.order = sorted([(score, member) for member, score in self.scores.items()])

    def put(self, member: bytes, score: float) -> None:
        old = self.scores.get(member)
        if old is not None:
            if old == score:
                return
            del self.order[bisect_left(self.order, (old, member))]
        self.scores[member] = score
        insort(self.order, (score, member))

    def drop(self, member: bytes) -> bool:
        score = self.scores.pop(member, None)
        if score is None:
            return False
        del self.order[bisect_left(self.order, (score, member))]
        return True

    def drop_slice(self, start: int, stop: int) -> int:
        doomed = self.order[start:stop]
        del self.order[start:stop]
        for _, member in doomed:
            del self.scores[member]
        return len(doomed)

    def rank(self, member: bytes) -> int | None:
        score = self.scores.get(member)
        return None if score is None else bisect_left(self.order, (score, member))

    def copy(self) -> SortedSet:
        twin = SortedSet()
        twin.scores = self.scores.copy()
        twin.order = self.order.copy()
        return twin

    def __len__(self) -> int:
        return len(self.scores)


class Keyspace:
    """One server's memory. Commands read `now_ms` and `now_us`; `set_time` is for whoever runs commands."""

    __slots__ = ("data", "expires", "listeners", "now_ms", "now_us", "watched")

    def __init__(self) -> None:
        self.data: dict[bytes, Value] = {}
        self.expires: dict[bytes, int] = {}
        # Dicts stand for ordered sets here: a run must not depend on how Python orders a set.
        self.watched: dict[bytes, dict[Watcher, None]] = {}
        self.listeners: dict[bytes, dict[Watcher, None]] = {}
        self.now_us = 0
        self.now_ms = 0

    def set_time(self, now_us: int) -> None:
        self.now_us = now_us
        self.now_ms = now_us // 1000

    # Keys and values

    def get(self, key: bytes) -> Value | None:
        """The value, or None when there is none (any more)."""
        if key in self.expires and self.now_ms > self.expires[key]:
            self.forget(key)
        return self.data.get(key)

    # The same with a type. They do not call get(): most of the simulator's time goes through here.

    def string(self, key: bytes) -> bytes | None:
        if key in self.expires and self.now_ms > self.expires[key]:
            self.forget(key)
        value = self.data.get(key)
        if value is None or type(value) is bytes:
            return value
        raise wrong_type()

    def hash(self, key: bytes) -> dict[bytes, bytes] | None:
        if key in self.expires and self.now_ms > self.expires[key]:
            self.forget(key)
        value = self.data.get(key)
        if value is None or type(value) is dict:
            return value
        raise wrong_type()

    def sorted(self, key: bytes) -> SortedSet | None:
        if key in self.expires and self.now_ms > self.expires[key]:
            self.forget(key)
        value = self.data.get(key)
        if value is None or type(value) is SortedSet:
            return value
        raise wrong_type()

    def put(self, key: bytes, value: Value) -> None:
        """A new value in place of any old one; the expiry of the old one goes with it."""
        self.data[key] = value
        self.expires.pop(key, None)
        if self.watched:
            self.touch(key)

    def forget(self, key: bytes) -> None:
        """Delete a key that is there."""
        del self.data[key]
        self.expires.pop(key, None)
        if self.watched:
            self.touch(key)

    def changed(self, key: bytes, value: dict[bytes, bytes] | SortedSet) -> None:
        """The hash or sorted set of this key was changed in place."""
        if not (value.scores if type(value) is SortedSet else value):
            self.forget(key)
        elif self.watched:
            self.touch(key)

    def expired(self, key: bytes) -> bool:
        return self.now_ms > self.expires.get(key, self.now_ms)

    def drop_expired(self) -> None:
        for key in [key for key, at_ms in self.expires.items() if self.now_ms > at_ms]:
            self.forget(key)

    def clear(self) -> None:
        """FLUSHALL: only the watchers of keys that were there notice."""
        there = [key for key in self.watched if key in self.data]
        self.data.clear()
        self.expires.clear()
        for key in there:
            self.touch(key)

    def copy(self) -> Snapshot:
        return {key: _copy(value) for key, value in self.data.items()}, self.expires.copy()

    def restore(self, snapshot: Snapshot) -> None:
        data, expires = snapshot
        self.data = {key: _copy(value) for key, value in data.items()}
        self.expires = expires.copy()

    # Watching

    def watch(self, watcher: Watcher, key: bytes) -> None:
        if key not in watcher.watching:
            # Whether it had expired by then: the later deletion of such a key changes nothing for this watcher.
            watcher.watching[key] = self.expired(key)
            self.watched.setdefault(key, {})[watcher] = None

    def unwatch(self, watcher: Watcher) -> None:
        for key in watcher.watching:
            watchers = self.watched[key]
            del watchers[watcher]
            if not watchers:
                del self.watched[key]
        watcher.watching.clear()
        watcher.stale = False

    def touch(self, key: bytes) -> None:
        """The key was written or deleted: transactions that watch it will fail."""
        for watcher in self.watched.get(key, ()):
            if watcher.watching[key] and key not in self.data:
                watcher.watching[key] = False
            else:
                watcher.stale = True

    def is_stale(self, watcher: Watcher) -> bool:
        """Whether something watched was touched, or has expired since without anyone looking."""
        return watcher.stale or any(
            not was_expired and self.expired(key) for key, was_expired in watcher.watching.items()
        )

    # Listening

    def publish(self, channel: bytes, message: bytes) -> int:
        """Push to all who listen; how many they were. A push runs no commands, see Server.open."""
        listeners = self.listeners.get(channel)
        if not listeners:
            return 0
        for listener in listeners:
            listener.push([b"message", channel, message])
        return len(listeners)


def _copy(value: Value) -> Value:
    return value if isinstance(value, bytes) else value.copy()
