"""The report as text: one file, whole without scripts, loading nothing, trusting no text."""

from __future__ import annotations

import base64
import hashlib
import re
from html.parser import HTMLParser

import pytest

from lab.sample import ABOUT, ALGORITHMS, CELLS, EXPECTED, FAULTS, HOSTILE, HOSTILE_TEXT, STORIES
from lockfast.lab import page, palette
from lockfast.lab.model import VERDICTS, About, Cell, Expected, Story, Topic

VOID = {"meta", "link", "br", "hr", "img", "input", "col"}
NO_CHILDREN = {"rect", "path", "circle"}


class Page(HTMLParser):
    """Elements, links and texts of a page; fails on tags that do not match."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str]]] = []
        self.words: list[str] = []
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, {name: value or "" for name, value in attrs}))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag in NO_CHILDREN, tag
        self.elements.append((tag, {name: value or "" for name, value in attrs}))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] not in ("style", "script"):
            self.words.append(data)

    def having(self, tag: str) -> list[dict[str, str]]:
        return [attributes for name, attributes in self.elements if name == tag]


TEXT = page.report(CELLS, STORIES, EXPECTED, ABOUT)
PAGE = Page(TEXT)


def section(key: str, text: str = TEXT) -> str:
    """The text of one cell's section."""
    found = re.search(rf'<article [^>]*id="{re.escape(key)}"[^>]*>(.*?)</article>', text, re.DOTALL)
    assert found
    return " ".join("".join(Page(found[1]).words).split())


def test_every_cell_links_to_a_section_of_the_page() -> None:
    ids = [attributes["id"] for _, attributes in PAGE.elements if "id" in attributes]
    assert len(ids) == len(set(ids))
    links = [link["href"] for link in PAGE.having("a")]
    assert links == [f"#{cell.key}" for cell in CELLS]
    assert {link.removeprefix("#") for link in links} <= set(ids)


def test_nothing_is_loaded_from_anywhere() -> None:
    assert "://" not in TEXT
    assert "@import" not in TEXT
    for _, attributes in PAGE.elements:
        assert not attributes.keys() & {"src", "srcset", "data", "poster", "action", "xlink:href", "background"}
        assert attributes.get("href", "#").startswith("#")
    assert not PAGE.having("link")
    assert set(re.findall(r"url\((.)", TEXT)) == {"#"}


def test_the_page_itself_forbids_loading_and_every_script_but_its_own() -> None:
    policy = next(one["content"] for one in PAGE.having("meta") if one.get("http-equiv") == "Content-Security-Policy")
    script = TEXT.partition("<script>")[2].partition("</script>")[0]
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert policy.startswith("default-src 'none'")
    assert f"script-src 'sha256-{digest}'" in policy
    assert TEXT.count("<script") == 1


def test_a_section_tells_the_whole_story() -> None:
    story = STORIES[0]
    told = section(story.key)
    for _, _, sentence in story.steps:
        assert sentence in told
    for part in (story.title, story.what_happened, story.what_the_text_says, story.what_lockfast_does):
        assert part in told
    assert "SET NX PX, blind DEL × Blind release" in told
    assert "lockfast lab set-nx-px-blind-del blind-release --seed 7" in told
    cell = next(cell for cell in CELLS if cell.key == story.key)
    assert cell.result in told
    assert "As expected: Its text says so." in told


def test_a_cell_without_a_story_has_its_verdict_reason_and_command() -> None:
    cell = next(cell for cell in CELLS if cell.verdict == "safe" and cell.algorithm == "lockfast")
    told = section(cell.key)
    assert cell.result in told
    assert "No client can be both." in told
    assert cell.replay in told


def test_what_does_not_apply_has_no_command() -> None:
    cell = next(cell for cell in CELLS if cell.verdict == "n/a")
    assert "lockfast lab" not in section(cell.key)


def test_a_verdict_that_was_not_expected_is_pointed_out() -> None:
    assert "Not as expected: stuck. Written down wrongly" in section("optimistic/holder-dies")
    odd = [link for link in PAGE.having("a") if "odd" in link["class"].split()]
    assert [link["href"] for link in odd] == ["#optimistic/holder-dies"]
    assert odd[0]["aria-label"].endswith("not as expected")


def test_the_legend_counts_every_verdict() -> None:
    buttons = PAGE.having("button")
    assert len(buttons) == len(VERDICTS)
    for verdict, meaning in VERDICTS.items():
        count = sum(cell.verdict == verdict for cell in CELLS)
        assert f"{meaning.short} <b>{count}</b>" in TEXT


def test_cells_are_told_apart_without_colour_and_without_sight() -> None:
    for link, cell in zip(PAGE.having("a"), CELLS, strict=True):
        assert cell.result in link["aria-label"]
        assert f'href="#{cell.key}"' in TEXT
    signs = re.findall(r'<a class="cell [^>]*><span>(.)</span>', TEXT)
    assert signs == [VERDICTS[cell.verdict].sign for cell in CELLS]


def test_rows_and_columns_have_headings() -> None:
    scopes = [head["scope"] for head in PAGE.having("th")]
    assert scopes.count("col") == len(FAULTS)
    assert scopes.count("row") == len(ALGORITHMS)


def test_hostile_text_stays_text_everywhere() -> None:
    topics = (Topic("redlock", HOSTILE_TEXT, HOSTILE_TEXT),)
    about = About(HOSTILE_TEXT, HOSTILE_TEXT, topics, (Topic("failover", HOSTILE_TEXT, HOSTILE_TEXT),), HOSTILE_TEXT)
    cell = Cell("redlock", "failover", "unknown", 1, 1, 0, HOSTILE_TEXT)
    text = page.report([cell], [HOSTILE], {("redlock", "failover"): Expected("safe", HOSTILE_TEXT)}, about)
    hostile = Page(text)
    assert text.count("<script") == 1
    assert "alert('" not in text
    assert not [name for _, attributes in hostile.elements for name in attributes if name.startswith("on")]
    assert not hostile.having("b") or all(not attributes for attributes in hostile.having("b"))
    text.encode()


def test_strays_are_refused() -> None:
    with pytest.raises(ValueError, match="stories without a cell: setnx/holder-dies"):
        page.report([], STORIES[1:2], {}, ABOUT)
    with pytest.raises(ValueError, match="setnx/moon is in no row"):
        page.report([Cell("setnx", "moon", "safe", 1, 0, 1)], [], {}, ABOUT)


def test_a_report_of_a_part_is_a_report() -> None:
    told: list[Story] = [STORIES[1]]
    part = Page(page.report([cell for cell in CELLS if cell.key == told[0].key], told, {}, ABOUT))
    assert len(part.having("a")) == len(part.having("article")) == 1


def luminance(colour: str) -> float:
    """As WCAG 2 defines it."""
    parts = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    light, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


ON_EACH_OTHER = [
    *((f"{name}-sign", f"{name}-back") for name in ("violated", "stuck", "fenced", "unknown", "safe", "na")),
    *((text, ground) for text in ("ink", "soft", "fatal", "link") for ground in ("paper", "ground", "raised")),
    *(("on-full", f"c{number}-full") for number in range(palette.CLIENTS)),
    *(("ink", f"c{number}-tint") for number in range(palette.CLIENTS)),
    *((f"c{number}-full", "raised") for number in range(palette.CLIENTS)),
]


@pytest.mark.parametrize(("text", "ground"), ON_EACH_OTHER)
def test_texts_are_readable_on_their_ground_in_light_and_dark(text: str, ground: str) -> None:
    for scheme in (0, 1):
        assert contrast(palette.COLOURS[text][scheme], palette.COLOURS[ground][scheme]) >= 4.5
