"""Writes docs/reference.md from the docstrings: `python docs/make_reference.py`. A test tells when it is stale."""

from __future__ import annotations

import argparse
import inspect
from pathlib import Path
from typing import TYPE_CHECKING, Any

import lockfast
from lockfast import check, classic, errors, fencing, grants, locks, snapshots, together, waitfor
from lockfast.check import io as histories
from lockfast.check.record import Recorder
from lockfast.cli import deadlocks, lab, sim

if TYPE_CHECKING:
    from collections.abc import Callable

PAGE = Path(__file__).with_name("reference.md")
HEAD = """# Reference

Made from the docstrings by `docs/make_reference.py`. In `lockfast.aio` every class has the same names and
signatures; what may wait for the server is awaited there (also `get` and `read` of a transaction), `with` is
`async with`, and `close()` is `aclose()`.
"""
CLASSIC = """The textbook algorithms. What each is and how it fails: [explanation](explanation/README.md). In
`lockfast.classic.aio` the `Client` has the same methods, awaited; `hold` is `async with`, `close()` is `aclose()`."""
TAIL = """## Command line

`lockfast run NAME -- CMD…`, `lockfast ls`, `lockfast show NAME`, `lockfast revoke NAME` (asks the holder to let go),
`lockfast break NAME` (takes it away; in a script with `--yes --reason TEXT`), `lockfast deadlocks`,
`lockfast server start|status|stop` (`status` prints its URL), `lockfast lab` and `lockfast sim`.
Each has a `--help`; data goes to stdout, talk
to stderr, and `ls`, `show`, `deadlocks`, `lab` and `sim` have `--json` for programs. Names are typed and printed with
`|` between their parts, and `%XX` for braces, `%` and `|`.

| exit code of `run` | |
|---|---|
| the command's own | it ran; 128+n if signal n ended it |
| 64 | wrong usage, or a run of the same lock inside this one |
| 69 | the server does not answer |
| 75 | busy, or `--wait` was over (`-E` changes it) |
| 76 | lost while the command ran: it was stopped |
| 77 | the server refuses: password, rights, memory |
| 126, 127 | the command cannot be executed, was not found |

LAB
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
    made = _signature(member.__init__) if title in ("Lockfast", "Client", "Recorder") else ""
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
    found = inspect.signature(function)
    told: list[str] = []
    for name, one in found.parameters.items():
        if name == "self":
            continue
        if one.kind is one.KEYWORD_ONLY and not any(word.startswith("*") for word in told):
            told.append("*")
        stars = "*" if one.kind is one.VAR_POSITIONAL else "**" if one.kind is one.VAR_KEYWORD else ""
        default = "" if one.default is one.empty else f" = {one.default!r}"
        told.append(f"{stars}{name}: {one.annotation}{default}")  # annotations are text here
    returns = "" if found.return_annotation is found.empty else f" -> {found.return_annotation}"
    return f"({', '.join(told)}){returns}"


def describe_recipe(recipe: type) -> list[str]:
    """A recipe of `classic`: how it is made, and what its parameters mean."""
    made = _signature(recipe).removesuffix(" -> None")
    return [f"### `{recipe.__name__}{made}`", "", inspect.cleandoc(recipe.__doc__ or ""), ""]


def describe_verb(verb: str, add_arguments: Callable[[argparse.ArgumentParser], None]) -> list[str]:
    """What `lockfast VERB --help` says, in a form that does not depend on the width of a terminal."""
    parser = argparse.ArgumentParser(add_help=False)
    add_arguments(parser)
    lines = [
        f"### `lockfast {verb}`",
        "",
        "```text",
        (parser.description or "").strip(),
        "```",
        "",
        "| | |",
        "|---|---|",
    ]
    for action in parser._actions:  # there is no public way to ask a parser what it takes
        words = [*action.option_strings, *([action.metavar] if isinstance(action.metavar, str) else [])]
        lines.append(f"| `{' '.join(words)}` | {action.help} |")
    return [*lines, ""]


def page() -> str:
    lines = [HEAD, "## Classes", ""]
    lines += describe("Lockfast", lockfast.Lockfast)
    lines += describe("Lock", lockfast.Lock, bases=(locks.LockBase,))
    lines += describe("Grant", lockfast.Grant, bases=(grants.GrantView,))
    lines += describe("Semaphore", lockfast.Semaphore)
    lines += describe("RWLock", lockfast.RWLock)
    lines += describe("RLock", lockfast.RLock)
    lines += describe("Locks", lockfast.Locks)
    lines += describe("Grants", lockfast.Grants, bases=(together.GrantsView,))
    lines += describe("Election", lockfast.Election)
    lines += describe("Leadership", lockfast.Leadership)
    lines += describe("Observation", lockfast.sync.Observation)
    lines += describe("Latch", lockfast.Latch)
    lines += describe("Barrier", lockfast.Barrier)
    lines += describe("Transaction", lockfast.Transaction)
    lines += [
        f"### `Outcome({', '.join(lockfast.Outcome._fields)})`",
        "",
        inspect.cleandoc(lockfast.Outcome.__doc__ or ""),
        "",
    ]
    lines += ["## Snapshots", ""]
    for each in (
        snapshots.Snapshot,
        snapshots.Holder,
        snapshots.Waiter,
        snapshots.Owner,
        snapshots.Broken,
        waitfor.Step,
        lockfast.Leader,
    ):
        fields = ", ".join(each._fields)
        lines += [f"### `{each.__name__}({fields})`", "", inspect.cleandoc(each.__doc__ or ""), ""]
    lines += ["## Errors", "", "```text", inspect.cleandoc(errors.__doc__ or ""), "```", ""]
    for name, error in vars(errors).items():
        if not inspect.isclass(error) or error is errors.LockfastError:
            continue
        lines += [f"### `{name}`", "", inspect.cleandoc(error.__doc__ or ""), ""]
    lines += _fencing() + _classics() + _checkers()
    verbs = describe_verb("deadlocks", deadlocks.add_arguments)
    verbs += describe_verb("lab", lab.add_arguments) + describe_verb("sim", sim.add_arguments)
    return "\n".join([*lines, TAIL.replace("LAB\n", "\n".join([*verbs, ""]))])


def _fencing() -> list[str]:
    lines = ["## `lockfast.fencing`", "", "```text", inspect.cleandoc(fencing.__doc__ or ""), "```", ""]
    functions = (fencing.create, fencing.claim, fencing.update, fencing.claim_statement, fencing.update_statement)
    lines += [f"- `fencing.{one.__name__}{_signature(one)}`: {_line(one)}" for one in functions]
    lines += ["", "### `Fence(name, number)`", "", _line(fencing.Fence), ""]
    return [*lines, f"- `Fence.from_environment()`: {_line(fencing.Fence.from_environment)}", ""]


def _classics() -> list[str]:
    lines = ["## `lockfast.classic`", "", CLASSIC, ""]
    lines += describe("Client", classic.Client)
    for name in classic.__all__:
        member = getattr(classic, name)
        if isinstance(member, type) and name not in ("Client", "Taken", "Updated"):
            lines += describe_recipe(member)
    return [*lines, *describe_recipe(classic.Taken), *describe_recipe(classic.Updated)]


def _checkers() -> list[str]:
    words = inspect.cleandoc(check.history.__doc__ or "")
    lines = ["## `lockfast.check`", "", "```text", inspect.cleandoc(check.__doc__ or ""), "```", ""]
    lines += [f"- `check.{name}{_signature(checker)}`: {_line(checker)}" for name, checker in check.CHECKERS.items()]
    lines += [f"- `check.all{_signature(check.all)}`: {_line(check.all)}"]
    lines += [f"- `check.read{_signature(check.read)}`: {_line(check.read)}"]
    lines += [
        f"- `check.io.{one.__name__}{_signature(one)}`: {_line(one)}" for one in (histories.load, histories.write)
    ]
    lines += ["", *describe_recipe(check.Event), "```text", words, "```", ""]
    lines += [*describe_recipe(check.Verdict), *describe("Recorder", Recorder)]
    return lines


def _line(member: Any) -> str:
    return " ".join(inspect.cleandoc(member.__doc__ or "").split())


if __name__ == "__main__":
    PAGE.write_text(page())
