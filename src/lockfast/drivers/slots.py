"""What a cluster client has to know, without any I/O: which slot a key is in, who owns it, and what a redirect says.

A name of a slot that is being moved is left alone by every script, on both nodes. While a slot moves key by key, its
owner runs a request only if all keys named in it are there, and the node that gets the slot likewise; but a key that
was never made and one that is on the other node look the same. So every request names one more key, which nobody ever
makes (`names.never_key`): as long as the slot moves, both nodes answer TRYAGAIN (or ASK, and then TRYAGAIN), nothing
runs, and no state can be split or written by half. The request is sent again until the move is over.
"""

from __future__ import annotations

from binascii import crc_hqx
from typing import TYPE_CHECKING, Any, NamedTuple

from lockfast.drivers.diagnosis import in_scheme
from lockfast.drivers.wire import pack
from lockfast.errors import LockfastError, Refused, Unreachable
from lockfast.names import never_key

if TYPE_CHECKING:
    from lockfast.flows.scripts import Bound
    from lockfast.names import Name

SLOTS = 16384
MAX_REDIRECTS = 5  # of one request; nodes that send it in a circle do not agree yet, and are asked again later
CLUSTER_SLOTS = pack(("CLUSTER", "SLOTS"))
ASKING = pack(("ASKING",))
# Said by a node that is not, or not any more, what the map takes it for. Nothing was run.
_UNFIT = ("CLUSTERDOWN", "READONLY", "MASTERDOWN", "LOADING")

Address = tuple[str, int]
Words = tuple[str | int | bytes, ...]


class Redirect(NamedTuple):
    """Where to send a request instead. for_good: MOVED, the slot is there from now on; else ASK, this once."""

    for_good: bool
    slot: int
    address: Address


def slot_of(key: str | bytes) -> int:
    """The slot of a key: CRC16 of what is between its first braces, or of all of it (the cluster specification)."""
    raw = key.encode() if isinstance(key, str) else key
    start = raw.find(b"{")
    if start >= 0:
        end = raw.find(b"}", start + 1)
        if end > start + 1:
            raw = raw[start + 1 : end]
    return crc_hqx(raw, 0) % SLOTS


def slot_of_name(name: Name) -> int:
    """The slot that all keys of a name are in."""
    return slot_of(name.keys[0])


def evalsha(bound: Bound, args: Words) -> bytes:
    """The request that runs a script which the node is expected to know."""
    return _script("EVALSHA", bound.script.sha, bound, args)


def eval_text(bound: Bound, args: Words) -> bytes:
    """The request that brings the script along."""
    return _script("EVAL", bound.script.text, bound, args)


def _script(command: str, script: str, bound: Bound, args: Words) -> bytes:
    keys = (*bound.name.keys, never_key(bound.name))
    return pack((command, script, len(keys), *keys, *bound.args, *args))


def redirect(reply: Exception, asked: Address) -> Redirect | None:
    """Where an error reply of the node `asked` sends us; None if it does not."""
    code, _, rest = str(reply).partition(" ")
    if code not in ("MOVED", "ASK"):
        return None
    slot, _, target = rest.partition(" ")
    host, _, port = target.rpartition(":")
    return Redirect(code == "MOVED", int(slot), (_host(host, asked), int(port)))


def is_unfit(reply: Exception) -> bool:
    """Whether an error reply says that the map may be out of date."""
    return str(reply).partition(" ")[0] in _UNFIT


def _host(told: str, asked: Address) -> str:
    """A node that does not know its own name leaves it out: it is the one that was asked."""
    return told if told not in ("", "?") else asked[0]


class SlotMap:
    """Who owns which slot, as far as this client has heard. Shared by threads: every change is one assignment."""

    def __init__(self, seeds: tuple[Address, ...]) -> None:
        self._seeds = seeds
        self._owners: list[Address | None] = [None] * SLOTS
        self._nodes: tuple[Address, ...] = ()
        self._suspect: Address | None = None
        self._learned = 0  # how often the map was learned, and how often that will do
        self._wanted = 1

    @property
    def is_doubted(self) -> bool:
        """Whether it should be asked for before it is used."""
        return self._learned < self._wanted

    def doubt(self, suspect: Address | None = None) -> None:
        """Something was not as the map says. suspect: the node that did not answer, to be asked last."""
        self._suspect = suspect
        self._wanted = self._learned + 1

    def owner(self, slot: int) -> Address | None:
        return self._owners[slot]

    def move(self, slot: int, owner: Address) -> None:
        """A node says who owns a slot now."""
        self._owners[slot] = owner

    def masters(self) -> list[Address]:
        """Every node that owns a slot, in a fixed order."""
        return sorted({owner for owner in self._owners if owner is not None})

    def candidates(self, first: int) -> list[Address]:
        """Nodes to ask for the map, the suspect last. first: any number, to spread the questions over the nodes."""
        known = list(dict.fromkeys((*self._nodes, *self._seeds)))
        turned = known[first % len(known) :] + known[: first % len(known)]
        return sorted(turned, key=lambda address: address == self._suspect)

    def learn(self, reply: Any, asked: Address) -> bool:
        """Take in the reply to CLUSTER SLOTS of the node `asked`. False if it knows of no slot."""
        owners: list[Address | None] = [None] * SLOTS
        nodes: dict[Address, None] = {}
        for first, last, *places in reply:
            addresses = [(_host((place[0] or b"").decode(), asked), int(place[1])) for place in places]
            nodes |= dict.fromkeys(addresses)
            owners[first : last + 1] = addresses[:1] * (last + 1 - first)
        if not nodes:
            return False
        self._owners, self._nodes = owners, tuple(nodes)
        self._learned += 1
        self._suspect = None
        return True


def untold(failures: list[LockfastError]) -> LockfastError:
    """What to say when no node has told the map: the first refusal, which does not pass by itself, before the rest."""
    refusal = next((reason for reason in failures if isinstance(reason, Refused)), None)
    if refusal is None:
        return Unreachable(str(failures[-1]), sent=False)
    return in_scheme("cluster", refusal) if refusal.code == "TLS" else refusal


def next_to_scan(cursor: bytes, masters: list[Address]) -> tuple[Address, bytes] | None:
    """Which node a SCAN over all masters goes on with, and that node's cursor; None when all were looked at.

    A cursor of such a SCAN is the node's own and every node that was asked, the last of them now: "7 host:port
    host:port"; b"0" begins. So a master that takes the place of another meanwhile is not missed.
    """
    inner, *asked = cursor.split(b" ")
    for address in masters:
        if inner != b"0" and _spelled(address) == asked[-1]:
            return address, inner
    rest = [address for address in masters if _spelled(address) not in asked]
    return (rest[0], b"0") if rest else None


def scan_cursor(cursor: bytes, at: Address, inner: bytes, masters: list[Address]) -> bytes:
    """The cursor that goes on after the node `at` has answered `inner`; b"0" when that was the end of the last."""
    asked = [address for address in cursor.split(b" ")[1:] if address != _spelled(at)]
    made = b" ".join((inner, *asked, _spelled(at)))
    return made if next_to_scan(made, masters) is not None else b"0"


def _spelled(address: Address) -> bytes:
    return f"{address[0]}:{address[1]}".encode()
