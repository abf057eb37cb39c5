"""Servers that cannot work together are refused, and taken again once that was mended."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from kit.servers import wait_until
from lockfast.clock import now
from lockfast.errors import LockfastError, Refused

if TYPE_CHECKING:
    from kit.quorum import Masters
    from kit.sides import Side
    from topologies.conftest import Proxied

pytestmark = pytest.mark.slow


def refusal(lf: Any, name: str) -> str:
    """The code by which it comes to be refused: servers that fit may be there first, and are a majority."""
    codes: list[str] = []

    def is_refused() -> bool:
        try:
            lf.lock(name, lease=5).acquire(wait=1).release()
        except Refused as error:
            codes.append(error.code)
        return bool(codes)

    wait_until(is_refused)
    return codes[0]


def asked_again(grant: Any) -> int:
    """How many hold it after those that were missing were asked."""
    grant.extend()
    return len(grant.nodes)


def works_again(lf: Any, name: str) -> bool:
    try:
        with lf.lock(name, lease=5, wait=1):
            return True
    except LockfastError:
        return False


def list_twice(side: Side, proxied: Proxied, name: str) -> tuple[Any, int, int]:
    """A client whose first and third address lead to one server; the address that it took first, and the other."""
    proxied.proxies[2].server = proxied.masters[0]
    lf = side.client(proxied.urls)
    assert refusal(lf, name) == "SAME"
    asked = [place for place in (0, 2) if proxied.proxies[place].seen("EVALSHA")]
    assert len(asked) < 2, "over the address that is refused nothing is asked"
    refused = next(place for place in (2, 0) if place not in asked)
    return lf, 2 - refused, refused


def test_a_server_that_was_listed_twice_is_taken_when_it_is_another_one(
    side: Side, proxied_trio: Proxied, name: str
) -> None:
    lf, _, refused = list_twice(side, proxied_trio, name)
    proxied_trio.proxies[refused].server = proxied_trio.masters[2]
    later = now() + 1.1
    wait_until(lambda: now() > later, what="what was heard is not believed for ever")
    with lf.lock(name, wait=0) as grant:  # one call is enough
        wait_until(lambda: asked_again(grant) == 3)
    proxied_trio.masters.wait_free(name)


def test_an_address_stays_refused_while_the_other_one_may_have_connections_to_the_same_server(
    side: Side, proxied_trio: Proxied, name: str
) -> None:
    """The other address leads elsewhere now, for new connections: over an old one the server would still vote twice."""
    lf, taken, _ = list_twice(side, proxied_trio, name)
    proxied_trio.proxies[taken].server = proxied_trio.masters[2]
    until = now() + 1.5
    while now() < until:
        with pytest.raises(Refused, match="one and the same server"):
            lf.lock(name).acquire(wait=0)


@pytest.mark.parametrize("chosen", [True, False])
def test_a_max_lease_that_was_put_right_is_taken(side: Side, trio: Masters, short: str, chosen: bool) -> None:
    trio.mark(short)
    for place, stored_ms in enumerate((7000, 7000, 8000)):
        trio[place].command("SET", f"{short}:quorum", stored_ms)
    lf = side.client(trio.urls, prefix=short, **({"max_lease": 7} if chosen else {}))
    assert refusal(lf, "x") == "MAXLEASE"
    trio[2].command("SET", f"{short}:quorum", 7000)
    wait_until(lambda: works_again(lf, "x"))
    with pytest.raises(ValueError, match="max_lease of this quorum is 7"):
        lf.lock("x", lease=8).acquire(wait=1)
    trio.wait_free("x", short)
