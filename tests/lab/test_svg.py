"""Timeline pictures: whole, the same every time, and with no text over another."""

from __future__ import annotations

import itertools
import random
import xml.etree.ElementTree as ET

import pytest

from lab.sample import BLIND, DEAD, FENCED, HOSTILE, REDLOCK, STORIES, crowded
from lockfast.lab import palette, svg
from lockfast.lab.layout import Flag, Flags, Scale, rows
from lockfast.lab.model import Lane, Story
from lockfast.lab.text import width_px

SVG = "{http://www.w3.org/2000/svg}"
SIZES = {"title": 17 * 1.1, "name": 13 * 1.1, "alarm": 13 * 1.1}  # Bold letters are wider.
EMPTY = Story("setnx", "holder-dies", 0, "safe", "Nothing happened", (Lane("A", "client"),))
ALL = [*STORIES, HOSTILE, EMPTY, *(crowded(seed) for seed in range(12))]


def parsed(story: Story) -> ET.Element:
    return ET.fromstring(svg.timeline(story).encode())


def with_class(root: ET.Element, *names: str) -> list[ET.Element]:
    return [one for one in root.iter() if set(names) <= set(one.get("class", "").split())]


def texts(root: ET.Element) -> list[str]:
    return [one.text or "" for one in root.iter(f"{SVG}text")]


def box(text: ET.Element) -> tuple[float, float, float, float]:
    """Left, right, top, bottom of a text, as wide as it may become."""
    name = text.get("class", "").split(" ")[0]
    size = SIZES.get(name, 11 if name in ("tick", "kind") else 12)
    width = width_px(text.text or "", size)
    anchor = "middle" if name == "tick" else text.get("text-anchor", "start")
    left = float(text.get("x", 0)) - {"start": 0, "middle": width / 2, "end": width}[anchor]
    base = float(text.get("y", 0))
    return left, left + width, base - size * 0.8, base + size * 0.2


@pytest.mark.parametrize("story", ALL, ids=lambda story: f"{story.key}#{story.seed}")
def test_no_text_covers_another_and_none_leaves_the_picture(story: Story) -> None:
    root = parsed(story)
    width, height = (float(number) for number in root.get("viewBox", "").split()[2:])
    boxes = [(box(text), text.text) for text in root.iter(f"{SVG}text")]
    for (left, right, top, bottom), what in boxes:
        assert left >= 0, what
        assert right <= width + 1, what
        assert top >= 0, what
        assert bottom <= height, what
    for (one, text), (other, covered) in itertools.combinations(boxes, 2):
        apart = one[1] <= other[0] or other[1] <= one[0] or one[3] <= other[2] or other[3] <= one[2]
        assert apart, f"{text!r} and {covered!r}"


@pytest.mark.parametrize("story", ALL, ids=lambda story: f"{story.key}#{story.seed}")
def test_the_same_story_gives_the_same_bytes(story: Story) -> None:
    assert svg.timeline(story) == svg.timeline(story)


def test_the_picture_names_itself_to_those_who_cannot_see_it() -> None:
    root = parsed(BLIND)
    ids = {one.get("id"): one.text for one in root if one.get("id")}
    title, desc = (ids[name] for name in root.get("aria-labelledby", "").split())
    assert root.get("role") == "img"
    assert title == BLIND.title
    assert desc is not None
    assert BLIND.what_happened in desc
    assert "stock (resource)" in desc


def test_every_lane_and_every_label_is_there() -> None:
    shown = texts(parsed(BLIND))
    for lane in BLIND.lanes:
        assert lane.name in shown
    labels = [bar.label for bar in BLIND.bars] + [mark.label for mark in BLIND.marks]
    labels += [arrow.label for arrow in BLIND.arrows]
    for label in filter(None, labels):
        assert label in shown


def test_belief_and_the_servers_view_are_drawn_differently_and_in_the_clients_colour() -> None:
    root = parsed(BLIND)
    assert with_class(root, "believes", "c0")
    assert with_class(root, "holds", "c0")
    assert with_class(root, "mistaken", "c0"), "A believes to hold after its lease"
    sheet = svg.timeline(BLIND)
    assert ".lfp .mistaken{stroke-width:2;stroke-dasharray" in sheet


def test_a_pause_is_hatched_over_its_time() -> None:
    root = parsed(BLIND)
    hatched = [one for one in root.iter(f"{SVG}rect") if one.get("fill", "").startswith("url(#")]
    pattern = next(root.iter(f"{SVG}pattern"))
    assert {one.get("fill") for one in hatched} == {f"url(#{pattern.get('id')})"}
    start = with_class(root, "believes", "c0")[0]
    assert float(hatched[0].get("x", 0)) > float(start.get("x", 0)), "the pause begins after the hold"


def test_lost_messages_end_in_a_cross_and_others_in_a_head() -> None:
    root = parsed(REDLOCK)
    lost = [arrow for arrow in REDLOCK.arrows if arrow.arrives_at is None]
    assert len(with_class(root, "arrow", "gone")) == len(lost) == 2
    assert len(with_class(root, "cross")) == len(lost) + 1, "one more in the legend"
    assert len(with_class(root, "head")) == len(REDLOCK.arrows) - len(lost)


def test_the_fatal_moment_goes_through_all_lanes_and_is_named() -> None:
    root = parsed(BLIND)
    bands = with_class(root, "band")
    last = float(bands[-1].get("y", 0)) + float(bands[-1].get("height", 0))
    line = with_class(root, "fatal")[-1].get("d", "")
    top, bottom = (float(part) for part in line.partition(" ")[2].split("V"))
    assert top <= float(bands[0].get("y", 0))
    assert bottom >= last
    assert [one.text for one in with_class(root, "alarm")] == ["B and C write in one another's hold"]
    assert not with_class(parsed(FENCED), "fatal")


def test_what_never_ends_reaches_the_edge() -> None:
    hold = with_class(parsed(DEAD), "holds")[0]
    assert float(hold.get("x", 0)) + float(hold.get("width", 0)) == pytest.approx(svg.RIGHT)


def test_hostile_text_stays_text() -> None:
    root = parsed(HOSTILE)
    assert not list(root.iter(f"{SVG}script"))
    assert {one.tag.removeprefix(SVG) for one in root.iter()} <= {
        "svg", "title", "desc", "style", "defs", "pattern", "rect", "path", "circle", "g", "text",
    }  # fmt: skip
    assert not [name for one in root.iter() for name in one.attrib if name.startswith("on")]
    assert "\x1b" not in svg.timeline(HOSTILE)


def test_colours_are_plain_values_for_light_and_dark() -> None:
    sheet = svg.timeline(BLIND)
    assert "var(" not in sheet, "many programs that show SVG know no variables"
    light, _, dark = sheet.partition("prefers-color-scheme:dark")
    assert palette.COLOURS["c0-full"][0] in light
    assert palette.COLOURS["c0-full"][1] in dark


def test_pictures_in_a_page_share_no_ids_and_bring_no_style() -> None:
    one, other = svg.figure(BLIND), svg.figure(DEAD)
    assert "<style" not in one
    assert "xmlns" not in one
    ids = [{part.split('"')[0] for part in text.split(' id="')[1:]} for text in (one, other)]
    assert len(ids[0]) == 3
    assert not ids[0] & ids[1]


def test_moments_keep_their_order_and_short_gaps_stay_visible() -> None:
    chance = random.Random(3)
    times = [chance.choice([chance.uniform(0, 0.01), chance.uniform(0, 60)]) for _ in range(30)]
    scale = Scale(times, 100, 900, least=10)
    places = [scale(at) for at in sorted(times)]
    assert places[0] == pytest.approx(100, abs=0.01)
    assert places[-1] == pytest.approx(900)
    assert all(after - before >= 9.9 for before, after in itertools.pairwise(places))
    assert scale(-5) == 100
    assert scale(100) == pytest.approx(900)
    between = (sorted(times)[3] + sorted(times)[4]) / 2
    assert places[3] < scale(between) < places[4]


def test_longer_gaps_are_drawn_longer() -> None:
    scale = Scale([0, 1, 3, 10], 0, 100, least=5)
    gaps = [after - before for before, after in itertools.pairwise([scale(at) for at in (0, 1, 3, 10)])]
    assert gaps == sorted(gaps)


def test_one_moment_needs_no_scale() -> None:
    assert Scale([2.0], 10, 90, least=5)(2.0) == 10


def test_bars_that_overlap_get_rows_of_their_own_and_those_that_touch_share_one() -> None:
    assert rows([(0, 5), (5, 9), (3, 6)]) == [0, 0, 1]


def test_ticks_prefer_the_more_important_moments() -> None:
    scale = Scale([0, 1, 2, 3], 0, 30, least=1)
    assert scale.ticks([1, 0, 2, 3], lambda _: 14) == [1, 3]


def test_flags_that_fit_nowhere_are_left_out_not_laid_over_others() -> None:
    flags = Flags(0, 100, gap=2, most_rows=2)
    made = [Flag(50, 40) for _ in range(6)]
    flags.place(made)
    assert sorted(flag.row for flag in made) == [-1, -1, 0, 0, 1, 1]
