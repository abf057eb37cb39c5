"""What both sides of the redis-py drop-in share: its settings, its tokens, and which of its errors is raised when.

A hold with a `timeout` belongs to the server: it is not renewed, and neither the end of this process nor that of the
lock object gives it back before. A hold without one is renewed for as long as the lock object lives.
"""

from __future__ import annotations

import importlib
from typing import Any, Self

from lockfast import specs
from lockfast.compat.holding import called
from lockfast.errors import LockfastError, Refused, Unreachable
from lockfast.grants import GrantView, log

TIMEOUT_S = 2.0  # how long one request may take in all
RENEWED_LEASE_S = 30.0  # stands for "no timeout": how long the server waits for a holder that died
MAX_S = specs.MAX_LEASE_S
REFUSALS = {
    "NOAUTH": "AuthenticationError",
    "NOPERM": "NoPermissionError",
    "OOM": "OutOfMemoryError",
    "READONLY": "ReadOnlyError",
    "WRONGPASS": "AuthenticationError",
}


class Token(bytes):
    """What `local.token` shows: text, and the hold that it is the proof of.

    The proof is the grant, not the text: another lock object of this process can be handed the token and release it;
    the bare bytes, in another process, are no proof.
    """

    grant: GrantView[Any]
    extending: Any  # one extend after the other, or the later would not count

    def __new__(cls, text: bytes, grant: GrantView[Any], extending: Any) -> Self:
        made = super().__new__(cls, text)
        made.grant = grant
        made.extending = extending
        return made

    def __reduce__(self) -> tuple[Any, ...]:
        return bytes, (bytes(self),)


class Shape:
    """The settings of a lock, under redis-py's names."""

    local: Any

    def __init__(
        self,
        redis: Any,
        name: str | bytes | memoryview | int,
        timeout: float | None = None,
        sleep: float = 0.1,
        blocking: bool = True,
        blocking_timeout: float | None = None,
        thread_local: bool = True,
        raise_on_release_error: bool = True,
    ) -> None:
        """Settings only; nothing is sent before an acquire.

        timeout: seconds until the lock ends by itself; None renews it until it is released or this process ends.
        sleep: without meaning, as nobody polls. blocking, blocking_timeout: whether and how long to wait.
        thread_local: whether only the thread (asyncio: task) that acquired it sees the token. raise_on_release_error:
        whether leaving a block raises when the lock had been lost, or logs it.

        Raises ValueError for a timeout under 50 ms (redis-py takes 0 for "never") or over 7 days, TypeError for what
        is no client or no name.
        """
        self.redis = redis
        self._family()  # to have it checked here
        self.name = name
        self.timeout = timeout
        self.sleep = sleep
        self.blocking = blocking
        self.blocking_timeout = blocking_timeout
        self.thread_local = bool(thread_local)
        self.raise_on_release_error = raise_on_release_error
        self._text = _text(name)
        self._lease_s = RENEWED_LEASE_S if timeout is None else self._lease(timeout, "timeout")
        self._wait_s(None, None)  # to have it checked here
        self._begin()

    def __repr__(self) -> str:
        return f"<{type(self).__module__}.{type(self).__name__} {self._text!r}>"

    def _begin(self) -> None:
        """The rest of `__init__`, different for threads and asyncio."""
        raise NotImplementedError

    @property
    def grant(self) -> Any:
        """The Lockfast grant of the hold, with its fence and its `check()`; None when there is none."""
        token = self.local.token
        return token.grant if isinstance(token, Token) else None

    def _lease(self, value: Any, what: str) -> float:
        lease_s = specs.seconds(value, what)
        if not specs.MIN_LEASE_S <= lease_s <= MAX_S:
            raise ValueError(f"{what} must come to between {specs.MIN_LEASE_S} and {MAX_S:.0f} seconds, got {value!r}")
        return lease_s

    def _wait_s(self, blocking: bool | None, blocking_timeout: float | None) -> float | None:
        """How long to queue, by the arguments of `acquire` and the lock's own."""
        if not (self.blocking if blocking is None else blocking):
            return 0.0
        given = self.blocking_timeout if blocking_timeout is None else blocking_timeout
        if given is None:
            return None
        return min(max(specs.seconds(given, "blocking_timeout"), 0.0), specs.MAX_WAIT_S)

    def _encoded(self, token: Any) -> bytes | None:
        """The caller's own token as redis-py would store it."""
        return None if token is None else bytes(self.redis.connection_pool.get_encoder().encode(token))

    def _keep(self, grant: GrantView[Any], text: bytes | None) -> None:
        """Remember a hold that was just acquired."""
        if self.timeout is not None:
            grant._driver.keeper.unwatch(grant._hold)  # it outlives the lock object and the client
        # A mutex for each hold: one of the object might be held, in a forked child, by a thread that is not there.
        self.local.token = Token(grant.ticket.encode() if text is None else text, grant, self._new_mutex())

    def _new_mutex(self) -> Any:
        """What extends of one hold take turns at."""
        raise NotImplementedError

    def _to_extend(self, verb: str) -> Any:
        """The token whose grant is to be extended, or redis-py's words on why there is none."""
        token = self.local.token
        if token is None:
            raise self._lock_error(f"Cannot {verb} an unlocked lock")
        if self.timeout is None:
            raise self._lock_error(f"Cannot {verb} a lock with no timeout")
        if not isinstance(token, Token):
            self._gone(verb)
        try:
            token.grant.check()
        except LockfastError as failure:
            self._gone(verb, failure)
        return token

    def _extended_s(self, grant: GrantView[Any], additional_time: Any, replace_ttl: bool) -> float:
        """The lease that an `extend` asks for."""
        additional_s = specs.seconds(additional_time, "additional_time")
        if additional_s < 0:
            raise ValueError(f"additional_time must not be negative, got {additional_time!r}: leases only grow")
        return self._lease(additional_s if replace_ttl else grant.remaining + additional_s, "additional_time")

    def _to_release(self) -> Any:
        """The token whose grant is to be released, or redis-py's words on why there is none."""
        token = self.local.token
        if token is None:
            raise self._lock_error("Cannot release a lock that's not owned or is already unlocked.")
        if not isinstance(token, Token):
            self.local.token = None
            self._gone("release")
        return token

    def _gone(self, verb: str, failure: LockfastError | None = None) -> Any:
        words = f"Cannot {verb} a lock that's no longer owned"
        raise self._exceptions().LockNotOwnedError(words, lock_name=self.name) from failure

    def _lock_error(self, words: str) -> Exception:
        error: Exception = self._exceptions().LockError(words, lock_name=self.name)
        return error

    def _as_redis(self, failure: Unreachable | Refused) -> Exception:
        """What redis-py would raise when the server does not answer, or refuses."""
        kind = "ConnectionError" if isinstance(failure, Unreachable) else REFUSALS.get(failure.code, "ResponseError")
        error: Exception = getattr(self._exceptions(), kind)(str(failure))
        return error

    def _exceptions(self) -> Any:
        """The exceptions of the library that the client comes from: redis-py or valkey-py."""
        return importlib.import_module(f"{self._family()}.exceptions")

    def _family(self) -> str:
        for base in type(self.redis).__mro__:
            family = base.__module__.partition(".")[0]
            if family in ("redis", "valkey"):
                return family
        raise TypeError(f"Lock wants a redis-py or valkey-py client, got {called(self.redis)}")

    def _left_badly(self, error: BaseException | None, failure: Exception) -> bool:
        """A block ended and its lock was gone. True: raise the failure; False: the body's error or a log tells."""
        if error is not None:
            error.add_note(f"lockfast: {failure}")
            return False
        if not self.raise_on_release_error:
            log().warning("%r was unlocked or no longer owned when its block ended", self._text)
        return self.raise_on_release_error


# A call that lacks an argument is told so in the name of the class that it was written with.
Shape.__init__.__qualname__ = "Lock.__init__"


def _text(name: object) -> str:
    """The name as Lockfast has it, of what redis-py takes for one."""
    if isinstance(name, str):
        return name
    if isinstance(name, int) and not isinstance(name, bool):
        return str(name)
    if isinstance(name, (bytes, bytearray, memoryview)):
        return bytes(name).decode()
    raise TypeError(f"the name of a lock is str, bytes or int, got {name!r}")
