"""The short way of an acquire that is granted at once, against the flow that it stands for."""

from __future__ import annotations

from typing import Any

import pytest

from lockfast.flows import admission, asks
from lockfast.flows.effects import Call, Env
from lockfast.names import make

LEASE_MS = 1000
TICKET = "0123456789abcdef01234567"


def answered(reply: object, took_s: float) -> tuple[Any, Env, Env]:
    """What the flow returns when its first request took so long and got this reply; None if it goes on to ask more.

    Also the memory of a client that ran the flow, and of one that looked at the reply by `at_once`.
    """
    clock = [100.0]
    ask = asks.lock(make("lockfast", ("x",)), LEASE_MS / 1000)
    flow_env, quick_env = (Env(lambda: clock[0], lambda: 0.0, 2.0) for _ in range(2))
    flow = admission.acquire(ask, TICKET, None, flow_env)
    first = flow.send(None)
    assert isinstance(first, Call)
    assert first.args == (0, TICKET)
    clock[0] += took_s
    whole: Any = None
    try:
        flow.send(reply)
    except StopIteration as stop:
        whole = stop.value
    finally:
        flow.close()
    assert admission.at_once(ask, reply, 100.0, quick_env) == whole
    return whole, flow_env, quick_env


@pytest.mark.parametrize("took_s", [0.0, 0.1, 0.3, 0.48])
def test_grant_at_once_is_what_the_flow_returns(took_s: float) -> None:
    whole, flow_env, quick_env = answered(7, took_s)
    assert whole == (7, 100.0 + 0.99 - 0.002, False)
    assert dict(flow_env.seen) == dict(quick_env.seen) == {"x": 7}


@pytest.mark.parametrize("took_s", [0.5, 0.6, 0.98, 1.5])
def test_grant_with_little_of_its_lease_left_is_left_to_the_flow(took_s: float) -> None:
    whole, _, quick_env = answered(7, took_s)
    assert whole is None
    assert not quick_env.seen


@pytest.mark.parametrize("reply", [[0, 7, 100, 1]])
def test_any_other_answer_is_left_to_the_flow(reply: list[int]) -> None:
    assert answered(reply, 0.0)[0] is None
