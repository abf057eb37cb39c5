"""What the account was refused, and the ACL rules that would let it. Pure."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from lockfast.doctor.catalogue import found
from lockfast.doctor.rights import CLUSTER_LOCKS, CLUSTER_PUSHES, LOCKS, PUSHES, REPLICAS, TOOLS, TRANSACTIONS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from lockfast.doctor.catalogue import Finding
    from lockfast.doctor.facts import Facts

WITHOUT_COPIES = ("cluster", "quorum")  # whose clients refuse replicas=
INTRODUCTIONS = ("INFO", "CONFIG GET", "SCRIPT LOAD")  # how the nodes of a quorum are met


def judge(facts: Facts, shape: str) -> Iterator[Finding]:
    """Findings about rights. shape: as of findings.judge."""
    user, rights = facts.user or "default", facts.rights
    if rights is not None:
        commands = {command for command, words in rights.refused.items() if _object(words) == "command"}
        needed, pushes = commands & set(CLUSTER_LOCKS), commands & set(CLUSTER_PUSHES)  # of those that were tried
        for key, group in (
            ("rights-commands", needed),
            ("rights-pushes", pushes),
            ("rights-transactions", commands & set(TRANSACTIONS)),
            ("rights-tools", commands & set(TOOLS)),
            ("rights-replicas", commands & set(REPLICAS) if shape not in WITHOUT_COPIES else set()),
        ):
            if group:
                seen = f"{user} may not run {', '.join(sorted(group))}"
                yield found(key, facts.where, seen, user=[user], rules=_allow(group))
        keys = sorted(command for command, words in rights.refused.items() if _object(words) == "key")
        if keys:
            rules = [f"~{facts.prefix}:*"]
            seen = f"{user} may not use keys of {facts.prefix}: in {', '.join(keys)}"
            yield found("rights-keys", facts.where, seen, user=[user], rules=rules)
        channels = sorted(command for command, words in rights.refused.items() if _object(words) == "channel")
        if channels:
            rules = [f"&{facts.prefix}:push:*"]
            seen = f"{user} may not use channels of {facts.prefix}:push: in {', '.join(channels)}"
            yield found("rights-channels", facts.where, seen, user=[user], rules=rules)
        renamed = sorted(set(rights.unknown) & {*CLUSTER_LOCKS, *CLUSTER_PUSHES})
        if renamed:
            seen = f"it does not know {', '.join(renamed)}"
            yield found("commands-renamed", facts.where, seen, commands=", ".join(renamed))
        if not (needed or pushes or keys or channels or renamed):
            yield found("rights-ok", facts.where, f"{user} may do all that locks need")
    for refusal in facts.not_told:
        if not refusal.silent:
            rules = _allow([refusal.command])
            yield found("not-told", facts.where, f"{refusal.command}: {refusal.words}", user=[user], rules=rules)


def all_rules(prefix: str, shape: str = "") -> list[str]:
    """What an account for Lockfast needs, as words of ACL SETUSER."""
    locks, pushes = (CLUSTER_LOCKS, CLUSTER_PUSHES) if shape == "cluster" else (LOCKS, PUSHES)
    more = {"quorum": INTRODUCTIONS, "cluster": ()}.get(shape, tuple(REPLICAS))
    commands = _allow([*locks, *pushes, *TRANSACTIONS, *TOOLS, *more, "CLIENT SETNAME"])
    return [f"~{prefix}:*", f"&{prefix}:push:*", *commands]


def _allow(commands: Iterable[str]) -> list[str]:
    return sorted(f"+{command.lower().replace(' ', '|')}" for command in commands)


def _object(words: str) -> str:
    """What a NOPERM is about. The words differ between versions, and may quote the key."""
    words = re.sub(r"'[^']*'", "", words)
    if "to run the" in words:
        return "command"
    return "channel" if "channel" in words else "key"
