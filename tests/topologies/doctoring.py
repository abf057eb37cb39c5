"""What tests of the doctor share: an examination, and looks at its report."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lockfast.doctor import Report, examine
from lockfast.doctor.facts import Facts

if TYPE_CHECKING:
    from lockfast.doctor.catalogue import Finding


def look(url: str, timeout_s: float = 2.0) -> Report:
    report = examine(url, timeout_s=timeout_s)
    for finding in report.findings:
        assert finding.seen
        assert "{" not in finding.mend
        assert finding.mend or finding.level == "ok" or finding.key == "quorum-lease-missing"
    return report


def the(report: Report, key: str) -> Finding:
    found = [finding for finding in report.findings if finding.key == key]
    assert len(found) == 1, [finding.key for finding in report.findings]
    return found[0]


def keys(report: Report) -> set[str]:
    return {finding.key for finding in report.findings}


def facts_of(report: Report) -> Facts:
    server = report.servers[0]
    assert isinstance(server, Facts)
    return server


def bad(report: Report) -> set[str]:
    """What is worse than a note."""
    return {finding.key for finding in report.findings if finding.level in ("warning", "problem")}
