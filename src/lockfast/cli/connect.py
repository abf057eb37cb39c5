"""A client out of the options, and names as people type them."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from lockfast import names
from lockfast.cli.talk import REFUSED, UNREACHABLE, USAGE, Failure, say
from lockfast.errors import LockfastError, Refused, Unreachable

if TYPE_CHECKING:
    from lockfast.sync import Lockfast


def given_url(option: str | None) -> str | None:
    """The server that the user named, by --url or LOCKFAST_URL; None for the embedded one."""
    if option == "":  # most likely an unset variable: locking this host only would be a nasty surprise
        raise Failure(USAGE, "--url is empty", "leave it out to use LOCKFAST_URL or the embedded server")
    return option or os.environ.get("LOCKFAST_URL") or None


def connect(option: str | None, *, timeout_s: float = 2.0, label: str | None = None, quiet: bool = False) -> Lockfast:
    """A client of the server that the user named, or of the embedded one. quiet: leave out what is only advice."""
    import warnings

    from lockfast.sync import Lockfast  # Late: a wrong argument should not pay for it.

    try:
        with warnings.catch_warnings(record=True, action="always", category=UserWarning) as warned:
            client = Lockfast(given_url(option), timeout=timeout_s, label=label)
    except (ValueError, TypeError) as error:
        advice = f"mend {'--url' if option else 'LOCKFAST_URL'}"
        if "URL" in str(error):  # what is wrong with several of them is told with what to do
            advice += ": it takes redis://, rediss://, unix://, sentinel:// or cluster:// URLs"
        raise Failure(USAGE, str(error), advice) from error
    for warning in () if quiet else warned:
        say(str(warning.message))
    return client


def parts_of(printed: str) -> tuple[str, ...]:
    """The parts of a name in its printed form (`cart|item:7`); a Failure where no lock can have that name."""
    try:
        parts = names.split(printed)
        names.make("lockfast", parts)
    except (ValueError, TypeError) as error:
        advice = "the parts of a name have | between them; % itself is written %25"
        raise Failure(USAGE, f"not a name: {error}", advice) from error
    return parts


def failure(error: LockfastError, option: str | None) -> Failure:
    """What an error of the library means on the command line."""
    if isinstance(error, Unreachable):
        if given_url(option) is None:
            advice = "see `lockfast server status`; or name a server with --url or LOCKFAST_URL"
        elif "is not counted for another" in str(error):  # of a majority, and just started: see flows.fleet
            advice = "wait for as long, or name a longer --wait: they are up, and may have forgotten who holds what"
        elif "the master " in str(error) and " that sentinel" in str(error):  # see Endpoint.where_at
            advice = "a failover may be under way: try again in a moment, or name a longer --wait"
        else:
            advice = "is the server up, and is --url or LOCKFAST_URL right?"
        return Failure(UNREACHABLE, str(error), advice)
    if isinstance(error, Refused):
        return Failure(REFUSED, str(error), "trying again will not help: mend the server, the account, the name")
    return Failure(UNREACHABLE, str(error), "this is unexpected here; please report it")
