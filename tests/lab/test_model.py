"""The lab's values: what they refuse, and what they say."""

from __future__ import annotations

import math

import pytest

from lab.sample import CELLS, STORIES
from lockfast.lab.model import VERDICTS, Arrow, Bar, Cell, Lane, Mark, Story, Topic, mark_mistakes


def test_what_could_not_be_drawn_is_refused_when_it_is_made() -> None:
    with pytest.raises(ValueError, match="unknown verdict 'fine'"):
        Cell("setnx", "holder-dies", "fine", 1, 0, None)
    with pytest.raises(ValueError, match="3 bad of 2 seeds"):
        Cell("setnx", "holder-dies", "violated", 2, 3, 1)
    with pytest.raises(ValueError, match="small letters"):
        Topic("Set NX", "title")
    with pytest.raises(ValueError, match="a bar from 2 to 1"):
        Bar("A", 2, 1, "holds")
    with pytest.raises(ValueError, match="a bar from 2 to nan"):
        Bar("A", 2, math.nan, "holds")
    with pytest.raises(ValueError, match="inf is no time"):
        Mark("A", math.inf, "write")
    with pytest.raises(ValueError, match="arrives at 1"):
        Arrow("A", "server", 2, 1)
    with pytest.raises(ValueError, match="unknown kind of bar"):
        Bar("A", 1, 2, "sleeps")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="unknown lane 'B'; known are A"):
        Story("setnx", "holder-dies", 1, "safe", "t", (Lane("A", "client"),), marks=(Mark("B", 1, "write"),))
    with pytest.raises(ValueError, match="names of their own"):
        Story("setnx", "holder-dies", 1, "safe", "t", (Lane("A", "client"), Lane("A", "server")))


def test_a_cell_says_its_verdict_with_counts_and_how_to_replay_it() -> None:
    assert Cell("setnx", "holder-dies", "stuck", 50, 17, 4).result == "stuck in 17 of 50 seeds"
    assert Cell("setnx", "holder-dies", "safe", 1, 0, 0).result == "safe in 1 seed"
    assert Cell("setnx", "holder-dies", "fenced", 50, 2, 4).result == "overlap, refused by the fence in 2 of 50 seeds"
    assert Cell("setnx", "holder-dies", "n/a", 0, 0, None).result == "does not apply"
    assert Cell("setnx", "holder-dies", "stuck", 50, 17, 4).replay == "lockfast lab setnx holder-dies --seed 4"
    assert Cell("setnx", "holder-dies", "safe", 50, 0, None).replay == "lockfast lab setnx holder-dies"


def test_every_verdict_has_a_sign_and_letters_of_its_own() -> None:
    assert len({meaning.sign for meaning in VERDICTS.values()}) == len(VERDICTS)
    assert len({meaning.letters for meaning in VERDICTS.values()}) == len(VERDICTS)
    assert all(len(meaning.letters) <= 2 for meaning in VERDICTS.values())
    assert {cell.verdict for cell in CELLS} == set(VERDICTS)


def test_a_belief_is_mistaken_where_the_server_does_not_share_it() -> None:
    held = Bar("server", 1, 5, "holds", who="A")
    other = Bar("server", 5, 9, "holds", who="B")
    made = mark_mistakes([Bar("A", 2, 8, "believes", "mine"), held, other], ["server"])
    assert made == (Bar("A", 2, 5, "believes", "mine"), Bar("A", 5, 8, "mistaken"), held, other)


def test_a_belief_is_right_as_long_as_a_majority_shares_it() -> None:
    nodes = ["n1", "n2", "n3", "n4", "n5"]
    holds = [Bar(node, 0, end, "holds", who="A") for node, end in zip(nodes, (10, 9, 6, 3, 2), strict=True)]
    made = mark_mistakes([Bar("A", 1, 8, "believes"), *holds], nodes)
    assert made[:2] == (Bar("A", 1, 6, "believes"), Bar("A", 6, 8, "mistaken"))


def test_a_belief_without_end_in_a_lock_without_end_is_right() -> None:
    held = Bar("server", 0, math.inf, "holds", who="A")
    assert mark_mistakes([Bar("A", 1, math.inf, "believes"), held], ["server"])[0].kind == "believes"


def test_the_fatal_moment_is_the_write_at_its_time() -> None:
    blind = STORIES[0]
    assert [step[0] for step in blind.steps if blind.is_fatal(step[0], "writes")] == [17.1]
    assert not blind.is_fatal(17.1, "gives it back")
