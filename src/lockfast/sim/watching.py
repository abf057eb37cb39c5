"""What a server did to a name, read from what it stores: the server's side of a history.

After every script run, and every swap, the name's keys are compared with what they were after the one before. This is
the only place of the simulator that knows how lua/state.lua spells them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from lockfast.check.history import HANDED_ON
from lockfast.flows.group import tally
from lockfast.names import Names
from lockfast.sim.telling import fence_text

if TYPE_CHECKING:
    from lockfast.flows.effects import Call
    from lockfast.names import Name
    from lockfast.sim.node import Node
    from lockfast.sim.server import Word


class Standing(NamedTuple):
    """One holder, as the server has it."""

    fence: int
    end_ms: int
    weight: int


class View:
    """One name as it was after the last script: what was stored, and what that means."""

    __slots__ = ("holders", "keys", "limit", "queue", "raw", "shared")

    def __init__(self, keys: tuple[str, ...]) -> None:
        self.keys = [key.encode() for key in keys[:5]]  # a guard has more, of its caller's own
        self.raw: bytes | None = None
        self.queue: dict[str, bytes] = {}  # ticket -> since when it has this place, in order
        self.shared: dict[bytes, float] = {}
        self.holders: dict[str, Standing] = {}
        self.limit = 1


class Watch:
    """Compares, and records."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._views: dict[str, View] = {}

    def forget(self) -> None:
        """The server has lost its memory: what was there before is no longer compared with."""
        self._views.clear()

    def after(self, call: Call) -> None:
        """A script has run."""
        name = call.bound.name
        tickets = [str(call.args[-1])]
        if isinstance(name, Names):
            tickets = [tickets[0] + mark for mark in tally(len(name.names))]
        leaving = tickets if call.bound.script.name in ("leave", "leave_all") else []
        heir = str(call.bound.args[2]) if call.bound.script.name == "renew" else ""
        for each in name.names if isinstance(name, Names) else (name,):
            self._look(each, tickets[-1], leaving, heir)

    def after_swap(self, words: tuple[Word, ...]) -> None:
        """A hold has been given back by a plain command, or not: see flows/swapping.py."""
        key = str(words[1]).encode()
        for name, view in self._views.items():
            if view.keys[0] == key:
                ticket = str(words[4]).split(" ")[7]
                self._see(name, view, ticket, [ticket], "")

    def _look(self, made: Name, asker: str, leaving: list[str], heir: str) -> None:
        view = self._views.get(made.shown)
        if view is None:
            view = self._views[made.shown] = View(made.keys)
        self._see(made.shown, view, asker, leaving, heir)

    def _see(self, name: str, view: View, asker: str, leaving: list[str], heir: str) -> None:
        store = self._node.server.store
        raw = store.string(view.keys[0])
        queue = self._queue(view, asker)
        ends = store.sorted(view.keys[3])
        shared = ends.scores if ends is not None else {}
        if raw == view.raw and queue == view.queue and shared == view.shared:
            return
        view.raw, view.shared = raw, dict(shared)
        holders, view.limit = self._read(view)
        if heir in holders and heir not in view.holders:
            leaving = [asker]
        self._compare(name, view, holders, queue, leaving, heir)
        view.holders, view.queue = holders, queue

    def _queue(self, view: View, asker: str) -> dict[str, bytes]:
        """The places. Only whose call this is can have lost its place and taken a new one, all in one run."""
        store = self._node.server.store
        places = store.sorted(view.keys[1])
        if places is None:
            return {}
        entries = store.hash(view.keys[2]) or {}
        queue = {}
        for _, member in places.order:
            ticket = member.decode()
            since = view.queue.get(ticket)
            if since is None or ticket == asker:
                since = entries[member].split(b" ", 4)[3]
            queue[ticket] = since
        return queue

    def _read(self, view: View) -> tuple[dict[str, Standing], int]:
        holders: dict[str, Standing] = {}
        if view.raw is None:
            return holders, 1
        _, _, limit, fence, used, _, _, holder, end_ms, _ = view.raw.decode().split(" ", 9)
        if holder != "-":
            holders[holder] = Standing(int(fence), int(end_ms), int(used) or int(limit))
        if view.shared:
            entries = self._node.server.store.hash(view.keys[2])
            assert entries is not None, "shared holders have entries"
            for ticket, end in view.shared.items():
                own_fence, weight, _ = entries[ticket].decode().split(" ", 2)
                holders[ticket.decode()] = Standing(int(own_fence), int(end), int(weight))
        return holders, int(limit)

    def _compare(
        self,
        name: str,
        view: View,
        holders: dict[str, Standing],
        queue: dict[str, bytes],
        leaving: list[str],
        heir: str,
    ) -> None:
        for ticket, old in view.holders.items():
            new = holders.get(ticket)
            if new is None or new.fence != old.fence:
                what = "let_go" if ticket in leaving else "expired"
                self._record(what, name, ticket, view.limit, old)
                self._say(f"{ticket} no longer holds {name!r}" + ("" if what == "let_go" else ": its lease has ended"))
        for ticket, since in view.queue.items():
            if queue.get(ticket) != since and ticket not in holders:
                what = "unqueued" if ticket in leaving else "place_ended"
                self._record(what, name, ticket, view.limit, None)
                self._say(f"{ticket} no longer waits for {name!r}" + ("" if what == "unqueued" else ": not heard of"))
        for ticket, new in holders.items():
            before = view.holders.get(ticket)
            if before is None or before.fence != new.fence:
                self._record("held", name, ticket, view.limit, new, HANDED_ON if ticket == heir else "")
                self._say(f"{ticket} holds {name!r}, fence {fence_text(new.fence)}, until {self._true(new.end_ms):.3f}")
            elif before.end_ms != new.end_ms:
                self._record("prolonged", name, ticket, view.limit, new)
                self._say(f"{ticket} holds {name!r} until {self._true(new.end_ms):.3f}")
        for place, ticket in enumerate(queue, 1):
            if view.queue.get(ticket) != queue[ticket]:
                self._record("queued", name, ticket, view.limit, None)
                self._say(f"{ticket} waits for {name!r}, place {place}")

    def _record(self, what: str, name: str, ticket: str, limit: int, standing: Standing | None, note: str = "") -> None:
        client = ticket.partition(".")[0]
        if standing is None:
            self._node.record(what, name=name, ticket=ticket, client=client, limit=limit)
            return
        until = self._true(standing.end_ms) if what in ("held", "prolonged") else 0.0
        self._node.record(
            what,
            name=name,
            ticket=ticket,
            client=client,
            limit=limit,
            fence=standing.fence,
            weight=standing.weight,
            until=until,
            note=note,
        )

    def _true(self, wall_ms: int) -> float:
        return self._node.clock.true_of_wall_ms(wall_ms)

    def _say(self, words: str) -> None:
        self._node.world.say(self._node.name, words)
