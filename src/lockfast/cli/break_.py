"""`break`: take a hold away from whoever has it. Asks, and records why."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from lockfast.cli.connect import connect, failure, parts_of
from lockfast.cli.look import describe
from lockfast.cli.talk import USAGE, Failure, clean, say
from lockfast.errors import LockfastError, NotHeld

if TYPE_CHECKING:
    from argparse import Namespace

    from lockfast.snapshots import Snapshot

DECLINED = 1


def break_(options: Namespace) -> int:
    """The verb. 0 when that hold is no more, 1 when the answer was no."""
    parts = parts_of(options.name)
    if not options.yes and not _can_ask():
        raise Failure(USAGE, "this needs a yes, and there is nobody to ask", "say --yes, and --reason TEXT")
    try:
        with connect(options.url) as client:
            before = client.inspect(*parts)
            if not before.holders:
                raise NotHeld
            if not options.yes and not _confirmed(options.name, before):
                say("left as it is")
                return DECLINED
            reason = options.reason or (None if options.yes else _ask("Why? (kept with the lock) "))
            before = client.break_lock(*parts, reason=reason or "no reason given")
    except NotHeld:
        say(f"{options.name} is not held; there is nothing to break")
        return 0
    except LockfastError as error:
        raise failure(error, options.url) from error
    for holder in before.holders:
        owner = holder.owner
        say(f"took {options.name} away from {owner.host} pid {owner.pid} (fence {holder.fence})")
    return 0


def _can_ask() -> bool:
    return sys.stdin is not None and sys.stdin.isatty() and sys.stderr is not None and sys.stderr.isatty()


def _confirmed(name: str, snapshot: Snapshot) -> bool:
    sys.stderr.write(describe(name, snapshot))
    sys.stderr.write("The holder is not stopped; it learns of this at its next renewal.\n")
    return _ask(f"Take {clean(name)} away? [y/N] ").strip().lower() in ("y", "yes")


def _ask(question: str) -> str:
    sys.stderr.write(question)
    sys.stderr.flush()
    return sys.stdin.readline().strip()
