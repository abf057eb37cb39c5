"""Many seeds, in this process or in several: what came of them, told in pieces while it goes on."""

from __future__ import annotations

from concurrent.futures import FIRST_COMPLETED, wait
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lockfast.sim import pool
from lockfast.sim.runs import run_seed

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from concurrent.futures import Future

CHUNK = 25  # seeds at a time: small enough to be told of often, and to stop soon


@dataclass(frozen=True, slots=True)
class Found:
    """A seed that failed. checkers: who found it; ("error",) when the run itself broke."""

    seed: int
    checkers: tuple[str, ...]
    why: str


@dataclass(frozen=True, slots=True)
class Chunk:
    """What came of some seeds."""

    seeds: int
    steps: int
    script_runs: int
    found: tuple[Found, ...]


def run_many(first: int, count: int, jobs: int = 1, choices: Mapping[str, Any] | None = None) -> Iterator[Chunk]:
    """Run the seeds from `first` on. Close it to stop early; what runs in other processes is stopped."""
    pieces = [(start, min(CHUNK, first + count - start)) for start in range(first, first + count, CHUNK)]
    if jobs == 1:
        for start, length in pieces:
            yield _run(start, length, choices)
        return
    executor = pool.workers(jobs)
    running: set[Future[Chunk]] = set()
    finished = False
    try:
        for start, length in pieces:
            running.add(executor.submit(_run, start, length, choices))
            if len(running) >= 2 * jobs:
                done, running = wait(running, return_when=FIRST_COMPLETED)
                for future in done:
                    yield future.result()
        while running:
            done, running = wait(running, return_when=FIRST_COMPLETED)
            for future in done:
                yield future.result()
        finished = True
    finally:
        pool.end(executor, finished)


def _run(start: int, length: int, choices: Mapping[str, Any] | None) -> Chunk:
    steps = script_runs = 0
    found = []
    for seed in range(start, start + length):
        try:
            result = run_seed(seed, choices)
        except Exception as error:  # noqa: BLE001 - a run that breaks is a find like any other, and the rest go on
            found.append(Found(seed, ("error",), f"{type(error).__name__}: {error}"))
            continue
        steps += result.steps
        script_runs += result.script_runs
        if result.failed:
            found.append(Found(seed, result.failed, result.verdicts[result.failed[0]].why))
    return Chunk(length, steps, script_runs, tuple(found))
