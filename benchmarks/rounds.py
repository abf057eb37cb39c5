"""How every benchmark here measures: contestants take turns in rounds, and are compared inside each round.

A shared machine speeds up and slows down by the minute. So every contestant runs once in every round, in
shuffled order, a ratio is taken between two measurements of the *same* round, and the median of these ratios
is the result. The quotient of two medians would compare different minutes.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import statistics
import sys
import time
from dataclasses import asdict, dataclass, field
from importlib import metadata
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

# Contestant -> round -> what was measured in it.
Samples = dict[str, dict[int, float]]


@dataclass(frozen=True)
class Goal:
    """A figure to reach: one value per round, judged by their median."""

    label: str
    values: list[float]
    sense: Literal[">=", "<="]
    bound: float

    @property
    def verdict(self) -> str:
        if not self.values:
            return "not measured"
        middle = statistics.median(self.values)
        reached = middle >= self.bound if self.sense == ">=" else middle <= self.bound
        return "reached" if reached else "MISSED"

    def row(self) -> list[str]:
        if not self.values:
            return [self.label, "-", "-", f"{self.sense} {self.bound:.3g}", self.verdict]
        low, high = quartiles(self.values)
        middle = statistics.median(self.values)
        spread = f"{low:.3f} to {high:.3f}"
        return [self.label, f"{middle:.3f}", spread, f"{self.sense} {self.bound:.3g}", self.verdict]


@dataclass
class Report:
    """What a run leaves behind with --json: every single measurement, not only what was printed."""

    benchmark: str
    server: str
    machine: dict[str, Any] = field(default_factory=lambda: machine())
    samples: dict[str, Any] = field(default_factory=dict)
    goals: list[Goal] = field(default_factory=list)
    left_out: dict[str, str] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)

    @property
    def title(self) -> str:
        return f"{self.server}, Python {self.machine['python']}, {self.machine['cpus']} CPUs"

    def print_goals(self) -> None:
        heads = ["target (median of in-round ratios)", "median", "quartiles", "to reach", ""]
        print_table(heads, [goal.row() for goal in self.goals])
        for name, why in self.left_out.items():
            print(f"left out: {name}: {why}")
        for failure in self.failures:
            print(f"FAILED: {failure}")

    def finish(self, options: argparse.Namespace) -> int:
        """Write the file asked for, and say with the exit code whether --check is content."""
        if options.json:
            goals = [{**asdict(goal), "verdict": goal.verdict} for goal in self.goals]
            with open(options.json, "w", encoding="utf-8") as file:
                json.dump({**vars(self), "goals": goals}, file, indent=1)
        content = not self.failures and all(goal.verdict == "reached" for goal in self.goals)
        return 1 if options.check and not content else 0


def parser(description: str, *, rounds: int) -> argparse.ArgumentParser:
    """The options that all benchmarks share."""
    options = argparse.ArgumentParser(description=description)
    options.add_argument("--server", choices=["valkey", "redis"], default="valkey", help="default: valkey")
    options.add_argument("--rounds", type=int, default=rounds, help="default: %(default)s")
    options.add_argument("--quick", action="store_true", help="3 short rounds, to see that it works")
    options.add_argument("--only", metavar="TEXT", action="append", help="only contestants named like that")
    options.add_argument("--seed", type=int, default=0, help="of the order inside the rounds")
    options.add_argument("--json", metavar="FILE", help="write every measurement there")
    options.add_argument("--check", action="store_true", help="exit 1 unless all targets are reached")
    return options


def chosen(names: Sequence[str], options: argparse.Namespace) -> list[str]:
    return [name for name in names if not options.only or any(text in name for text in options.only)]


def interleave(items: Sequence[Any], rounds: int, seed: int, what: str) -> Iterator[tuple[int, Any]]:
    """Every item once a round, each round in another order; progress is told on stderr."""
    rng = random.Random(seed)
    started = time.monotonic()
    for number in range(rounds):
        order = list(items)
        rng.shuffle(order)
        for item in order:
            yield number, item
        spent_s = time.monotonic() - started
        print(f"{what}: round {number + 1} of {rounds}, {spent_s:.0f} s", file=sys.stderr, flush=True)


def ratios(samples: Samples, top: str, bottom: str) -> list[float]:
    """top / bottom of each round in which both were measured."""
    above, below = samples.get(top, {}), samples.get(bottom, {})
    return [above[number] / below[number] for number in above if number in below]


def median_ratio(samples: Samples, top: str, bottom: str) -> str:
    values = ratios(samples, top, bottom)
    return f"{statistics.median(values):.2f}" if values else "-"


def percentile(values: Sequence[float], percent: float) -> float:
    """The nearest-rank percentile: always a value that was measured."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))]


def quartiles(values: Sequence[float]) -> tuple[float, float]:
    return percentile(values, 25), percentile(values, 75)


def jain(counts: Sequence[int]) -> float:
    """Jain's fairness index: 1 when all got the same, 1/n when one got everything (Jain, Chiu, Hawe 1984)."""
    squares = sum(count * count for count in counts)
    return sum(counts) ** 2 / (len(counts) * squares) if squares else 0.0


def print_table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """A Markdown table, so that a run can be pasted into the README as it is."""
    widths = [max(len(row[at]) for row in [heads, *rows]) for at in range(len(heads))]
    print("| " + " | ".join(head.ljust(width) for head, width in zip(heads, widths, strict=True)) + " |")
    print("|" + "|".join("-" * (width + 2) for width in widths) + "|")
    for row in rows:
        print("| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |")
    print(flush=True)


def machine() -> dict[str, Any]:
    versions: Mapping[str, str] = {
        name: metadata.version(name)
        for name in ("lockfast", "redis", "hiredis", "python-redis-lock", "uvloop")
        if _installed(name)
    }
    return {"python": platform.python_version(), "cpus": len(os.sched_getaffinity(0)), "versions": versions}


def _installed(name: str) -> bool:
    try:
        metadata.version(name)
    except metadata.PackageNotFoundError:
        return False
    return True
