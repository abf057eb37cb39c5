"""A real cluster for tests: masters and their replicas, each a `Server` of its own, with slots that can be moved."""

from __future__ import annotations

import shutil
import time
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Self

from kit.resp import ServerError
from kit.servers import Kind, Server, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import TracebackType

SLOTS = 16384
NODE_TIMEOUT_MS = 1000


class Cluster:
    """Three masters and a replica of each, on ports of 127.0.0.1. `start()` it or use it in a `with`.

    masters, replicas: as they were at the start; a failover changes the roles and not these lists.
    """

    def __init__(
        self, kind: Kind = "valkey", *, size: int = 3, replicas: bool = True, requirepass: str = "", tls: bool = False
    ) -> None:
        self.kind: Kind = kind
        extra: tuple[str, ...] = (
            *("--cluster-enabled", "yes", "--cluster-config-file", "nodes.conf"),
            *("--cluster-node-timeout", str(NODE_TIMEOUT_MS), "--cluster-require-full-coverage", "no"),
            *("--cluster-replica-validity-factor", "0", "--repl-diskless-sync-delay", "0"),
        )
        if requirepass:
            extra += ("--masterauth", requirepass)
        if tls:
            extra += ("--tls-cluster", "yes")
        count = size * 2 if replicas else size
        self.nodes = [
            Server(kind, requirepass=requirepass, extra=extra, tls="valid" if tls else "") for _ in range(count)
        ]
        for node in self.nodes[1:] if tls else []:  # they speak TLS among each other, so they must trust each other
            for file in ("server.crt", "server.key"):
                shutil.copy(self.nodes[0].directory / file, node.directory / file)
        self._tls = tls
        self.masters, self.replicas = self.nodes[:size], self.nodes[size:]
        self._password = requirepass
        self._ids: dict[int, str] = {}

    @property
    def url(self) -> str:
        userinfo = f":{self._password}@" if self._password else ""
        return f"cluster://{userinfo}" + ",".join(f"127.0.0.1:{node.port}" for node in self.nodes)

    @property
    def tls_url(self) -> str:
        """The same, encrypted."""
        userinfo = f":{self._password}@" if self._password else ""
        nodes = ",".join(f"127.0.0.1:{node.tls_port}" for node in self.nodes)
        return f"clusters://{userinfo}{nodes}?ssl_ca_certs={self.nodes[0].ca_file}"

    # Its life

    def start(self) -> Self:
        for node in self.nodes:
            # The bus has its own port, client port + 10000: the client's must leave room for that.
            node.port = _port_with_bus()
            node.tls_port = _port_with_bus() if self._tls else 0
            node.start()
            self._ids[node.port] = node.command("CLUSTER", "MYID").decode()
        share = -(-SLOTS // len(self.masters))
        for number, node in enumerate(self.masters):
            node.command("CLUSTER", "SET-CONFIG-EPOCH", number + 1)
            first = number * share
            node.command("CLUSTER", "ADDSLOTSRANGE", first, min(first + share, SLOTS) - 1)
        for number, node in enumerate(self.nodes):  # everybody meets everybody: gossip would take longer
            for other in self.nodes[number + 1 :]:
                node.command("CLUSTER", "MEET", "127.0.0.1", other.tls_port or other.port)
        everybody = len(self.nodes)
        for node in self.nodes:
            wait_until(lambda node=node: known(node) == everybody, what="all nodes have met")  # type: ignore[misc]
        for master, replica in zip(self.masters, self.replicas, strict=False):
            replica.command("CLUSTER", "REPLICATE", self._ids[master.port])
        for node in self.nodes:
            wait_until(lambda node=node: self._is_well(node), timeout_s=20, what="the cluster is whole")  # type: ignore[misc]
        return self

    def _is_well(self, node: Server) -> bool:
        if info(node)["cluster_state"] != "ok" or info(node)["cluster_slots_ok"] != str(SLOTS):
            return False
        if not self.replicas:
            return True
        if node in self.replicas:
            return node.info("replication").get("master_link_status") == "up"
        places = node.command("CLUSTER", "SLOTS")
        return all(len(place) >= 4 for place in places)

    def close(self) -> None:
        with ExitStack() as stack:
            for node in self.nodes:
                stack.callback(node.close)

    def flush(self) -> None:
        for node in self.nodes:
            try:
                node.command("FLUSHALL")
            except ServerError:
                pass  # a replica

    # Who has what

    def node_at(self, port: int) -> Server:
        return next(node for node in self.nodes if port in (node.port, node.tls_port))

    def slot_of(self, tag: str) -> int:
        slot: int = self.masters[0].command("CLUSTER", "KEYSLOT", tag)
        return slot

    def slot_of_running(self, tag: str, *but: Server) -> int:
        """The same, asked of a node that runs and is none of these."""
        asked = next(node for node in self.nodes if node.running and node not in but)
        slot: int = asked.command("CLUSTER", "KEYSLOT", tag)
        return slot

    def owner(self, slot: int, seen_by: Server | None = None) -> Server:
        """The node that owns a slot, as one of the running ones sees it."""
        asked = seen_by or next(node for node in self.nodes if node.running)
        for first, last, master, *_ in asked.command("CLUSTER", "SLOTS"):
            if first <= slot <= last:
                return self.node_at(int(master[1]))
        raise AssertionError(f"nobody owns slot {slot}")

    def name_on(self, node: Server, stem: str) -> str:
        """A lock name whose slot this node owns."""
        for number in range(1000):
            tag = f"{stem}-{number}"
            if self.owner(self.slot_of(tag)) is node:
                return tag
        raise AssertionError("no name found")

    # Moving a slot

    def begin_move(self, slot: int, target: Server) -> Server:
        """Opens both ends of a move; nothing is moved yet. Returns the node that has the slot."""
        source = self.owner(slot, target)
        target.command("CLUSTER", "SETSLOT", slot, "IMPORTING", self._ids[source.port])
        source.command("CLUSTER", "SETSLOT", slot, "MIGRATING", self._ids[target.port])
        return source

    def keys_in(self, slot: int, node: Server) -> list[bytes]:
        keys: list[bytes] = node.command("CLUSTER", "GETKEYSINSLOT", slot, 1000)
        return keys

    def move_key(self, key: bytes, source: Server, target: Server) -> None:
        auth = ("AUTH", self._password) if self._password else ()
        source.command("MIGRATE", "127.0.0.1", target.port, "", 0, 5000, *auth, "KEYS", key)

    def end_move(self, slot: int, source: Server, target: Server) -> None:
        for node in (target, source, *(one for one in self.masters if one not in (source, target))):
            if node.running:
                node.command("CLUSTER", "SETSLOT", slot, "NODE", self._ids[target.port])

    def move(self, slot: int, target: Server, *, pause_s: float = 0.0) -> None:
        """Moves a slot key by key, with a pause after each."""
        source = self.begin_move(slot, target)
        while keys := self.keys_in(slot, source):
            for key in keys:
                self.move_key(key, source, target)
                time.sleep(pause_s)
        time.sleep(pause_s)
        self.end_move(slot, source, target)

    @contextmanager
    def moving(self, slot: int, target: Server) -> Iterator[Server]:
        """The block runs while the slot is being moved; whatever it has not moved is moved at its end."""
        source = self.begin_move(slot, target)
        try:
            yield source
        finally:
            for key in self.keys_in(slot, source):
                self.move_key(key, source, target)
            self.end_move(slot, source, target)

    def wait_failed_over(self, slot: int, old: Server, *, timeout_s: float = 20.0) -> Server:
        """Waits until a slot of a node that is gone has a new owner, in the eyes of all that run."""

        def is_done() -> bool:
            seen = [node for node in self.nodes if node is not old and node.running]
            return all(self.owner(slot, node) is not old for node in seen)

        wait_until(is_done, timeout_s=timeout_s, what="failover")
        return self.owner(slot, next(node for node in self.nodes if node is not old and node.running))

    def __enter__(self) -> Self:
        try:
            return self.start()
        except BaseException:
            self.close()
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def info(node: Server) -> dict[str, str]:
    text: str = node.command("CLUSTER", "INFO").decode()
    return dict(line.split(":", 1) for line in text.splitlines() if ":" in line)


def known(node: Server) -> int:
    """How many nodes this one is connected with, itself included."""
    lines: list[str] = node.command("CLUSTER", "NODES").decode().splitlines()
    return len([line for line in lines if "handshake" not in line and "noaddr" not in line and " connected" in line])


def _port_with_bus() -> int:
    import socket

    while True:
        with socket.socket() as one, socket.socket() as bus:
            one.bind(("127.0.0.1", 0))
            port: int = one.getsockname()[1]
            if port + 10000 > 65535:
                continue
            try:
                bus.bind(("127.0.0.1", port + 10000))
            except OSError:
                continue
            return port


def said(nodes: list[Server], code: str) -> int:
    """How often these nodes have answered with an error that starts with this word."""
    counts = [node.info("errorstats").get(f"errorstat_{code}", "count=0") for node in nodes if node.running]
    return sum(int(count.removeprefix("count=")) for count in counts)
