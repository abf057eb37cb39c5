"""A lock for each field against WATCH on the whole hash."""

from __future__ import annotations

from lockfast.lab import parts


def test_locks_for_parts_never_meet_and_watch_on_the_whole_does() -> None:
    locks, watch = parts.compare()
    assert locks.updates == watch.updates == parts.CLIENTS * parts.UPDATES
    assert locks.conflicts == 0
    assert watch.conflicts > watch.updates
    assert watch.attempts == watch.updates + watch.conflicts


def test_both_ways_are_told_with_their_counts() -> None:
    locks, watch = parts.compare()
    told = parts.table((locks, watch))
    assert f"{watch.attempts} attempts, {watch.conflicts} in vain" in told
    assert f"{locks.attempts} attempts, 0 in vain" in told
