"""Several independent masters for tests of the quorum, and eyes on each of them."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Self

from kit.servers import Kind, Server, wait_until
from lockfast.flows.introduction import marking
from lockfast.sync import Lockfast

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import TracebackType

    from lockfast.flows.fleet import Fleet
    from lockfast.snapshots import Snapshot


class Masters:
    """`count` servers that know nothing of each other. The options are those of Server.

    With appendonly they count at once, as if an earlier run had counted (for other prefixes: `mark`); else clients
    wait until they have been up for `max_lease`.
    """

    def __init__(self, count: int, kind: Kind = "valkey", **options: Any) -> None:
        self.servers = [Server(kind, **options) for _ in range(count)]
        self._eyes: list[Lockfast | None] = [None] * count

    @property
    def urls(self) -> list[str]:
        return [server.url for server in self.servers]

    def __getitem__(self, place: int) -> Server:
        return self.servers[place]

    def __len__(self) -> int:
        return len(self.servers)

    def __iter__(self) -> Iterator[Server]:
        return iter(self.servers)

    def at(self, where: str) -> Server:
        """The server that a client calls by this address."""
        return next(server for server in self.servers if where.endswith(f":{server.port}"))

    def look(self, place: int, name: str, prefix: str = "lockfast") -> Snapshot:
        """What one server knows of a name."""
        eyes = self._eyes[place]
        if eyes is None or eyes._prefix != prefix:
            if eyes is not None:
                eyes.close()
            eyes = self._eyes[place] = Lockfast(self.servers[place].unix_url, timeout=10.0, prefix=prefix)
        return eyes.inspect(name)

    def holding(self, name: str, prefix: str = "lockfast") -> list[int]:
        """The servers, of those that run, that have a holder of this name."""
        return [place for place in self._running() if self.look(place, name, prefix).holders]

    def waiting(self, name: str, prefix: str = "lockfast") -> list[int]:
        """How many wait at each server, of those that run."""
        return [len(self.look(place, name, prefix).waiters) for place in self._running()]

    def is_free(self, name: str, prefix: str = "lockfast") -> bool:
        """No server has anything of it."""
        return not self.holding(name, prefix) and not any(self.waiting(name, prefix))

    def wait_free(self, name: str, prefix: str = "lockfast", timeout_s: float = 5.0) -> None:
        wait_until(lambda: self.is_free(name, prefix), timeout_s=timeout_s, what=f"{name} free everywhere")

    def wait_waiting(self, name: str, count: int = 1, prefix: str = "lockfast") -> None:
        wait_until(lambda: sum(self.waiting(name, prefix)) == count, timeout_s=20, what=f"{count} waiters")

    def _running(self) -> list[int]:
        return [place for place, server in enumerate(self.servers) if server.running]

    def start(self) -> Self:
        with ExitStack() as undo:  # half of them is nothing
            for server in self.servers:
                undo.callback(server.close)
                server.start()
            self.mark()
            undo.pop_all()
        return self

    def mark(self, prefix: str = "lockfast") -> None:
        """Let those that keep their memory count at once: they have the mark of an earlier run that counted."""
        for server in self.servers:
            if server.appendonly:
                server.command(*marking(prefix, "earlier 0"))

    def heal(self) -> None:
        """All run, and none is frozen."""
        for server in self.servers:
            if not server.running:
                server.start()
            server.resume()

    def close(self) -> None:
        for eyes in self._eyes:
            if eyes is not None:
                eyes.close()
        for server in self.servers:
            server.close()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def fleet_of(client: Any) -> Fleet:
    """What a client, of either side, knows of its servers."""
    fleet: Fleet = getattr(client, "twin_of", client)._driver.fleet
    return fleet
