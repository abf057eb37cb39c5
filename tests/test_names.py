"""Names: parts never collide, odd characters are escaped in one place, and bad ones are refused."""

from __future__ import annotations

import itertools
import random
import re

import pytest

from lockfast import names

ODD = ["a", "b", "|", "%", "{", "}", "7", "C", ":", "queue", " ", "\n", "\x7f", "ä", "🔒"]


def test_any_two_different_names_have_no_key_in_common() -> None:
    pick = random.Random(7)
    given = {
        tuple("".join(pick.choices(ODD, k=pick.randint(1, 3))) for _ in range(pick.randint(1, 3))) for _ in range(4000)
    }
    keys = [key for parts in given for key in names.make("lockfast", parts).keys]
    assert len(set(keys)) == len(keys)
    assert len(given) > 2000


def test_keys_of_a_name_have_one_hash_tag_that_is_all_of_the_name() -> None:
    for parts in itertools.product(ODD, ODD):
        tags = {key[key.index("{") + 1 : key.index("}")] for key in names.make("lockfast", parts).keys}
        assert len(tags) == 1
        assert names.split(tags.pop()) == parts


def test_what_join_wrote_split_reads() -> None:
    for parts in itertools.product(ODD, ODD, ODD):
        assert names.split(names.join(parts)) == parts


def test_plain_names_are_plain_in_keys() -> None:
    assert names.make("lockfast", ("orders:42", "ä b")).keys[0] == "lockfast:{orders:42|ä b}"


def test_shown_name_is_what_was_given() -> None:
    assert names.make("p", ("a{b}", 7)).shown == "a{b}|7"


def test_key_leads_back_to_the_parts() -> None:
    for parts in (("a",), ("a|b", "c"), ("{x}", "100%"), ("ä\n",)):
        made = names.make("lockfast", parts)
        assert names.parts_of_key("lockfast", made.keys[0]) == parts
        assert [names.parts_of_key("lockfast", key) for key in made.keys[1:]] == [None] * 4
        assert names.parts_of_key("other", made.keys[0]) is None


@pytest.mark.parametrize("bad", ["", "a\0b", "\0", "\ud800"])
def test_text_that_cannot_be_a_name_is_refused(bad: str) -> None:
    for parts in ((bad,), ("a", bad), (bad, "a")):
        with pytest.raises(ValueError):
            names.make("lockfast", parts)


@pytest.mark.parametrize("bad", [None, b"bytes", 1.5, True, ["a"], ("a",), object()])
def test_what_is_no_text_is_refused(bad: object) -> None:
    with pytest.raises(TypeError, match=re.escape(repr(bad))):
        names.make("lockfast", (bad,))  # type: ignore[arg-type]


def test_length_is_counted_in_bytes_as_escaped() -> None:
    names.make("lockfast", ("n" * 1024,))
    names.make("lockfast", ("n" * 500, "m" * 523))
    for parts in (("n" * 1025,), ("ä" * 513,), ("%" * 342,), ("n" * 512, "m" * 512), ("x" * 1_000_000,)):
        with pytest.raises(ValueError, match="1024") as caught:
            names.make("lockfast", parts)
        assert len(str(caught.value)) < 200, "a name of a megabyte is not printed"


@pytest.mark.parametrize("number", [0, -5, 10**30])
def test_whole_numbers_are_parts(number: int) -> None:
    assert names.make("lockfast", ("a", number)).keys == names.make("lockfast", ("a", str(number))).keys


@pytest.mark.parametrize("prefix", ["lockfast", "a", "my-app:prod_1.2", "x" * 64])
def test_prefix_of_letters_digits_and_a_few_marks_is_fine(prefix: str) -> None:
    assert names.check_prefix(prefix) == prefix
    assert names.make(prefix, ("n",)).keys[0] == f"{prefix}:{{n}}"
    assert names.channel(prefix, "id").startswith(f"{prefix}:")


@pytest.mark.parametrize("prefix", ["", "a b", "a{b", "a*", "x" * 65, "ä", "a\n", None, 7, b"lockfast"])
def test_prefix_that_could_be_a_pattern_or_a_hash_tag_is_refused(prefix: object) -> None:
    with pytest.raises(ValueError, match="prefix"):
        names.check_prefix(prefix)  # type: ignore[arg-type]
