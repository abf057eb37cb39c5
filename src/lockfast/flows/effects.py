"""What a flow may want from the world. Every effect is a whole operation; whoever runs the flow carries it out.

A flow is a generator: it yields an effect, is sent the answer, and returns its result. A failure of the world
(no answer, a refusal, Ctrl-C, a cancelled task) is thrown in at the yield. `close()` means the process died there.
Between two yields nothing in the world changes as far as the flow can see.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from math import inf
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

from lockfast import names

if TYPE_CHECKING:
    from lockfast.flows.copying import Copies
    from lockfast.flows.fleet import Fleet
    from lockfast.flows.scripts import Bound
    from lockfast.names import Name

R = TypeVar("R")


class Call:
    """Run a script. Answer: its reply. Throws Unreachable (`sent`: it may have run) or Refused.

    by: when to stop waiting for the reply, on the flow's clock.
    behind: this undoes an earlier call of the same flow, so it must not overtake it: send it on the connection
    that the unanswered call went out on if that still stands, and do not wait for long.
    copies: send a WAIT behind it on the same connection. The answer is then its reply and how many replicas have it.
    """

    __slots__ = ("args", "behind", "bound", "by", "copies")

    def __init__(
        self,
        bound: Bound,
        args: tuple[str | int | bytes, ...],
        by: float,
        behind: bool = False,
        copies: Copies | None = None,
    ) -> None:
        self.bound = bound
        self.args = args  # the rest of ARGV: tickets and numbers, ASCII only (unless the script takes VARIES)
        self.by = by
        self.behind = behind
        self.copies = copies


class CallMany:
    """Run several scripts in one trip. Answer: a list with a reply or an exception for each, in order.

    copies: as for Call, one WAIT behind all of them. The answer is then that list, and how many replicas have it all.
    """

    __slots__ = ("by", "calls", "copies")

    def __init__(self, calls: list[Call], by: float, copies: Copies | None = None) -> None:
        self.calls = calls
        self.by = by
        self.copies = copies


class Command:
    """Send one plain command. Answer: its reply. Throws as Call does.

    name: what it is about, where its arguments do not tell; in a cluster it goes to the node that has this.
    """

    __slots__ = ("args", "by", "name")

    def __init__(self, args: tuple[str | int | bytes, ...], by: float, name: Name | None = None) -> None:
        self.args = args
        self.by = by
        self.name = name


class Listen:
    """Make sure that pushes to this client arrive. Answer: the number of the subscription, 0 when it is not allowed.

    The number changes with every new subscription; what was pushed before it may have been missed.
    name: what the pushes are about; in a cluster each name has a channel of its own.
    """

    __slots__ = ("by", "name", "place")

    def __init__(self, by: float, name: Name | None = None, place: int = 0) -> None:
        self.by = by
        self.name = name
        self.place = place  # which of several servers


class Push(NamedTuple):
    """What the server tells a waiter. kind: "grant" (number is the fence), "refused" (number is the limit) or "again"
    (ask at once: there may be room). A holder: "wanted" (number is its fence).

    To those who watch: "leader", "over", "open", "tripped", "broken" (number is the fence of what it is about).
    """

    kind: str
    number: int


class Wait:
    """Wait for a push to `ticket` until the given time. Answer: the Push, or None.

    None may come early, when the push connection was lost: whoever waits then asks again.
    name: as in the Listen before it.
    """

    __slots__ = ("name", "place", "ticket", "until")

    def __init__(self, ticket: str, until: float, name: Name | None = None, place: int = 0) -> None:
        self.ticket = ticket
        self.until = until
        self.name = name
        self.place = place  # which of several servers


class Scatter:
    """Run scripts on several servers at once: all are written before any reply is read. Answer: None.

    places: which servers. make: called with the connection to each server of all (None where there is none), it
    returns where each request goes and what it is. hear: called with the number of a request and its reply, or the
    error that it came to; also later, with replies that come after the answer. Neither may wait for anything.
    enough: whether what was heard will do; it is asked before every wait. by: when to go on without the rest.
    behind: this undoes earlier requests: it is written whatever happens, and not waited for if the task is cancelled.
    What cannot be written, or is lost with its connection, is brought over another one, beside everything else.
    """

    __slots__ = ("behind", "by", "enough", "hear", "make", "places")

    def __init__(
        self,
        places: list[int],
        make: Callable[[Sequence[object]], list[tuple[int, Call]]],
        by: float,
        hear: Callable[[int, Any], None],
        enough: Callable[[], bool],
        behind: bool = False,
    ) -> None:
        self.places = places
        self.make = make
        self.by = by
        self.hear = hear
        self.enough = enough
        self.behind = behind


class Sleep:
    """Let this many seconds pass. Answer: None."""

    __slots__ = ("delay_s",)

    def __init__(self, delay_s: float) -> None:
        self.delay_s = delay_s


Effect = Call | CallMany | Command | Listen | Wait | Scatter | Sleep
Flow = Generator[Effect, Any, R]
T = TypeVar("T", covariant=True)


class Opening(Protocol[T]):
    """A flow whose first request is mostly all that it needs: a driver sends that before it starts the flow."""

    def prepare(self) -> Call | None:
        """The request; None when the flow has to begin by itself."""
        ...

    def settle(self, reply: Any) -> T | None:
        """What the flow would return for this reply; None when it has to go on."""
        ...

    def flow(self) -> Flow[T]:
        """The flow, which begins with that request."""
        ...


class Env:
    """What a flow may read without asking: a clock, a source of jitter, the client's settings and its memory.

    now: seconds on a clock that never steps back and counts through suspend. jitter: a number in [0, 1).
    """

    __slots__ = (
        "attempt_s",
        "commands",
        "connected",
        "enough",
        "fleet",
        "jitter",
        "listening",
        "me",
        "now",
        "owner",
        "place",
        "replicas",
        "seen",
        "swaps_from",
        "timeout_s",
        "young_s",
    )
    sharded = False  # whether names are spread over servers, so that no script can see two of them

    def __init__(self, now: Callable[[], float], jitter: Callable[[], float], timeout_s: float) -> None:
        self.now = now
        self.jitter = jitter
        self.timeout_s = timeout_s
        self.attempt_s = timeout_s / 2  # one try's share, so that there is time for a second on a new connection
        self.replicas = 0  # how many replicas must have a grant or a renewal before it counts
        self.owner = ""
        self.me = ("", "")  # channel and owner, as `admit` wants them
        self.seen = Seen()
        self.commands: dict[bytes, Any] = {}  # what the server told of its commands: see flows/guarding.py
        self.connected = False  # whether this client has ever had an answer from its server
        self.fleet: Fleet | None = None  # the servers, where a majority of them decides
        self.place = 0  # which of them this is about
        # Asked when a look has failed: whether others have told what is needed, so that it is not made again.
        self.enough: Callable[[], bool] = _never
        self.listening = 0  # number of the subscription that stands at the moment, 0 when none does
        # From when on, and up to what age, holds are given back without a script: see flows/swapping.py.
        self.swaps_from = inf
        self.young_s = 0.0

    def introduce(self, channel: str, owner: str) -> None:
        """Say who this client is: the channel that it hears pushes on, and the text that others read."""
        self.owner = owner
        self.me = (channel, owner)

    def channel(self, name: Name) -> str:
        """The channel on which this client hears pushes about `name`, as scripts are told of it."""
        return self.routed(self.me[0], name)

    def routed(self, channel: str, name: Name) -> str:
        """The channel, or what channels start with, as scripts are told of it for pushes about `name`."""
        return channel

    def hears(self, name: Name) -> int:
        """The number of the subscription by which pushes about `name` come at the moment, 0 when none does."""
        return self.listening


def _never() -> bool:
    return False


class ShardedEnv(Env):
    """The same for a cluster: every name has its own channel, in its own slot, and a subscription for that.

    heard: the numbers of the subscriptions that stand, by channel.
    """

    __slots__ = ("heard",)
    sharded = True

    def __init__(self, now: Callable[[], float], jitter: Callable[[], float], timeout_s: float) -> None:
        super().__init__(now, jitter, timeout_s)
        self.heard: dict[str, int] = {}

    def routed(self, channel: str, name: Name) -> str:
        return names.in_slot_of(name, channel).replace(
            " ", "%20"
        )  # scripts keep it among words; see `push` in state.lua

    def subscribed(self, name: Name) -> str:
        """The same channel as it is subscribed to: in the name's slot to the letter."""
        return names.in_slot_of(name, self.me[0])

    def hears(self, name: Name) -> int:
        return self.heard.get(self.subscribed(name), 0)


def backoff(failures: int, gives_up_at: float, env: Env) -> Sleep:
    """How long to pause after so many failures in a row, but not past `gives_up_at`.

    The first retry is immediate: a pooled connection that the server had closed fails at once, and says nothing
    about the server.
    """
    if failures < 2:
        return Sleep(0.0)
    delay_s = min(0.5, 0.01 * 2**failures) * (0.5 + env.jitter() / 2)
    return Sleep(max(0.0, min(delay_s, gives_up_at - env.now())))


class Seen(dict[str, int]):
    """The highest fence this client knows of, by name: what makes fences grow even if the server forgets them all.

    Bounded: the name that was learned first is forgotten first.
    """

    MAX_NAMES = 10_000
    __slots__ = ()

    def learn(self, name: str, fence: int) -> None:
        known = self.get(name)
        if known is not None:
            if fence > known:
                self[name] = fence
            return
        self[name] = fence
        if len(self) > self.MAX_NAMES:
            try:
                del self[next(iter(self))]
            except (KeyError, RuntimeError):
                pass  # another thread dropped one at the same moment, which is as good

    def learn_all(self, names: Sequence[str], fence: int) -> None:
        """The same for several names that have one fence."""
        try:
            for name in names:
                if self[name] < fence:
                    self[name] = fence
        except KeyError:  # one is new here, or was forgotten
            for name in names:
                self.learn(name, fence)
