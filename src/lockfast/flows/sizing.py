"""Change the limit of a name that may be in use."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lockfast.flows.scripts import RESIZE, Bound
from lockfast.flows.watching import insist

if TYPE_CHECKING:
    from lockfast.flows.effects import Env, Flow
    from lockfast.names import Name


def resize(name: Name, kind: str, limit: int, env: Env) -> Flow[None]:
    """Set the limit. Done twice it changes nothing more, so it is tried again within the client's time-out."""
    yield from insist(Bound(RESIZE, name, (kind,)), (limit,), env.now() + env.timeout_s, env)
