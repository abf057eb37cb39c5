"""What the lab knows: cells of the matrix, and stories that can be told and drawn.

Values only. Scenarios make them, `terminal`, `svg` and `page` show them. Times are true seconds from the start
of the story. A value that could not be drawn (an unknown word, a lane that is not there, a bar that ends before
it starts) is refused when it is made, so whoever makes it learns of it.
"""

from __future__ import annotations

import itertools
import math
import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

Verdict = Literal["safe", "fenced", "violated", "stuck", "unknown", "n/a"]
LaneKind = Literal["client", "server", "resource"]
BarKind = Literal["waits", "believes", "mistaken", "holds", "paused", "down", "section"]
MarkKind = Literal["send", "reply", "lost", "write", "refused", "fatal", "fault", "note"]


class Meaning(NamedTuple):
    """How a verdict is written: `letters` where there is room for two characters, `sign` where there are fonts."""

    letters: str
    sign: str
    short: str
    says: str


# The worst first.
VERDICTS: dict[str, Meaning] = {
    "violated": Meaning(
        "X",
        "✕",
        "violated",
        "One wrote between two writes of another that should have excluded it; or too many were at it.",
    ),
    "stuck": Meaning("S", "■", "stuck", "The faults were over, and still somebody was never served."),
    "fenced": Meaning("F", "◆", "overlap, refused by the fence", "Holds overlapped; the resource refused the older."),
    "unknown": Meaning("?", "?", "unknown", "What was seen is not enough to judge."),
    "safe": Meaning("ok", "✓", "safe", "Nobody wrote between another's writes, and everybody was served in the end."),
    "n/a": Meaning("-", "–", "does not apply", "This fault cannot happen to this algorithm."),
}

BARS: dict[str, str] = {
    "waits": "waits",
    "believes": "believes to hold",
    "mistaken": "believes to hold, but does not",
    "holds": "holds, as the server sees it",
    "section": "uses the resource",
    "paused": "paused",
    "down": "down",
}
MARKS: dict[str, str] = {
    "fatal": "the fatal moment",
    "fault": "a fault",
    "write": "a write",
    "refused": "a write, refused",
    "lost": "a lost message",
    "send": "sends",
    "reply": "is answered",
    "note": "",
}

# An algorithm and a fault are named in links and on the command line.
_KEY = re.compile(r"[a-z0-9][a-z0-9.-]*")


@dataclass(frozen=True, slots=True)
class Topic:
    """A row or a column: the word for the command line, a title, and a sentence or two about it."""

    key: str
    title: str
    says: str = ""

    def __post_init__(self) -> None:
        _require_key(self.key)


@dataclass(frozen=True, slots=True)
class Expected:
    """The verdict that was written down before the run, and why."""

    verdict: str
    why: str

    def __post_init__(self) -> None:
        _require(self.verdict, VERDICTS, "verdict")


@dataclass(frozen=True, slots=True)
class About:
    """What a whole report is about: its head, its rows, its columns, and how it was made."""

    title: str
    intro: str
    algorithms: tuple[Topic, ...]
    faults: tuple[Topic, ...]
    made: str = ""


@dataclass(frozen=True, slots=True)
class Cell:
    """One algorithm under one fault: `bad` of `seeds` runs showed the verdict; `seed` is one that does."""

    algorithm: str
    fault: str
    verdict: str
    seeds: int
    bad: int
    seed: int | None
    detail: str = ""

    def __post_init__(self) -> None:
        _require_key(self.algorithm)
        _require_key(self.fault)
        _require(self.verdict, VERDICTS, "verdict")
        if not 0 <= self.bad <= self.seeds:
            raise ValueError(f"{self.bad} bad of {self.seeds} seeds")

    @property
    def key(self) -> str:
        """Its address on the page."""
        return f"{self.algorithm}/{self.fault}"

    @property
    def result(self) -> str:
        """The verdict with its counts, in words."""
        says = VERDICTS[self.verdict].short
        if self.verdict == "n/a" or not self.seeds:
            return says
        if self.verdict == "safe":
            return f"{says} in {_count(self.seeds)}"
        return f"{says} in {self.bad} of {_count(self.seeds)}"

    @property
    def replay(self) -> str:
        """The command that tells this story again."""
        seed = "" if self.seed is None else f" --seed {self.seed}"
        return f"lockfast lab {self.algorithm} {self.fault}{seed}"


@dataclass(frozen=True, slots=True)
class Lane:
    """A line of the picture. Clients have colours, in the order of their lanes."""

    name: str
    kind: LaneKind

    def __post_init__(self) -> None:
        _require(self.kind, ("client", "server", "resource"), "kind of lane")


@dataclass(frozen=True, slots=True)
class Bar:
    """Something that lasts; `end` may be infinite. `who`: the client that it is about, when that is not the lane."""

    lane: str
    start: float
    end: float
    kind: BarKind
    label: str = ""
    who: str = ""

    def __post_init__(self) -> None:
        _require(self.kind, BARS, "kind of bar")
        _require_time(self.start)
        if not self.end >= self.start:
            raise ValueError(f"a bar from {self.start} to {self.end}")


@dataclass(frozen=True, slots=True)
class Mark:
    """Something that happens at one moment. `fatal` is drawn through all lanes."""

    lane: str
    at: float
    kind: MarkKind
    label: str = ""

    def __post_init__(self) -> None:
        _require(self.kind, MARKS, "kind of mark")
        _require_time(self.at)


@dataclass(frozen=True, slots=True)
class Arrow:
    """A message. `arrives_at` None: it was lost on the way."""

    from_lane: str
    to_lane: str
    sent_at: float
    arrives_at: float | None
    label: str = ""

    def __post_init__(self) -> None:
        _require_time(self.sent_at)
        if self.arrives_at is not None and not self.sent_at <= self.arrives_at < math.inf:
            raise ValueError(f"a message sent at {self.sent_at} that arrives at {self.arrives_at}")


class Step(NamedTuple):
    """One sentence of a story. `who` is a lane, or "" for the world."""

    at: float
    who: str
    sentence: str


@dataclass(frozen=True, slots=True)
class Story:
    """What one seed did to one algorithm, to be told and drawn."""

    algorithm: str
    fault: str
    seed: int
    verdict: str
    title: str
    lanes: tuple[Lane, ...]
    bars: tuple[Bar, ...] = ()
    marks: tuple[Mark, ...] = ()
    arrows: tuple[Arrow, ...] = ()
    steps: tuple[tuple[float, str, str], ...] = ()
    what_happened: str = ""
    what_the_text_says: str = ""
    what_lockfast_does: str = ""

    def __post_init__(self) -> None:
        _require_key(self.algorithm)
        _require_key(self.fault)
        _require(self.verdict, VERDICTS, "verdict")
        names = [lane.name for lane in self.lanes]
        if not names or len(names) != len(set(names)):
            raise ValueError(f"lanes of a story need names of their own: {names}")
        used = [bar.lane for bar in self.bars] + [mark.lane for mark in self.marks]
        used += [name for arrow in self.arrows for name in (arrow.from_lane, arrow.to_lane)]
        used += [bar.who for bar in self.bars if bar.who] + [step[1] for step in self.steps if step[1]]
        for name in used:
            _require(name, names, "lane")

    @property
    def key(self) -> str:
        """The address of its cell on the page."""
        return f"{self.algorithm}/{self.fault}"

    @property
    def clients(self) -> list[str]:
        """Names of the client lanes, in the order of their colours."""
        return [lane.name for lane in self.lanes if lane.kind == "client"]

    def is_fatal(self, at: float, sentence: str) -> bool:
        """Whether a step is the fatal moment: of all that happens at that time, the write."""
        return sentence.startswith("writes") and any(
            mark.kind == "fatal" and abs(mark.at - at) < 1e-6 for mark in self.marks
        )


def mark_mistakes(bars: Iterable[Bar], servers: Sequence[str]) -> tuple[Bar, ...]:
    """The same bars, with each belief that fewer than a majority of `servers` shared split off as `mistaken`.

    A belief and a hold belong together when they are about the same client.
    """
    bars = tuple(bars)
    made: list[Bar] = []
    for bar in bars:
        if bar.kind != "believes":
            made.append(bar)
            continue
        who = bar.who or bar.lane
        holds = [one for one in bars if one.kind == "holds" and one.lane in servers and one.who == who]
        cuts = sorted(
            {bar.start, bar.end, *(at for one in holds for at in (one.start, one.end) if bar.start < at < bar.end)}
        )
        pieces: list[Bar] = []
        for start, end in itertools.pairwise(cuts):
            shared = len({one.lane for one in holds if one.start <= start and end <= one.end}) * 2 > len(servers)
            kind: BarKind = "believes" if shared else "mistaken"
            if pieces and pieces[-1].kind == kind:
                pieces[-1] = replace(pieces[-1], end=end)
            else:
                pieces.append(replace(bar, start=start, end=end, kind=kind, label="" if pieces else bar.label))
        made += pieces or [bar]
    return tuple(made)


def _count(seeds: int) -> str:
    return f"{seeds} seed" if seeds == 1 else f"{seeds} seeds"


def _require(word: str, known: Iterable[str], what: str) -> None:
    known = list(known)
    if word not in known:
        raise ValueError(f"unknown {what} {word!r}; known are {', '.join(known)}")


def _require_key(key: str) -> None:
    if not _KEY.fullmatch(key):
        raise ValueError(f"{key!r}: use small letters, digits, dots and dashes")


def _require_time(at: float) -> None:
    if not math.isfinite(at):
        raise ValueError(f"{at} is no time")
