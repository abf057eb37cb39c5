"""Runs cells: each algorithm under each fault, over a number of seeds; in several processes if asked to."""

from __future__ import annotations

from collections import Counter
from concurrent.futures import as_completed
from typing import TYPE_CHECKING

from lockfast.lab import contenders, scenarios
from lockfast.lab.judging import judge
from lockfast.lab.model import VERDICTS, Cell
from lockfast.lab.stories import tell
from lockfast.sim import pool

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from lockfast.lab.judging import Outcome
    from lockfast.lab.model import Story

SEEDS = 5
MAX_SEED = 2**31 - 1

# The worst that any seed showed is the verdict of a cell; VERDICTS has them in that order.
_RANK = {verdict: rank for rank, verdict in enumerate(VERDICTS)}


def run_cell(algorithm: str, fault: str, seeds: Iterable[int]) -> Cell:
    """One cell. Its seed is the first that shows its verdict, and of those in which too many got in, the worst."""
    row, column = contenders.BY_KEY[algorithm], scenarios.BY_KEY[fault]
    reason = column.fits(row)
    if reason is not None:
        return Cell(algorithm, fault, "n/a", 0, 0, None, reason)
    shown: dict[str, tuple[int, Outcome]] = {}
    counts: Counter[str] = Counter()
    for seed in seeds:
        outcome = judge(scenarios.play(column, row, seed))
        counts[outcome.verdict] += 1
        if outcome.verdict not in shown or outcome.together > shown[outcome.verdict][1].together:
            shown[outcome.verdict] = (seed, outcome)
    verdict = min(counts, key=_RANK.__getitem__)
    seed, worst = shown[verdict]
    bad = 0 if verdict == "safe" else counts[verdict]
    return Cell(algorithm, fault, verdict, counts.total(), bad, seed, worst.detail)


def run_all(
    cells: list[tuple[str, str]], seeds: range, jobs: int, tick: Callable[[Cell], None] = lambda _cell: None
) -> list[Cell]:
    """Many cells, in the order given. `tick` is called with each as it is done."""
    if jobs == 1:
        made = []
        for algorithm, fault in cells:
            made.append(run_cell(algorithm, fault, seeds))
            tick(made[-1])
        return made
    found: dict[tuple[str, str], Cell] = {}
    executor = pool.workers(jobs)
    finished = False
    try:
        futures = [executor.submit(run_cell, algorithm, fault, seeds) for algorithm, fault in cells]
        for future in as_completed(futures):
            cell = future.result()
            found[cell.algorithm, cell.fault] = cell
            tick(cell)
        finished = True
    finally:
        pool.end(executor, finished)
    return [found[one] for one in cells]


def story(algorithm: str, fault: str, seed: int) -> Story:
    """What one seed did. Raises ValueError when the fault cannot happen to the algorithm."""
    row, column = contenders.BY_KEY[algorithm], scenarios.BY_KEY[fault]
    reason = column.fits(row)
    if reason is not None:
        raise ValueError(f"{fault} does not apply to {algorithm}: {reason}")
    return tell(column, row, seed, scenarios.play(column, row, seed))


def every_cell() -> list[tuple[str, str]]:
    return [(row.key, column.key) for row in contenders.ROWS for column in scenarios.COLUMNS]
