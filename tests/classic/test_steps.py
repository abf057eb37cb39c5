"""Plain flows stepped by hand, without a server: pauses, and when a connection may be used by others again."""

from __future__ import annotations

from typing import Any

import pytest

from lockfast import Refused, Unreachable
from lockfast.classic import SetNxPxLock, SimpleLock
from lockfast.flows.effects import Sleep
from lockfast.flows.plain import Env, Pipeline, checked, is_clean


def env_of(now: list[float]) -> Env:
    return Env(lambda: now[0], lambda: 0.0, lambda: "token", lambda: 0.25)


@pytest.mark.parametrize(
    ("lock", "taken", "delay_s"), [(SetNxPxLock("x", retry_delay=0.4), None, 0.1), (SimpleLock("x"), 0, 0.001)]
)
def test_pause_between_tries_is_random_or_a_millisecond_and_not_past_the_end(
    lock: Any, taken: Any, delay_s: float
) -> None:
    now = [100.0]
    flow = lock.acquire(env_of(now))
    assert isinstance(next(flow), Pipeline)
    paused = flow.send([taken])
    assert isinstance(paused, Sleep)
    assert paused.delay_s == pytest.approx(delay_s)
    now[0] = 109.9999
    assert isinstance(flow.send(None), Pipeline)
    assert flow.send([taken]).delay_s == pytest.approx(0.0001)
    now[0] = 110.0
    assert isinstance(flow.send(None), Pipeline)
    with pytest.raises(StopIteration) as stop:
        flow.send([taken])
    assert stop.value.value is None


ERROR = Exception("EXECABORT Transaction discarded")


@pytest.mark.parametrize(
    ("commands", "replies", "clean"),
    [
        (["GET"], [b"1"], True),
        (["WATCH", "GET"], [b"OK", b"1"], False),
        (["WATCH", "UNWATCH"], [b"OK", b"OK"], True),
        (["MULTI", "DEL"], [b"OK", b"QUEUED"], False),
        (["MULTI", "DEL", "EXEC"], [b"OK", b"QUEUED", [1]], True),
        (["MULTI", "DEL", "EXEC"], [b"OK", b"QUEUED", None], True),
        (["MULTI", "DEL", "EXEC"], [b"OK", ERROR, ERROR], False),
        (["MULTI", "UNWATCH"], [b"OK", b"QUEUED"], False),
        (["MULTI", "DISCARD"], [b"OK", b"OK"], True),
    ],
)
def test_connection_is_clean_only_when_it_surely_watches_nothing(
    commands: list[str], replies: list[Any], clean: bool
) -> None:
    words: list[Any] = [(command, "x") for command in commands]
    assert is_clean(words, replies, was_clean=True) is clean
    assert is_clean([("GET", "x")], [b"1"], was_clean=False) is False


def test_error_reply_is_refused_and_a_failure_stays_what_it_is() -> None:
    assert checked(b"OK") == b"OK"
    with pytest.raises(Refused, match="the server refuses: OOM no room") as refusal:
        checked(Exception("OOM no room"))
    assert refusal.value.code == "OOM"
    with pytest.raises(Unreachable):
        checked(Unreachable("gone"))
