"""The whole report as one HTML file: the matrix, and behind each cell its story.

Without scripts it is a plain document: every cell is a link to its section below. The script (page.js) only moves
sections into a sheet over the matrix, filters, and lets arrow keys walk the cells; it holds no data of its own.
Nothing is loaded from anywhere, and a content policy in the page forbids it.
"""

from __future__ import annotations

import base64
import hashlib
from html import escape
from importlib.resources import files
from typing import TYPE_CHECKING

from lockfast.lab import palette, shapes, svg
from lockfast.lab.model import VERDICTS
from lockfast.lab.text import clean, seconds

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from lockfast.lab.model import About, Cell, Expected, Story, Topic


def report(
    cells: Iterable[Cell], stories: Iterable[Story], expected: Mapping[tuple[str, str], Expected], about: About
) -> str:
    """The page. Raises ValueError for a cell that is in no row or column, and for a story without a cell."""
    by_key = {cell.key: cell for cell in cells}
    told = {story.key: story for story in stories}
    rows = {topic.key: topic for topic in about.algorithms}
    columns = {topic.key: topic for topic in about.faults}
    for cell in by_key.values():
        if cell.algorithm not in rows or cell.fault not in columns:
            raise ValueError(f"{cell.key} is in no row and column of the report")
    if strays := told.keys() - by_key.keys():
        raise ValueError(f"stories without a cell: {', '.join(sorted(strays))}")
    grid = [[by_key.get(f"{row}/{column}") for column in columns] for row in rows]
    articles = [
        _article(
            cell,
            told.get(cell.key),
            expected.get((cell.algorithm, cell.fault)),
            rows[cell.algorithm],
            columns[cell.fault],
        )
        for line in grid
        for cell in line
        if cell
    ]
    script = _file("page.js")
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{_policy(script)}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{_text(about.title)}</title>
<style>
{palette.css(":root")}{_file("page.css")}{shapes.style()}</style>
</head>
<body>
<header class="top">
<h1>{_text(about.title)}</h1>
<p class="intro">{_text(about.intro)}</p>
</header>
<main>
<section class="matrix" aria-label="Matrix">
{_filter(by_key.values())}
<div class="scroll" tabindex="0" role="region" aria-label="Algorithms and faults">
{_table(grid, about, told, expected)}
</div>
<p class="hint">Choose a cell to see what happened in it.</p>
</section>
<section class="stories" aria-label="Stories">
<h2>Cell by cell</h2>
{"".join(articles)}</section>
<section class="words">
{_glossary("Algorithms", about.algorithms)}{_glossary("Faults", about.faults)}</section>
</main>
<footer>{_text(about.made)}</footer>
<script>{script}</script>
</body>
</html>
"""


def _policy(script: str) -> str:
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    rest = "style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
    return f"default-src 'none'; script-src 'sha256-{digest}'; {rest}"


def _file(name: str) -> str:
    return files("lockfast.lab").joinpath(name).read_text(encoding="utf-8")


def _text(text: str) -> str:
    return escape(clean(text))


def _css(verdict: str) -> str:
    return "na" if verdict == "n/a" else verdict


def _sign(verdict: str) -> str:
    return f'<span class="sign {_css(verdict)}" aria-hidden="true">{VERDICTS[verdict].sign}</span>'


def _filter(cells: Iterable[Cell]) -> str:
    """The legend, whose entries the script makes into switches."""
    verdicts = [cell.verdict for cell in cells]
    buttons = "".join(
        f'<button type="button" disabled aria-pressed="false" data-verdict="{_css(verdict)}"'
        f' title="{escape(meaning.says)}">'
        f"{_sign(verdict)}{meaning.short} <b>{verdicts.count(verdict)}</b></button>\n"
        for verdict, meaning in VERDICTS.items()
        if verdict in verdicts
    )
    return f'<div class="filter" role="group" aria-label="Verdicts">\n{buttons}</div>'


def _table(
    grid: list[list[Cell | None]], about: About, told: Mapping[str, Story], expected: Mapping[tuple[str, str], Expected]
) -> str:
    heads = "".join(f'<th scope="col"><span>{_text(fault.title)}</span></th>' for fault in about.faults)
    body = ""
    for algorithm, line in zip(about.algorithms, grid, strict=True):
        own = ' class="own"' if algorithm.key == "lockfast" else ""
        cells = "".join(
            _cell(cell, algorithm, fault, told, expected) for cell, fault in zip(line, about.faults, strict=True)
        )
        body += f'<tr{own}><th scope="row">{_text(algorithm.title)}</th>{cells}</tr>\n'
    columns = "<col>" * len(about.faults)
    return f"""<table>
<colgroup><col class="names">{columns}</colgroup>
<thead><tr><td></td>{heads}</tr></thead>
<tbody>
{body}</tbody>
</table>"""


def _cell(
    cell: Cell | None,
    algorithm: Topic,
    fault: Topic,
    told: Mapping[str, Story],
    expected: Mapping[tuple[str, str], Expected],
) -> str:
    if cell is None:
        return "<td></td>"
    wish = expected.get((cell.algorithm, cell.fault))
    odd = bool(wish and wish.verdict != cell.verdict)
    says = f"{algorithm.title}, {fault.title}: {cell.result}" + (", not as expected" if odd else "")
    count = f"<small>{cell.bad}/{cell.seeds}</small>" if cell.bad else ""
    css = _css(cell.verdict) + (" odd" if odd else "") + (" told" if cell.key in told else "")
    return (
        f'<td><a class="cell {css}" href="#{cell.key}" data-verdict="{_css(cell.verdict)}"'
        f' aria-label="{_text(says)}" title="{_text(says)}"><span>{VERDICTS[cell.verdict].sign}</span>{count}</a></td>'
    )


def _article(cell: Cell, story: Story | None, wish: Expected | None, algorithm: Topic, fault: Topic) -> str:
    crumb = f"{_text(algorithm.title)} <i>×</i> {_text(fault.title)}"
    title = _text(story.title) if story else crumb
    head = f'<p class="crumb">{crumb}</p>' if story else ""
    about = "".join(f"<dt>{_text(one.title)}</dt><dd>{_text(one.says)}</dd>" for one in (algorithm, fault) if one.says)
    parts = [
        f'<header>{head}<h3 id="{cell.key}:title">{title}</h3>',
        f'<p class="verdict">{_sign(cell.verdict)}<b>{_text(cell.result)}</b></p></header>',
        _paragraph("lead", story.what_happened if story else VERDICTS[cell.verdict].says),
        _paragraph("detail", cell.detail),
        _told(story) if story else "",
        f'<dl class="about">{about}</dl>' if about else "",
        _expectation(cell, wish),
        ""
        if cell.verdict == "n/a"
        else f'<p class="replay"><span>Replay it</span> <code>{_text(cell.replay)}</code></p>',
    ]
    css = "story" if story else "story brief"
    # Focusable, so that following a link to it puts the keyboard there too.
    start = f'<article class="{css}" id="{cell.key}" tabindex="-1" aria-labelledby="{cell.key}:title">\n'
    return start + "\n".join(part for part in parts if part) + "\n</article>\n"


def _told(story: Story) -> str:
    steps = ""
    for at, who, sentence in story.steps:
        colour = f" c{story.clients.index(who) % (palette.CLIENTS - 1)}" if who in story.clients else ""
        fatal = ' class="fatal"' if story.is_fatal(at, sentence) else ""
        name = f'<span class="who{colour}">{_text(who)}</span> ' if who else ""
        steps += f"<li{fatal}><time>{seconds(at)}</time><p>{name}{_text(sentence)}</p></li>\n"
    says = [
        f"<section><h4>{head}</h4><p>{_text(text)}</p></section>"
        for head, text in (
            ("What the text says", story.what_the_text_says),
            ("What Lockfast does", story.what_lockfast_does),
        )
        if text
    ]
    return (
        f'<figure><div class="scroll" tabindex="0" role="region" aria-label="Timeline">{svg.figure(story)}</div>'
        "<figcaption>Wider than the screen: move it sideways.</figcaption></figure>\n"
        + (f'<h4>Step by step</h4>\n<ol class="steps">\n{steps}</ol>\n' if steps else "")
        + (f'<div class="says">{"".join(says)}</div>' if says else "")
    )


def _expectation(cell: Cell, wish: Expected | None) -> str:
    if wish is None:
        return ""
    if wish.verdict == cell.verdict:
        return f'<p class="expected"><b>As expected:</b> {_text(wish.why)}</p>'
    return f'<p class="expected odd"><b>Not as expected:</b> {VERDICTS[wish.verdict].short}. {_text(wish.why)}</p>'


def _paragraph(css: str, text: str) -> str:
    return f'<p class="{css}">{_text(text)}</p>' if text else ""


def _glossary(head: str, topics: Iterable[Topic]) -> str:
    entries = "".join(
        f"<dt>{_text(topic.title)} <code>{_text(topic.key)}</code></dt><dd>{_text(topic.says)}</dd>\n"
        for topic in topics
    )
    return f"<div><h2>{head}</h2>\n<dl>\n{entries}</dl></div>\n"
