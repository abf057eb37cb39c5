"""From a run to a story: what happened in plain words, and what to draw of it."""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING

from lockfast.lab.judging import judge, spans_of
from lockfast.lab.model import Bar, Lane, Mark, Step, Story, mark_mistakes
from lockfast.lab.words import WORDS

if TYPE_CHECKING:
    from lockfast.lab.contender import Contender
    from lockfast.lab.judging import Outcome
    from lockfast.lab.model import MarkKind
    from lockfast.lab.scenarios import Scenario
    from lockfast.lab.stage import Happening, Stage

RESOURCE = "resource"
MAX_CLIENTS = 6  # more are not told apart in a picture; the story is about those who meet
TAIL_S = 0.4  # how much is shown after the last thing that matters


def tell(scenario: Scenario, row: Contender, seed: int, stage: Stage) -> Story:
    """The story of one run."""
    outcome = judge(stage)
    clients = _chosen(stage, outcome)
    until = _end(stage, outcome, clients)
    bars = [bar for bar in _bars(stage, clients, until) if bar.start <= until]
    servers = [node.name for node in stage.nodes]
    if scenario.key != "crossed-order" and any(bar.kind == "holds" for bar in bars):
        bars = list(mark_mistakes(bars, servers))
    left_out = len(stage.players) - len(clients)
    words = WORDS[scenario.key]
    return Story(
        algorithm=row.key,
        fault=scenario.key,
        seed=seed,
        verdict=outcome.verdict,
        title=f"{row.topic.title}: {scenario.topic.title}",
        lanes=(
            *(Lane(name, "client") for name in clients),
            *(Lane(name, "server") for name in servers),
            Lane(RESOURCE, "resource"),
        ),
        bars=tuple(bars),
        marks=tuple(_marks(stage, outcome, clients, until)),
        steps=tuple(Step(one.at, one.who, one.words) for one in _told(stage, clients, until)),
        what_happened=_sum_up(stage, outcome, scenario, left_out),
        what_the_text_says=words.text,
        what_lockfast_does=words.lockfast,
    )


def _chosen(stage: Stage, outcome: Outcome) -> list[str]:
    """The clients that the story is about: all, or those who were at it in the fatal moment."""
    names = list(stage.players)
    if len(names) <= MAX_CLIENTS:
        return names
    at = outcome.fatal_at if outcome.fatal_at is not None else 0.0
    meeting = [span.who for span in spans_of(stage.writes) if span.start <= at <= span.end]
    wrote = [write.who for write in stage.writes]
    wanted = dict.fromkeys([names[0], *([outcome.fatal_who] if outcome.fatal_who else []), *meeting, *wrote, *names])
    chosen = list(wanted)[:MAX_CLIENTS]
    return [name for name in names if name in chosen]


def _end(stage: Stage, outcome: Outcome, clients: list[str]) -> float:
    """Until when to tell: a little past the fatal moment, or to the end."""
    if outcome.fatal_at is None:
        told = [one.at for one in stage.happenings if one.who in clients]
        return stage.ended_at if outcome.verdict == "stuck" else max(told, default=0.0) + TAIL_S
    after = [one.at for one in stage.happenings if one.who in clients and one.at >= outcome.fatal_at]
    return max([at for at in after if at <= outcome.fatal_at + TAIL_S], default=outcome.fatal_at) + 0.1


def _told(stage: Stage, clients: list[str], until: float) -> list[Happening]:
    servers = [node.name for node in stage.nodes]
    others = [name for name in stage.players if name not in clients]
    return [
        one
        for one in stage.happenings
        if one.at <= until
        and one.who in (*clients, *servers)
        and not (others and one.who in servers and one.about in others)
    ]


def _bars(stage: Stage, clients: list[str], until: float) -> list[Bar]:
    bars: list[Bar] = []
    for name in clients:
        since: dict[str, float] = {}
        for one in stage.happenings:
            if one.who != name or one.at > until:
                continue
            if one.kind == "waits":
                since["waits"] = one.at
            elif one.kind == "takes":
                _close(bars, since, name, one.at, "waits")
                since.setdefault("believes", one.at)
            elif one.kind in ("gives", "stops", "dies"):
                _close(bars, since, name, one.at, "waits", "believes")
            elif one.kind == "write" and "believes" not in since:
                _close(bars, since, name, one.at, "waits")  # an update that held nothing
            if one.kind == "pauses":
                bars.append(Bar(name, one.at, min(one.at + one.length_s, until), "paused"))
            if one.kind == "dies":
                bars.append(Bar(name, one.at, until, "down"))
        _close(bars, since, name, until, "waits", "believes")
    bars += [
        Bar(standing.server, standing.start, min(standing.end, until), "holds", standing.who, standing.who)
        for standing in stage.standings
        if standing.who in clients and standing.start < until
    ]
    bars += [
        Bar(one.who, one.at, until if one.length_s == inf else one.at + one.length_s, "down")
        for one in stage.happenings
        if one.kind == "down" and one.at <= until
    ]
    bars += [
        Bar(RESOURCE, span.start, min(span.end, until), "section", span.who, span.who)
        for span in spans_of(stage.writes)
        if span.who in clients and span.start <= until
    ]
    return bars


def _close(bars: list[Bar], since: dict[str, float], name: str, at: float, *kinds: str) -> None:
    for kind in kinds:
        start = since.pop(kind, None)
        if start is not None and at > start:
            bars.append(Bar(name, start, at, "waits" if kind == "waits" else "believes"))


def _marks(stage: Stage, outcome: Outcome, clients: list[str], until: float) -> list[Mark]:
    kinds: dict[str, MarkKind] = {
        "write": "write", "refused": "refused", "fault": "fault", "lost": "lost", "dies": "fault",
    }  # fmt: skip
    marks = [
        Mark(one.who, one.at, kinds[one.kind], "" if one.kind in ("write", "refused") else one.words)
        for one in _told(stage, clients, until)
        if one.kind in kinds
    ]
    if outcome.verdict == "violated" and outcome.fatal_at is not None:
        marks.append(Mark(RESOURCE, outcome.fatal_at, "fatal", outcome.detail))
    return marks


def _sum_up(stage: Stage, outcome: Outcome, scenario: Scenario, left_out: int) -> str:
    others = f" Players not drawn: {left_out}." if left_out else ""
    told = {
        "violated": f"The resource took writes of sections that should have excluded each other: {outcome.detail}.",
        "stuck": f"After {stage.ended_at:g} s {outcome.detail}.",
        "fenced": f"{stage.row.refusal}: {outcome.detail}.",
        "safe": "Nobody wrote inside another's section, and everybody alive was served.",
    }[outcome.verdict]
    return f"{scenario.topic.says} {told}{others}"
