"""Change the limit of a name that may be in use."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lockfast.errors import Unreachable
from lockfast.flows.effects import Call, backoff
from lockfast.flows.scripts import RESIZE, Bound

if TYPE_CHECKING:
    from lockfast.flows.effects import Env, Flow
    from lockfast.names import Name


def resize(name: Name, kind: str, limit: int, env: Env) -> Flow[None]:
    """Set the limit. Done twice it changes nothing more, so it is tried again within the client's time-out."""
    gives_up_at = env.now() + env.timeout_s
    failures = 0
    while True:
        try:
            yield Call(Bound(RESIZE, name, (kind,)), (limit,), min(env.now() + env.attempt_s, gives_up_at))
        except Unreachable:
            failures += 1
            if env.now() >= gives_up_at:
                raise
            yield backoff(failures, gives_up_at, env)
            continue
        return
