"""A majority of independent servers, asyncio: a loop that stood still for longer than a node's time-out."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

import pytest

from kit.quorum import fleet_of
from lockfast.aio import Lockfast

if TYPE_CHECKING:
    from kit.quorum import Masters


@pytest.mark.slow
def test_loop_that_stood_still_takes_no_server_for_hung(five: Masters, name: str) -> None:
    """The replies beyond the majority lie in the sockets meanwhile. Of those who answered before, two hang now."""

    async def main() -> None:
        async with Lockfast(five.urls, node_timeout=0.5, timeout=5) as lf:
            lock = lf.lock(name)
            fleet = fleet_of(lf)
            for _ in range(300):
                async with lock:
                    pass
                answered = [place for place, node in enumerate(fleet.nodes) if node.asked_at == float("inf")]
                if len(answered) == 3:
                    break
                await asyncio.sleep(0.01)
            else:
                pytest.fail("no reply was late in 300 rounds: this shows nothing")
            time.sleep(0.6)
            for place in answered[:2]:
                five[place].pause()
            started = time.monotonic()
            grant = await lock.acquire()
            took_s = time.monotonic() - started
            five.heal()
            await grant.release()
            assert took_s < 0.4, "it waited for servers that hang, and not for those that answer"

    asyncio.run(main())
