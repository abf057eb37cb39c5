"""The matrix itself: every cell says what was written down for it, and seeds can be replayed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING

import pytest

from lockfast.lab import contenders, expected, matrix, scenarios, svg
from lockfast.lab.words import WORDS

if TYPE_CHECKING:
    from lockfast.lab.model import Cell

SEEDS = range(1, 5)


@pytest.fixture(scope="module")
def cells() -> dict[tuple[str, str], Cell]:
    made = matrix.run_all(matrix.every_cell(), SEEDS, jobs=2)
    return {(cell.algorithm, cell.fault): cell for cell in made}


@pytest.mark.slow
def test_every_cell_says_what_was_expected(cells: dict[tuple[str, str], Cell]) -> None:
    table = expected.table()
    assert cells.keys() == table.keys()
    surprises = {
        key: (cell.result, table[key].verdict) for key, cell in cells.items() if cell.verdict != table[key].verdict
    }
    assert not surprises


@pytest.mark.slow
def test_lockfast_is_safe_except_where_no_lease_can_be(cells: dict[tuple[str, str], Cell]) -> None:
    row = {fault: cell.verdict for (algorithm, fault), cell in cells.items() if algorithm == "lockfast"}
    fenced = {fault for fault, verdict in row.items() if verdict == "fenced"}
    assert fenced == {"restart-empty", "failover", "clock-jump", "paused-holder"}
    assert set(row.values()) == {"safe", "fenced", "n/a"}


# What the texts say that each of them gets wrong.
KNOWN = [
    ("setnx", "holder-dies", "stuck"),
    ("setnx-expire-falsy", "dies-in-between", "stuck"),
    ("setnx-expire-inverted", "holder-dies", "stuck"),
    ("setnx-expire-del", "blind-release", "violated"),
    ("setnx-expire", "slow-holder", "violated"),
    ("getset", "clocks-2s", "violated"),
    ("set-nx-px", "paused-holder", "violated"),
    ("set-nx-px", "failover", "violated"),
    ("set-nx-px-blind-del", "blind-release", "violated"),
    ("fine-grained", "crossed-order", "violated"),
    ("counting-semaphore", "slow-clock", "violated"),
    ("fair-semaphore", "clocks-2s", "violated"),
    ("fair-semaphore", "expiry-rush", "violated"),
    ("redlock", "redlock-paused", "violated"),
    ("redlock", "node-restart", "violated"),
    ("redlock", "clock-jump", "violated"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("algorithm", "fault", "verdict"), KNOWN)
def test_known_failure_of_a_classic_is_shown(
    cells: dict[tuple[str, str], Cell], algorithm: str, fault: str, verdict: str
) -> None:
    cell = cells[algorithm, fault]
    assert cell.verdict == verdict
    assert cell.seed is not None
    story = matrix.story(algorithm, fault, cell.seed)
    assert story.verdict == verdict
    assert any(mark.kind == "fatal" for mark in story.marks) == (verdict == "violated")


@pytest.mark.slow
def test_crowd_at_the_fair_semaphore_is_larger_than_its_limit(cells: dict[tuple[str, str], Cell]) -> None:
    detail = cells["fair-semaphore", "expiry-rush"].detail
    together, allowed = (int(word) for word in detail.replace(",", "").split() if word.isdigit())
    assert allowed == 10
    assert together > 10


def test_every_fault_is_talked_about_and_every_reason_is_given() -> None:
    assert WORDS.keys() == scenarios.BY_KEY.keys()
    for wish in expected.table().values():
        assert wish.why


def test_rows_are_the_classics_and_lockfast() -> None:
    from lockfast.classic import ALL

    assert ALL.keys() <= contenders.BY_KEY.keys()
    assert "lockfast" in contenders.BY_KEY


@pytest.mark.parametrize(("algorithm", "fault"), [("lockfast", "restart-empty"), ("fair-semaphore", "expiry-rush")])
def test_seed_tells_the_same_story_in_another_process(algorithm: str, fault: str) -> None:
    here = json.dumps(asdict(matrix.story(algorithm, fault, 3)), default=str)
    code = (
        "import json; from dataclasses import asdict; from lockfast.lab import matrix;"
        f"print(json.dumps(asdict(matrix.story({algorithm!r}, {fault!r}, 3)), default=str))"
    )
    there = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONHASHSEED": "7"},
    )
    assert there.stdout.strip() == here


def test_different_seeds_differ() -> None:
    assert matrix.story("set-nx-px", "holder-dies", 1).steps != matrix.story("set-nx-px", "holder-dies", 2).steps


def test_every_kind_of_story_can_be_drawn() -> None:
    for algorithm, fault in [
        ("optimistic", "paused-holder"),
        ("setnx", "reply-lost"),
        ("getset", "getset-stretch"),
        ("redlock", "majority-down"),
        ("race-free-semaphore", "connection-cut"),
    ]:
        assert svg.timeline(matrix.story(algorithm, fault, 1)).endswith("</svg>\n")


def test_story_of_a_fault_that_does_not_apply_is_refused() -> None:
    with pytest.raises(ValueError, match="does not apply to lockfast: it has one server"):
        matrix.story("lockfast", "node-restart", 1)
