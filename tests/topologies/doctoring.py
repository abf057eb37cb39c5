"""What tests of the doctor share: an examination, and looks at its report."""

from __future__ import annotations

import re
import shlex
from itertools import takewhile
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
        assert "SOCKET" not in finding.mend, "which is filled in by hand, and only for the embedded server"
        assert bare(finding.mend) == [], finding.mend
        assert not re.search(r"redis-cli (?!-[hspu] |--cluster |--intrinsic-latency )", finding.mend), finding.mend
        assert report.kind in ("one", "sentinel") or "replicas=" not in finding.mend, "such a client cannot be made"
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


def bare(mend: str) -> list[str]:
    """What a shell would not take as it is in a mend that names a command for one. Prose goes on behind "; "."""
    if "redis-cli" not in mend:
        return []
    shlex.split(mend)  # every quote is closed
    return re.findall(r"[|&<>*?$`~\\\[\]]|;(?! )", re.sub(r"'[^']*'|\"[^\"]*\"", "", mend))


def pasted(mend: str) -> list[str]:
    """The words of its first command, up to where a shell ends it, and up to a comma of the prose; no address."""
    return _split(mend)[1]


def address(mend: str) -> list[str]:
    """Where that command goes: the options of redis-cli."""
    return _split(mend)[0]


def _split(mend: str) -> tuple[list[str], list[str]]:
    lexer = shlex.shlex(mend[mend.index("redis-cli") :].partition(", ")[0], posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    _, *words = takewhile(lambda word: not set(word) <= set("();<>|&"), lexer)
    first = next(place for place, word in enumerate(words) if re.fullmatch("[A-Z]+", word))
    return words[:first], words[first:]
