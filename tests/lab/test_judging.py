"""Verdicts by the writes alone."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from lockfast.lab.contender import Shape
from lockfast.lab.judging import judge
from lockfast.lab.stage import Write


@dataclass
class Seen:
    """As much of a stage as a judge looks at."""

    writes: list[Write]
    shape: Shape = field(default_factory=Shape)
    unserved: list[str] = field(default_factory=list)
    lost_updates: int = 0


def verdict(*writes: tuple[float, str, int] | tuple[float, str, int, bool], limit: int = 1, **more: Any) -> Any:
    made = [Write(one[0], one[1], one[2], one[3] if len(one) > 3 else True) for one in writes]
    return judge(Seen(made, Shape(limit=limit), **more))


def test_sections_one_after_the_other_are_safe() -> None:
    assert verdict((1, "A", 1), (2, "A", 1), (3, "B", 2), (4, "B", 2)).verdict == "safe"


def test_write_in_the_very_moment_in_which_another_section_ends_is_safe() -> None:
    assert verdict((1, "A", 1), (2, "A", 1), (2, "B", 2), (3, "B", 2)).verdict == "safe"


def test_write_inside_anothers_section_is_a_violation_and_the_fatal_moment_is_told() -> None:
    outcome = verdict((1, "A", 1), (2, "B", 2), (3, "A", 1))
    assert (outcome.verdict, outcome.fatal_at, outcome.fatal_who) == ("violated", 3, "A")


def test_as_many_sections_at_once_as_allowed_are_safe_and_one_more_is_not() -> None:
    two = [(1, "A", 1), (1.5, "B", 2), (3, "A", 1), (4, "B", 2)]
    assert verdict(*two, limit=2).verdict == "safe"
    outcome = verdict(*two[:2], (2, "C", 3), *two[2:], limit=2)
    assert outcome.verdict == "violated"
    assert outcome.detail == "3 at once, 2 allowed"


def test_refused_write_shows_an_overlap_that_did_no_harm() -> None:
    outcome = verdict((1, "A", 1), (2, "B", 2), (3, "A", 1, False), (4, "B", 2))
    assert (outcome.verdict, outcome.fatal_who) == ("fenced", "A")


def test_accepted_overlap_is_a_violation_even_if_another_write_was_refused() -> None:
    assert verdict((1, "A", 1), (2, "B", 2), (3, "A", 1), (4, "A", 1, False)).verdict == "violated"


def test_who_was_never_served_is_stuck() -> None:
    outcome = verdict((1, "A", 1), unserved=["B", "C"])
    assert outcome.verdict == "stuck"
    assert outcome.detail == "B and C waited in vain"


def test_lost_update_is_a_violation() -> None:
    assert verdict((1, "A", 1), lost_updates=1).verdict == "violated"
