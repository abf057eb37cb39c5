"""What a command learns of the locks held around it: its environment.

LOCKFAST_LOCK    the name, as `lockfast show` prints it
LOCKFAST_FENCE   the number to hand to whatever the lock protects
LOCKFAST_TICKET  the identity of this hold
LOCKFAST_HELD    every hold of the enclosing runs, so that a nested run can tell that it would wait for
                 itself, and so that the guard finds processes that left the group. Not for parsing; its
                 form may change.
LOCKFAST_URL     only what the user gave, and with --url only if it carries no password: environments end up
                 in crash reports. A password belongs in LOCKFAST_URL itself, which commands inherit anyway.
"""

from __future__ import annotations

import os
from typing import NamedTuple

VARIABLE = "LOCKFAST_HELD"


class Hold(NamedTuple):
    """One hold of an enclosing run: its ticket and the printed name."""

    ticket: str
    name: str


def has_password(url: str) -> bool:
    """Whether anything in the URL may be a secret: a user part, or a password= in the query."""
    return "@" in url or "password=" in url  # in any of several URLs


def held() -> list[Hold]:
    """The holds of the runs that this process is inside of, outermost first."""
    holds = []
    for entry in os.environ.get(VARIABLE, "").split(" "):
        fields = [_unquote(field) for field in entry.split(",")]
        if len(fields) == 2:
            holds.append(Hold(*fields))
    return holds


def environment(hold: Hold, fence: int, url_option: str | None) -> dict[str, str]:
    """The variables to add to a command's environment."""
    entry = ",".join(_quote(field) for field in hold)
    added = {
        "LOCKFAST_LOCK": hold.name,
        "LOCKFAST_FENCE": str(fence),
        "LOCKFAST_TICKET": hold.ticket,
        VARIABLE: f"{os.environ.get(VARIABLE, '')} {entry}".strip(),
    }
    if url_option is not None and not has_password(url_option):
        added["LOCKFAST_URL"] = url_option
    return added


def _quote(text: str) -> str:
    return text.replace("%", "%25").replace(",", "%2C").replace(" ", "%20")


def _unquote(text: str) -> str:
    return text.replace("%20", " ").replace("%2C", ",").replace("%25", "%")
