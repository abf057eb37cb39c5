"""Writes the findings of `lockfast doctor` into docs/doctor.md: `python docs/make_doctor.py`. A test finds it stale."""

from __future__ import annotations

import re
from pathlib import Path

from lockfast.doctor.catalogue import CATALOGUE, LEVELS

PAGE = Path(__file__).with_name("doctor.md")
MADE = re.compile(r"(<!-- made: findings -->\n).*(<!-- end -->)", re.DOTALL)
TOPICS = {
    "reach": "Reaching the server",
    "version": "Version",
    "role": "Role",
    "rights": "Rights",
    "persistence": "Persistence",
    "memory": "Memory and eviction",
    "replicas": "Replicas",
    "clock": "Clock",
    "latency": "Latency",
    "connections": "Connections",
    "neighbours": "Neighbours",
    "scope": "Scope",
    "quorum": "A quorum of independent servers",
    "sentinel": "Sentinel",
    "cluster": "Cluster",
}


def findings() -> str:
    """A table for each topic, worst first."""
    parts = []
    for topic, title in TOPICS.items():
        entries = [(key, entry) for key, entry in CATALOGUE.items() if entry.topic == topic]
        entries.sort(key=lambda one: -LEVELS.index(one[1].level))
        rows = [f"| `{key}` | {entry.level} | {entry.why} | {_mend(entry.mend)} |" for key, entry in entries]
        parts.append(
            "\n".join(
                [f"### {title}", "", "| finding | level | why it matters | what mends it |", "|---|---|---|---|", *rows]
            )
        )
    return "\n\n".join(parts) + "\n"


def _mend(text: str) -> str:
    """What is filled in is written in capitals."""
    text = text.replace("{cli}", "redis-cli")
    return re.sub(r"\{(\w+)\}", lambda word: word[1].upper(), text).replace("|", "\\|")


def page() -> str:
    """The page as it should be."""
    return MADE.sub(lambda made: f"{made[1]}{findings()}{made[2]}", PAGE.read_text())


if __name__ == "__main__":
    PAGE.write_text(page())
