"""Sentinels: asked for what they know of one service, and judged together."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from lockfast.doctor.asking import Asker, NotTold, pairs
from lockfast.doctor.catalogue import Finding, counted, found
from lockfast.doctor.facts import Unreached, unreached, user_of
from lockfast.doctor.findings import judge_unreached
from lockfast.errors import LockfastError
from lockfast.flows import denials

if TYPE_CHECKING:
    from lockfast.endpoints import Endpoint

SLOW_MS = 30_000  # the lease that a lock has unless another is named
DOWN = ("s_down", "o_down")


@dataclass(frozen=True)
class Sentinel:
    """One that answered. primary: what SENTINEL MASTER told, {} where it does not know the service."""

    where: str
    primary: dict[str, str] = field(default_factory=dict)
    refusal: str = ""
    quorum_words: str = ""  # of SENTINEL CKQUORUM, when it is not content
    user: str = "default"

    @property
    def address(self) -> tuple[str, int] | None:
        """Of the primary."""
        port = self.primary.get("port", "")
        return (self.primary.get("ip", ""), int(port)) if port.isdigit() else None

    def number(self, name: str) -> int:
        value = self.primary.get(name, "")
        return int(value) if value.isdigit() else 0


def examine(endpoint: Endpoint, *, service: str, timeout_s: float, by: float) -> Sentinel | Unreached:
    """Ask one Sentinel."""
    try:
        with Asker(endpoint, timeout_s, by) as asker:
            primary, quorum = asker.ask("SENTINEL", "MASTER", service), asker.ask("SENTINEL", "CKQUORUM", service)
    except LockfastError as error:
        return unreached(endpoint.where, error)
    if isinstance(primary, NotTold):
        if primary.silent:
            return Unreached(endpoint.where, primary.words)
        return Sentinel(endpoint.where, refusal=primary.words, user=user_of(endpoint, primary.words))
    unmet = quorum.words if isinstance(quorum, NotTold) and not quorum.silent else ""
    return Sentinel(endpoint.where, pairs(primary), quorum_words=unmet)


def chosen(sentinels: list[Sentinel | Unreached]) -> tuple[str, int] | None:
    """The primary's address that most of them tell."""
    told = [one.address for one in sentinels if isinstance(one, Sentinel) and one.address]
    return max(told, key=told.count) if told else None


def judge_sentinels(sentinels: list[Sentinel | Unreached], service: str) -> list[Finding]:
    """Pure: what their answers mean together."""
    where = f"the Sentinels of {service}"
    there = [one for one in sentinels if isinstance(one, Sentinel)]
    gone = [one for one in sentinels if isinstance(one, Unreached)]
    if not there:
        return [
            *map(judge_unreached, gone),
            found("sentinel-none", where, f"none of {len(gone)} answers", at=gone[0].where),
        ]
    findings = []
    if gone:
        seen = "; ".join(one.words for one in gone)
        findings.append(found("sentinel-lost", where, f"{len(gone)} of {len(sentinels)}: {seen}"))
    for one in there:
        if "unknown command" in one.refusal.lower():
            findings.append(found("sentinel-not-one", one.where, "this is a server, and no Sentinel", plain=one.where))
        elif denials.is_denial(one.refusal):
            rules = [denials.missing(one.refusal, "", "") or "+sentinel"]
            seen = f"SENTINEL MASTER: {one.refusal}"
            findings.append(found("sentinel-untold", one.where, seen, user=[one.user], rules=rules))
        elif one.refusal:
            findings.append(found("sentinel-service-unknown", one.where, f"{service!r}: {one.refusal}"))
    knowing = [one for one in there if one.address]
    if not knowing:
        if not any(one.refusal for one in there):
            seen = f"no answer of {', '.join(one.where for one in there)} names a primary"
            findings.append(found("sentinel-none", where, seen, at=there[0].where))
        return findings
    told = sorted({f"{address[0]}:{address[1]}" for one in knowing if (address := one.address)})
    if len(told) > 1:
        seen = ", ".join(f"{one.where} says {one.address[0]}:{one.address[1]}" for one in knowing if one.address)
        findings.append(found("sentinel-disagree", where, seen, service=[service]))
    down = [one.where for one in knowing if any(flag in one.primary.get("flags", "").split(",") for flag in DOWN)]
    if down:
        seen = f"by the word of {', '.join(down)}"
        findings.append(found("sentinel-primary-down", where, seen, at=down[0], service=[service]))
    one = knowing[0]
    size = one.number("num-other-sentinels") + 1
    quorum, replicas, slow_ms = one.number("quorum"), one.number("num-slaves"), one.number("down-after-milliseconds")
    if size < 3:
        findings.append(
            found("sentinel-few", where, f"{size} {'Sentinel watches' if size == 1 else 'Sentinels watch'} it")
        )
    elif size % 2 == 0:
        findings.append(found("sentinel-even", where, f"{size} Sentinels watch it"))
    if quorum == 1 and size > 1:
        findings.append(found("sentinel-quorum-one", where, "quorum 1", at=one.where, service=[service]))
    unmet = [f"{one.where}: {one.quorum_words}" for one in knowing if one.quorum_words]
    if unmet or quorum > size:
        seen = "; ".join(unmet) or f"quorum {quorum} of {size}"
        findings.append(found("sentinel-quorum-unmet", where, seen, at=one.where, service=[service]))
    if not replicas:
        host, _, port = told[0].rpartition(":")
        findings.append(found("sentinel-no-replica", where, "no replica is known", address=[host, port]))
    if slow_ms > SLOW_MS:
        seen = f"down-after-milliseconds {slow_ms}"
        findings.append(found("sentinel-slow", where, seen, at=one.where, service=[service]))
    if len(told) == 1 and not down:
        names = f"{len(knowing)} of {len(sentinels)} name {told[0]}"
        seen = f"{names}; {size} watch it, quorum {quorum}, {counted(replicas, 'replica')}"
        findings.append(found("sentinel-ok", where, seen))
    return findings
