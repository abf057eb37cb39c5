"""The table of guarantees: every promise names a test, and every test that it names is there."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "explanation" / "guarantees.md").read_text()
TABLE = PAGE.partition("## One table")[2].partition("### Tests")[0]
ROWS = [line.strip("|").split("|") for line in TABLE.splitlines() if line.startswith("|")][2:]
NAMED = dict(re.findall(r"^(\d+)\. `(.*)`$", PAGE.partition("### Tests")[2], re.MULTILINE))


def test_every_cell_names_the_test_that_shows_it() -> None:
    assert len(ROWS) > 15
    for fault, *cells in ROWS:
        assert len(cells) == 4, fault
        for cell in cells:
            same = cell.strip() == "–" or cell.strip().startswith("as one server")
            assert same or re.search(r"\[\d+\]\(#tests\) $", cell), (fault, cell)


def test_what_is_as_on_one_server_is_shown_there() -> None:
    for fault, first, *others in ROWS:
        if any(cell.strip() == "as one server" for cell in others):
            assert "](#tests)" in first, fault


def test_every_test_that_is_named_exists() -> None:
    assert set(re.findall(r"\[(\d+)\]", TABLE)) == set(NAMED)
    for named in NAMED.values():
        path, _, test = named.partition("::")
        assert f"def {test}(" in (ROOT / path).read_text(), named
