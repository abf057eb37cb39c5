"""`doctor`: is this server fit for locks? For people by how grave it is, --json for machines."""

from __future__ import annotations

import os
import sys
import textwrap
from itertools import groupby
from typing import TYPE_CHECKING

from lockfast.cli.connect import given_url
from lockfast.cli.look import print_json
from lockfast.cli.talk import REFUSED, UNREACHABLE, USAGE, Failure, clean

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

    from lockfast.doctor import Report
    from lockfast.doctor.catalogue import Finding

CODES = {"ok": 0, "note": 0, "warning": 1, "problem": 2, "unreachable": UNREACHABLE, "refused": REFUSED}
_ABOUT = """\
Connect to the server, ask it how it is set up, measure the way to it, and judge: is it fit for locks?
Each finding tells what was seen, why it matters for locks, and the command or setting that mends it.
No key, script or setting is changed: rights are asked for, or tried by commands that find nothing to do.

  lockfast doctor                                     LOCKFAST_URL, else the embedded server
  lockfast doctor --url redis://cache:6379/0          one server
  lockfast doctor --url redis://a,redis://b,redis://c  a quorum of independent ones
  lockfast doctor --url sentinel://h1:26379,h2:26379,h3:26379/mymaster
  lockfast doctor --url cluster://n1:6379,n2:6379
  lockfast doctor --accept persistence-none           known, and lived with
"""
_MORE = """\
levels:
  problem  locks do not work here, or two can hold one while nothing has failed
  warning  that comes with the next crash, failover or rush
  note     good to know                      ok  looked at, and as it should be

exit codes:
   0  fit: nothing worse than a note         1  warnings, no problem
   2  at least one problem                  64  wrong usage
  69  no server answers                     77  not let in (password, certificate, protected mode)

To put up with warnings in a script: lockfast doctor || [ $? -eq 1 ]; better, --accept the ones that you know.
"""
_COLOURS = {"problem": "1;31", "warning": "1;33", "note": "36", "ok": "32"}
_MARK = 9  # columns of the mark before each finding


def add_arguments(parser: ArgumentParser) -> None:
    """What the verb takes."""
    parser.description, parser.epilog = _ABOUT, _MORE
    parser.add_argument("--json", action="store_true", help="for machines: servers, findings, level, verdict")
    parser.add_argument(
        "--accept", action="append", default=[], metavar="KEY", help="count findings of this kind as notes; repeatable"
    )
    parser.add_argument(
        "--timeout", type=_seconds, default=2.0, metavar="DUR", help="wait this long for an answer (2s)"
    )


def doctor(options: Namespace) -> int:
    """The verb. Its exit code is by the worst finding."""
    from lockfast.doctor import examine
    from lockfast.doctor.catalogue import CATALOGUE

    accepted = {key.strip() for word in options.accept for key in word.split(",") if key.strip()}
    strange = sorted(accepted - set(CATALOGUE))
    if strange:
        raise Failure(
            USAGE, f"there is no finding {', '.join(strange)}", "keys stand in [brackets] behind each finding"
        )
    try:
        report = examine(given_url(options.url), timeout_s=options.timeout).accepting(accepted)
    except (ValueError, TypeError) as error:
        advice = "--url takes redis://, rediss://, unix://, sentinel:// and cluster:// URLs, or several for a quorum"
        raise Failure(USAGE, str(error), advice) from error
    code = CODES[report.level]
    if options.json:
        print_json(report.as_dict() | {"exit_code": code})
    else:
        sys.stdout.write(_described(report))
    return code


def _described(report: Report) -> str:
    """Findings, worst first; what is as it should be in a line each; and the verdict."""
    width, color = _width(), _color()
    several = len({finding.where for finding in report.findings}) > 1
    lines = [f"{clean(server.where)}" for server in report.servers] or [report.kind]
    lines = [", ".join(lines) if len(", ".join(lines)) <= width else f"{len(lines)} servers", ""]
    for _, alike in groupby(report.findings, key=lambda finding: (finding.key, finding.accepted)):
        lines += _alike(list(alike), several, width, color)
    verdict = textwrap.fill(f"verdict: {report.verdict}", width, subsequent_indent=" " * _MARK)
    worst = _COLOURS.get(report.level, _COLOURS["problem"])
    return "\n".join([*lines, "", _painted(verdict, worst, color)]) + "\n"


def _alike(findings: list[Finding], several: bool, width: int, color: bool) -> list[str]:
    """Findings of one kind: what was seen on each server, and once why it matters and what mends it."""
    first = findings[0]
    if first.level == "ok" and len(findings) > 1:
        seen = "; ".join(dict.fromkeys(clean(finding.seen) for finding in findings))
        return [_marked("ok", f"{first.topic}: {seen} ({len(findings)} servers) [{first.key}]", width, color)]
    accepted = ", accepted" if first.accepted else ""
    lines = []
    for finding in findings:
        at = f" ({clean(finding.where)})" if several else ""
        head = f"{finding.topic}: {clean(finding.seen)}{at} [{finding.key}{accepted}]"
        lines.append(_marked(finding.level, head, width, color))
    if first.level != "ok" and not first.accepted:
        mends = dict.fromkeys(f"mend: {clean(finding.mend)}" for finding in findings if finding.mend)
        lines += [_indented(text, width) for text in (first.why, *mends)]
    return lines


def _marked(level: str, text: str, width: int, color: bool) -> str:
    mark = level.upper() if level in ("problem", "warning") else level
    return _painted(mark, _COLOURS[level], color) + _indented(text, width)[len(mark) :]


def _indented(text: str, width: int) -> str:
    indent = " " * _MARK
    return textwrap.fill(
        text, width, initial_indent=indent, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )


def _painted(text: str, code: str, color: bool) -> str:
    return f"\x1b[{code}m{text}\x1b[0m" if color else text


def _color() -> bool:
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def _width() -> int:
    import shutil

    return max(min(shutil.get_terminal_size((100, 24)).columns, 120), 40)


def _seconds(text: str) -> float:
    import argparse

    from lockfast.specs import parse_duration, timeout_seconds

    try:
        return timeout_seconds(parse_duration(text))
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
