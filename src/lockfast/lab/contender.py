"""What every row of the matrix is: something that runs sections, and tells of their turns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from lockfast.flows import plain

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from lockfast.flows.effects import Call
    from lockfast.lab.model import Topic
    from lockfast.sim.client import Client
    from lockfast.sim.node import Node

    Steps = Generator[Any, Any, Any]

# How a section ends: DONE: to its end. STOPPED: its holder found out in time. BUSY: not taken.
# FAILED: not taken, and the caller heard an error.
DONE, STOPPED, BUSY, FAILED = "done", "stopped", "busy", "failed"
PREFIX = "lab"
FIRST, ALSO = "part 1", "part 2"  # who takes several takes the other one beside a name


class Held:
    """What the body of a section knows about its hold."""

    __slots__ = ("fence", "keep", "sure", "write")

    def __init__(
        self,
        sure: Callable[[], bool],
        fence: int = 0,
        keep: Callable[[], Steps] | None = None,
        write: Callable[[int, Callable[[], None]], Steps] | None = None,
    ) -> None:
        self.sure = sure
        self.fence = fence
        self.keep = keep  # makes sure in its own way that it is still ours; returns a bool
        # Writes through the lock's own server, for the section of this number; the other argument is called between
        # its last look and the sending. Returns "" when the server took it, else why its writer stops.
        self.write = write


class Wrote(NamedTuple):
    """What a write through the lock's own server came to, there. operation: what a second copy of it has as well."""

    operation: str
    who: str
    section: int
    accepted: bool


class Watcher:
    """Who wants to know of the turns of a section; the stage is one."""

    def about_to(self, client: Client, effect: Any) -> None: ...

    def took(self, client: Client, fence: int, name: str) -> None: ...

    def gave(self, client: Client, words: str, name: str) -> None: ...

    def ended(self, client: Client, words: str) -> None: ...


@dataclass(frozen=True)
class Contender:
    """One algorithm. kind: "lock", "semaphore" or "update"."""

    topic: Topic
    kind: str = "lock"
    servers: int = 1
    renews: bool = False
    ends: bool = True  # whether a dead holder's hold ends by itself
    unreal: str | None = None  # why it is not played on real servers, if it is not
    refusal: str = "Two held it at once, and the resource refused the older"  # what a refused write shows

    @property
    def key(self) -> str:
        return self.topic.key

    def section(
        self, client: Client, name: str, shape: Shape, body: Callable[[Held], Steps], watcher: Watcher
    ) -> Generator[Any, Any, str]:
        """Take `name`, run the body, give it back. Returns how it ended."""
        raise TypeError(f"{self.key} takes nothing")

    def standing(self, node: Node, name: str, shape: Shape) -> dict[str, float]:
        """Who holds `name` as this server sees it, and until when in true time."""
        return {}

    def wrote(self, call: Call, reply: Any) -> Wrote | None:
        """What a script that a server has run did to the resource, for those who keep that on the lock's server."""
        return None


@dataclass(frozen=True)
class Shape:
    """The numbers of a scenario: how long a hold lasts, how long to try for it, how many may hold at once."""

    lease_s: float = 1.0
    patience_s: float = 3.0
    limit: int = 1


def owner_of(token: bytes) -> str:
    """The client that made this token (Client.new_id); "" when it does not say."""
    return token.decode().partition(".")[0] if b"." in token and not token[:1].isdigit() else ""


def watched(flow: Generator[Any, Any, Any], about_to: Callable[[Any], None]) -> Steps:
    """The same flow; `about_to` is told of every effect before it is carried out."""
    answer: Any = None
    error: BaseException | None = None
    while True:
        try:
            effect = flow.send(answer) if error is None else flow.throw(error)
        except StopIteration as stop:
            return stop.value
        about_to(effect)
        answer = error = None
        try:
            answer = yield effect
        except GeneratorExit:
            flow.close()
            raise
        except BaseException as struck:  # noqa: BLE001 - whatever it is, the flow decides, and raises it again
            error = struck


def plain_env(client: Client) -> plain.Env:
    """What a flow over plain commands may read, on a simulated client."""
    return plain.Env(
        client.now, client.wall, client.new_id, client.rng.random, len(client.servers), client.env.timeout_s
    )
