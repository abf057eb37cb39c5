"""The report in a real browser: opened, clicked through, made small, made dark, and printed."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kit.leaks import no_leaks
from lab.sample import ABOUT, BLIND, CELLS, EXPECTED, STORIES, crowded
from lab.webdriver import Browser
from lockfast.lab import page, palette, svg

if TYPE_CHECKING:
    from lockfast.lab.model import Story

pytestmark = [pytest.mark.needs_chromium, pytest.mark.slow]

STORY = BLIND.key
CELL = f'a.cell[href="#{STORY}"]'
OPEN = "document.querySelector('dialog[open] article')?.id"

# Pairs of texts in a picture that cover each other, as the browser has set them.
COVERED = """
const texts = [...document.documentElement.querySelectorAll("text")];
const boxes = texts.map((text) => [text.textContent, text.getBoundingClientRect()]);
const found = [];
boxes.forEach(([one, a], index) => boxes.slice(index + 1).forEach(([other, b]) => {
  const wide = Math.min(a.right, b.right) - Math.max(a.left, b.left);
  const high = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
  if (wide > 0.5 && high > 3) found.push([one, other]);
}));
return found;
"""


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("report") / "report.html"
    path.write_text(page.report(CELLS, STORIES, EXPECTED, ABOUT), encoding="utf-8")
    return path


@pytest.fixture(autouse=True)
def _as_a_new_reader(browser: Browser) -> None:
    browser.screen(1280, 900)
    browser.prefer("light")
    browser.scripts(True)


def test_a_click_on_a_cell_shows_its_story_and_escape_goes_back_to_the_cell(browser: Browser, report: Path) -> None:
    browser.open(report)
    assert browser.run(f"return {OPEN}") is None
    browser.click(CELL)
    browser.wait(f"{OPEN} === arguments[0]", STORY)
    seen = browser.run("return document.querySelector('dialog article').innerText")
    assert BLIND.title in seen
    assert BLIND.steps[-1][2] in seen
    assert "lockfast lab set-nx-px-blind-del blind-release --seed 7" in seen
    assert browser.run("return document.querySelector('dialog svg').getBoundingClientRect().width") > 600
    browser.press("Escape")
    browser.wait(f"!{OPEN} && location.hash === ''")
    assert browser.run("return document.activeElement.getAttribute('href')") == f"#{STORY}"


def test_a_link_to_a_story_opens_it_and_back_closes_it(browser: Browser, report: Path) -> None:
    browser.open(report, STORY)
    browser.wait(f"{OPEN} === arguments[0]", STORY)
    top = browser.run("return document.querySelector('dialog article header').getBoundingClientRect().top")
    bar = browser.run("return document.querySelector('dialog nav').getBoundingClientRect().bottom")
    assert top >= bar, "the head of the story is in sight"
    browser.open(report)
    browser.click(CELL)
    browser.wait(f"{OPEN} === arguments[0]", STORY)
    browser.back()
    browser.wait(f"!{OPEN}")


def test_an_unknown_address_shows_the_matrix(browser: Browser, report: Path) -> None:
    browser.open(report, "no/such%zz")
    assert browser.run("return document.querySelector('a.cell').offsetHeight") > 20
    assert browser.run(f"return {OPEN}") is None


def test_next_and_previous_walk_the_cells_that_have_something_to_tell(browser: Browser, report: Path) -> None:
    keys = [cell.key for cell in CELLS if cell.verdict != "n/a"]
    browser.open(report, keys[0])
    browser.wait(f"{OPEN} === arguments[0]", keys[0])
    assert browser.run("return document.querySelector('[aria-label=\"Previous cell\"]').disabled")
    browser.click('[aria-label="Next cell"]')
    browser.wait(f"{OPEN} === arguments[0]", keys[1])
    browser.press("ArrowRight")
    browser.wait(f"{OPEN} === arguments[0]", keys[2])
    browser.click('[aria-label="Previous cell"]')
    browser.wait(f"{OPEN} === arguments[0]", keys[1])
    browser.click("dialog .close")
    browser.wait(f"!{OPEN} && location.hash === ''")  # the sheet is gone at once, its event comes a moment later
    assert browser.run("return document.activeElement.getAttribute('href')") == f"#{keys[1]}", "where one has walked to"


def test_the_filter_leaves_the_chosen_verdicts_and_pressed_again_all(browser: Browser, report: Path) -> None:
    bright = (
        "return [...document.querySelectorAll('a.cell:not(.dim)')].map((cell) => cell.getAttribute('href').slice(1))"
    )
    browser.open(report)
    browser.click('.filter [data-verdict="stuck"]')
    assert browser.run(bright) == [cell.key for cell in CELLS if cell.verdict == "stuck"]
    assert float(browser.run("return getComputedStyle(document.querySelector('a.cell.dim')).opacity")) < 0.3
    browser.click('.filter [data-verdict="fenced"]')
    both = [cell.key for cell in CELLS if cell.verdict in ("stuck", "fenced")]
    assert browser.run(bright) == both
    assert browser.run("return document.querySelectorAll('.filter [aria-pressed=true]').length") == 2
    # The filter also decides what comes next.
    browser.click(f'a.cell[href="#{both[0]}"]')
    browser.wait(f"{OPEN} === arguments[0]", both[0])
    browser.click('[aria-label="Next cell"]')
    browser.wait(f"{OPEN} === arguments[0]", both[1])
    browser.press("Escape")
    browser.wait(f"!{OPEN}")
    browser.click('.filter [data-verdict="stuck"]')
    browser.click('.filter [data-verdict="fenced"]')
    assert len(browser.run(bright)) == len(CELLS)


def test_the_matrix_is_one_stop_for_tab_and_arrows_walk_it(browser: Browser, report: Path) -> None:
    browser.open(report)
    browser.run("document.querySelector('a.cell').focus()")
    browser.press("ArrowDown")
    browser.press("ArrowRight")
    assert browser.run("return document.querySelectorAll('a.cell[tabindex=\"0\"]').length") == 1
    second = f"{ABOUT.algorithms[1].key}/{ABOUT.faults[1].key}"
    assert browser.run("return document.activeElement.getAttribute('href')") == f"#{second}"
    browser.press("Enter")
    browser.wait(f"{OPEN} === arguments[0]", second)


@pytest.mark.parametrize("fragment", ["", STORY, "redlock/node-restarts-empty", "lockfast/holder-dies"])
def test_on_a_phone_nothing_but_the_boxes_scrolls_sideways(browser: Browser, report: Path, fragment: str) -> None:
    browser.screen(375, 812)
    browser.open(report, fragment)
    if fragment:
        browser.wait(f"{OPEN} === arguments[0]", fragment)
        assert (
            browser.run("const sheet = document.querySelector('dialog'); return sheet.scrollWidth - sheet.clientWidth")
            == 0
        )
        assert browser.run("return document.querySelector('dialog').getBoundingClientRect().width") == 375
    assert browser.run("return [innerWidth, document.documentElement.scrollWidth]") == [375, 375]
    scrolled = "const box = document.querySelector('.matrix .scroll'); box.scrollLeft = 200; return box.scrollLeft"
    assert browser.run(scrolled) == 200
    name = "return document.querySelector('tbody th').getBoundingClientRect().left"
    assert 0 <= browser.run(name) < 30, "names of algorithms stay in sight"
    size = browser.run(
        "const box = document.querySelector('a.cell').getBoundingClientRect(); return [box.width, box.height]"
    )
    assert min(size) >= 40, "large enough for a finger"


def test_dark_readers_get_dark_colours_in_page_and_picture(browser: Browser, report: Path) -> None:
    looks = """
      const of = (selector, name) => getComputedStyle(document.querySelector(selector))[name];
      return [of("body", "backgroundColor"), of("body", "color"), of("a.cell.violated", "backgroundColor"),
              of("dialog svg .holds.c0", "fill"), of("dialog svg .alarm", "fill")];
    """
    wanted = ("ground", "ink", "violated-back", "c0-full", "fatal")
    for number, scheme in enumerate(("light", "dark")):
        browser.prefer(scheme)
        browser.open(report, STORY)
        browser.wait(f"{OPEN} === arguments[0]", STORY)
        assert browser.run(looks) == [_rgb(palette.COLOURS[name][number]) for name in wanted]


def test_a_dark_reader_prints_in_light(browser: Browser, report: Path) -> None:
    browser.prefer("dark", media="print")
    browser.open(report)
    assert browser.run("return getComputedStyle(document.body).color") == _rgb(palette.COLOURS["ink"][0])
    visible = "return [...document.querySelectorAll('article')].filter((one) => one.offsetHeight).map((one) => one.id)"
    assert sorted(browser.run(visible)) == sorted(story.key for story in STORIES)


def test_with_a_story_open_the_story_is_printed(browser: Browser, report: Path) -> None:
    browser.prefer("light", media="print")
    browser.open(report, "lockfast/holder-dies")
    browser.wait(f"{OPEN} === arguments[0]", "lockfast/holder-dies")
    visible = "return [...document.querySelectorAll('article')].filter((one) => one.offsetHeight).map((one) => one.id)"
    assert browser.run(visible) == ["lockfast/holder-dies"]
    assert browser.run("return document.querySelector('table').offsetHeight") == 0


def test_without_scripts_all_stories_are_sections_that_links_lead_to(browser: Browser, report: Path) -> None:
    browser.scripts(False)
    browser.open(report, STORY)
    visible = "return [...document.querySelectorAll('article')].filter((one) => one.offsetHeight).length"
    assert browser.run(visible) == len(CELLS)
    top = browser.run("return document.getElementById(arguments[0]).getBoundingClientRect().top", STORY)
    assert 0 <= top < 100
    assert browser.run("return document.querySelectorAll('dialog').length") == 0


@pytest.mark.parametrize("story", [*STORIES, crowded(1), crowded(2)], ids=lambda story: f"{story.key}#{story.seed}")
def test_texts_in_a_picture_do_not_cover_each_other(browser: Browser, tmp_path: Path, story: Story) -> None:
    path = tmp_path / "picture.svg"
    path.write_text(svg.timeline(story), encoding="utf-8")
    browser.open(path)
    assert browser.run("const svg = document.documentElement; return svg.querySelectorAll('text').length") > 5
    assert browser.run(COVERED) == []


def test_the_page_asks_the_network_for_nothing_and_reports_no_error(browser: Browser, report: Path) -> None:
    browser.open(report, STORY)
    browser.wait(f"{OPEN} === arguments[0]", STORY)
    assert browser.run("return performance.getEntriesByType('resource').map((one) => one.name)") == []
    refused = """
      return new Promise((done) => {
        addEventListener("securitypolicyviolation", (event) => done(event.effectiveDirective));
        const image = new Image();
        image.src = "http://127.0.0.1:9/x.png";
        setTimeout(() => done("nothing was refused"), 2000);
      });
    """
    assert browser.run(refused) == "img-src"


def test_no_browser_outlives_its_block() -> None:
    with no_leaks():
        with Browser() as browser:
            mark = browser.home
            assert _processes_of(mark)
        assert not _processes_of(mark)
        assert not Path(mark).exists()


def _processes_of(mark: str) -> list[str]:
    found = []
    for directory in Path("/proc").glob("[0-9]*"):
        try:
            words = (directory / "cmdline").read_bytes() + (directory / "environ").read_bytes()
        except OSError:
            continue  # It ended, or is not ours.
        if mark.encode() in words and int(directory.name) != os.getpid():
            found.append(directory.name)
    return found


def _rgb(colour: str) -> str:
    red, green, blue = (int(colour[place : place + 2], 16) for place in (1, 3, 5))
    return f"rgb({red}, {green}, {blue})"
