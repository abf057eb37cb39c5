"""A hold that is exported goes on in another client, once, with its name, fence, weight and lease."""

from __future__ import annotations

import base64
import json
from typing import TYPE_CHECKING

import pytest

from behaviour.queueing import PATIENCE_S, holder, wait_over, waiting
from behaviour.test_rwlock import Sides
from kit.servers import wait_until
from lockfast import LeaseLost, Misused, NotHeld, Unreachable

if TYPE_CHECKING:
    from kit.proxy import Proxy
    from kit.servers import Server
    from kit.sides import Side
    from lockfast.sync import Lockfast


def test_adopted_hold_is_the_same_hold_under_another_ticket(lf: Lockfast, other: Lockfast, name: str) -> None:
    grant = lf.lock(name, lease=20).acquire()
    adopted = other.adopt(grant.export())
    assert adopted.held
    assert (adopted.name, adopted.fence) == (name, grant.fence)
    assert adopted.ticket != grant.ticket
    assert 15 < adopted.remaining < 20
    assert holder(lf, name) == adopted.ticket
    adopted.release()
    assert holder(lf, name) is None


def test_exporter_has_nothing_left_to_hold_or_release(lf: Lockfast, other: Lockfast, name: str) -> None:
    grant = lf.lock(name).acquire()
    text = grant.export()
    assert not grant.held
    assert not grant.lost
    for call in (grant.check, grant.release, grant.extend, grant.export):
        with pytest.raises(NotHeld, match="handed on"):
            call()
    lf.close()  # gives back what this client holds: not this
    adopted = other.adopt(text)
    assert adopted.held


def test_block_whose_hold_was_exported_ends_without_releasing_it(lf: Lockfast, other: Lockfast, name: str) -> None:
    with lf.lock(name) as grant:
        text = grant.export()
    adopted = other.adopt(text)
    adopted.check()


def test_export_is_adopted_once(lf: Lockfast, other: Lockfast, name: str) -> None:
    text = lf.lock(name).acquire().export()
    adopted = other.adopt(text)
    for client in (lf, other):
        with pytest.raises(LeaseLost, match="adopted by another"):
            client.adopt(text)
    adopted.extend()
    assert adopted.held


def test_hold_that_nobody_adopts_ends_with_its_lease(lf: Lockfast, other: Lockfast, name: str) -> None:
    text = lf.lock(name, lease=0.1).acquire().export()
    with other.lock(name, wait=PATIENCE_S) as later:
        assert later.held
        with pytest.raises(LeaseLost):
            lf.adopt(text)
        later.check()


def test_renewals_of_the_exporter_end(lf: Lockfast, name: str) -> None:
    grant = lf.lock(name, lease=0.1).acquire()
    grant.export()
    wait_until(lambda: holder(lf, name) is None, what="the lease to end", timeout_s=PATIENCE_S)


def test_adopted_hold_is_renewed(lf: Lockfast, other: Lockfast, name: str) -> None:
    adopted = other.adopt(lf.lock(name, lease=0.2).acquire().export())
    before = adopted.deadline
    wait_until(lambda: adopted.deadline > before, what="a renewal", timeout_s=PATIENCE_S)
    assert adopted.held


def test_adopted_hold_that_is_not_renewed_is_lost_and_tells(lf: Lockfast, other: Lockfast, name: str) -> None:
    told: list[int] = []
    text = lf.lock(name, lease=0.1).acquire().export()
    adopted = other.adopt(text, renew=False, on_lost=lambda grant: told.append(grant.fence))
    wait_over(adopted)
    assert adopted.lost
    wait_until(lambda: told == [adopted.fence], what="on_lost", timeout_s=PATIENCE_S)


def test_queue_goes_on_behind_an_adopted_hold(side: Side, lf: Lockfast, other: Lockfast, name: str) -> None:
    grant = lf.lock(name).acquire()
    next_one = waiting(side, lf, lf.lock(name), name, wait=PATIENCE_S)
    adopted = other.adopt(grant.export())
    assert not next_one.done
    adopted.release()
    assert next_one.result().fence > adopted.fence


@pytest.mark.parametrize("alone", [True, False])
def test_shared_holds_are_handed_on_with_their_weight(lf: Lockfast, other: Lockfast, name: str, alone: bool) -> None:
    grant = lf.semaphore(name, limit=5, permits=2).acquire()
    second = None if alone else lf.semaphore(name, limit=5).acquire()
    adopted = other.adopt(grant.export())
    held = {one.ticket: (one.weight, one.fence) for one in lf.inspect(name).holders}
    assert held[adopted.ticket] == (2, grant.fence)
    assert len(held) == (1 if alone else 2)
    adopted.release()
    assert [one.ticket for one in lf.inspect(name).holders] == ([] if second is None else [second.ticket])


def test_writer_that_was_handed_on_can_become_a_reader(side: Side, lf: Lockfast, other: Lockfast, name: str) -> None:
    rw = Sides(side, name)
    adopted = other.adopt(rw.write(lf).acquire().export())
    adopted.downgrade()
    reader = rw.read(other).try_acquire()
    assert reader is not None
    assert adopted.held


def test_hold_can_be_handed_on_again_and_back(lf: Lockfast, other: Lockfast, name: str) -> None:
    first = lf.lock(name).acquire()
    back = lf.adopt(other.adopt(first.export()).export())
    assert back.fence == first.fence
    back.release()
    assert holder(lf, name) is None


def test_bound_of_the_whole_hold_goes_with_it(lf: Lockfast, other: Lockfast, name: str) -> None:
    grant = lf.lock(name, max_hold=30).acquire()
    adopted = other.adopt(grant.export())
    assert adopted.remaining <= 30
    adopted.extend(3600)
    assert adopted.remaining <= 30


def test_re_entrant_hold_is_not_handed_on(lf: Lockfast, name: str) -> None:
    with lf.rlock(name) as grant:
        with pytest.raises(Misused, match=r"lock\(\)"):
            grant.export()
        grant.check()


def test_lost_hold_is_not_exported(lf: Lockfast, other: Lockfast, name: str) -> None:
    grant = lf.lock(name).acquire()
    other.break_lock(name, reason="test")
    with pytest.raises(LeaseLost):
        grant.export()


def test_text_of_another_prefix_is_refused(side: Side, server: Server, lf: Lockfast, name: str) -> None:
    text = lf.lock(name).acquire().export()
    with pytest.raises(ValueError, match="'lockfast'"):
        side.client(server.url, prefix="elsewhere").adopt(text)
    assert lf.adopt(text).held, "nothing was lost"


def _with(text: str, place: int, value: object) -> str:
    head, _, body = text.partition(".")
    told = json.loads(base64.urlsafe_b64decode(body + "=="))
    told[place] = value
    return f"{head}.{base64.urlsafe_b64encode(json.dumps(told).encode()).decode()}"


def test_text_that_is_no_export_is_refused(lf: Lockfast, name: str) -> None:
    text = lf.lock(name).acquire().export()
    for other_type in (None, 7, b"lockfast1."):
        with pytest.raises(TypeError):
            lf.adopt(other_type)  # type: ignore[arg-type]
    damaged = ["", "x", "lockfast1.", "lockfast2." + text[10:], text[:-9], text + "A" * 9000]
    damaged += [_with(text, 1, []), _with(text, 2, "no kind"), _with(text, 5, -1), _with(text, 8, "7")]
    damaged += [_with(text, 9, "two words"), _with(text, 9, None), _with(text, 0, "{}")]
    damaged += [_with(text, 9, "é" * 10 + "FLUSHALL"), _with(text, 2, "löck")]
    for broken in damaged:
        with pytest.raises(ValueError, match="export"):
            lf.adopt(broken)
    assert lf.adopt(text).held, "nothing was lost"


def test_lost_reply_of_an_adoption_is_asked_for_again(side: Side, lf: Lockfast, proxy: Proxy, name: str) -> None:
    text = lf.lock(name).acquire().export()
    client = side.client(proxy.url)
    lost = proxy.when("EVALSHA", containing=name).drop_reply_and_cut()
    adopted = client.adopt(text)
    assert lost.hits == 1
    assert holder(lf, name) == adopted.ticket
    adopted.release()
    assert holder(lf, name) is None


def test_adoption_that_never_hears_gives_back_what_it_took(side: Side, lf: Lockfast, proxy: Proxy, name: str) -> None:
    text = lf.lock(name, lease=60).acquire().export()
    client = side.client(proxy.url, timeout=0.2)
    client.names()  # connected
    proxy.when("EVALSHA", containing=name, times=None).drop_reply()
    with pytest.raises(Unreachable):
        client.adopt(text)
    wait_until(lambda: holder(lf, name) is None, what="the undo to run", timeout_s=PATIENCE_S)


def test_hold_that_is_not_sure_is_given_back_when_its_export_is_not_answered(
    side: Side, lf: Lockfast, proxy: Proxy, name: str
) -> None:
    client = side.client(proxy.url, timeout=0.4)
    client.names()  # connected
    lost = proxy.when("EVALSHA", containing=name).drop_reply_and_cut()
    grant = client.lock(name, lease=60).acquire()
    assert lost.hits == 1, "a request of it may still be under way, as far as the client knows"
    silence = proxy.when("EVALSHA", containing=name, times=None).drop_reply()
    with pytest.raises(LeaseLost, match="export"):
        grant.export()
    silence.cancel()
    assert grant.lost
    wait_until(lambda: holder(lf, name) is None, what="it to be given back", timeout_s=PATIENCE_S)


def test_adoption_asks_for_no_more_than_what_is_left_of_the_bound(
    side: Side, proxy: Proxy, lf: Lockfast, name: str
) -> None:
    client = side.client(proxy.url)
    text = _with(lf.lock(name, lease=30, max_hold=60).acquire().export(), 7, 2000)
    client.adopt(text)
    (asked,) = proxy.seen("EVALSHA", containing=name)
    assert 1900 < int(asked.arguments[7]) < 2100


def test_break_takes_a_hold_that_is_adopted_in_this_moment(
    side: Side, lf: Lockfast, other: Lockfast, proxy: Proxy, name: str
) -> None:
    text = lf.lock(name).acquire().export()
    operator = side.client(proxy.url)
    late = proxy.when("EVALSHA", containing="stuck for hours").delay_request()
    breaks = side.spawn(operator.break_lock, name, reason="stuck for hours")
    late.wait_hit()
    adopted = other.adopt(text)
    late.let_go()
    breaks.result()
    assert holder(lf, name) is None
    with pytest.raises(LeaseLost):
        adopted.extend()
