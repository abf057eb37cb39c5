"""Matrix and stories in the terminal: they fit, they are whole, and they need no colour."""

from __future__ import annotations

import re

import pytest

from lab.sample import ALGORITHMS, BLIND, CELLS, DEAD, FAULTS, FENCED, HOSTILE, STORIES, crowded
from lockfast.lab import terminal
from lockfast.lab.model import VERDICTS, Cell, Story
from lockfast.lab.text import columns

ESCAPES = re.compile(r"\x1b\[[0-9;]*m")
TOLD = [*STORIES, HOSTILE, *(crowded(seed) for seed in range(6))]


def matrix(width: int = 80, color: bool = False) -> str:
    return terminal.matrix(CELLS, ALGORITHMS, FAULTS, width, color)


@pytest.mark.parametrize("width", [40, 60, 80, 100, 160, 240])
def test_the_matrix_fits_the_width(width: int) -> None:
    assert max(columns(line) for line in matrix(width).splitlines()) <= width


def test_the_whole_matrix_stands_side_by_side_in_eighty_columns() -> None:
    lines = matrix().splitlines()
    assert lines[0].split() == [str(number) for number in range(1, 21)]
    for algorithm, line in zip(ALGORITHMS, lines[1:], strict=False):
        name, *letters = line.split()
        assert name == algorithm.key
        mine = [cell for cell in CELLS if cell.algorithm == algorithm.key]
        assert letters == [VERDICTS[cell.verdict].letters for cell in mine]


def test_every_cell_is_shown_once_at_every_width() -> None:
    for width in (40, 60, 80, 160, 240):
        head = matrix(width).partition(" 1 holder-dies")[0]
        shown = [word for line in head.splitlines() for word in line.split() if word in ("X", "S", "F", "ok", "?", "-")]
        assert len(shown) == len(CELLS), width


def test_numbers_and_letters_are_explained() -> None:
    text = matrix()
    for number, fault in enumerate(FAULTS, 1):
        assert re.search(rf"\b{number} {re.escape(fault.key)}(\s|$)", text, re.MULTILINE)
    for meaning in VERDICTS.values():
        assert re.search(rf"^ *{re.escape(meaning.letters)} {meaning.short}", text, re.MULTILINE)


def test_counts_and_a_seed_are_given_for_all_that_went_wrong() -> None:
    text = matrix().partition("shows it:")[2]
    for cell in CELLS:
        if cell.bad:
            column = [fault.key for fault in FAULTS].index(cell.fault) + 1
            entry = f" {column} {VERDICTS[cell.verdict].letters} {cell.bad}/{cell.seeds} #{cell.seed}"
            section = re.split(r"\n(?=\S)", text)
            assert any(part.startswith(f"{cell.algorithm} ") and entry in part for part in section), cell


def test_wide_terminals_have_the_counts_in_the_cells() -> None:
    assert "X 50/50" in matrix(240).splitlines()[1]


def test_a_matrix_without_faults_found_lists_no_counts() -> None:
    cells = [Cell("setnx", "holder-dies", "safe", 5, 0, 1)]
    text = terminal.matrix(cells, ALGORITHMS[1:2], FAULTS[:1], 80, False)
    assert "Column" not in text
    assert "violated" not in text


@pytest.mark.parametrize("width", [40, 80, 100, 300])
@pytest.mark.parametrize("story", TOLD, ids=lambda story: f"{story.key}#{story.seed}")
def test_a_story_fits_the_width_and_colour_adds_nothing_but_colour(story: Story, width: int) -> None:
    plain = terminal.story(story, width, False)
    replay = terminal.story(story, width, True)
    # A command is not broken: it would not run any more.
    lines = [line for line in plain.splitlines() if "lockfast lab" not in line and " x " not in line]
    assert max(columns(line) for line in lines) <= min(width, terminal.MOST_WIDTH)
    assert "\x1b" not in plain
    assert [line.rstrip() for line in ESCAPES.sub("", replay).splitlines()] == plain.splitlines()


def test_the_matrix_in_colour_is_the_same_text() -> None:
    assert ESCAPES.sub("", matrix(color=True)) == matrix()
    assert "\x1b[1;31mX\x1b[0m" in matrix(color=True)
    assert "\x1b" not in matrix()


def test_a_story_is_told_in_order_with_times_and_names() -> None:
    text = terminal.story(BLIND, 100, False)
    places = [text.index(f"{at:g} s  {who}") for at, who, _ in BLIND.steps]
    assert places == sorted(places)
    assert "believes to hold, finishes, and sends a plain DEL" in text
    for said in (BLIND.title, "seed 7: violated", "What the text says", "What Lockfast does"):
        assert said in text
    assert text.endswith("  lockfast lab set-nx-px-blind-del blind-release --seed 7\n")


def test_the_fatal_step_is_marked_and_no_other() -> None:
    marked = [line for line in terminal.story(BLIND, 100, False).splitlines() if re.match(r"X +\S+ s ", line)]
    assert len(marked) == 1
    assert "17.1 s" in marked[0]


def test_the_drawing_shows_the_fatal_moment_through_all_lanes() -> None:
    lines = terminal.story(BLIND, 100, False).splitlines()
    first = next(index for index, line in enumerate(lines) if line.rstrip().endswith("hold |"))
    column = lines[first].index("|")
    last = next(index for index, line in enumerate(lines) if index > first and line.lstrip().startswith("0 s"))
    assert {line[column] for line in lines[first:last]} == {"|", "X"}


def test_the_drawing_shows_holds_beliefs_pauses_and_what_never_ends() -> None:
    text = terminal.story(BLIND, 100, False)
    assert re.search(r"^server +█ A holds █+ +█ B holds █+ +█ C holds █+", text, re.MULTILINE)
    assert re.search(r"─/.*╌/╌", text), "the pause lies over what A believes, rightly and then wrongly"
    assert re.search(r"A holds, for ever █+\|█+>$", terminal.story(DEAD, 80, False), re.MULTILINE)
    assert "▽ a write, refused" in terminal.story(FENCED, 80, False)


def test_the_drawing_has_a_plain_form() -> None:
    for story in STORIES:
        assert terminal.story(story, 80, False, unicode=False).isascii()


def test_terminal_controls_in_a_story_do_nothing() -> None:
    text = terminal.story(HOSTILE, 80, False)
    assert all(one.isprintable() or one == "\n" for one in text)
    text.encode()
