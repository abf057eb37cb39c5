"""What a client of `classic` can be handed: the shapes that the recipes have in common."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from lockfast import endpoints

if TYPE_CHECKING:
    from collections.abc import Callable

    from lockfast.classic.taken import Taken, Updated
    from lockfast.endpoints import Endpoint
    from lockfast.flows.plain import Env, Flow, Word


class Takes(Protocol):
    """A lock or a semaphore."""

    @property
    def name(self) -> str: ...

    def acquire(self, env: Env) -> Flow[Taken | None]: ...

    def release(self, taken: Taken, env: Env) -> Flow[bool]: ...


class Refreshes(Protocol):
    """A semaphore whose holders may stay."""

    def refresh(self, taken: Taken, env: Env) -> Flow[bool]: ...


class Updates(Protocol):
    """A way to change one value that others change, too."""

    def update(self, change: Callable[[bytes | None], Word | None], env: Env) -> Flow[Updated | None]: ...


def find_servers(server: object) -> list[Endpoint]:
    """The endpoints that a caller means: one, or those of a list. Raises TypeError or ValueError."""
    if not isinstance(server, (list, tuple)):
        return [endpoints.find(server)]
    if not server:
        raise ValueError("the list of servers is empty")
    found = [endpoints.find(_named(one)) for one in server]
    addresses = [endpoint.where for endpoint in found]
    for address in addresses:
        if addresses.count(address) > 1:
            raise ValueError(f"{address} is named twice: its vote would count twice")
    return found


def check_servers(recipe: object, env: Env) -> None:
    """Refuse a recipe for one server on a client of several: which of them would be meant?"""
    from lockfast.classic.redlock import Redlock

    if env.servers > 1 and not isinstance(recipe, Redlock):
        raise ValueError(f"{type(recipe).__name__} works on one server, and this client has {env.servers}")


def _named(server: object) -> object:
    if server is None:
        raise TypeError("a list of servers must name each of them, got None")
    return server
