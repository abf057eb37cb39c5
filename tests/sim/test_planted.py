"""The simulator and the checkers, tested by bugs: each is found within a thousand seeds, and is what was planted."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from lockfast.flows import admission, ending, renewal, scripts, swapping
from lockfast.grants import Hold
from lockfast.sim.runs import play, run_seed
from lockfast.sim.shrink import shrink
from sim.planted import ALL, Planted, planted

if TYPE_CHECKING:
    from lockfast.sim.runs import Result

SEEDS = 1000


def find(bug: Planted) -> Result:
    """The first seed that shows the bug, and shows nothing of the kind without it."""
    first = 0
    while first < SEEDS:
        with planted(bug):
            results = (run_seed(seed, bug.choices) for seed in range(first, SEEDS))
            result = next((one for one in results if bug.caught_by & set(one.failed)), None)
        if result is None:
            break
        if not bug.caught_by & set(run_seed(result.seed, bug.choices).failed):
            return result
        first = result.seed + 1
    pytest.fail(f"{bug.name} was not found in {SEEDS} seeds")


def test_there_are_more_than_twelve() -> None:
    assert len({bug.name for bug in ALL}) == len(ALL) > 12


@pytest.mark.slow
@pytest.mark.parametrize("bug", ALL, ids=lambda bug: bug.name)
def test_a_planted_bug_is_found(bug: Planted) -> None:
    find(bug)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["blind release", "a ticket retried after its leave", "no tombstone"])
def test_a_find_is_shrunk_to_a_short_run_with_the_same_failure(name: str) -> None:
    bug = next(bug for bug in ALL if bug.name == name)
    result = find(bug)
    with planted(bug):
        short = play(shrink(result), trace=True)
        whole = play(result.plan, trace=True)
    assert set(short.failed) & set(result.failed)
    assert len(short.plan.faults) <= 4
    assert len(short.plan.clients) <= 3
    assert len(short.trace_to_failure()) < min(100, len(whole.trace) / 2)


@pytest.mark.parametrize("bug", ALL, ids=lambda bug: bug.name)
def test_a_bug_is_there_inside_the_block_and_gone_after_it(bug: Planted) -> None:
    before = looks()
    with planted(bug):
        assert looks() != before
    assert looks() == before


def looks() -> list[object]:
    """All that a planted bug can change."""
    texts = [script.text for script in (scripts.ADMIT, scripts.LEAVE, scripts.RENEW)]
    shas = [script.sha for script in (scripts.ADMIT, scripts.LEAVE, scripts.RENEW)]
    flows = [admission.acquire, admission.wait_for_push, admission.MARGIN_RATIO, Hold.renewed]
    imported = [vars(ending)["leave"], vars(renewal)["deadline_of"], swapping.Swap.words, swapping.swap]
    return [*texts, *shas, *flows, *imported]


def test_an_edit_of_text_that_is_no_longer_there_is_refused() -> None:
    bug = Planted("stale", (("lua/admit.lua", "text that nobody wrote", ""),), frozenset())
    with pytest.raises(AssertionError, match="no longer has"), planted(bug):
        pass
