"""Runs of many seeds with callers of a test's own, and bugs planted in one function for the length of a block."""

from __future__ import annotations

import inspect
import sys
import textwrap
from collections import Counter
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from lockfast.sim import runs
from lockfast.sim.runs import run_seed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from lockfast.sim.runs import Result


@contextmanager
def callers(kind: type[runs._Caller]) -> Iterator[None]:
    """Let the callers of every run be of this kind."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runs, "_Caller", kind)
        yield


def failed(result: Result) -> set[str]:
    """The checkers that found something to mend."""
    return set(result.failed)


def play(
    kind: type[runs._Caller],
    choices: dict[str, Any],
    seeds: Iterable[int],
    judge: Callable[[Result], set[str]] = failed,
) -> tuple[list[Result], str]:
    """All runs, and what was found in words."""
    results, found = [], []
    with callers(kind):
        for seed in seeds:
            result = run_seed(seed, choices)
            results.append(result)
            if bad := judge(result):
                why = [result.verdicts[name].why for name in sorted(bad) if name in result.verdicts]
                found.append(f"seed {seed}: {', '.join(sorted(bad))}: {'; '.join(why)}")
    return results, "\n".join(found)


def counts(results: list[Result]) -> Counter[str]:
    return Counter(event.what for result in results for event in result.history)


@contextmanager
def edited(owner: Any, name: str, old: str, new: str) -> Iterator[None]:
    """One function or method with other text in a place; it must be there, so that a bug cannot quietly cease."""
    function = inspect.getattr_static(owner, name)
    text = textwrap.dedent(inspect.getsource(function))
    assert old in text, f"{name} no longer has {old!r}"
    text = text.replace(old, new)
    if inspect.isclass(owner):
        text = text.replace("super()", f"super({owner.__name__}, self)")
    made: dict[str, Any] = {}
    home = vars(sys.modules[function.__module__])
    exec(compile("from __future__ import annotations\n" + text, f"<{name}, edited>", "exec"), home, made)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(owner, name, made[name])
        yield
