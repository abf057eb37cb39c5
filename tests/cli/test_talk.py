"""Times in words, tables, and text that came from elsewhere."""

from __future__ import annotations

import time

import pytest

from lockfast.cli import chain, connect, talk
from lockfast.errors import Unreachable


@pytest.mark.parametrize(
    ("span_s", "words"),
    [
        (-1, "0ms"),
        (0.35, "350ms"),
        (0.9994, "999ms"),
        (0.9996, "1.0s"),
        (4.24, "4.2s"),
        (27.4, "27s"),
        (59.6, "1m00s"),
        (130, "2m10s"),
        (3599.7, "1h00m"),
        (11100, "3h05m"),
        (187200, "2d04h"),
    ],
)
def test_duration_in_words(span_s: float, words: str) -> None:
    assert talk.duration(span_s) == words


def test_day_is_told_only_when_it_is_another() -> None:
    assert len(talk.moment(time.time())) == len("12:34:56")
    assert talk.moment(time.time() - 200000).startswith("20")


def test_columns_are_aligned_and_nothing_trails() -> None:
    assert talk.table([("NAME", "PID", "X"), ("a-long-name", "1", "")], indent="  ") == (
        "  NAME         PID  X\n  a-long-name  1\n"
    )


def test_controls_of_others_do_not_reach_the_terminal() -> None:
    assert talk.clean("a\x1b[31mb\nc\u202ed") == "a\ufffd[31mb\ufffdc\ufffdd"


def test_lines_survive_a_closed_stderr(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stderr", None)
    talk.say("nobody hears this")
    talk.hint("nor this")
    assert not talk.on_terminal()


def test_chain_of_holds_survives_odd_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(chain.VARIABLE, raising=False)
    holds = [chain.Hold("t1", "a, b%20c"), chain.Hold("t2", "d|e%7C\u2028f")]
    for hold in holds:
        monkeypatch.setenv(chain.VARIABLE, chain.environment(hold, 1, None)[chain.VARIABLE])
    assert chain.held() == holds
    monkeypatch.setenv(chain.VARIABLE, "1")
    assert chain.held() == []


def test_hint_for_servers_that_have_just_started_is_to_wait() -> None:
    young = Unreachable(
        "'x': 2 of 3 servers have to agree, too few can; a: … and is not counted for another 55.6 s (…)"
    )
    assert "longer --wait" in connect.failure(young, "redis://a,redis://b,redis://c").hint
    gone = Unreachable("cannot connect to redis://a")
    assert "is the server up" in connect.failure(gone, "redis://a").hint
