"""A transaction as a caller of the library has it: what sync/ and aio/ do for its flow."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lockfast import names
from lockfast.flows import asks, several, transaction
from lockfast.flows.group import Asks
from lockfast.sim.driving import Run
from lockfast.sim.several import Holder
from lockfast.transactions import lock_name

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Sequence

    from lockfast.flows.attempt import Attempt
    from lockfast.sim.client import Client

    Call = Callable[[Any], Generator[Any, Any, Any]]


class Acts:
    """See flows/transaction.py. body: the caller's function, which yields what it does."""

    def __init__(
        self,
        client: Client,
        prefix: str,
        keys: Sequence[str | bytes],
        body: Callable[[Attempt], Generator[Any, Any, Any]],
    ) -> None:
        self._client = client
        self._body = body
        locks = [asks.lock(names.make(prefix, lock_name(key)), transaction.LEASE_S) for key in keys]
        self._asks = Asks(locks)

    def body(self, attempt: Attempt) -> Call:
        return lambda _: self._body(attempt)

    def take(self, wait_s: float | None) -> Call:
        def take(_: Any) -> Generator[Any, Any, Any]:
            client = self._client
            return (yield Run(several.acquire(self._asks, wait_s, client.env, Holder(client))))

        return take

    def give_back(self, grants: Any) -> Call:
        def give(_: Any) -> Generator[Any, Any, None]:
            yield Run(several.release(grants, self._client.keeper, self._client.env, self._asks))

        return give
