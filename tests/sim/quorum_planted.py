"""Bugs planted in the flows and the script of a quorum, to see that its worlds and checkers find them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import lockfast.flows.quorum
import lockfast.flows.quorum_holds  # noqa: F401 - before a bug is planted: who imports it then would keep the bug
from sim.planted import Planted

if TYPE_CHECKING:
    from collections.abc import Iterable

QUORUM, HOLDS, VOTES, FLEET, VOTE, INTRODUCTION = (
    "flows/quorum.py", "flows/quorum_holds.py", "flows/votes.py", "flows/fleet.py", "lua/vote.lua",
    "flows/introduction.py",
)  # fmt: skip


def _bug(name: str, caught_by: str, edits: Iterable[tuple[str, str, str]], **choices: Any) -> Planted:
    return Planted(name, tuple(edits), frozenset(caught_by.split()), {"servers": 3, "limit": 1} | choices)


OVERLAP = "exclusion"
SLOW = ("slow", "answer slow", "pause", "late", "stall", "freeze", "part up")
HARMLESS = ("answer slow", "late", "pause")
# Holds that nobody renews, for about as long as they last: whatever makes one look longer shows.
TO_THE_END: dict[str, Any] = {"renew_share": 0.0, "work": "lease", "cancel_share": 0.0, "extend_share": 0.0}
FORGOTTEN: dict[str, Any] = {
    "kinds": ("forget", "blackout"), "faults": 20, "skew_s": 0.0, "leases_s": (1.0,), "longest_s": 0.5, "work": "long",
    "renew_share": 1.0,
}  # fmt: skip

BELIEVES_THE_DOOR = """\
            if held is None and at_head:
                held = Voted.of(votes.fences[door], votes.deadlines[door], votes)
"""

ALL = (
    _bug(
        "no quarantine",
        OVERLAP,
        [(FLEET, "node.counts_at = -inf if short_s <= 0 else heard + short_s * RATE", "node.counts_at = -inf")],
        keep_share=0.0, **FORGOTTEN,
    ),
    _bug(
        "an append-only file passes for the one that there was",
        OVERLAP,
        [(INTRODUCTION, "if run_id and (run_id == self.run_id or self.is_whole) else", "if self.is_whole else")],
        keep_share=1.0, **FORGOTTEN,
    ),
    _bug(
        "a mark of a run that did not count yet",
        OVERLAP,
        [(INTRODUCTION, "max(self.since_us, 0)", "0")],
        keep_share=1.0, **FORGOTTEN,
    ),
    _bug(
        "validity without the time that went by",
        OVERLAP,
        [(VOTES, "deadline = self.deadline if ms >=", "deadline = self.deadline + node.env.now() - sent if ms >="),
         (VOTES, "and deadline == self.deadline:", "and deadline == -inf:")],
        kinds=SLOW, faults=20, leases_s=(0.3,), **TO_THE_END,
    ),
    _bug(
        "no margin for clocks that drift",
        OVERLAP,
        [("flows/admission.py", "MARGIN_RATIO = 0.99 ", "MARGIN_RATIO = 1.01 ")],
        kinds=(), drift=0.0049, leases_s=(2.0,), max_lease_s=2.0, spread_s=0.001, latency_s=0.0002, **TO_THE_END,
    ),
    _bug(
        "released only where it was acquired",
        "no_orphan",
        [(VOTES, "return self.asked[place] and (", "return self.deadlines[place] > -inf and (")],
        kinds=HARMLESS, faults=20, leases_s=(2.0,), max_lease_s=2.0, longest_s=0.5, spread_s=0.01, waits_s=(0.0, 0.05),
        work="short",
    ),
    _bug(
        "the fence of one server",
        "fences_grow",
        [(QUORUM, "least = fence if is_alone else 0", "least = 0"),
         (QUORUM, "or ballot.agreed != ballot.yes", "or True"),
         (HOLDS, "self._least = hold.fence if", "self._least = 0 if")],
        kinds=("part", "freeze", "power cut", "restart"), faults=20, skew_s=3600.0, keep_share=1.0,
    ),
    _bug(
        "a proposal of the client's own clock, and nothing else",
        "fences_grow",
        [(VOTE, "hold(ticket, weight, lease_end, proposal - 1, owner)",
                "hold(ticket, weight, lease_end, proposal - 1, owner)\n  fence = proposal"),
         (FLEET, "return max(seen + 1, 0 if ahead_us == -inf else int(moment * 1e6 + ahead_us) + 1)",
                 "return int(moment * 1e6) + 1")],
        kinds=(), skew_s=3600.0,
    ),
    _bug(
        "a proposal that lowers the fence of a vote",
        "fences_grow",
        [(VOTE, "fence = math.max(fence, proposal)", "fence = proposal"),
         (VOTE, "hold(ticket, weight, lease_end, proposal - 1, owner)",
                "hold(ticket, weight, lease_end, 0, owner)\n  fence = now_us"),
         (QUORUM, "fence = max(votes.fences[place] for place in granted)",
                  "fence = min(votes.fences[place] for place in granted)")],
        kinds=("part", "freeze", "power cut"), faults=20, skew_s=3600.0, keep_share=1.0,
    ),
    _bug(
        "votes of servers that are not counted",
        OVERLAP,
        [(VOTES, "and fences[place] >= fence and nodes[place].counts_at <= moment", "and fences[place] >= fence"),
         (VOTES, "if node.counts_at > sent:", "if False:"),
         (QUORUM, "if node.counts_at > moment:", "if False:")],
        kinds=("forget", "blackout"), faults=20, keep_share=0.0, skew_s=0.0, leases_s=(1.0,), longest_s=0.5,
        work="long", renew_share=1.0,
    ),
    _bug(
        "a push from the door believed as the whole grant",
        OVERLAP,
        [(QUORUM, "            if held is not None:\n", BELIEVES_THE_DOOR + "            if held is not None:\n")],
        kinds=("part", "power cut", "freeze"), faults=20, waits_s=(None,),
    ),
    _bug(
        "a minority is enough",
        OVERLAP,
        [(QUORUM, "if len(granted) < fleet.majority:", "if len(granted) < fleet.majority - 1:"),
         (QUORUM, "if self.yes >= self._majority:", "if self.yes >= self._majority - 1:"),
         (QUORUM, "ballot.yes < fleet.majority", "ballot.yes < fleet.majority - 1"),
         (VOTES, "majority = self.fleet.majority", "majority = self.fleet.majority - 1")],
        kinds=("part", "power cut", "restart", "freeze"), faults=10,
    ),
    _bug(
        "a vote for whoever asks",
        OVERLAP,
        [(VOTE, "if (holder == '-' or used > 0) and waiting == 0 and used + weight <= limit then",
                "if waiting == 0 then\n  forget_holder()")],
        kinds=(), work="lease",
    ),
    _bug(
        "readers do not keep a writer out",
        "readers_writers permits",
        [(VOTE, "and waiting == 0 and used + weight <= limit then", "and waiting == 0 then")],
        kinds=(), work="lease", limit=2,
    ),
)  # fmt: skip
