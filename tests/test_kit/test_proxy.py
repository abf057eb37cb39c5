"""Each rule of the proxy does to the named message what it says, and to no other."""

from __future__ import annotations

import socket
import threading
import time
from typing import TYPE_CHECKING

import pytest

from kit.leaks import no_leaks
from kit.proxy import Proxy
from kit.resp import ServerError, Wire, pack
from kit.servers import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kit.proxy import ProxyFor
    from kit.servers import FreshServer, Server

SHORT_S = 0.05  # How long silence must last to be called silence.


@pytest.fixture
def wire(proxy: Proxy) -> Iterator[Wire]:
    with Wire(("127.0.0.1", proxy.port)) as wire:
        yield wire


def assert_silent(wire: Wire) -> None:
    """Nothing comes, and the connection is still open."""
    wire.socket.settimeout(SHORT_S)
    with pytest.raises(TimeoutError):
        wire.read()
    wire.socket.settimeout(5)


def assert_ended(wire: Wire, *, reset: bool) -> None:
    with pytest.raises(ConnectionResetError if reset else ConnectionError) as caught:
        wire.read()
    assert isinstance(caught.value, ConnectionResetError) == reset


# Without faults


def test_bytes_pass_unchanged_in_both_directions(wire: Wire) -> None:
    value = bytes(range(256)) * 300 + b"\r\n*3\r\n$-1\r\n"
    assert wire.call("SET", "key", value) == "OK"
    assert wire.call("GET", "key") == value
    wire.send("GET", "key")
    assert wire.read_frame().raw == b"$%d\r\n%s\r\n" % (len(value), value)


def test_pipelined_and_inline_requests_are_told_apart(wire: Wire, proxy: Proxy) -> None:
    wire.socket.sendall(pack("SET", "key", "1") + b"PING\r\n\r\n" + pack("INCR", "key") + b"GET key\r\n")
    assert [wire.read() for _ in range(4)] == ["OK", "PONG", 2, b"2"]
    assert [request.command for request in proxy.requests] == ["SET", "PING", "INCR", "GET"]
    assert [request.reply for request in proxy.requests] == ["OK", "PONG", 2, b"2"]


def test_request_cut_into_single_bytes_arrives_whole(wire: Wire) -> None:
    for byte in pack("SET", "key", "value"):
        wire.socket.sendall(bytes([byte]))
    assert wire.read() == "OK"


def test_nested_error_and_null_replies_are_one_reply_each(wire: Wire, proxy: Proxy) -> None:
    nested = "return {1, {'a', {}}, false}"
    wire.socket.sendall(pack("EVAL", nested, 0) + pack("NOSUCH") + pack("GET", "none") + pack("LRANGE", "x", 0, -1))
    replies = [wire.read() for _ in range(4)]
    assert replies[0] == [1, [b"a", []], None]
    assert isinstance(replies[1], ServerError)
    assert replies[2:] == [None, []]
    assert [request.answered for request in proxy.requests] == [True] * 4


def test_resp3_replies_and_pushes_pass(wire: Wire, server: Server) -> None:
    assert wire.call("HELLO", 3)[b"proto"] == 3
    wire.call("HSET", "hash", "a", 1)
    assert wire.call("HGETALL", "hash") == {b"a": b"1"}
    assert wire.call("SUBSCRIBE", "news") == [b"subscribe", b"news", 1]
    server.command("PUBLISH", "news", "one")
    assert wire.read() == [b"message", b"news", b"one"]
    wire.socket.sendall(pack("GET", "none") + pack("PING"))
    assert [wire.read(), wire.read()] == [None, "PONG"]


def test_requests_are_recorded_with_arguments_and_connection(proxy: Proxy, wire: Wire) -> None:
    wire.call("set", "key", "value")
    with Wire(("127.0.0.1", proxy.port)) as other:
        other.call("GET", "key")
    first, second = proxy.requests
    assert (first.command, first.arguments) == ("SET", (b"key", b"value"))
    assert first.connection != second.connection
    assert proxy.accepted == 2
    assert [request.number for request in proxy.seen(containing="key")] == [0, 1]
    assert proxy.seen("GET", since=1) == [second]


def test_connections_are_counted_while_open(proxy: Proxy, server: Server) -> None:
    with Wire(("127.0.0.1", proxy.port)) as one, Wire(("127.0.0.1", proxy.port)) as two:
        one.call("PING")
        two.call("PING")
        assert proxy.connections == 2
    proxy.wait_until(lambda: proxy.connections == 0)
    wait_until(lambda: server.connections() == 0)


def test_wait_for_returns_when_the_request_comes_and_not_before(proxy: Proxy, wire: Wire) -> None:
    with pytest.raises(TimeoutError, match="last requests: none"):
        proxy.wait_for("INCR", timeout_s=SHORT_S)
    later = threading.Timer(SHORT_S, lambda: [wire.call("INCR", "key"), wire.call("INCR", "key")])
    later.start()
    assert proxy.wait_for(lambda request: request.reply == 2).number == 1
    assert proxy.wait_for("INCR", count=2).number == 1
    later.join()


def test_half_closed_client_still_gets_its_replies(wire: Wire, proxy: Proxy) -> None:
    held = proxy.when("GET").delay_reply()
    wire.send("GET", "key")
    wire.socket.shutdown(socket.SHUT_WR)
    held.wait_hit()
    held.let_go()
    assert wire.read() is None
    assert_ended(wire, reset=False)


def test_blocked_command_is_answered_when_it_ends(wire: Wire, proxy: Proxy, server: Server) -> None:
    wire.send("BLPOP", "list", 5)
    proxy.wait_for("BLPOP")
    server.command("RPUSH", "list", "x")
    assert wire.read() == [b"list", b"x"]


def test_monitor_stream_passes_unparsed(wire: Wire, proxy: Proxy, server: Server) -> None:
    assert wire.call("MONITOR") == "OK"
    server.command("GET", "watched")
    assert "watched" in wire.read()


# Rules


def test_drop_reply_runs_the_request_and_leaves_the_client_alone(wire: Wire, proxy: Proxy, server: Server) -> None:
    rule = proxy.when("INCR").drop_reply()
    wire.send("INCR", "key")
    rule.wait_hit()
    assert server.command("GET", "key") == b"1"
    wire.send("INCR", "key")  # The stream has a hole: later requests run, nothing more is heard.
    proxy.wait_for(lambda request: request.reply == 2)
    assert_silent(wire)


def test_drop_reply_hides_the_end_of_the_server_too(fresh_server: FreshServer, proxy_for: ProxyFor) -> None:
    server = fresh_server()
    proxy = proxy_for(server)
    with Wire(("127.0.0.1", proxy.port)) as wire:
        rule = proxy.when("INCR").drop_reply()
        wire.send("INCR", "key")
        rule.wait_hit()
        server.kill9()
        assert_silent(wire)
    proxy.wait_until(lambda: proxy.connections == 0)


@pytest.mark.parametrize("reset", [True, False])
def test_drop_reply_and_cut_runs_it_and_cuts(wire: Wire, proxy: Proxy, server: Server, reset: bool) -> None:
    rule = proxy.when("INCR").drop_reply_and_cut(reset=reset)
    wire.send("INCR", "key")
    assert_ended(wire, reset=reset)
    assert rule.hits == 1
    assert server.command("GET", "key") == b"1"


@pytest.mark.parametrize("reset", [True, False])
def test_cut_request_never_reaches_the_server(wire: Wire, proxy: Proxy, server: Server, reset: bool) -> None:
    proxy.when("INCR").cut_request(reset=reset)
    wire.send("INCR", "key")
    assert_ended(wire, reset=reset)
    wait_until(lambda: server.connections() == 0)
    assert server.command("GET", "key") is None


def test_what_stands_before_a_cut_request_still_runs(wire: Wire, proxy: Proxy, server: Server) -> None:
    proxy.when("INCR", nth=3).cut_request()
    wire.socket.sendall(pack("INCR", "key") * 5)
    wait_until(lambda: server.connections() == 0)
    assert server.command("GET", "key") == b"2"


def test_swallowed_request_never_reaches_the_server_nor_does_what_follows(
    wire: Wire, proxy: Proxy, server: Server
) -> None:
    rule = proxy.when("INCR").swallow_request()
    wire.send("GET", "key")
    wire.send("INCR", "key")
    wire.send("INCR", "key")
    rule.wait_hit()
    assert wire.read() is None  # The answer to what went before it.
    assert_silent(wire)
    assert server.command("GET", "key") is None
    with Wire(("127.0.0.1", proxy.port)) as other:
        assert other.call("INCR", "key") == 1


def test_delayed_reply_comes_late_though_it_ran_at_once(wire: Wire, proxy: Proxy, server: Server) -> None:
    rule = proxy.when("INCR").delay_reply(0.1)
    start = time.monotonic()
    wire.send("INCR", "key")
    rule.wait_hit()
    assert server.command("GET", "key") == b"1"
    assert wire.read() == 1
    assert 0.1 <= time.monotonic() - start < 1


def test_held_reply_comes_when_let_go_with_what_waits_behind_it(wire: Wire, proxy: Proxy) -> None:
    rule = proxy.when("INCR").delay_reply()
    wire.socket.sendall(pack("INCR", "key") + pack("GET", "key"))
    rule.wait_hit()
    assert_silent(wire)
    rule.let_go()
    assert [wire.read(), wire.read()] == [1, b"1"]


def test_delayed_request_runs_late(wire: Wire, proxy: Proxy, server: Server) -> None:
    proxy.when("INCR").delay_request(0.1)
    start = time.monotonic()
    wire.socket.sendall(pack("PING") + pack("INCR", "key") + pack("GET", "key"))
    assert wire.read() == "PONG"
    assert server.command("GET", "key") is None
    assert [wire.read(), wire.read()] == [1, b"1"]
    assert time.monotonic() - start >= 0.1


def test_held_request_still_runs_after_its_client_closed(proxy: Proxy, server: Server) -> None:
    rule = proxy.when("INCR").delay_request()
    with Wire(("127.0.0.1", proxy.port)) as wire:
        wire.send("INCR", "key")
        rule.wait_hit()
    assert server.command("GET", "key") is None
    rule.let_go()
    wait_until(lambda: server.command("GET", "key") == b"1")
    wait_until(lambda: server.connections() == 0)


def test_injected_reply_takes_its_turn_unseen_by_the_server(wire: Wire, proxy: Proxy, server: Server) -> None:
    proxy.when("INCR", nth=2).inject_reply(b"-MISCONF disk full\r\n")
    wire.socket.sendall(pack("INCR", "key") * 3)
    first, second, third = wire.read(), wire.read(), wire.read()
    assert (first, str(second), third) == (1, "MISCONF disk full", 2)
    assert server.command("GET", "key") == b"2"


def test_injected_reply_is_given_at_once_when_nothing_is_before_it(wire: Wire, proxy: Proxy) -> None:
    proxy.when("PING").inject_reply(b"+FORGED\r\n")
    assert wire.call("PING") == "FORGED"
    assert wire.call("PING") == "PONG"


def test_rule_strikes_the_named_request_only(wire: Wire, proxy: Proxy) -> None:
    forged = b"+FORGED\r\n"
    proxy.when("GET", containing="b", nth=2, times=2).inject_reply(forged)
    keys = ["b", "a", "b", "a", "b", "b"]
    assert [wire.call("GET", key) for key in keys] == [None, None, "FORGED", None, "FORGED", None]
    assert wire.call("SET", "b", "b") == "OK"


def test_rule_can_be_a_function_and_endless_and_cancelled(wire: Wire, proxy: Proxy) -> None:
    rule = proxy.when(lambda request: request.arguments == (b"key",), times=None).inject_reply(b":7\r\n")
    assert [wire.call("GET", "key") for _ in range(5)] == [7] * 5
    assert rule.hits == 5
    rule.cancel()
    assert wire.call("GET", "key") is None


def test_first_rule_that_takes_a_request_keeps_it(wire: Wire, proxy: Proxy) -> None:
    proxy.when("GET").inject_reply(b":1\r\n")
    proxy.when("GET").inject_reply(b":2\r\n")
    assert [wire.call("GET", "key") for _ in range(3)] == [1, 2, None]


def test_failing_match_function_is_reported_at_close(server: Server) -> None:
    def fail(_: object) -> bool:
        raise LookupError("mistake in a test")

    proxy = Proxy(server)
    proxy.when(fail).drop_reply()
    with Wire(("127.0.0.1", proxy.port)) as wire, pytest.raises(ConnectionError):
        wire.call("PING")
    with pytest.raises(RuntimeError, match="the proxy failed"):
        proxy.close()


# Subscriptions


def test_pushes_do_not_disturb_the_matching_of_replies(wire: Wire, proxy: Proxy, server: Server) -> None:
    wire.send("SUBSCRIBE", "a", "b")
    assert [wire.read(), wire.read()] == [[b"subscribe", b"a", 1], [b"subscribe", b"b", 2]]
    server.command("PUBLISH", "a", "one")
    assert wire.read() == [b"message", b"a", b"one"]
    assert wire.call("PING") == [b"pong", b""]
    server.command("PUBLISH", "b", "two")
    assert wire.read() == [b"message", b"b", b"two"]
    wire.send("UNSUBSCRIBE")
    assert {wire.read()[1], wire.read()[1]} == {b"a", b"b"}
    assert wire.call("GET", "none") is None
    assert [request.reply for request in proxy.requests][:2] == [[b"subscribe", b"b", 2], [b"pong", b""]]
    assert all(request.answered for request in proxy.requests)


def test_dropped_push_vanishes_and_the_subscription_lives(wire: Wire, proxy: Proxy, server: Server) -> None:
    rule = proxy.when_push(containing="lost").drop()
    wire.call("SUBSCRIBE", "lost and found")  # A request, so the rule is not for it.
    wire.call("SUBSCRIBE", "news")
    for text in ("first", "lost", "lost again"):
        assert server.command("PUBLISH", "news", text) == 1
    assert [wire.read()[2], wire.read()[2]] == [b"first", b"lost again"]
    assert rule.hits == 1
    assert wire.call("PING") == [b"pong", b""]


def test_all_pushes_can_be_dropped_until_healed(wire: Wire, proxy: Proxy, server: Server) -> None:
    wire.call("SUBSCRIBE", "news")
    rule = proxy.when_push(times=None).drop()
    for _ in range(3):
        server.command("PUBLISH", "news", "lost")
    rule.wait_hit(3)
    proxy.heal()
    server.command("PUBLISH", "news", "heard")
    assert wire.read() == [b"message", b"news", b"heard"]


def test_push_can_be_held_back(wire: Wire, proxy: Proxy, server: Server) -> None:
    wire.call("SUBSCRIBE", "news")
    rule = proxy.when_push().delay()
    server.command("PUBLISH", "news", "late")
    rule.wait_hit()
    assert_silent(wire)
    rule.let_go()
    assert wire.read() == [b"message", b"news", b"late"]


def test_rules_for_requests_do_not_strike_pushes(wire: Wire, proxy: Proxy, server: Server) -> None:
    wire.call("SUBSCRIBE", "news")
    proxy.when(containing="word", times=None).drop_reply()
    server.command("PUBLISH", "news", "word")
    assert wire.read() == [b"message", b"news", b"word"]


# Faults of everything


def test_cut_all_ends_every_connection_and_new_ones_work(wire: Wire, proxy: Proxy, server: Server) -> None:
    assert wire.call("PING") == "PONG"
    proxy.cut_all()
    assert_ended(wire, reset=True)
    assert proxy.connections == 0
    with Wire(("127.0.0.1", proxy.port)) as fresh:
        assert fresh.call("PING") == "PONG"
    wait_until(lambda: server.connections() == 0)


def test_refuse_turns_clients_away_until_accept(wire: Wire, proxy: Proxy) -> None:
    assert wire.call("PING") == "PONG"
    proxy.refuse()
    assert_ended(wire, reset=True)
    with pytest.raises(ConnectionRefusedError):
        Wire(("127.0.0.1", proxy.port))
    proxy.accept()
    with Wire(("127.0.0.1", proxy.port)) as fresh:
        assert fresh.call("PING") == "PONG"


def test_blackhole_takes_everything_and_delivers_it_late_when_healed(wire: Wire, proxy: Proxy, server: Server) -> None:
    assert wire.call("PING") == "PONG"
    proxy.blackhole()
    with Wire(("127.0.0.1", proxy.port)) as fresh:
        fresh.send("INCR", "key")
        wire.send("INCR", "key")
        proxy.wait_for("INCR", count=2)
        assert_silent(wire)
        assert_silent(fresh)
        assert server.command("GET", "key") is None
        proxy.heal()
        assert {wire.read(), fresh.read()} == {1, 2}


def test_what_a_blackhole_holds_is_lost_when_cut(wire: Wire, proxy: Proxy, server: Server) -> None:
    proxy.blackhole()
    wire.send("INCR", "key")
    proxy.wait_for("INCR")
    proxy.cut_all()
    proxy.heal()
    wait_until(lambda: server.connections() == 0)
    assert server.command("GET", "key") is None


def test_heal_ends_refusal_rules_and_delays(wire: Wire, proxy: Proxy) -> None:
    held = proxy.when("GET").delay_reply()
    wire.send("GET", "key")
    held.wait_hit()
    proxy.when("PING", times=None).cut_request()
    proxy.heal()
    assert wire.read() is None
    assert wire.call("PING") == "PONG"
    proxy.refuse()
    proxy.heal()
    with Wire(("127.0.0.1", proxy.port)) as fresh:
        assert fresh.call("PING") == "PONG"


def test_dead_server_looks_dead_through_the_proxy(fresh_server: FreshServer, proxy_for: ProxyFor) -> None:
    server = fresh_server()
    proxy = proxy_for(server)
    with Wire(("127.0.0.1", proxy.port)) as wire:
        assert wire.call("PING") == "PONG"
        server.kill9()
        assert_ended(wire, reset=False)
    with Wire(("127.0.0.1", proxy.port)) as late, pytest.raises(ConnectionError):
        late.call("PING")
    server.start()
    with Wire(("127.0.0.1", proxy.port)) as fresh:
        assert fresh.call("PING") == "PONG"


def test_many_connections_and_faults_leave_nothing_behind(server: Server) -> None:
    with no_leaks():
        with Proxy(server) as proxy:
            proxy.when(lambda request: request.number % 3 == 0, times=None).drop_reply_and_cut()
            done = [0] * 8

            def work(worker: int) -> None:
                while done[worker] < 50:
                    try:
                        with Wire(("127.0.0.1", proxy.port)) as wire:
                            while done[worker] < 50:
                                done[worker] += 1
                                wire.call("INCR", "key")
                    except ConnectionError:
                        pass

            workers = [threading.Thread(target=work, args=(number,)) for number in range(8)]
            for thread in workers:
                thread.start()
            for thread in workers:
                thread.join()
            assert server.command("GET", "key") == b"400"
        wait_until(lambda: server.connections() == 0)
