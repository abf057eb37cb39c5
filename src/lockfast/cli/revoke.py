"""`revoke`: ask whoever holds a name to let go of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lockfast.cli.connect import connect, failure, parts_of
from lockfast.cli.talk import say
from lockfast.errors import LockfastError

if TYPE_CHECKING:
    from argparse import Namespace


def revoke(options: Namespace) -> int:
    """The verb. 0 whether or not there was anybody to ask."""
    try:
        with connect(options.url) as client:
            asked = client.revoke(*parts_of(options.name))
    except LockfastError as error:
        raise failure(error, options.url) from error
    if not asked:
        say(f"{options.name} is not held; there is nobody to ask")
    else:
        say(f"asked {asked} holder{'s' if asked > 1 else ''} of {options.name} to let go; `lockfast show` tells when")
    return 0
