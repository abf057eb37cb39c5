"""The report of a whole run of the lab: what the page says around the cells."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lockfast._version import __version__
from lockfast.lab import contenders, expected, matrix, page, parts, scenarios
from lockfast.lab.model import About

if TYPE_CHECKING:
    from lockfast.lab.model import Cell
    from lockfast.lab.parts import Load

_INTRO = """\
Every textbook lock under every fault that its texts name, and a few that they do not. Each cell was played several \
times in a simulated world, by the code that can also be used on real servers. Clients write to a guarded resource, \
and the verdict is by what that resource saw, not by what anybody believed."""


def html(cells: list[Cell], loads: tuple[Load, Load] | None, seeds: int) -> str:
    """One page: the matrix, and a story for every cell in which something went wrong, and for all of Lockfast's."""
    stories = [
        matrix.story(cell.algorithm, cell.fault, cell.seed)
        for cell in cells
        if cell.seed is not None and (cell.verdict != "safe" or cell.algorithm == "lockfast")
    ]
    rows = tuple(row.topic for row in contenders.ROWS if any(cell.algorithm == row.key for cell in cells))
    about = About(
        "Lockfast lab: what each lock does when something goes wrong",
        _INTRO,
        rows,
        tuple(column.topic for column in scenarios.COLUMNS),
        f"lockfast {__version__}, {seeds} seeds for each cell. "
        + ("" if loads is None else " ".join(parts.table(loads).split())),
    )
    return page.report(cells, stories, expected.table(), about)
