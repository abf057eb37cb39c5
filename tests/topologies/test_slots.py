"""Slots, redirects and the map, and that the slot of any name is the one that the servers count with."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lockfast import names, topologies
from lockfast.drivers import slots
from lockfast.drivers.slots import SlotMap, next_to_scan, redirect, scan_cursor, slot_of
from lockfast.flows.effects import ShardedEnv

if TYPE_CHECKING:
    from kit.cluster import Cluster

A, B, C = ("a", 1), ("b", 2), ("c", 3)
ODD = st.text(st.sampled_from("ab{}%|: é\n\x7f☃") | st.characters(exclude_characters="\0", codec="utf-8"), min_size=1)


@pytest.mark.slow
@settings(deadline=None, max_examples=200)
@given(parts=st.lists(ODD, min_size=1, max_size=3), key=st.binary(max_size=40))
def test_slot_of_any_name_and_key_is_what_the_server_says(
    valkey_cluster: Cluster, parts: list[str], key: bytes
) -> None:
    name = names.watched(names.make("lockfast", tuple(parts)))
    env = ShardedEnv(lambda: 0.0, lambda: 0.0, 1.0)
    env.introduce(names.channel("lockfast", "client"), "me")
    of_name = [*name.keys, names.never_key(name), names.ran_key(name, "op"), env.subscribed(name)]
    with valkey_cluster.masters[0].wire() as wire:
        found = {wire.call("CLUSTER", "KEYSLOT", each) for each in of_name}
        assert found == {slots.slot_of_name(name)}, "all keys and the channel of a name are in one slot"
        assert wire.call("CLUSTER", "KEYSLOT", key) == slot_of(key)


@pytest.mark.parametrize("key", ["{}x", "x{}y", "{{a}}", "{a", "a}", "a{b}c{d}", "", "{a}", "}{a}"])
def test_odd_braces_are_read_as_the_server_reads_them(valkey_cluster: Cluster, key: str) -> None:
    assert valkey_cluster.masters[0].command("CLUSTER", "KEYSLOT", key) == slot_of(key)


def test_redirects_say_where_and_for_how_long() -> None:
    assert redirect(Exception("MOVED 12 10.0.0.1:7000"), A) == (True, 12, ("10.0.0.1", 7000))
    assert redirect(Exception("ASK 12 ::1:7000"), A) == (False, 12, ("::1", 7000))
    assert redirect(Exception("MOVED 12 :7000"), A) == (True, 12, ("a", 7000)), "no host: that of whom we asked"
    assert redirect(Exception("MOVED 12 ?:7000"), A) == (True, 12, ("a", 7000))
    assert redirect(Exception("TRYAGAIN Multiple keys"), A) is None


def test_map_is_learned_doubted_and_corrected() -> None:
    known = SlotMap((A,))
    assert known.is_doubted, "at first nothing is known"
    assert known.candidates(7) == [A]
    assert not known.learn([], A), "a node that has just been born knows nothing"
    assert known.is_doubted
    assert known.learn([[0, 9, [b"b", 2, b"id"], [b"c", 3, b"id"]], [10, 16383, [b"", 1, b"id"]]], A)
    assert not known.is_doubted
    assert (known.owner(0), known.owner(9), known.owner(10)) == (B, B, A)
    assert known.masters() == [A, B]
    known.move(0, C)
    assert (known.owner(0), known.owner(1)) == (C, B)
    known.doubt(B)
    assert known.is_doubted
    assert known.candidates(0)[-1] == B, "whoever did not answer is asked last"
    assert set(known.candidates(1)) == {A, B, C}, "replicas and seeds are asked as well"


def test_scan_goes_from_master_to_master_and_ends() -> None:
    masters = [A, B, C]
    seen, cursor = [], b"0"
    while True:
        found = next_to_scan(cursor, masters)
        assert found is not None
        seen.append(found)
        cursor = scan_cursor(cursor, found[0], b"7" if found[1] == b"0" else b"0", masters)
        if cursor == b"0":
            break
    assert seen == [(A, b"0"), (A, b"7"), (B, b"0"), (B, b"7"), (C, b"0"), (C, b"7")]
    assert next_to_scan(b"0", []) is None


@pytest.mark.parametrize("new", [("a", 0), ("d", 4)])
@pytest.mark.parametrize("inner", [b"0", b"7"])
def test_scan_finds_the_master_that_has_taken_the_place_of_another(new: slots.Address, inner: bytes) -> None:
    """Wherever it comes in the order, and whether the old one had been begun with or was about to be."""
    at_a = scan_cursor(b"0", A, b"0", [A, B, C])
    cursor = at_a if inner == b"0" else scan_cursor(at_a, B, inner, [A, B, C])
    masters = sorted([A, new, C])
    seen: list[tuple[slots.Address, bytes]] = []
    while cursor != b"0" or not seen:
        found = next_to_scan(cursor, masters)
        assert found is not None
        seen.append(found)
        cursor = scan_cursor(cursor, found[0], b"0", masters)
    assert sorted(seen) == sorted([(new, b"0"), (C, b"0")]), "and nobody twice"


@pytest.mark.parametrize(
    ("url", "seeds", "shown"),
    [
        ("cluster://h:1", (("h", 1),), "cluster://h:1"),
        ("cluster://h:1,i:2", (("h", 1), ("i", 2)), "cluster://h:1,i:2"),
        ("cluster://u:p@h,i:2/0", (("h", 6379), ("i", 2)), "cluster://h:6379,i:2"),
        ("clusters://u:p@h:1?ssl_cert_reqs=none", (("h", 1),), "clusters://h:1"),
        ("cluster://[::1]:5", (("::1", 5),), "cluster://[::1]:5"),
    ],
)
def test_urls_of_clusters(url: str, seeds: tuple[tuple[str, int], ...], shown: str) -> None:
    found = topologies.find(url)
    assert isinstance(found, topologies.Cluster)
    assert found.seeds == seeds
    assert found.where == shown
    node = found.at(("n", 9))
    assert (node.host, node.port, node.username) == ("n", 9, "u" if "u:p@" in url else "")
    assert (node.password is not None) == ("u:p@" in url)
    assert (node.tls is not None) == url.startswith("clusters")


@pytest.mark.parametrize("url", ["cluster://h:1/1", "cluster://h:1?db=2"])
def test_cluster_has_one_database(url: str) -> None:
    with pytest.raises(ValueError, match="database 0 only"):
        topologies.find(url)


@pytest.mark.parametrize("url", ["cluster://h:x", "cluster://h:1?nonsense=1", "cluster://h:1?ssl_cert_reqs=none"])
def test_urls_that_cannot_work_are_refused_without_their_secrets(url: str) -> None:
    with pytest.raises(ValueError) as refusal:
        topologies.find(url.replace("//", "//user:hush@"))
    assert "hush" not in str(refusal.value)
