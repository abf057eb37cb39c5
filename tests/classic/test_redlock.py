"""Row 12: Redlock on five servers, some of them hung, gone, or taken; and its arithmetic step by step."""

from __future__ import annotations

import socket
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest

from kit.servers import wait_until
from lockfast import Refused, Unreachable
from lockfast.classic import Client, Redlock, SimpleLock, Taken
from lockfast.flows.effects import Sleep
from lockfast.flows.plain import Env, Everywhere, Pipeline

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from kit.proxy import ProxyFor
    from kit.servers import FreshServer, Server

NODE_TIMEOUT_S = 0.15
SLACK_S = 0.5  # what a busy machine may add to times that are a matter of milliseconds

in_turn_and_at_once = pytest.mark.parametrize("at_once", [False, True], ids=["in turn", "at once"])


def values(nodes: list[Server], key: str) -> list[str | None]:
    found = [node.command("GET", key) for node in nodes]
    return [value and value.decode() for value in found]


def urls(nodes: list[Server]) -> list[str]:
    return [node.url for node in nodes]


@in_turn_and_at_once
def test_same_value_is_on_all_nodes_and_the_validity_is_what_is_left(
    at_once: bool, make_client: Callable[..., Client], nodes: list[Server], name: str
) -> None:
    client = make_client(urls(nodes))
    lock = Redlock(name, lease=10, node_timeout=1, at_once=at_once, acquire_timeout=0)
    taken = client.acquire(lock)
    assert taken is not None
    assert values(nodes, name) == [taken.token] * 5
    assert all(9000 < node.command("PTTL", name) <= 10_000 for node in nodes)
    assert 9 < taken.valid_s < 10 - 10 * 0.01 - 0.002
    assert client.release(lock, taken) is True
    assert values(nodes, name) == [None] * 5
    assert client.release(lock, taken) is False


@in_turn_and_at_once
def test_second_client_is_refused_and_leaves_the_first_ones_lock_alone(
    at_once: bool, make_client: Callable[..., Client], nodes: list[Server], name: str
) -> None:
    lock = Redlock(name, node_timeout=1, at_once=at_once, acquire_timeout=0)
    first = make_client(urls(nodes)).acquire(lock)
    assert first is not None
    assert make_client(urls(nodes)).acquire(lock) is None
    assert values(nodes, name) == [first.token] * 5


@in_turn_and_at_once
@pytest.mark.parametrize("taken_elsewhere", [2, 3])
def test_majority_decides_and_the_loser_gives_back_what_it_got(
    at_once: bool, taken_elsewhere: int, make_client: Callable[..., Client], nodes: list[Server], name: str
) -> None:
    for node in nodes[:taken_elsewhere]:
        node.command("SET", name, "rival", "PX", 60_000)
    client = make_client(urls(nodes))
    lock = Redlock(name, node_timeout=1, at_once=at_once, acquire_timeout=0)
    taken = client.acquire(lock)
    if taken_elsewhere == 3:
        assert taken is None
        assert values(nodes, name) == ["rival", "rival", "rival", None, None]
    else:
        assert taken is not None
        assert client.release(lock, taken) is True
        assert values(nodes, name) == ["rival", "rival", None, None, None]


@in_turn_and_at_once
@pytest.mark.parametrize("known", [False, True], ids=["new client", "connected client"])
def test_two_hung_nodes_cost_their_time_out_and_hear_of_the_release_later(
    at_once: bool, known: bool, make_client: Callable[..., Client], nodes: list[Server], name: str
) -> None:
    client = make_client(urls(nodes))
    lock = Redlock(name, at_once=at_once, node_timeout=NODE_TIMEOUT_S, acquire_timeout=0)
    if known:
        assert client.release(lock, got(client.acquire(lock)))
    for node in (nodes[0], nodes[3]):
        node.reset_stats()
        node.pause()
    started = time.monotonic()
    taken = got(client.acquire(lock))
    took_s = time.monotonic() - started
    asked = 1 if at_once else 2
    assert asked * NODE_TIMEOUT_S <= took_s + 0.002
    assert took_s < asked * NODE_TIMEOUT_S + SLACK_S
    assert 29 < taken.valid_s < 30 - asked * NODE_TIMEOUT_S
    assert values([nodes[i] for i in (1, 2, 4)], name) == [taken.token] * 3
    started = time.monotonic()
    assert client.release(lock, taken) is True
    assert time.monotonic() - started < NODE_TIMEOUT_S + SLACK_S
    for node in nodes:
        node.resume()
    # What was written to them runs now: the SET, and behind it the release.
    for node in (nodes[0], nodes[3]):
        wait_until(lambda node=node: node.stats().get("eval"), what="the release has arrived")  # type: ignore[misc]
    assert values(nodes, name) == [None] * 5
    # The connections that did not answer were dropped, not kept for the next time. One that was still being made may
    # stand by now: nothing was asked on it.
    for node in (nodes[0], nodes[3]):
        wait_until(lambda node=node: node.command("CLIENT", "LIST").count(b"name=lockfast") <= (not known))  # type: ignore[misc]
    assert client.release(lock, got(client.acquire(lock)))
    assert values(nodes, name) == [None] * 5


@pytest.fixture
def silent_url() -> Iterator[str]:
    """An address that does not even answer a SYN: its queue of connections is full, and nobody takes them."""
    with ExitStack() as sockets:
        listener = sockets.enter_context(socket.socket())
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        for _ in range(3):
            filler = sockets.enter_context(socket.socket())
            filler.setblocking(False)
            filler.connect_ex(listener.getsockname())
        yield f"redis://127.0.0.1:{listener.getsockname()[1]}/0"


@in_turn_and_at_once
def test_node_that_cannot_be_connected_to_leaves_the_others_their_time(
    at_once: bool,
    make_client: Callable[..., Client],
    proxy_for: ProxyFor,
    silent_url: str,
    nodes: list[Server],
    name: str,
) -> None:
    far = [proxy_for(node) for node in nodes[:2]]
    for proxy in far:
        proxy.when("SET", times=None).delay_reply(0.03)
    client = make_client([silent_url, *(proxy.url for proxy in far)])
    lock = Redlock(name, at_once=at_once, node_timeout=NODE_TIMEOUT_S, acquire_timeout=0)
    started = time.monotonic()
    taken = got(client.acquire(lock))
    assert NODE_TIMEOUT_S <= time.monotonic() - started + 0.002 < NODE_TIMEOUT_S + SLACK_S
    assert values(nodes[:2], name) == [taken.token] * 2
    assert client.release(lock, taken) is True
    assert values(nodes[:2], name) == [None, None]


@in_turn_and_at_once
def test_three_hung_nodes_make_it_fail_within_its_time(
    at_once: bool, make_client: Callable[..., Client], nodes: list[Server], name: str
) -> None:
    client = make_client(urls(nodes))
    lock = Redlock(name, at_once=at_once, node_timeout=0.05, acquire_timeout=0.2, retry_delay=0.02)
    for node in nodes[:3]:
        node.pause()
    started = time.monotonic()
    assert client.acquire(lock) is None
    # A last try may begin just before the end: three time-outs in turn, and one for the release.
    assert 0.2 <= time.monotonic() - started < 0.2 + 4 * 0.05 + SLACK_S
    assert values(nodes[3:], name) == [None, None]


@in_turn_and_at_once
def test_nodes_that_are_gone_cost_nothing(
    at_once: bool, make_client: Callable[..., Client], fresh_server: FreshServer, name: str
) -> None:
    nodes = [fresh_server() for _ in range(3)]
    client = make_client(urls(nodes))
    lock = Redlock(name, at_once=at_once, node_timeout=5, acquire_timeout=0)
    assert client.release(lock, got(client.acquire(lock)))
    nodes[1].kill9()
    started = time.monotonic()
    taken = got(client.acquire(lock))
    assert time.monotonic() - started < 2
    assert client.release(lock, taken)
    nodes[2].kill9()
    assert client.acquire(lock) is None
    assert values(nodes[:1], name) == [None]
    nodes[1].start()
    assert client.release(lock, got(client.acquire(lock)))


@in_turn_and_at_once
def test_majority_that_came_too_late_is_given_back(
    at_once: bool, make_client: Callable[..., Client], nodes: list[Server], name: str
) -> None:
    client = make_client(urls(nodes))
    nodes[4].pause()
    assert client.acquire(Redlock(name, at_once=at_once, lease=0.101, node_timeout=0.1, acquire_timeout=0)) is None
    assert values(nodes[:4], name) == [None] * 4


def test_account_that_a_majority_turns_down_is_an_error_and_not_a_lock_that_is_busy(
    make_client: Callable[..., Client], fresh_server: FreshServer, name: str
) -> None:
    closed = [fresh_server(requirepass="secret"), fresh_server(requirepass="secret")]
    wrong = [node.url.replace("secret", "guess") for node in closed]
    client = make_client([*wrong, fresh_server().url])
    for at_once in (False, True):
        with pytest.raises(Refused, match="password"):
            client.acquire(Redlock(name, node_timeout=1, at_once=at_once))


def test_works_on_one_server_and_others_do_not_work_on_several(
    make_client: Callable[..., Client], nodes: list[Server], name: str
) -> None:
    one = make_client(nodes[0].url)
    assert one.release(Redlock(name), got(one.acquire(Redlock(name, node_timeout=1))))
    with pytest.raises(ValueError, match="SimpleLock works on one server, and this client has 5"):
        make_client(urls(nodes)).acquire(SimpleLock(name))


# Step by step, without a server


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def now(self) -> float:
        return self.now_s


def got(taken: Taken | None) -> Taken:
    assert taken is not None
    return taken


def env_of(clock: Clock, servers: int = 5) -> Env:
    return Env(clock.now, lambda: 5000.0, lambda: "token", lambda: 0.5, servers)


def finished(flow: Any, answer: Any) -> Any:
    with pytest.raises(StopIteration) as stop:
        flow.send(answer)
    return stop.value.value


def test_validity_is_lease_less_elapsed_less_drift() -> None:
    clock = Clock()
    flow: Any = Redlock("x", lease=10, drift=0.02).acquire(env_of(clock))
    effect = next(flow)
    assert isinstance(effect, Everywhere)
    assert effect.command == ("SET", "x", "token", "NX", "PX", 10_000)
    assert effect.by == pytest.approx(100.05)
    clock.now_s += 3
    taken = finished(flow, [b"OK", None, b"OK", Unreachable("hung"), b"OK"])
    assert taken.valid_s == pytest.approx(10 - 3 - 0.2 - 0.002)
    assert (taken.at, taken.token, taken.attempts) == (5000.0, "token", 1)


def test_in_turn_goes_on_after_a_failure_and_asks_every_node() -> None:
    clock = Clock()
    flow: Any = Redlock("x", at_once=False).acquire(env_of(clock, 3))
    asked: list[Any] = []
    effect = next(flow)
    for answer in (Unreachable("hung"), [b"OK"]):
        assert isinstance(effect, Pipeline)
        asked.append((effect.server, effect.by - clock.now_s))
        clock.now_s += 0.01
        effect = flow.throw(answer) if isinstance(answer, Unreachable) else flow.send(answer)
    asked.append((effect.server, effect.by - clock.now_s))
    assert asked == [(i, pytest.approx(0.05)) for i in range(3)]
    assert finished(flow, [b"OK"]).valid_s == pytest.approx(30 - 0.02 - 0.3 - 0.002)


def test_loser_releases_everywhere_then_waits_a_random_time_and_tries_with_a_new_value() -> None:
    clock = Clock()
    tokens = iter(["one", "two"])
    env = Env(clock.now, lambda: 0.0, lambda: next(tokens), lambda: 0.5, 5)
    flow: Any = Redlock("x", retry_delay=0.4).acquire(env)
    assert next(flow).command[2] == "one"
    released = flow.send([b"OK", b"OK", None, None, Unreachable("hung")])
    assert isinstance(released, Everywhere)
    assert released.command[-2:] == ("x", "one")
    paused = flow.send([1, 1, 0, 0, 0])
    assert isinstance(paused, Sleep)
    assert paused.delay_s == pytest.approx(0.2)
    assert flow.send(None).command[2] == "two"
