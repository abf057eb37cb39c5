"""`lab --real`: the stories that can be provoked on real servers, compared with the simulator's verdicts."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from lockfast._launcher import find_binary
from lockfast.cli.progress import Progress
from lockfast.cli.talk import UNREACHABLE, USAGE, Failure, hint, say, table
from lockfast.errors import Unreachable

if TYPE_CHECKING:
    from argparse import Namespace

    from lockfast.lab.real import RealCell

DIFFERS = 1
CELLS_PER_JOB = 8  # they mostly sleep


def play(options: Namespace) -> int:
    """Play the cells that were asked for. 0 when all agree with the simulator, 1 when not."""
    from lockfast.lab import expected, real

    for option, value in (("--html", options.html), ("--svg", options.svg), ("--seed", options.seed)):
        if value is not None:
            raise Failure(USAGE, f"{option} is about the simulator, and --real is not", f"leave out --real or {option}")
    _check_machine()
    wishes = expected.table()
    if options.fault is not None and wishes[options.algorithm, options.fault].verdict == "n/a":
        why = wishes[options.algorithm, options.fault].why
        raise Failure(USAGE, f"{options.fault} does not apply to {options.algorithm}: {why}", "see `lockfast lab`")
    wanted = [
        (algorithm, fault)
        for (algorithm, fault), wish in wishes.items()
        if wish.verdict != "n/a" and options.algorithm in (None, algorithm) and options.fault in (None, fault)
    ]
    progress = Progress(len(wanted), "cells")
    done = 0

    def tick(_cell: RealCell) -> None:
        nonlocal done
        done += 1
        progress.show(done)

    try:
        cells = real.run(wanted, options.jobs * CELLS_PER_JOB, tick)
    except real.Unplayable as reason:
        raise Failure(UNREACHABLE, str(reason), "see `lockfast lab --help`") from None
    finally:
        progress.end()
    if options.json:
        print(json.dumps({"cells": [_told(cell) for cell in cells]}, indent=2))
    else:
        _print(cells, with_steps=len(cells) == 1)
    return _conclude(cells)


def _check_machine() -> None:
    if sys.platform == "win32":
        raise Failure(UNREACHABLE, "--real needs signals and sockets that Windows does not have", "leave out --real")
    try:
        find_binary()
    except Unreachable as failure:
        raise Failure(UNREACHABLE, str(failure), "pip install 'lockfast[lab]'") from None


def _told(cell: RealCell) -> dict[str, Any]:
    steps = [{"at": round(one.at, 4), "who": one.who, "kind": one.kind, "words": one.words} for one in cell.steps]
    return asdict(cell) | {"agrees": cell.agrees, "steps": steps}


def _print(cells: list[RealCell], with_steps: bool) -> None:
    rows: list[tuple[str, ...]] = [("algorithm", "fault", "real", "simulator", "", "")]
    for cell in cells:
        seen = cell.verdict if cell.tries else "-"
        rows.append((cell.algorithm, cell.fault, seen, cell.expected, _word(cell), _note(cell)))
    print(table(rows), end="")
    if with_steps and cells[0].steps:
        print("\nwhat was seen:")
        print(table([(f"{one.at:8.3f}", one.who, one.words) for one in cells[0].steps], indent="  "), end="")


def _word(cell: RealCell) -> str:
    if not cell.agrees:
        return "DIFFER"
    return "agree" if cell.tries else ""


def _note(cell: RealCell) -> str:
    if not cell.tries:
        return f"{cell.verdict}: {cell.detail}"
    notes = cell.detail.splitlines()[-1:]  # of a traceback, what went wrong
    if cell.tries > 1:
        notes.append(f"{cell.tries} tries")
    if cell.late:
        notes.append(f"{cell.late} of them spoilt: this machine was late")
    return "; ".join(notes)


def _conclude(cells: list[RealCell]) -> int:
    differ = [cell for cell in cells if not cell.agrees]
    played = sum(1 for cell in cells if cell.tries)
    left_out = f", {len(cells) - played} not possible here" if played < len(cells) else ""
    say(
        f"{played} cells played on real servers: {played - len(differ)} agree, {len(differ) or 'none'} differ{left_out}"
    )
    if differ:
        hint(f"play one again with `lockfast lab --real {differ[0].algorithm} {differ[0].fault}`")
        return DIFFERS
    return 0
