"""Writes docs/reference.md from the docstrings: `python docs/make_reference.py`. A test tells when it is stale."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any

import lockfast
from lockfast import errors, grants, locks, snapshots

PAGE = Path(__file__).with_name("reference.md")
HEAD = """# Reference

Made from the docstrings by `docs/make_reference.py`. In `lockfast.aio` every class has the same names and
signatures; `acquire`, `try_acquire`, `extend`, `release`, `wait_lost`, `names`, `inspect` and `break_lock` are
awaited there, `with` is `async with`, and `close()` is `aclose()`.
"""
TAIL = """## Command line

`lockfast run NAME -- CMD…`, `lockfast ls`, `lockfast show NAME`, `lockfast break NAME`, and
`lockfast server start|status|stop`. Each has a `--help`; data goes to stdout, talk to stderr, and `ls` and `show` have
`--json` for programs. Names are typed and printed with `|` between their parts, and `%XX` for braces, `%` and `|`.

| exit code of `run` | |
|---|---|
| the command's own | it ran; 128+n if signal n ended it |
| 64 | wrong usage, or a run of the same lock inside this one |
| 69 | the server does not answer |
| 75 | busy, or `--wait` was over (`-E` changes it) |
| 76 | lost while the command ran: it was stopped |
| 77 | the server refuses: password, rights, memory |
| 126, 127 | the command cannot be executed, was not found |

## Environment

| variable | |
|---|---|
| `LOCKFAST_URL` | the server, where none is named |
| `LOCKFAST_HOME` | directory of the embedded server (absolute, private); only to keep one apart from the usual one |
| `LOCKFAST_GRACE_S` | seconds that the embedded server stays after its last user (600) |
| `LOCKFAST_LOCK`, `LOCKFAST_FENCE`, `LOCKFAST_TICKET`, `LOCKFAST_HELD` | set by `lockfast run` for its command |

## Limits

A lease is 50 ms to 7 days, a wait up to a year, a name up to 1024 bytes; its parts are `str` or `int`, not empty,
without NUL.

## Logging

The logger `lockfast` warns of renewals that failed and of grants that were dropped without release. Nothing is
configured; passwords are never logged.
"""


def describe(title: str, member: Any, *, bases: tuple[type, ...] = ()) -> list[str]:
    """A class: its docstring, and those of its public members."""
    made = _signature(member.__init__) if title == "Lockfast" else ""
    lines = [f"### `{title}{made}`", "", inspect.cleandoc(member.__doc__ or ""), ""]
    seen = set()
    for owner in (member, *bases):
        for name, value in vars(owner).items():
            if (name.startswith("_") and name != "__call__") or name in seen:
                continue
            seen.add(name)
            if isinstance(value, property):
                text = inspect.cleandoc(value.fget.__doc__) if value.fget.__doc__ else ""
                lines += [f"- `{name}`{': ' + ' '.join(text.split()) if text else ''}"]
            elif inspect.isfunction(value):
                text = " ".join(inspect.cleandoc(value.__doc__ or "").split())
                lines += [f"- `{name}{_signature(value)}`: {text}"]
    return [*lines, ""]


def _signature(function: Any) -> str:
    text = str(inspect.signature(function)).replace("(self, ", "(").replace("(self)", "()")
    return re.sub(r"'([^']*[^'=( ])'", r"\1", text)  # annotations are text here


def page() -> str:
    lines = [HEAD, "## Classes", ""]
    lines += describe("Lockfast", lockfast.Lockfast)
    lines += describe("Lock", lockfast.Lock, bases=(locks.LockBase,))
    lines += describe("Grant", lockfast.Grant, bases=(grants.GrantView,))
    lines += ["## Snapshots", ""]
    for each in (snapshots.Snapshot, snapshots.Holder, snapshots.Waiter, snapshots.Owner, snapshots.Broken):
        fields = ", ".join(each._fields)
        lines += [f"### `{each.__name__}({fields})`", "", inspect.cleandoc(each.__doc__ or ""), ""]
    lines += ["## Errors", "", "```text", inspect.cleandoc(errors.__doc__ or ""), "```", ""]
    for name in ("NotAcquired", "LeaseLost", "NotHeld", "Unreachable", "Refused", "Misused"):
        lines += [f"### `{name}`", "", inspect.cleandoc(getattr(errors, name).__doc__), ""]
    return "\n".join([*lines, TAIL])


if __name__ == "__main__":
    PAGE.write_text(page())
