"""admit_all and leave_all do to each name what admit and leave would, to all of them or to none."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import pytest

from lockfast.flows import scripts
from lockfast.flows.group import tally
from lua.scripts import DAY_MS, LUA, Scripts

if TYPE_CHECKING:
    from kit.servers import Server
    from lua.scripts import Named

LETTERS = "abc"


class Many:
    """Three names and the scripts for all of them, on the clock of the names. Tickets are those of a stem."""

    def __init__(self, scripts_: Scripts, stem: str) -> None:
        self.scripts = scripts_
        self.names = [scripts_.name(f"{stem}{letter}") for letter in LETTERS]
        self._texts = {
            script: scripts_.spoken(script.text).replace("redis.call('TIME')", "{ARGV[#ARGV - 1], ARGV[#ARGV]}")
            for script in (scripts.ADMIT_ALL, scripts.LEAVE_ALL)
        }

    def admit_all(self, stem: str, *, lease: int = 30_000, seen: int = 0, use: str = "lock 1") -> Any:
        return self._run(scripts.ADMIT_ALL, use, lease, "host 1", seen, stem)

    def leave_all(self, stem: str, *fences: int, use: str = "lock 1") -> Any:
        """fences: the one of all of them, or each."""
        return self._run(scripts.LEAVE_ALL, use, " ".join(map(str, fences)), stem)

    def _run(self, script: scripts.Script, *args: str | int) -> Any:
        keys = [name.keys[0] for name in self.names]
        clock = divmod(self.scripts.clock_us, 1_000_000)
        return self.scripts.wire.call("EVAL", self._texts[script], len(keys), *keys, *args, *clock)

    def everything(self) -> list[Any]:
        return [name.everything() for name in self.names]


@pytest.fixture
def many(clocked: Scripts) -> Many:
    return Many(clocked, "many")


def use_once(names: list[Named]) -> None:
    for name in names:
        name.admit("first")
        name.leave("first")


def tickets(stem: str) -> list[str]:
    return [stem + mark for mark in tally(len(LETTERS))]


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_each_name_is_left_as_admit_and_leave_would_leave_it(server: Server, seed: int) -> None:
    pick = random.Random(seed)
    with Scripts(server, clocked=True) as here, Scripts(server, clocked=True) as there:
        all_at_once, one_by_one = Many(here, "all"), Many(there, "one")
        there.clock_us = here.clock_us
        use_once(all_at_once.names)
        use_once(one_by_one.names)
        taken = ahead = last = 0
        for step in range(60):
            passed_ms = pick.choice([0, 0.2, 1, 40, 2500])
            here.pass_ms(passed_ms)
            there.pass_ms(passed_ms)
            mark = f"t{step}"
            # The last one is what a client has seen that has just left them.
            lease, seen = pick.choice([1000, 5000]), pick.choice([0, here.clock_us - 1, here.clock_us + 10**9, last])
            fence = all_at_once.admit_all(mark, lease=lease, seen=seen)
            if fence == 0:  # held since an earlier step: nothing was changed, so neither is it on the other side
                ahead += seen >= here.clock_us
                assert all_at_once.everything() == one_by_one.everything(), f"step {step}"
                here.pass_ms(6000)
                there.pass_ms(6000)
                for pair in zip(all_at_once.names, one_by_one.names, strict=True):
                    for name in pair:
                        name.admit("sweep")
                        name.leave("sweep")
                continue
            taken += 1
            own = [
                name.admit(ticket, lease=lease, seen=seen).fence
                for name, ticket in zip(one_by_one.names, tickets(mark), strict=True)
            ]
            assert [fence] * len(LETTERS) == own, f"step {step}"
            assert all_at_once.everything() == one_by_one.everything(), f"step {step}"
            if pick.random() < 0.7:
                last = fence
                assert all_at_once.leave_all(mark, *pick.choice([[fence], own])) == 1
                for name, ticket in zip(one_by_one.names, tickets(mark), strict=True):
                    assert name.leave(ticket, lease=lease) == 1
                assert all_at_once.everything() == one_by_one.everything(), f"step {step}"
        assert taken > 20
        assert ahead > 3


def test_expiry_is_the_one_that_admit_would_set(many: Many) -> None:
    use_once(many.names)
    other = many.scripts.name("other")
    use_once([other])
    many.scripts.pass_ms(1)
    fence = many.admit_all("a", lease=9000)
    assert fence != 0
    other.admit("a", lease=9000)
    for is_held in (True, False):
        ttls = [many.scripts.wire.call("PTTL", name.keys[0]) for name in (*many.names, other)]
        assert max(ttls) - min(ttls) < 1000
        assert min(ttls) > DAY_MS
        assert many.leave_all("a", fence) == is_held
        other.leave("a")


@pytest.mark.parametrize(
    "state",
    [
        "never used",
        "held",
        "waited for",
        "ended, not swept",
        "a tombstone",
        "another kind",
        "shared",
        "a fence ahead",
    ],
)
@pytest.mark.parametrize("place", [0, 1, 2])
def test_one_that_is_not_simply_free_leaves_all_untouched(many: Many, state: str, place: int) -> None:
    odd = many.names[place]
    use_once([name for name in many.names if name is not odd or state != "never used"])
    if state in ("held", "waited for", "ended, not swept"):
        odd.admit("other", lease=1000)
    if state == "waited for":
        odd.admit("waiter", place=60_000)
    if state == "ended, not swept":
        many.scripts.pass_ms(5000)
    if state == "a tombstone":
        odd.leave("nobody")
    if state in ("another kind", "shared"):
        semaphore = many.scripts.name(f"many{LETTERS[place]}", kind="semaphore", limit=3)
        semaphore.admit("other")
        if state == "another kind":
            semaphore.leave("other")
    if state == "a fence ahead":
        odd.admit("other", seen=many.scripts.clock_us + 10**9)
        odd.leave("other")
    many.scripts.pass_ms(1)
    before = many.everything()
    for seen in (0, many.scripts.clock_us - 1):
        assert many.admit_all("a", seen=seen) == 0
    assert many.everything() == before


def test_fence_that_the_client_has_seen_ahead_leaves_all_untouched(many: Many) -> None:
    use_once(many.names)
    many.scripts.pass_ms(1)
    before = many.everything()
    for ahead_us in (0, 1, 10**9):
        assert many.admit_all("a", seen=many.scripts.clock_us + ahead_us) == 0
    assert many.everything() == before
    assert many.admit_all("a", seen=many.scripts.clock_us - 1) == many.scripts.clock_us


def test_sent_again_with_the_same_tickets_it_changes_nothing(many: Many) -> None:
    use_once(many.names)
    many.scripts.pass_ms(1)
    assert many.admit_all("a") != 0
    before = many.everything()
    many.scripts.pass_ms(10)
    assert many.admit_all("a") == 0
    assert many.everything() == before


@pytest.mark.parametrize("place", [0, 1, 2])
@pytest.mark.parametrize("odd", ["another's", "waited for", "gone", "a tombstone", "another fence", "longer"])
def test_leaving_all_is_leaving_none_when_one_is_not_simple(many: Many, odd: str, place: int) -> None:
    use_once(many.names)
    many.scripts.pass_ms(1)
    fence = many.admit_all("a")
    name, own, fences = many.names[place], tickets("a")[place], [fence] * 3
    if odd == "waited for":
        name.admit("waiter")
    if odd in ("gone", "another's"):
        name.leave(own)
    if odd == "another's":
        name.admit("b", seen=fence - 1)
    if odd == "longer":
        many.scripts.wire.call("SET", name.keys[0], name.state.replace(own, own + "i"))
    if odd == "a tombstone":
        name.leave("nobody")
    if odd == "another fence":
        fences[place] += 1
    before = many.everything()
    assert many.leave_all("a", *fences) == 0
    assert odd == "another fence" or many.leave_all("a", fence) == 0
    assert many.everything() == before


def test_names_that_were_granted_one_by_one_are_given_back_by_their_own_fences(many: Many) -> None:
    fences = []
    for name, ticket in zip(many.names, tickets("a"), strict=True):
        many.scripts.pass_ms(1)
        fences.append(name.admit(ticket).fence)
    assert many.leave_all("a", fences[0]) == 0
    assert many.leave_all("a", *fences) == 1
    assert [name.holders for name in many.names] == [[], [], []]
    assert [int(name.fields()["fence"]) for name in many.names] == fences


@pytest.mark.parametrize("script", ["admit_all", "leave_all"])
def test_header_says_what_is_given_and_what_comes_back(script: str) -> None:
    text = (LUA / f"{script}.lua").read_text()
    header = "".join(line for line in text.splitlines(keepends=True) if line.startswith(("#", "--")))
    assert "KEYS[i]" in header
    assert "Returns" in header
    assert "ARGV[" in header
