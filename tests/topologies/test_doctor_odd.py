"""Answers that no server gives: they come to a finding or are passed over, never to a traceback."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from socketserver import StreamRequestHandler, ThreadingTCPServer
from typing import TYPE_CHECKING

import pytest

from topologies.doctoring import keys, look, the

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kit.proxy import ProxyFor
    from kit.servers import Server

ODD = {
    "text": b"+OK\r\n",
    "number": b":1\r\n",
    "nothing": b"$-1\r\n",
    "none": b"*0\r\n",
    "one": b"*1\r\n$1\r\nx\r\n",
    "words": b"*2\r\n$1\r\nx\r\n$1\r\ny\r\n",
    "nested": b"*2\r\n*0\r\n*-1\r\n",
}
odd_answers = pytest.mark.parametrize("answer", ODD.values(), ids=ODD)


@contextmanager
def saying(answer: bytes) -> Iterator[str]:
    """The address of somebody who gives one answer to every request."""

    class Talk(StreamRequestHandler):
        def handle(self) -> None:
            while line := self.rfile.readline():
                for _ in range(int(line[1:])):
                    self.rfile.read(int(self.rfile.readline()[1:]) + 2)
                self.wfile.write(answer)

    with ThreadingTCPServer(("127.0.0.1", 0), Talk) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield f"127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


@odd_answers
def test_somebody_who_answers_oddly_is_judged_in_every_shape(answer: bytes) -> None:
    with saying(answer) as address:
        for url in (f"redis://{address}", f"redis://{address} redis://127.0.0.1:1 redis://127.0.0.1:2"):
            assert look(url).findings
        assert look(f"cluster://{address}").level == "problem"


@odd_answers
def test_sentinels_that_name_no_primary_are_as_good_as_none(answer: bytes) -> None:
    with saying(answer) as address:
        report = look(f"sentinel://{address}/orders")
    assert address in the(report, "sentinel-none").seen
    assert report.level == "problem"


@odd_answers
@pytest.mark.parametrize(("command", "lacking"), [("TIME", "clock"), ("SCAN", "neighbours")])
def test_odd_answer_to_one_question_is_passed_over(
    valkey_server: Server, proxy_for: ProxyFor, command: str, lacking: str, answer: bytes
) -> None:
    proxy = proxy_for(valkey_server)
    proxy.when(command, times=None).inject_reply(answer)
    report = look(proxy.url)
    assert {"rights-ok", "version-ok"} <= keys(report)
    assert lacking not in {finding.topic for finding in report.findings}


@pytest.mark.parametrize(
    "line", ["id there 0 0 0 0 0 0", "id h:port@1 master - 0 0 1 connected 0-5", "i h:1 master - 0 0 1 c x"]
)
def test_nodes_that_cannot_be_read_are_those_of_no_cluster(
    valkey_server: Server, proxy_for: ProxyFor, line: str
) -> None:
    proxy = proxy_for(valkey_server)
    proxy.when("CLUSTER", times=None).inject_reply(f"${len(line)}\r\n{line}\r\n".encode())
    report = look(f"cluster://127.0.0.1:{proxy.port}")
    assert line in the(report, "cluster-none").seen
    assert report.level == "problem"
