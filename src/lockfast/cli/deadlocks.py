"""`deadlocks`: who waits in a circle, for people in a table for each circle, --json for machines."""

from __future__ import annotations

import shlex
import sys
from typing import TYPE_CHECKING

from lockfast.cli.connect import connect, failure
from lockfast.cli.look import LABEL_WIDTH, print_json
from lockfast.cli.talk import clean, hint, moment, say, shorten, table
from lockfast.errors import LockfastError
from lockfast.waitfor import called

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

    from lockfast.waitfor import Cycle, Step

FOUND = 1
_ABOUT = """\
Print who waits in a circle: each for what the next one holds, so that none of them can go on.
Looks at every lock; where it finds a circle, it looks again a few seconds later, to be sure.
The first of each circle has waited for the shortest time: it is the one to end.
"""
_MORE = """\
exit codes:
  0  no deadlock
  1  at least one (anything else is a failure, with a line on stderr: 64, 69, 77)

what it cannot see:
  A program that waits by other means than a lock (a queue, a pipe, a child process), as
  `lockfast run a -- lockfast run b -- …` does: here the one that holds is not the one that waits.
  A hold counts as that of the thread or task that acquired it, whoever has it now.
"""


def add_arguments(parser: ArgumentParser) -> None:
    parser.description, parser.epilog = _ABOUT, _MORE
    parser.add_argument("--json", action="store_true", help="for machines: a list of circles, each a list of steps")


def deadlocks(options: Namespace) -> int:
    """The verb. 0 when there is none, 1 when there are some."""
    try:
        with connect(options.url) as client:
            found = client.deadlocks()
    except LockfastError as error:
        raise failure(error, options.url) from error
    if options.json:
        print_json([[step.as_dict() for step in cycle] for cycle in found])
    elif not found:
        say("no deadlock")
    for cycle in found if not options.json else ():
        sys.stdout.write(_described(cycle))
        sys.stdout.flush()  # before the hint that belongs to it
        hint(_advice(cycle))
    return FOUND if found else 0


def _described(cycle: Cycle) -> str:
    head = "waits for itself" if len(cycle) == 1 else f"{len(cycle)} wait in a circle"
    rows = [("HOST", "PID", "#", "WAITS FOR", "SINCE", "HELD BY", "LABEL"), *map(_line, cycle)]
    return f"deadlock: {head}\n" + table(rows, indent="  ")


def _line(step: Step) -> tuple[str, ...]:
    holder = clean(called(step.held_by, step.held_by_agent))
    return (
        clean(step.who.host),
        str(step.who.pid),
        step.agent.rpartition("_")[2],
        clean(step.waits_for),
        moment(step.since),
        f"waits behind {holder}" if step.ahead else holder,
        shorten(clean(step.who.label), LABEL_WIDTH),
    )


def _advice(cycle: Cycle) -> str:
    youngest = cycle[0]
    end = f"end {youngest.who.host} pid {youngest.who.pid}"
    if cycle[-1].ahead:  # it holds nothing that the others want, it only stands in their way
        return end
    return f"{end}, or take from it what it holds: lockfast break {shlex.quote(cycle[-1].waits_for)}"
