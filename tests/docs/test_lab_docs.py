"""What the docs show of the lab is what the lab shows: pictures to the byte, verdicts, and a page for every row."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from typing import Any

import pytest

from lockfast import classic
from lockfast.lab import contenders, expected, matrix, scenarios
from lockfast.lab.model import VERDICTS

ROOT = Path(__file__).parents[2]
EXPLANATION = ROOT / "docs" / "explanation"
CLASSICS = EXPLANATION / "classics"
ROWS = [row.key for row in contenders.ROWS]
# One of each verdict, two whose seeds disagree, and one that counts holders.
SAMPLE = [
    ("set-nx-px", "paused-holder"),
    ("setnx", "holder-dies"),
    ("lockfast", "restart-empty"),
    ("optimistic", "reply-lost"),
    ("counting-semaphore", "clocks-0.3s"),
    ("set-nx-px-blind-del", "connection-cut"),
    ("fair-semaphore", "expiry-rush"),
]


@pytest.fixture(scope="module")
def make_lab() -> Any:
    spec = importlib.util.spec_from_file_location("make_lab", ROOT / "docs" / "make_lab.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow
def test_pictures_and_their_words_are_what_the_simulator_makes(make_lab: Any) -> None:
    made = make_lab.make(make_lab.QUICK)
    pictures = {path for path in made if path.suffix == ".svg"}
    assert pictures == set(CLASSICS.glob("*.svg"))
    for path, text in made.items():
        assert path.read_text(encoding="utf-8") == text, f"{path.name} is stale; run: python docs/make_lab.py"


def test_every_row_has_a_page_with_a_picture_and_its_verdicts(make_lab: Any) -> None:
    assert set(classic.ALL) <= set(ROWS)
    for row in ROWS:
        text = make_lab.page_of(row).read_text()
        assert f"<!-- made: verdicts {row} -->" in text
        assert f"<!-- made: picture {row} " in text
    assert {path.stem for path in CLASSICS.glob("*.md")} == set(classic.ALL)


@pytest.mark.parametrize("row", ROWS)
def test_verdicts_on_a_page_are_those_expected(row: str, make_lab: Any) -> None:
    body = dict(re.findall(r"made: verdicts (\S+) -->\n(.*?)<!-- end", make_lab.page_of(row).read_text(), re.DOTALL))
    told = dict(re.findall(r"^\| `([^`]+)` \| \**([^|]*?)\**(?: in [^|]*)? \|", body[row], re.MULTILINE))
    table = {fault: wish for (algorithm, fault), wish in expected.table().items() if algorithm == row}
    assert told == {fault: VERDICTS[one.verdict].short for fault, one in table.items() if one.verdict != "n/a"}
    for fault, one in table.items():
        assert f"`{fault}`" in body[row]
        assert one.why.replace("|", "\\|") in body[row]


def test_letters_of_the_matrix_are_those_expected() -> None:
    text = (EXPLANATION / "matrix.md").read_text()
    table = expected.table()
    columns = [column.key for column in scenarios.COLUMNS]
    numbers = dict(re.findall(r"(\d+) ([a-z][a-z0-9.-]+)", text[text.index("```text") : text.index("```\n\n")]))
    assert [numbers[str(number)] for number in range(1, len(columns) + 1)] == columns
    for row in ROWS:
        letters = re.findall(rf"^{re.escape(row)} +((?:(?:ok|[XSF?-]) *)+)$", text, re.MULTILINE)
        assert letters, f"{row} is not in the matrix"
        wish = [VERDICTS[table[row, column].verdict].letters for column in columns]
        assert letters[0].split() == wish, f"{row} of the matrix is stale; run: python docs/make_lab.py"


def test_excerpt_in_the_readme_is_what_is_expected(make_lab: Any) -> None:
    lines = (
        (ROOT / "README.md").read_text().partition("<!-- made: excerpt -->\n")[2].partition("<!-- end")[0].splitlines()
    )
    told = {line.split(" | ")[0].lstrip("| "): line.rstrip("| ").split(" | ")[1:] for line in lines[2:]}
    table = expected.table()
    assert told == {
        contenders.BY_KEY[row].topic.title: [
            f"{meaning.sign} {meaning.short}"
            for fault in make_lab.EXCERPT_FAULTS
            for meaning in [VERDICTS[table[row, fault].verdict]]
        ]
        for row in make_lab.EXCERPT_ROWS
    }


@pytest.mark.slow
@pytest.mark.parametrize(("row", "fault"), SAMPLE)
def test_cells_that_are_run_again_say_what_is_committed(row: str, fault: str, make_lab: Any) -> None:
    cell = matrix.run_cell(row, fault, make_lab.SEEDS)
    number = [column.key for column in scenarios.COLUMNS].index(fault) + 1
    assert make_lab.verdict_line(cell) in make_lab.page_of(row).read_text().splitlines()
    if cell.bad:
        counts = (EXPLANATION / "matrix.md").read_text().partition("in how many seeds")[2]
        entry = f"{number} {VERDICTS[cell.verdict].letters} {cell.bad}/{cell.seeds} #{cell.seed}"
        found = re.search(rf"^{re.escape(row)} (.*\n(?: .*\n)*)", counts, re.MULTILINE)
        assert found is not None
        assert entry in [one.strip() for one in re.split(r"[,\n]", found[1])]


def test_every_picture_on_a_page_has_words_for_those_who_do_not_see_it() -> None:
    for page in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]:
        for alt, target in re.findall(r"!\[([^\]]*)\]\(([^)]+)\)", page.read_text()):
            assert len(alt) > 20, f"{page.name}: {target}"
            assert (page.parent / target).exists(), f"{page.name}: {target}"
