"""What a client knows of the servers that vote: which answer, which may be counted, and what time they have.

None of it decides who holds a name. Health only saves waiting for servers that do not answer; what is never guessed
is whether a server counts: one that may have forgotten its votes does not, until every lease that it may have voted
for has ended (`max_lease`, the same for all clients of the quorum, kept on the servers).
"""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, Any
from zlib import crc32

from lockfast.errors import LockfastError, Misused, Refused, Unreachable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lockfast.flows.effects import Env
    from lockfast.flows.introduction import Introduction

MAX_LEAD_US = 500_000  # how far a proposal may be ahead of the server's clock
ASKS_AGAIN_S = 0.005  # how often one that has no max_lease stored looks whether the others have told it
BLANK_S = 5.0  # how far apart servers may have told that they have none, and still be believed together
NOT_AGREED = (
    "it has no max_lease stored, and not all others have told whether they have one: "
    "name max_lease, the one that this quorum has had if it is not new"
)
PROBE_S = 0.5  # how often one that did not answer is looked at
DOUBTS_S = 1.0  # how long it is believed that the servers cannot work together
RATE = 1.01  # how much faster than ours a server's clock may be
CONTENDED_S = 5.0  # how long a name counts as contended after it was
MAX_CONTENDED = 10_000
DEFAULT_MAX_LEASE_S = 60.0


class Node:
    """One server, as this client knows it."""

    __slots__ = (
        "ahead_us",
        "asked_at",
        "counts_at",
        "env",
        "looked_at",
        "probing",
        "refusal",
        "run_id",
        "runs",
        "where",
        "why_down",
    )

    def __init__(self, where: str, env: Env) -> None:
        self.where = where
        self.env = env  # what the waiting at this server needs: whether its pushes are heard
        self.run_id = ""
        self.runs: set[str] = set()  # all that were heard of: connections to an earlier one may still be open
        self.why_down = ""  # empty: it answers, as far as is known
        self.refusal = ""  # the code by which it refuses this client, while it is down
        self.asked_at = inf  # since when it owes an answer
        self.looked_at = -inf
        self.probing = False
        self.counts_at = inf  # from when its votes count: not before it has introduced itself
        self.ahead_us = -inf  # its clock, less ours

    def asked(self, moment: float) -> None:
        """It owes an answer since then. Told where all that has come was read: what lies unread is no silence."""
        if moment < self.asked_at:
            self.asked_at = moment

    def answered(self) -> None:
        """It said something."""
        self.asked_at = inf
        self.why_down = self.refusal = ""

    def fell_silent(self, why: str, code: str = "") -> None:
        """It cannot be reached; or it refuses us, by this code."""
        self.asked_at = inf
        self.why_down = why
        self.refusal = code

    def told_time(self, server_us: int, sent: float, heard: float) -> None:
        """Its clock showed this after `sent` and before `heard`, on ours.

        What follows from it is what its clock shows when the next request arrives there, and a little more; but never
        much more, however slow the answer was: a fence far ahead of all clocks would be outlived by none of them.
        """
        self.ahead_us = server_us - heard * 1e6 + min(2e6 * (heard - sent), MAX_LEAD_US)


class Fleet:
    """All servers of a quorum. node_timeout_s: how long one may take to answer before it counts as hung."""

    def __init__(self, nodes: list[Node], node_timeout_s: float, max_lease_s: float | None) -> None:
        self.nodes = nodes
        self.everywhere = list(range(len(nodes)))  # never changed
        self.majority = len(nodes) // 2 + 1
        self.node_timeout_s = node_timeout_s
        self._set_max_lease(DEFAULT_MAX_LEASE_S if max_lease_s is None else max_lease_s)
        self.rounds = 0  # how often a majority was asked for votes
        self.grants = 0  # and how often that came to a hold
        self._is_chosen = max_lease_s is not None  # whether the caller named max_lease
        self._is_agreed = False  # whether a server has told what it is
        self._blank: dict[int, float] = {}  # servers that have none stored, and when they told so
        self.closing = False  # nobody is let in any more
        self._troubles: dict[int, tuple[str, str]] = {}  # servers that keep all from working: words, and a code
        self._in_doubt: set[int] = set()  # those that are asked anew, as that may have been mended
        self._doubts_at = inf  # when to ask anew
        self._contended: dict[str, float] = {}
        self._order = sorted(range(len(nodes)), key=lambda place: nodes[place].where)  # the same for every client

    def _set_max_lease(self, max_lease_s: float) -> None:
        self.max_lease_s = max_lease_s
        self.max_lease_ms = round(max_lease_s * 1000)

    @property
    def offer_ms(self) -> int:
        """The max_lease to store on a server that has none; 0 as long as it is not known.

        A client that names none takes the one that is stored. It stores the default only if all have told that they
        have none: a majority may have restarted empty, and count too soon by it, while leases stand that were voted for
        under a longer one, which only a server that is silent remembers.
        """
        return self.max_lease_ms if self._is_chosen or self._is_agreed or self._is_new() else 0

    def _is_new(self) -> bool:
        """Whether no server has a max_lease stored, as far as can be known. What was told long ago says nothing."""
        told_at = list(self._blank.values())
        return len(told_at) == len(self.nodes) and max(told_at) - min(told_at) < BLANK_S

    def introduce(self, place: int, told: Introduction, sent: float, heard: float) -> bool:
        """A server has introduced itself on a new connection, by commands sent at `sent` and answered at `heard`.

        False: it has no max_lease stored, and is to be asked again once there is one to offer. Raises Refused if all
        of them cannot work with this one; whoever wants a hold is told as well. The connection must not be used then.
        """
        node = self.nodes[place]
        if not told.max_lease_ms:
            self._blank[place] = heard
            return False
        self._in_doubt.discard(place)
        is_back = told.run_id in node.runs and told.run_id != node.run_id
        was_known = told.run_id in node.runs
        node.runs.add(told.run_id)  # before it is looked for: of two threads one sees the other
        trouble = self._trouble_with(node, told)
        if trouble is not None:
            if not was_known:
                node.runs.discard(told.run_id)
            self._troubles[place] = trouble
            self._doubts_at = heard + DOUBTS_S
            raise Refused(trouble[0], code=trouble[1])
        self._troubles.pop(place, None)
        self._hear(place, node, told, sent, heard, is_back)
        return True

    def _trouble_with(self, node: Node, told: Introduction) -> tuple[str, str] | None:
        for other in self.nodes:
            if other is not node and told.run_id in other.runs:
                return f"{other.where} and {node.where} are one and the same server: it would vote twice", "SAME"
        if told.max_lease_ms != self.max_lease_ms and (self._is_chosen or self._is_agreed):
            words = (
                f"{node.where} keeps max_lease={told.max_lease_ms / 1000:g} for this quorum, this client has "
                f"{self.max_lease_s:g}: name the same everywhere (to change it, stop all clients for that long, "
                f"then delete the key {told.key} on every server)"
            )
            return words, "MAXLEASE"
        return None

    def _hear(self, place: int, node: Node, told: Introduction, sent: float, heard: float, is_back: bool) -> None:
        if told.max_lease_ms != self.max_lease_ms:
            self._set_max_lease(told.max_lease_ms / 1000)
            for other in self.nodes:
                other.counts_at = inf  # it was judged by another one
        self._is_agreed = True
        self._blank.pop(place, None)
        if node.run_id != told.run_id or node.counts_at == inf:
            # One that was left and comes back (or whose words come late): others may have voted here in between.
            short_s = self.max_lease_s if is_back else told.short_s
            node.run_id = told.run_id
            # From when it was heard: it had been up for that long by then, and no longer when it was asked.
            node.counts_at = -inf if short_s <= 0 else heard + short_s * RATE
        node.told_time(told.server_us, sent, heard)
        node.answered()

    def check(self, lease_ms: int) -> None:
        """Raise what keeps this quorum from working, or this lease from being asked for."""
        if self.closing:
            raise Misused("this client was closed while an acquire was waiting")
        if self._troubles:
            for words, code in list(self._troubles.values()):
                raise Refused(words, code=code)
        if lease_ms > self.max_lease_ms:
            raise ValueError(
                f"lease and grace are {lease_ms / 1000:g} s together, max_lease of this quorum is {self.max_lease_s:g}"
            )

    def doubts(self, moment: float) -> bool:
        """Whether to ask anew for what keeps this quorum from working: it was heard of a while ago.

        Then servers are looked at (`to_probe`), until none is `in_doubt`.
        """
        if not self._troubles or moment < self._doubts_at:
            return False
        self._doubts_at = moment + DOUBTS_S
        self._in_doubt = set(self._troubles)
        if not self._is_chosen and any(code == "MAXLEASE" for _, code in list(self._troubles.values())):
            # The one that was taken over may have been the wrong one.
            self._in_doubt, self._is_agreed = set(range(len(self.nodes))), False
        for place in list(self._in_doubt):  # threads hear while this one looks
            self.nodes[place].looked_at = -inf
        return True

    @property
    def in_doubt(self) -> bool:
        return bool(self._in_doubt)

    def doubt_no_more(self) -> None:
        """Who has not answered by now is known to be down, and no trouble by itself."""
        for place in list(self._in_doubt):
            self._troubles.pop(place, None)
        self._in_doubt = set()

    def counts_at(self) -> float:
        """From when a majority of those that answer may be counted; inf when too few answer."""
        times = sorted(node.counts_at for node in self.nodes if node.run_id and not node.why_down)
        return times[self.majority - 1] if len(times) >= self.majority else inf

    def meets(self) -> bool:
        """Whether a server has not introduced itself yet, and is not known to be down either."""
        return any(not node.run_id and not node.why_down for node in self.nodes)

    def is_cut_off(self) -> bool:
        """Whether too many are known to be down for a majority."""
        return len([node for node in self.nodes if not node.why_down]) < self.majority

    def is_counted(self, place: int, moment: float) -> bool:
        return self.nodes[place].counts_at <= moment

    def is_ready(self, place: int, moment: float) -> bool:
        """Whether it answers, and its votes count."""
        node = self.nodes[place]
        return not node.why_down and node.asked_at > moment - self.node_timeout_s and node.counts_at <= moment

    def ready(self, moment: float) -> list[int]:
        """Those to ask: whoever answers; `everywhere`, if that is everybody, or too few for a majority."""
        latest = moment - self.node_timeout_s
        for node in self.nodes:
            if node.why_down or node.asked_at <= latest or node.counts_at > moment:
                break
        else:
            return self.everywhere
        ready = [
            place
            for place, node in enumerate(self.nodes)
            if not node.why_down and node.asked_at > latest and node.counts_at <= moment
        ]
        return ready if len(ready) >= self.majority else self.everywhere

    def to_probe(self, moment: float) -> list[int]:
        """Those that did not answer and were not looked at for a while."""
        latest = moment - self.node_timeout_s
        return [
            place
            for place, node in enumerate(self.nodes)
            if not node.probing
            and (node.why_down or node.asked_at <= latest or node.counts_at == inf or place in self._in_doubt)
            and node.looked_at <= moment - PROBE_S
        ]

    def door(self, name: str, ready: list[int]) -> int:
        """Where to wait for a name: the first that answers, in an order that is the same for all clients."""
        order = self._order
        start = crc32(name.encode()) % len(order)
        for step in range(len(order)):
            place = order[(start + step) % len(order)]
            if place in ready:
                return place
        return order[start]

    def proposal(self, seen: int, moment: float) -> int:
        """A fence that no server has reached, as far as is known."""
        ahead_us = max([node.ahead_us for node in self.nodes])
        return max(seen + 1, 0 if ahead_us == -inf else int(moment * 1e6 + ahead_us) + 1)

    def is_contended(self, name: str, moment: float) -> bool:
        return self._contended.get(name, -inf) > moment

    def note_contention(self, name: str, moment: float) -> None:
        """Others want this name: who asks for it again should queue first."""
        if len(self._contended) >= MAX_CONTENDED:
            self._contended.clear()
        self._contended[name] = moment + CONTENDED_S

    def forget_contention(self, name: str) -> None:
        self._contended.pop(name, None)

    def too_few(self, name: str, heard: dict[int, Any], moment: float, owed: Sequence[int] = ()) -> LockfastError:
        """What to raise when a majority cannot be had, with what each server is about.

        heard: what the last requests came to, by server. owed: how many of them each has not answered yet.
        """
        told = []
        for place, node in enumerate(self.nodes):
            words = node.why_down
            if not words and node.counts_at == inf:  # never met, or to be judged anew
                words = NOT_AGREED if place in self._blank else "no answer yet"
            elif not words and node.counts_at > moment:
                words = (
                    f"started less than max_lease ({self.max_lease_s:g} s) ago, cannot show that it kept its memory, "
                    f"and is not counted for another {node.counts_at - moment:.1f} s (with appendonly yes and "
                    "appendfsync always it counts at once when it restarts)"
                )
            elif not words and isinstance(heard.get(place), BaseException):
                words = str(heard[place])
            elif not words and (node.asked_at <= moment - self.node_timeout_s or (owed and owed[place])):
                words = "does not answer"
            if words:
                words = words.replace(f" to {node.where}", "").removeprefix(f"{node.where} ")
                told.append(f"{node.where}: {words}")
        words = "; ".join([f"{name!r}: {self.majority} of {len(self.nodes)} servers have to agree, too few can", *told])
        codes = self.refusals()
        return Refused(words, code=codes[0]) if codes else Unreachable(words)

    def refusals(self) -> list[str]:
        """By which codes servers refuse this client, if too few are left for a majority: it cannot help to wait."""
        codes = [node.refusal for node in self.nodes if node.refusal]
        return codes if len(self.nodes) - len(codes) < self.majority else []
