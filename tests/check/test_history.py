"""The words of a history, and what is not one."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, replace
from math import inf, nan
from typing import TYPE_CHECKING

import pytest

from check.made import crash, ev, hold, run
from lockfast import check
from lockfast.check import BadHistory, Event, io

if TYPE_CHECKING:
    from pathlib import Path


def test_a_whole_run_is_valid() -> None:
    check.validate(run(1, 300))


def test_an_empty_history_is_valid_and_tells_nothing() -> None:
    assert {verdict.status for verdict in check.all([]).values()} == {"unknown"}


def test_an_event_cannot_be_changed() -> None:
    event = ev(1, "asked", "a")
    with pytest.raises(FrozenInstanceError):
        event.at = 2.0  # type: ignore[misc]


BAD = {
    "unknown event 'taken'": [ev(1, "taken", "a")],
    "time goes back, from 2 to 1": [ev(2, "asked", "a"), ev(1, "asked", "b")],
    "time is nan": [ev(nan, "asked", "a")],
    "time is inf": [ev(inf, "asked", "a")],
    "time is -inf": [ev(-inf, "asked", "a")],
    "needs a name and a ticket": [Event(1, "held", "n", "", until=2)],
    "needs a name": [Event(1, "asked", "", "a")],
    "weight and limit": [ev(1, "asked", "a", weight=0)],
    "limit are at least 1": [ev(1, "asked", "a", limit=0)],
    "not negative": [ev(1, "granted", "a", 2, fence=-1)],
    "needs `until`": [ev(1, "granted", "a")],
    "event 0: needs `until`": [ev(1, "held", "a", nan)],
    "needs a client": [crash(1, "")],
    "no ticket": [Event(1, "crashed", "", "a", "A")],
    "is of the world": [Event(1, "quiet", "", "a")],
    "event 1: renewed, but never granted": [ev(1, "asked", "a"), ev(2, "renewed", "a", 3)],
}


@pytest.mark.parametrize("words", BAD)
@pytest.mark.parametrize("checker", check.CHECKERS)
def test_every_checker_refuses_a_malformed_history_and_says_why(words: str, checker: str) -> None:
    with pytest.raises(BadHistory, match=words.replace("(", r"\(")):
        check.CHECKERS[checker](BAD[words])


def test_equal_times_are_in_order() -> None:
    check.validate([ev(1, "asked", "a"), ev(1, "granted", "a", 2)])


def test_a_written_history_is_read_as_it_was(tmp_path: Path) -> None:
    history = [*run(2, 300), ev(1e6, "granted", "für immer", inf, fence=2**60, weight=2, limit=7, note="ö\n")]
    io.write(history, tmp_path / "history")
    assert io.load(tmp_path / "history") == history


def test_lines_leave_out_what_is_usual() -> None:
    assert io.to_line(Event(1.5, "quiet", "", "")) == '{"at": 1.5, "what": "quiet"}'


def test_files_of_several_processes_are_merged_by_time(tmp_path: Path) -> None:
    one, other = hold("a", 1, 4), hold("b", 4, 5)
    io.write(one, tmp_path / "one")
    io.write(other, tmp_path / "other")
    assert io.load(tmp_path / "other", tmp_path / "one") == [one[0], other[0], one[1], other[1]]


@pytest.mark.parametrize(
    "line",
    ["{", "[]", "{}", '{"at": 1, "what": "quiet", "whom": 1}', '{"at": "soon", "what": "end"}', '{"at": 1, "what": 2}',
     '{"at": 1, "what": "held", "name": "n", "ticket": "a", "fence": 1.5, "until": 3}', '{"at": null, "what": "end"}'],
)  # fmt: skip
def test_a_line_that_is_no_event_is_named_with_its_file_and_number(line: str, tmp_path: Path) -> None:
    path = tmp_path / "history"
    path.write_text(f"{io.to_line(ev(0, 'asked', 'a'))}\n\n{line}\n")
    with pytest.raises(BadHistory, match="history:3: not an event"):
        io.load(path)


def test_a_loaded_history_is_validated(tmp_path: Path) -> None:
    io.write([ev(1, "taken", "a")], tmp_path / "history")
    with pytest.raises(BadHistory, match="unknown event"):
        io.load(tmp_path / "history")


def test_a_verdict_and_its_events_read_as_text() -> None:
    text = str(check.exclusion([ev(1, "granted", "a", 9, fence=3), ev(2, "granted", "b", 9)]))
    assert text.splitlines()[0].startswith("violated: n: a of A and b of B both believed to hold it for 7.0")
    assert text.splitlines()[1] == "  1.000000 granted n a by A fence 3 until 9.000000"
    assert (
        str(replace(ev(1, "asked", "a", weight=2, limit=3), note="hm")) == "1.000000 asked n a by A weight 2 of 3 (hm)"
    )
    assert str(check.exclusion(hold("a", 1, 2))) == "ok"
