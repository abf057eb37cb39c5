"""The scripts and a plain model of the protocol go the same random ways, and agree at every step."""

from __future__ import annotations

import random
import re
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest

from kit.resp import ServerError
from lua.model import Model
from lua.scripts import Named, Scripts
from lua.test_admit import listen, pushes

if TYPE_CHECKING:
    from kit.servers import Server

STEPS = 250


class Walk:
    """One random way: six actors, each with a ticket of its own until it has left for good.

    resizes: the limit is changed on the way, some callers name an old one or none, and some holds are made lighter.
    """

    def __init__(self, name: Named, seed: int, resizes: bool = False) -> None:
        self.name = name
        self.model = Model()
        self.resizes = resizes
        self.random = random.Random(seed)
        self.tickets = [f"t{i}" for i in range(6)]
        self.weights = dict.fromkeys(self.tickets, 1)
        self.fences: dict[str, int] = {}
        self.granted: list[int] = []
        self.refused: list[str] = []
        self.trace: list[str] = []

    def step(self) -> None:
        pick = self.random
        self.name.scripts.pass_ms(pick.choice([0, 0, 0.3, 1, 50, 400, 1500]))
        self.model.now_us = self.name.scripts.clock_us
        actor = pick.randrange(len(self.tickets))
        ticket = self.tickets[actor]
        lease = pick.choice([700, 3000])
        ways = ["admit", "admit", "admit", "leave", "renew", "renew", *(["resize"] if self.resizes else [])]
        match pick.choice(ways) if pick.random() > 0.01 else "revoke":
            case "admit":
                place, seen = pick.choice([0, 500, 2000]), pick.choice([0, 0, self.model.fence + 5])
                weight = self.weights[ticket]
                limit = max(weight, pick.choice([self.name.limit, 3])) if pick.random() < 0.8 else 0
                if not self.resizes:
                    limit = self.name.limit
                self.trace.append(f"admit {ticket} {weight}/{limit} lease={lease} place={place} seen={seen}")
                theirs = self.admit(ticket, weight=weight, lease=lease, place=place, seen=seen, limit=limit)
                ours = self.model.admit(ticket, weight, lease, place, seen, limit)
                self.agree(theirs, ours)
                if isinstance(ours, str):
                    self.refused.append(ours)
                elif ours[0] == 1 and self.fences.get(ticket) != ours[1]:
                    self.fences[ticket] = ours[1]
                    self.granted.append(ours[1])
            case "resize":
                limit = pick.randint(1, 6)
                self.trace.append(f"resize {limit}")
                self.agree(self.name.resize(limit), self.model.resize(limit))
            case "leave":
                unsure = pick.random() < 0.3
                self.trace.append(f"leave {ticket} lease={lease} unsure={unsure}")
                self.agree(self.name.leave(ticket, lease=lease, unsure=unsure), self.model.leave(ticket, lease, unsure))
                if pick.random() < 0.7:
                    self.tickets[actor] = f"{ticket}'"
                    self.weights[self.tickets[actor]] = pick.randint(1, self.name.limit)
            case "renew":
                fence = self.fences.get(ticket, 1) + pick.choice([0, 0, 0, 1])
                weight = pick.choice([0, 0, 1, 2, 4]) if self.resizes else 0
                heir = f"{ticket}+" if pick.random() < 0.2 else ""
                self.trace.append(f"renew {ticket} {fence} lease={lease} weight={weight} heir={heir}")
                theirs = self.name.renew(ticket, fence, lease, weight, heir)
                self.agree(theirs, self.model.renew(ticket, fence, lease, weight, heir))
                if heir and theirs[0] and pick.random() < 0.8:  # else the old one goes on, as if it knew nothing
                    self.tickets[actor], self.weights[heir] = heir, self.weights[ticket]
                    self.fences[heir] = fence
            case "revoke":
                self.trace.append("revoke")
                self.agree(self.name.revoke(), self.model.revoke())
        seen_now = self.name.inspect()
        held = {holder.ticket: holder.weight for holder in seen_now.holders}
        self.agree(held, self.model.living_holders())
        self.agree([waiter.ticket for waiter in seen_now.waiters], self.model.living_waiters())
        if not self.resizes:
            assert sum(held.values()) <= self.name.limit, self.trace[-20:]

    def admit(self, ticket: str, **options: int) -> object:
        try:
            return tuple(self.name.admit(ticket, **options))
        except ServerError as error:
            words = str(error).split(" ")
            return f"{words[0].removeprefix('LOCKFAST')} {words[-1]}"

    def agree(self, theirs: object, ours: object) -> None:
        assert theirs == ours, "the last steps were:\n" + "\n".join(self.trace[-20:])


@pytest.mark.parametrize("limit", [1, 4])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_scripts_and_model_agree(clocked: Scripts, limit: int, seed: int) -> None:
    walk = Walk(clocked.name("walk", kind="lock" if limit == 1 else "semaphore", limit=limit), seed)
    for _ in range(STEPS):
        walk.step()
    assert len(walk.granted) > STEPS / 20, "the walk went nowhere interesting"
    if limit == 1:
        assert walk.granted == sorted(set(walk.granted)), "fences of a lock grow in the order of its grants"


@pytest.mark.parametrize("seed", [1, 2, 3, 4, 5])
def test_scripts_and_model_agree_while_limits_change_and_holds_are_made_lighter(clocked: Scripts, seed: int) -> None:
    walk = Walk(clocked.name("walk", kind="semaphore", limit=4), seed, resizes=True)
    for _ in range(STEPS):
        walk.step()
    assert len(walk.granted) > STEPS / 20, "the walk went nowhere interesting"
    assert {words.split()[0] for words in walk.refused} == {"KIND", "LIMIT"}


@pytest.mark.parametrize(("kind", "limit"), [("lock", 1), ("semaphore", 3)])
@pytest.mark.parametrize("seed", [1, 2, 3, 4])
def test_quick_way_does_just_what_the_rest_of_the_script_would(
    server: Server, seed: int, kind: str, limit: int
) -> None:
    """Mostly alone, sometimes two: the same calls to both spellings of the scripts leave the same in all keys."""
    with Scripts(server, clocked=True) as quick, Scripts(server, clocked=True, quick=False) as slow:
        pick = random.Random(seed)
        names = [quick.name("quick", kind=kind, limit=limit), slow.name("slow", kind=kind, limit=limit)]
        slow.clock_us = quick.clock_us
        fences = {"a": 0, "b": 0}
        for step in range(220):
            passed_ms = pick.choice([0, 0.2, 1, 40, 2500])
            for name in names:
                name.scripts.pass_ms(passed_ms)
            ticket = "b" if pick.random() < 0.2 else "a"
            lease = pick.choice([1000, 5000])
            answers: list[object]
            match pick.choice(["admit", "admit", "vote", "vote", "leave", "leave", "leave", "renew"]):
                case "vote":
                    proposal = pick.choice([0, fences[ticket], max(fences.values()) + 1000, quick.clock_us + 2 * 10**9])
                    owner, weight = pick.choice(["host 1", "host 2 ü"]), pick.randint(1, limit)
                    answers = [
                        name.vote(ticket, weight=weight, lease=lease, proposal=proposal, owner=owner) for name in names
                    ]
                case "admit":
                    place, seen = pick.choice([0, 900]), pick.choice([0, fences[ticket], quick.clock_us + 10**9])
                    owner = pick.choice(["host 1", "host 2 a label, with 100 % and ü"])
                    weight = pick.randint(1, limit)
                    admitted = [
                        n.admit(ticket, weight=weight, lease=lease, place=place, seen=seen, owner=owner) for n in names
                    ]
                    fences[ticket] = admitted[0].fence
                    answers = list(admitted)
                case "leave":
                    unsure, note = pick.random() < 0.1, pick.choice(["", "", "", "me/1 why"])
                    answers = [name.leave(ticket, lease=lease, unsure=unsure, note=note) for name in names]
                case _:
                    answers = [name.renew(ticket, fences[ticket], lease) for name in names]
            assert answers[0] == answers[1], f"step {step}"
            assert names[0].everything() == names[1].everything(), f"step {step}"


@pytest.mark.parametrize(("kind", "limit"), [("lock", 1), ("semaphore", 2)])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_quick_way_of_a_hand_over_does_and_tells_just_what_the_rest_of_the_script_would(
    server: Server, seed: int, kind: str, limit: int
) -> None:
    """Three that take turns, some of them deaf, some of them late."""
    with ExitStack() as stack:
        quick = stack.enter_context(Scripts(server, clocked=True))
        slow = stack.enter_context(Scripts(server, clocked=True, quick=False))
        channels = "to-quick", "to-slow"
        listeners = [stack.enter_context(listen(quick, channel)) for channel in channels]
        pick = random.Random(seed)
        names = [quick.name("quick", kind=kind, limit=limit), slow.name("slow", kind=kind, limit=limit)]
        slow.clock_us = quick.clock_us
        turn = handed_over = fence = 0
        for step in range(200):
            passed_ms = pick.choice([0, 0.3, 7, 7, 400])
            for name in names:
                name.scripts.pass_ms(passed_ms)
            if pick.random() < 0.5:
                turn += 1
                asked: dict[str, Any] = {
                    "weight": pick.choice([1, limit, limit]),
                    "lease": pick.choice([2000, 5000]),
                    "place": pick.choice([900, 9000, 9000]),
                    "seen": pick.choice([0, fence, quick.clock_us + 5_000_000]),
                    "owner": pick.choice(["host 1", "host 2 a label, with 100 % and ü"]),
                }
                heard = pick.random() < 0.7
                answers = [
                    name.admit(f"t{turn}", channel=channel if heard else "deaf", **asked)
                    for name, channel in zip(names, channels, strict=True)
                ]
                fence = max(fence, answers[0].fence)
                assert answers[0] == answers[1], f"step {step}"
            else:
                leaver = pick.choice(names[0].holders or ["nobody"])
                found = [name.leave(leaver, lease=2000) for name in names]
                assert found[0] == found[1], f"step {step}"
                if leaver == "nobody":  # it is remembered as gone, which nothing is quick about
                    for name in names:
                        name.scripts.pass_ms(2001)
            assert nameless(names[0]) == nameless(names[1]), f"step {step}"
            told, told_by_slow = (pushes(listener) for listener in listeners)
            assert told == told_by_slow, f"step {step}"
            handed_over += len(told)
    assert handed_over > 10, "the walk went nowhere interesting"


def nameless(name: Named) -> str:
    """Everything that is stored, with one word for both channels."""
    *lists, entries = name.everything()
    return re.sub("to-(quick|slow)", "channel", repr((lists, sorted(entries.items()))))


def test_quick_way_keeps_the_expiry_that_the_rest_of_the_script_would_set_or_a_later_one(server: Server) -> None:
    def ttls(name: Named) -> list[int]:
        found = []
        for ticket, lease in (("a", 1000), ("b", 60_000), ("c", 7 * 86_400_000)):
            name.admit(ticket, lease=lease)
            found.append(name.scripts.wire.call("PTTL", name.keys[0]))
            name.leave(ticket, lease=lease)
            found.append(name.scripts.wire.call("PTTL", name.keys[0]))
        return found

    with Scripts(server) as quick, Scripts(server, quick=False) as slow:
        for name in (quick.name("quick"), slow.name("slow")):
            name.admit("first", lease=1000)  # a name that is known already: only then there is a quick way
            name.leave("first", lease=1000)
        mine, other = ttls(quick.name("quick")), ttls(slow.name("slow"))
    tolerance_ms = 200  # calls made at different times on a busy machine
    for i, lease in enumerate((1000, 60_000, 7 * 86_400_000)):
        assert abs(mine[2 * i] - other[2 * i]) <= tolerance_ms
        assert other[2 * i + 1] - tolerance_ms <= mine[2 * i + 1] <= other[2 * i + 1] + lease + tolerance_ms
