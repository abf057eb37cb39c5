"""The recorder: what it writes is what the checkers read."""

from __future__ import annotations

import os
import threading
from itertools import count, pairwise
from typing import TYPE_CHECKING

import pytest

from lockfast import check
from lockfast.check import Event, io
from lockfast.check.record import Claim, Recorder

if TYPE_CHECKING:
    from pathlib import Path


def test_every_call_is_one_event(tmp_path: Path) -> None:
    ticks = count(1)
    with Recorder(tmp_path / "w1", "w1", now=lambda: float(next(ticks))) as recorder:
        recorder.quiet()
        ticket = recorder.asked("n", lease=8, weight=2, limit=3)
        recorder.granted(ticket, Claim(7.5, fence=4), note="at once")
        recorder.renewed(ticket, Claim(8.0, fence=4))
        recorder.wrote(ticket, 4)
        recorder.refused(ticket, 4)
        recorder.lost(ticket, "too slow")
        recorder.leaving(ticket)
        recorder.left(ticket)
        other = recorder.asked("m")
        recorder.failed(other, "busy")
        recorder.crashed("w2")
        recorder.server_lost_memory("n")
        recorder.server_clock_jumped(-3.5)
        recorder.end()

    def about(at: float, what: str, until: float = 0.0, fence: int = 0, note: str = "") -> Event:
        return Event(at, what, "n", "w1:1", "w1", fence, 2, 3, until, 8.0, note)

    assert io.load(tmp_path / "w1") == [
        Event(1, "quiet", "", ""),
        about(2, "asked"),
        about(3, "granted", 10.5, 4, "at once"),
        about(4, "renewed", 12.0, 4),
        about(5, "wrote", 0.0, 4),
        about(6, "refused", 0.0, 4),
        about(7, "lost", note="too slow"),
        about(8, "leaving"),
        about(9, "left"),
        Event(10, "asked", "m", "w1:2", "w1"),
        Event(11, "failed", "m", "w1:2", "w1", note="busy"),
        Event(12, "crashed", "", "", "w2"),
        Event(13, "server_lost_memory", "n", ""),
        Event(14, "server_clock_jumped", "", "", lease=-3.5),
        Event(15, "end", "", ""),
    ]


def test_threads_that_share_a_recorder_never_write_time_backwards(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "w", "w")

    def work() -> None:
        for _ in range(200):
            recorder.failed(recorder.asked("n"))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    recorder.close()
    lines = (tmp_path / "w").read_text().splitlines()
    events = [io.from_line(line) for line in lines]
    assert len(events) == 1600
    assert all(one.at <= other.at for one, other in pairwise(events))
    assert len({event.ticket for event in events}) == 800


def test_a_line_is_in_the_file_when_the_call_returns(tmp_path: Path) -> None:
    with Recorder(tmp_path / "w", "w") as recorder:
        recorder.asked("n")
        assert len(io.load(tmp_path / "w")) == 1


def test_a_second_recorder_goes_on_in_the_file(tmp_path: Path) -> None:
    for client in ("one", "two"):
        with Recorder(tmp_path / "w", client) as recorder:
            recorder.asked("n")
    assert [event.client for event in io.load(tmp_path / "w")] == ["one", "two"]


def test_a_closed_recorder_writes_no_more_and_to_nobody_elses_file(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "w", "w")
    recorder.close()
    recorder.close()
    # Has the number that the recorder's file had.
    with (tmp_path / "other").open("w"), pytest.raises(OSError):
        recorder.end()
    assert os.stat(tmp_path / "other").st_size == 0


def test_a_recorder_needs_a_client_and_an_ask(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="client"):
        Recorder(tmp_path / "w", "")
    with Recorder(tmp_path / "w", "w") as recorder, pytest.raises(KeyError):
        recorder.left("w:9")


def test_a_recorded_overlap_is_found(tmp_path: Path) -> None:
    with Recorder(tmp_path / "w", "w") as recorder:
        for _ in range(2):
            recorder.granted(recorder.asked("n"), Claim(float("inf")))
    assert check.exclusion(io.load(tmp_path / "w")).bad
