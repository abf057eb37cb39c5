"""Writes what the lab has to say into the docs: `python docs/make_lab.py`. With --check it fails where that is stale.

A page asks for it between two comments, and what stands between them is replaced:

    <!-- made: picture set-nx-px paused-holder -->        a picture of one story, drawn into classics/; the first seed
                                                          that shows the verdict, unless one is named behind it
    <!-- made: verdicts set-nx-px -->                     the row of one algorithm
    <!-- made: excerpt -->, <!-- made: matrix -->, <!-- made: faults -->, <!-- made: parts -->
    <!-- end -->

Everything comes from simulated histories, and the same seeds give the same bytes. Pictures take a second, the whole
matrix half a minute on one CPU.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from lockfast.lab import contenders, expected, matrix, parts, scenarios, svg, terminal
from lockfast.lab.model import VERDICTS
from lockfast.lab.words import WORDS

if TYPE_CHECKING:
    from collections.abc import Callable

    from lockfast.lab.model import Cell, Story

ROOT = Path(__file__).parents[1]
EXPLANATION = ROOT / "docs" / "explanation"
CLASSICS = EXPLANATION / "classics"
PRIMITIVES = ROOT / "docs" / "primitives"
SEEDS = range(1, 9)  # as many as `lockfast lab` plays, so that it prints the same
WIDTH = 100
QUICK = frozenset({"picture", "faults", "parts"})  # what needs no matrix
MADE = re.compile(
    r"(?P<begin><!-- made: (?P<kind>[a-z]+)(?P<words>[^>]*?) -->\n)(?P<body>.*?)(?P<end><!-- end -->)", re.DOTALL
)

# Which page tells of which row; the variants are on the page of their row.
PAGE_OF = {
    "setnx-expire-del": "setnx-expire",
    "setnx-expire-falsy": "setnx-expire",
    "setnx-expire-inverted": "setnx-expire",
    "keyed-semaphore": "counting-semaphore",
}
# The rows of Lockfast's own, which are told of on the page of the primitive.
PRIMITIVE_OF = {
    "lockfast-semaphore": "semaphore",
    "lockfast-rwlock": "read-write-lock",
    "lockfast-several": "several-at-once",
    "lockfast-rlock": "re-entrant-lock",
    "lockfast-election": "election",
    "lockfast-guard": "fencing",
    "lockfast-transaction": "transactions",
}
EXCERPT_ROWS = ("setnx", "setnx-expire", "set-nx-px", "fair-semaphore", "redlock", "lockfast")
EXCERPT_FAULTS = ("holder-dies", "slow-holder", "expiry-rush", "reply-lost", "paused-holder", "failover")


def pages() -> list[Path]:
    """Every page that may ask for something."""
    return [ROOT / "README.md", *sorted(EXPLANATION.rglob("*.md")), *sorted(PRIMITIVES.glob("*.md"))]


def page_of(row: str) -> Path:
    """Where a row is told of."""
    if row in PRIMITIVE_OF:
        return PRIMITIVES / f"{PRIMITIVE_OF[row]}.md"
    return EXPLANATION / "guarantees.md" if row == "lockfast" else CLASSICS / f"{PAGE_OF.get(row, row)}.md"


def make(kinds: frozenset[str] | None = None) -> dict[Path, str]:
    """What each page and picture should be. kinds: replace only these; None for all."""
    made: dict[Path, str] = {}

    for page in pages():

        def replaced(asked: re.Match[str], page: Path = page) -> str:
            if kinds is not None and asked["kind"] not in kinds:
                return asked[0]
            words = asked["words"].split()
            if asked["kind"] == "picture":
                made[_picture_file(*words[:2])] = svg.timeline(story_of(*words))
            body = MAKERS[asked["kind"]](page, *words)
            return f"{asked['begin']}{body.rstrip()}\n{asked['end']}"

        made[page] = MADE.sub(replaced, page.read_text(encoding="utf-8"))
    return made


@cache
def cells() -> dict[tuple[str, str], Cell]:
    """The whole matrix."""
    done = matrix.run_all(matrix.every_cell(), SEEDS, os.cpu_count() or 1)
    return {(cell.algorithm, cell.fault): cell for cell in done}


@cache
def story_of(algorithm: str, fault: str, seed: str = "") -> Story:
    """The first story that shows what was expected of this cell, or the one of this seed."""
    wish = expected.expected(algorithm, fault).verdict
    for number in [int(seed)] if seed else SEEDS:
        story = matrix.story(algorithm, fault, number)
        if story.verdict == wish:
            return story
    raise ValueError(f"no seed of {algorithm} under {fault} is {wish}")


def picture(page: Path, algorithm: str, fault: str, seed: str = "") -> str:
    story = story_of(algorithm, fault, seed)
    target = os.path.relpath(_picture_file(algorithm, fault), page.parent)
    replay = f"lockfast lab {algorithm} {fault} --seed {story.seed}"
    return f"![{story.title}. {story.what_happened}]({target})\n\n{story.what_happened} Replay: `{replay}`"


def verdicts(_page: Path, algorithm: str) -> str:
    lines = ["| fault | verdict | why | replay |", "|---|---|---|---|"]
    row = [cells()[algorithm, column.key] for column in scenarios.COLUMNS]
    lines += [verdict_line(cell) for cell in row if cell.verdict != "n/a"]
    reasons: dict[str, list[str]] = {}
    for cell in row:
        if cell.verdict == "n/a":
            reasons.setdefault(cell.detail, []).append(f"`{cell.fault}`")
    if reasons:
        told = "; ".join(f"{', '.join(faults)}: {reason}" for reason, faults in reasons.items())
        lines += ["", f"Does not apply: {told}."]
    return "\n".join(lines)


def verdict_line(cell: Cell) -> str:
    """One line of a page's table."""
    result = cell.result
    if cell.verdict != "safe":
        short = VERDICTS[cell.verdict].short
        result = f"**{short}**{result.removeprefix(short)}"
    if "allowed" in cell.detail:
        result += f": {cell.detail}"
    why = _code_safe(expected.expected(cell.algorithm, cell.fault).why)
    return f"| `{cell.fault}` | {result} | {why} | `{cell.replay}` |"


def excerpt(_page: Path) -> str:
    lines = [f"| | {' | '.join(scenarios.BY_KEY[fault].topic.title for fault in EXCERPT_FAULTS)} |"]
    lines.append("|---" * (1 + len(EXCERPT_FAULTS)) + "|")
    for algorithm in EXCERPT_ROWS:
        found = [VERDICTS[cells()[algorithm, fault].verdict] for fault in EXCERPT_FAULTS]
        title = contenders.BY_KEY[algorithm].topic.title
        lines.append(f"| {title} | {' | '.join(f'{one.sign} {one.short}' for one in found)} |")
    return "\n".join(lines)


def whole(page: Path) -> str:
    rows = [row.topic for row in contenders.ROWS]
    columns = [column.topic for column in scenarios.COLUMNS]
    text = terminal.matrix(cells().values(), rows, columns, WIDTH, color=False)
    lines = ["```text", *[line.rstrip() for line in text.rstrip().splitlines()], "```", ""]
    lines += ["| row | algorithm | what it does |", "|---|---|---|"]
    for row in rows:
        target = os.path.relpath(page_of(row.key), page.parent)
        lines.append(f"| [`{row.key}`]({target}) | {_code_safe(row.title)} | {_code_safe(row.says)} |")
    return "\n".join(lines)


def faults(_page: Path) -> str:
    lines = ["| | fault | what happens | what the texts say | what Lockfast does |", "|---|---|---|---|---|"]
    for number, column in enumerate(scenarios.COLUMNS, 1):
        words = WORDS[column.key]
        lines.append(f"| {number} | `{column.key}` | {column.topic.says} | {words.text} | {words.lockfast} |")
    return "\n".join(lines)


def fine_grained(_page: Path) -> str:
    return f"```text\n{parts.table(parts.compare())}```"


MAKERS: dict[str, Callable[..., str]] = {
    "picture": picture,
    "verdicts": verdicts,
    "excerpt": excerpt,
    "matrix": whole,
    "faults": faults,
    "parts": fine_grained,
}


def _picture_file(algorithm: str, fault: str) -> Path:
    return CLASSICS / f"{algorithm}-{fault}.svg"


def _code_safe(text: str) -> str:
    return text.replace("|", "\\|")


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--check", action="store_true", help="write nothing; end with 1 when something is stale")
    options.add_argument("--quick", action="store_true", help="leave out what needs the whole matrix")
    chosen = options.parse_args()
    made = make(QUICK if chosen.quick else None)
    stale = [path for path, text in made.items() if not path.exists() or path.read_text(encoding="utf-8") != text]
    left_over = [path for path in sorted(CLASSICS.glob("*.svg")) if path not in made]
    for path in stale + left_over:
        print(path.relative_to(ROOT), file=sys.stderr)
    if chosen.check:
        return 1 if stale or left_over else 0
    for path in stale:
        path.write_text(made[path], encoding="utf-8")
    for path in left_over:
        path.unlink()
    return 0


if __name__ == "__main__":  # also what the processes that run cells read when they start
    sys.exit(main())
