"""`lab`: every textbook algorithm and Lockfast's own under every fault; the whole matrix, or one story."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lockfast.cli.progress import Progress
from lockfast.cli.talk import UNREACHABLE, USAGE, Failure, hint, say

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

    from lockfast.lab.model import Cell

DIFFERS = 1
MAX_SEED = 2**31 - 1
MAX_SEEDS = 10_000

_ABOUT = """\
What each textbook lock does when something goes wrong, and what Lockfast does: shown, not told.
Every algorithm plays every fault in a simulated world, several times; clients write to a guarded
resource, and the verdict is by what that resource saw.

  lockfast lab                                  the whole matrix, in less than a minute
  lockfast lab set-nx-px paused-holder          one story, step by step, with a drawing
  lockfast lab --html report.html               one page, with story and picture where anything went wrong
  lockfast lab getset clocks-2s --svg clocks.svg

Ends with 1 when a verdict is not the one that was expected.
"""


def add_arguments(parser: ArgumentParser) -> None:
    """What the verb takes."""
    parser.description = _ABOUT
    parser.add_argument("algorithm", nargs="?", metavar="ALGORITHM", help="a row of the matrix")
    parser.add_argument("fault", nargs="?", metavar="FAULT", help="a column of the matrix")
    parser.add_argument("--seed", type=_number(1, MAX_SEED), metavar="N", help="tell what this seed did")
    parser.add_argument("--seeds", type=_number(1, MAX_SEEDS), default=8, metavar="N", help="runs of each cell (8)")
    parser.add_argument(
        "--jobs",
        type=_number(1, 256),
        default=os.cpu_count() or 1,
        metavar="N",
        help="processes at a time (one for each CPU)",
    )
    parser.add_argument("--json", action="store_true", help="for machines")
    parser.add_argument("--html", type=Path, metavar="FILE", help="write the report as one page")
    parser.add_argument("--svg", type=Path, metavar="FILE", help="write the picture of the story")
    parser.add_argument("--real", action="store_true", help="play on real servers what can be provoked there")


def _number(least: int, most: int) -> Any:
    def number(text: str) -> int:
        if not text.isascii() or not text.isdigit() or not least <= int(text) <= most:
            raise argparse.ArgumentTypeError(f"a whole number from {least} to {most}, got {text!r}")
        return int(text)

    return number


def main(options: Namespace) -> int:
    """The verb. 0 when every verdict is as expected, 1 when not."""
    if find_spec("lupa") is None:
        raise Failure(UNREACHABLE, "the lab needs lupa, which is not installed", "pip install 'lockfast[lab]'")
    _check(options)
    if options.real:
        from lockfast.cli.lab_real import play

        return play(options)
    if options.fault is not None:
        return _story(options)
    return _matrix(options)


def _check(options: Namespace) -> None:
    """Refuse what cannot be done before anything is run."""
    from lockfast.lab import contenders, scenarios

    for word, known, what in (
        (options.algorithm, contenders.BY_KEY, "algorithm"),
        (options.fault, scenarios.BY_KEY, "fault"),
    ):
        if word is not None and word not in known:
            if what == "algorithm" and word in scenarios.BY_KEY:
                raise Failure(USAGE, f"{word!r} is a fault", f"lockfast lab ALGORITHM {word}")
            raise Failure(USAGE, f"there is no {what} {word!r}", f"known: {', '.join(known)}")
    if options.fault is None:
        for option, value in (("--seed", options.seed), ("--svg", options.svg)):
            if value is not None:
                raise Failure(USAGE, f"{option} is about one story", "name an algorithm and a fault before it")
    elif options.html is not None:
        raise Failure(USAGE, "--html is about the whole matrix", "leave out the fault, or use --svg")
    for path in (options.html, options.svg):
        if path is not None:
            if str(path) in ("-", "."):
                raise Failure(USAGE, "a file is needed to write to", "name one, such as report.html")
            _check_writable(path)


def _check_writable(path: Path) -> None:
    try:
        existed = path.exists()
        with path.open("a"):
            pass
        if not existed:
            path.unlink()
    except OSError as error:
        raise Failure(USAGE, f"cannot write {path}: {error.strerror}", "choose another file") from None


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise Failure(USAGE, f"cannot write {path}: {error.strerror}", "choose another file") from None
    say(f"wrote {path}")


def _color() -> bool:
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def _unicode() -> bool:
    return (sys.stdout.encoding or "").lower().replace("-", "") == "utf8"


def _matrix(options: Namespace) -> int:
    from lockfast.lab import contenders, expected, matrix, parts, scenarios, terminal

    rows = [row.topic for row in contenders.ROWS if options.algorithm in (None, row.key)]
    columns = [column.topic for column in scenarios.COLUMNS]
    wanted = [(row.key, column.key) for row in rows for column in columns]
    progress = Progress(len(wanted), "cells")
    done = 0

    def tick(_cell: Cell) -> None:
        nonlocal done
        done += 1
        progress.show(done)

    try:
        cells = matrix.run_all(wanted, range(1, options.seeds + 1), min(options.jobs, len(wanted)), tick)
    except KeyboardInterrupt:
        progress.end()
        say(f"interrupted after {done} of {len(wanted)} cells")
        raise
    finally:
        progress.end()
    table = expected.table()
    surprises = [cell for cell in cells if table[cell.algorithm, cell.fault].verdict != cell.verdict]
    loads = parts.compare() if options.algorithm in (None, "fine-grained") else None
    if options.json:
        told = [asdict(cell) | {"expected": table[cell.algorithm, cell.fault].verdict} for cell in cells]
        print(json.dumps({"cells": told, "fine_grained": [asdict(load) for load in loads or ()]}, indent=2))
    else:
        width = shutil.get_terminal_size((100, 24)).columns
        print(terminal.matrix(cells, rows, columns, width, _color()))
        if loads is not None:
            print(parts.table(loads))
    if options.html is not None:
        from lockfast.lab.report import html

        _write(options.html, html(cells, loads, options.seeds))
    for cell in surprises:
        wish = table[cell.algorithm, cell.fault]
        say(f"{cell.algorithm} under {cell.fault}: {cell.result}, expected {wish.verdict}: {wish.why}")
    if surprises:
        hint(f"look at it with `{surprises[0].replay}`")
        return DIFFERS
    return 0


def _story(options: Namespace) -> int:
    from lockfast.lab import expected, matrix, svg, terminal

    wish = expected.table()[options.algorithm, options.fault]
    if wish.verdict == "n/a":
        raise Failure(USAGE, f"{options.fault} does not apply to {options.algorithm}: {wish.why}", "see `lockfast lab`")
    seed = options.seed
    if seed is None:  # the first that shows what the cell says
        seed = matrix.run_cell(options.algorithm, options.fault, range(1, options.seeds + 1)).seed
    story = matrix.story(options.algorithm, options.fault, seed)
    if options.json:
        print(json.dumps(asdict(story), indent=2, default=str))
    else:
        width = shutil.get_terminal_size((100, 24)).columns
        print(terminal.story(story, width, _color(), unicode=_unicode()))
    if options.svg is not None:
        _write(options.svg, svg.timeline(story))
    return 0
