"""Plays cells of the matrix on real servers, several at a time, and compares them with what the simulator says.

A cell that is expected to be safe is played once. One that is not is played until it has been seen, a few times at
most: as in the simulator, the worst that was seen is the verdict. A try in which this machine was late by more than
the margins of the stories says nothing when it disagrees, and is made again; how many tries there were is told.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lockfast.lab import contender, contenders, expected, scenarios
from lockfast.lab.judging import judge
from lockfast.lab.model import VERDICTS
from lockfast.lab.real_faults import CLOCK_FAULTS, TALES, impossible
from lockfast.lab.real_servers import Crew, Unplayable
from lockfast.lab.real_stage import RealStage

if TYPE_CHECKING:
    from collections.abc import Callable

    from lockfast.lab.stage import Happening

MAX_TRIES = 4
LATE_S = 0.1  # stories bear this much
EXTRA_S = 10.0  # the curtain falls this much later than in the simulator, which is never late
NOT_PLAYED = "not possible here"
_RANK = {verdict: rank for rank, verdict in enumerate(VERDICTS)}


@dataclass(frozen=True)
class RealCell:
    """What was seen of one cell. verdict: as in model.VERDICTS, or NOT_PLAYED. late: tries that the machine spoilt."""

    algorithm: str
    fault: str
    verdict: str
    expected: str
    detail: str
    tries: int = 0
    late: int = 0
    steps: tuple[Happening, ...] = ()

    @property
    def agrees(self) -> bool:
        return self.verdict in (self.expected, NOT_PLAYED)


def run(
    cells: list[tuple[str, str]], at_once: int, tick: Callable[[RealCell], None] = lambda _cell: None
) -> list[RealCell]:
    """Play these cells, in any order, and return them in theirs. `tick` is called with each as it is done.

    Raises Unplayable when this machine cannot start servers, and Unreachable when it has none.
    """
    return asyncio.run(_run(cells, at_once, tick))


async def _run(cells: list[tuple[str, str]], at_once: int, tick: Callable[[RealCell], None]) -> list[RealCell]:
    # The longest first, so that at the end nobody waits for one of them alone.
    waiting = sorted(cells, key=lambda cell: -scenarios.BY_KEY[cell[1]].end_s)
    found: dict[tuple[str, str], RealCell] = {}
    async with Crew() as crew:
        company = Company(crew)

        async def work() -> None:
            while waiting:
                cell = waiting.pop(0)
                found[cell] = await company.play(*cell)
                tick(found[cell])

        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(min(at_once, len(cells))):
                    group.create_task(work())
        except BaseExceptionGroup as several:
            raise several.exceptions[0] from None  # one is enough to say what is wrong
    return [found[cell] for cell in cells]


class Company:
    """Plays one cell after the other."""

    def __init__(self, crew: Crew) -> None:
        self._crew = crew
        self._stages = 0
        self._crowd = asyncio.Lock()  # a stage full of players at a time: they would be late for each other

    async def play(self, algorithm: str, fault: str) -> RealCell:
        """Play one cell as often as it needs."""
        wish = expected.table()[algorithm, fault].verdict
        row = contenders.BY_KEY[algorithm]
        reason = row.unreal or impossible(fault)
        if reason is not None:
            return RealCell(algorithm, fault, NOT_PLAYED, wish, reason)
        # With one contender, its clock is ahead in one try and behind in the next.
        least = 2 if row.kind == "semaphore" and fault.startswith("clocks-") else 1
        worst: RealCell | None = None
        tries = late = 0
        while tries < MAX_TRIES and (tries < least or worst is None or _is_better(worst.verdict, wish)):
            try:
                seen, late_s = await self._try(algorithm, fault, tries, wish)
            except (RuntimeError, TimeoutError, OSError) as error:
                return RealCell(algorithm, fault, "unknown", wish, f"it could not be played: {error}", tries + 1, late)
            tries += 1
            if late_s > LATE_S and seen.verdict != wish:
                late += 1
            elif worst is None or _is_better(worst.verdict, seen.verdict):
                worst = seen
        if worst is None:
            detail = f"in each of {tries} tries this machine was late by more than {LATE_S:g} s"
            return RealCell(algorithm, fault, "unknown", wish, detail, tries, late)
        return RealCell(algorithm, fault, worst.verdict, wish, worst.detail, tries, late, worst.steps)

    async def _try(self, algorithm: str, fault: str, number: int, wish: str) -> tuple[RealCell, float]:
        row, scenario = contenders.BY_KEY[algorithm], scenarios.BY_KEY[fault]
        shape = scenario.shape(row)
        if shape.limit == 1:
            stage = await self._played(row, scenario, number)
        else:
            async with self._crowd:
                stage = await self._played(row, scenario, number)
        outcome = judge(stage)
        cell = RealCell(algorithm, fault, outcome.verdict, wish, outcome.detail, steps=tuple(stage.happenings))
        return cell, stage.late_s

    async def _played(self, row: contender.Contender, scenario: scenarios.Scenario, number: int) -> RealStage:
        self._stages += 1
        stage = RealStage(self._crew, self._crew.directory / str(self._stages), row, scenario.shape(row), number)
        try:
            await stage.open(fakes_time=scenario.key in CLOCK_FAULTS)
            await stage.play(TALES[scenario.key], scenario.end_s + EXTRA_S)
        finally:
            await stage.close()
        return stage


def _is_better(one: str, other: str) -> bool:
    return _RANK[one] > _RANK[other]


__all__ = ["NOT_PLAYED", "RealCell", "Unplayable", "run"]
