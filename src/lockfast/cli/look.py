"""`ls` and `show`: the reading side. Text for people in aligned columns, --json for machines."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from lockfast.cli.connect import connect, failure, parts_of
from lockfast.cli.talk import clean, duration, moment, say, shorten, table
from lockfast.errors import LockfastError
from lockfast.names import join

if TYPE_CHECKING:
    from argparse import Namespace

    from lockfast.snapshots import Holder, Snapshot, Waiter

LABEL_WIDTH = 60


def ls(options: Namespace) -> int:
    """Every name with a holder or a waiter."""
    from lockfast.flows import looking  # Late: a wrong argument should not pay for it.

    try:
        with connect(options.url) as client:
            # One look at all of them, as names() takes it: rows that were asked for one after the other belong to
            # different moments, and may show one holder twice.
            found = client._driver.look(lambda env: looking.busy(client._prefix, env))
    except LockfastError as error:
        raise failure(error, options.url) from error
    busy = [(join(parts), one) for parts, one in looking.merged(found).items()]
    if options.json:
        print_json([one.as_dict() | {"name": name} for name, one in busy])
    elif not busy:
        say("nothing is held, and nobody waits")
    else:
        head = ("NAME", "HOST", "PID", "FOR", "LEASE LEFT", "WAITING", "LABEL")
        sys.stdout.write(table([head, *(_line(name, one) for name, one in busy)]))
    return 0


def show(options: Namespace) -> int:
    """One name: holders and waiters in order, and the last break."""
    parts = parts_of(options.name)
    try:
        with connect(options.url) as client:
            snapshot = client.inspect(*parts)
    except LockfastError as error:
        raise failure(error, options.url) from error
    if options.json:
        print_json(snapshot.as_dict() | {"name": join(parts)})
    else:
        sys.stdout.write(describe(join(parts), snapshot))
    return 0


def waiting_for(name: str) -> int:
    """The line that `run` has said for it when it has waited for a second; nothing if all is over."""
    from lockfast.cli.run import describe_holder

    try:
        with connect(None, quiet=True) as client:  # `run` itself has said it
            snapshot = client.inspect(*parts_of(name))
    except LockfastError:
        return 0
    if snapshot.holders:
        say(f"waiting for {name}, {describe_holder(snapshot)}")
    return 0


def describe(name: str, snapshot: Snapshot) -> str:
    """All that is known of a name, for people."""
    state = snapshot.standing or ("held" if snapshot.holders else "free")
    text = f"{clean(name)}: {state}, {snapshot.queue_length} waiting\n"
    if snapshot.holders:
        rows: list[tuple[str, ...]] = [("HOST", "PID", "SINCE", "FOR", "LEASE LEFT", "FENCE", "LABEL")]
        for holder in snapshot.holders:
            left, fence = duration(holder.lease_left), str(holder.fence)
            rows.append((*_who(holder), *_since(holder, snapshot), left, fence, _label(holder)))
        text += "holders\n" + table(rows, indent="  ")
    if snapshot.waiters:
        queue: list[tuple[str, ...]] = [("#", "HOST", "PID", "SINCE", "FOR", "LABEL")]
        for number, waiter in enumerate(snapshot.waiters, 1):
            queue.append((str(number), *_who(waiter), *_since(waiter, snapshot), _label(waiter)))
        text += "waiters\n" + table(queue, indent="  ")
    if snapshot.broken:
        broken = snapshot.broken
        when = f"{moment(broken.at)} ({duration(snapshot.at - broken.at)} before)"
        text += f"last broken {when} by {clean(broken.by)}: {clean(broken.reason)}\n"
    return text


def _line(name: str, snapshot: Snapshot) -> tuple[str, ...]:
    waiting = str(snapshot.queue_length)
    if not snapshot.holders:
        return (clean(name), "-", "-", "-", "-", waiting, "")
    holder = snapshot.holders[0]
    age, left = duration(snapshot.at - holder.since), duration(holder.lease_left)
    return (clean(name), *_who(holder), age, left, waiting, _label(holder))


def _who(one: Holder | Waiter) -> tuple[str, str]:
    return clean(one.owner.host), str(one.owner.pid)


def _since(one: Holder | Waiter, snapshot: Snapshot) -> tuple[str, str]:
    return moment(one.since), duration(snapshot.at - one.since)


def _label(one: Holder | Waiter) -> str:
    return shorten(clean(one.owner.label), LABEL_WIDTH)


def print_json(value: object) -> None:
    """What --json prints."""
    import json

    json.dump(value, sys.stdout, indent=2, ensure_ascii=False)
    sys.stdout.write("\n")
