"""A majority of independent servers: what a release says that had to be sent twice."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from kit.quorum import Masters
    from kit.sides import Side


@pytest.mark.slow
def test_release_that_was_answered_late_is_no_loss(side: Side, five: Masters, name: str) -> None:
    """Asked once more after a node's time-out, the servers find nothing: the first request has taken the votes back."""
    lf = side.client(five.urls)
    grant = lf.lock(name).acquire()
    for server in five:
        server.pause()
    thawing = threading.Timer(0.2, five.heal)
    thawing.start()
    try:
        grant.release()  # raises no LeaseLost
    finally:
        thawing.join()
    assert not grant.lost
    five.wait_free(name)
