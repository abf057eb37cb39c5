"""Redlock: the lock of set_nx_px.py on a majority of independent servers.

From: the Redlock page of the Redis documentation ("Distributed Locks with Redis").
The same key and value are set on every node, in turn or all at once, each within a short time-out. It is won when a
majority agreed and time is left: validity = lease − elapsed − drift. Who does not win releases on all nodes, also on
those that seemed to fail, and tries again after a random delay, so that rivals do not go on splitting the nodes.
Promises: one holder at a time, and progress, while a majority of nodes lives, keeps its memory and its clocks tick
alike; a dead or cut-off holder blocks for one lease at most.
Breaks: a holder paused past its validity does not know, and there is no fence. A node that restarts empty inside a
lease votes twice (the page advises to keep it down for the longest lease). A node's clock that jumps ends its vote.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, Any

from lockfast.classic.arguments import check_delay, check_lease, check_name, check_prefix, check_wait
from lockfast.classic.set_nx_px import release_command
from lockfast.classic.taken import Taken
from lockfast.errors import Refused, Unreachable
from lockfast.flows.plain import Everywhere, Pipeline, checked, pause

if TYPE_CHECKING:
    from lockfast.flows.plain import Env, Flow, Words

DRIFT_S = 0.002  # servers count in ms, rounded on both sides


@dataclass(frozen=True)
class Redlock:
    """A lock on a majority of the client's servers.

    lease: seconds it lasts on each node. node_timeout: seconds that each node has to answer. at_once: ask all nodes
    at the same time; False asks them in turn. drift: the part of the lease by which clocks may differ in rate.
    acquire_timeout: seconds to go on trying, with a random pause of up to `retry_delay` between tries.
    """

    name: str
    _: KW_ONLY
    lease: float = 30.0
    node_timeout: float = 0.05
    at_once: bool = True
    drift: float = 0.01
    acquire_timeout: float = 10.0
    retry_delay: float = 0.2
    prefix: str = ""

    def __post_init__(self) -> None:
        check_name(self.name)
        check_lease(self.lease, "lease")
        check_delay(self.node_timeout, "node_timeout")
        if self.node_timeout >= self.lease:
            raise ValueError(f"node_timeout must be much shorter than the lease, got {self.node_timeout!r}")
        if isinstance(self.drift, bool) or not isinstance(self.drift, (int, float)) or not 0 <= self.drift < 1:
            raise ValueError(f"drift must be a part of the lease, from 0 to less than 1, got {self.drift!r}")
        check_wait(self.acquire_timeout, "acquire_timeout")
        check_delay(self.retry_delay, "retry_delay")
        check_prefix(self.prefix)

    @property
    def key(self) -> str:
        return self.prefix + self.name

    def acquire(self, env: Env) -> Flow[Taken | None]:
        """Take it; None when no majority was to be had within `acquire_timeout`. Raises Refused if a majority errs."""
        ends_at = env.now() + self.acquire_timeout
        attempts = 0
        while True:
            attempts += 1
            token = env.token()
            at, started = env.wall(), env.now()
            replies = yield from self._ask_nodes(
                ("SET", self.key, token, "NX", "PX", round(self.lease * 1000)), self.at_once, env
            )
            valid_s = self.lease - (env.now() - started) - (self.lease * self.drift + DRIFT_S)
            won = [reply for reply in replies if reply == b"OK"]
            if _is_majority(won, env) and valid_s > 0:
                return Taken(self.name, token, at, valid_s, attempts)
            yield from self._release(token, env)
            errors = [reply for reply in replies if _is_error_reply(reply)]
            if _is_majority(errors, env):
                checked(errors[0])
            if env.now() >= ends_at:
                return None
            yield pause(env.jitter() * self.retry_delay, ends_at, env)

    def release(self, taken: Taken, env: Env) -> Flow[bool]:
        """Give it back on all nodes. False when it was not ours any more on a majority of them."""
        return (yield from self._release(taken.token, env))

    def _release(self, token: str, env: Env) -> Flow[bool]:
        replies = yield from self._ask_nodes(release_command(self.key, token), True, env)
        return _is_majority([reply for reply in replies if reply == 1], env)

    def _ask_nodes(self, command: Words, at_once: bool, env: Env) -> Flow[list[Any]]:
        replies: list[Any]
        if at_once:
            replies = yield Everywhere(command, env.now() + self.node_timeout)
            return replies
        replies = []
        for server in range(env.servers):
            try:
                replies += yield Pipeline([command], env.now() + self.node_timeout, server=server)
            except (Unreachable, Refused) as failure:
                replies.append(failure)
        return replies


def _is_majority(nodes: list[Any], env: Env) -> bool:
    return len(nodes) > env.servers // 2


def _is_error_reply(reply: object) -> bool:
    return isinstance(reply, Exception) and not isinstance(reply, Unreachable)
