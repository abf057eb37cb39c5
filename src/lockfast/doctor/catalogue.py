"""Every kind of finding, read from catalogue.toml: how grave it is, why it matters for locks, and what mends it.

A problem: locks do not work here, or two can hold one while nothing has failed. A warning: that comes with the next
crash, failover or rush. A note: good to know.
"""

from __future__ import annotations

import shlex
import tomllib
from pathlib import Path
from typing import Any, NamedTuple

LEVELS = ("ok", "note", "warning", "problem")  # from best to worst


class Entry(NamedTuple):
    """One kind of finding. Words in braces in `mend` are filled in from what was seen."""

    level: str
    topic: str
    why: str
    mend: str = ""


CATALOGUE: dict[str, Entry] = {
    key: Entry(**entry) for key, entry in tomllib.loads(Path(__file__).with_suffix(".toml").read_text("utf-8")).items()
}


class Finding(NamedTuple):
    """One judgement. `key` names its kind; `seen` is what it rests on, `where` the server, without any secret."""

    key: str
    where: str
    seen: str
    mend: str
    accepted: bool = False

    @property
    def level(self) -> str:
        return "note" if self.accepted else CATALOGUE[self.key].level

    @property
    def topic(self) -> str:
        return CATALOGUE[self.key].topic

    @property
    def why(self) -> str:
        return CATALOGUE[self.key].why

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "key": self.key,
            "level": self.level,
            "topic": self.topic,
            "server": self.where,
            "seen": self.seen,
            "why": self.why,
            "mend": self.mend,
            "accepted": self.accepted,
        }


def found(key: str, where: str, seen: str, *, at: str = "", **values: object) -> Finding:
    """A finding of a kind that the catalogue knows; values fill its braces. at: whom to mend, if that is not `where`.

    A list: words of a command. Mends are pasted into a shell, to which +acl|whoami, unquoted, is +acl and a pipe.
    """
    values["cli"] = redis_cli(at or where)
    filled = {name: shlex.join(value) if isinstance(value, list) else value for name, value in values.items()}
    return Finding(key, where, seen, CATALOGUE[key].mend.format_map(filled))


def redis_cli(where: str) -> list[str]:
    """The command that speaks to a server: without an address it would be whoever is at port 6379 of this host."""
    scheme, _, rest = where.partition("://")
    if scheme == "unix":
        return ["redis-cli", "-s", rest.rpartition("?")[0]]
    if not rest:
        return ["redis-cli", "-s", "SOCKET"]  # of the embedded server: lockfast server status tells it
    host, _, port = rest.partition("/")[0].rpartition(":")
    return ["redis-cli", "-h", host.strip("[]"), "-p", port, *(["--tls"] if scheme == "rediss" else [])]


def counted(number: int, thing: str) -> str:
    """1 replica, 2 replicas."""
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"


def worst(findings: list[Finding]) -> str:
    """The gravest level there is."""
    return max((finding.level for finding in findings), key=LEVELS.index, default="ok")
