"""Histories as lines of JSON, one event each, so that they can be kept, compared and joined from several processes.

Fields that have their usual value are left out. A time that never comes is written "inf": JSON has no number for it.
"""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lockfast.check.history import BadHistory, Event, validate

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable

_DEFAULTS = {field.name: field.default for field in fields(Event)}
_FLOATS = ("at", "until", "lease")
_INTEGERS = ("fence", "weight", "limit")


def to_line(event: Event) -> str:
    """The event as one line of JSON, without the line's end."""
    told: dict[str, Any] = {
        key: value for key, usual in _DEFAULTS.items() if (value := getattr(event, key)) not in (usual, "")
    }
    for key in _FLOATS:
        if key in told and told[key] in (float("inf"), float("-inf")):
            told[key] = str(told[key])
    return json.dumps(told, allow_nan=False, ensure_ascii=False)


def from_line(line: str) -> Event:
    """The event that a line tells of. Raises BadHistory when it is not one."""
    try:
        told = json.loads(line)
        if not isinstance(told, dict) or not told.keys() <= _DEFAULTS.keys():
            raise ValueError(f"the fields of an event are {', '.join(_DEFAULTS)}")
        values = {"name": "", "ticket": "", **told}
        values |= {key: float(values[key]) for key in _FLOATS if key in values}
        for key, value in values.items():
            kind = float if key in _FLOATS else int if key in _INTEGERS else str
            if type(value) is not kind:
                raise ValueError(f"{key} is {value!r}")
        return Event(**values)
    except (ValueError, TypeError) as error:
        raise BadHistory(f"not an event: {line.strip()[:200]!r}: {error}") from error


def write(history: Iterable[Event], path: str | os.PathLike[str]) -> None:
    """Write a history to a file, in place of what was there."""
    Path(path).write_text("".join(f"{to_line(event)}\n" for event in history), encoding="utf-8")


def load(*paths: str | os.PathLike[str]) -> list[Event]:
    """One history out of one or several files, in the order of time. Raises BadHistory when it is malformed."""
    history: list[Event] = []
    for path in paths:
        for number, line in enumerate(Path(path).read_text(encoding="utf-8").split("\n"), 1):
            if not line.strip():
                continue
            try:
                history.append(from_line(line))
            except BadHistory as error:
                raise BadHistory(f"{path}:{number}: {error}") from error
    history.sort(key=lambda event: event.at)  # stable: equal times stay in the order of their file
    validate(history)
    return history
