"""Why a server lets nobody in who speaks to it like this: TLS where none is spoken, none where it is, certificates.

What goes wrong here does not pass by itself, and looks like a network that is down: a server that is spoken to in the
wrong way waits in silence or hangs up. So it is asked once more in another way, over a connection of its own on which
no secret is sent, and the caller is told what to change instead of trying until the wait is over. Blocking; asyncio
calls it in a thread.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lockfast.clock import now
from lockfast.drivers.connection import LEAST_S, reach
from lockfast.errors import Refused

if TYPE_CHECKING:
    import socket
    import ssl
    from collections.abc import Callable

    from lockfast.endpoints import Endpoint

# A handshake that takes longer, or more than half of the time that it has, may be with a server that waits for text.
SUSPECT_S = 0.5
LOOK_S = 0.5  # how long such a question may take

# What a server's TLS says of the client's certificate, or of its lack; OpenSSL's words.
_OF_THE_CLIENT = ("CERTIFICATE", "UNKNOWN_CA", "HANDSHAKE_FAILURE", "ACCESS_DENIED", "DECRYPT_ERROR")
# By X509_V_ERR_*: what to do about a server's certificate.
_EXPIRED = 10
_OTHER_HOST = (62, 64)


def of_certificates(error: BaseException, where: str) -> Refused | None:
    """What a TLS error says of somebody's certificate, with the next step; None when it is about something else."""
    words = str(error)
    code = getattr(error, "verify_code", None)
    if code is not None:
        if code == _EXPIRED:
            step = "renew the server's certificate"
        elif code in _OTHER_HOST:
            step = "connect by a name that the certificate has, or set ssl_check_hostname=false"
        else:
            step = "name the authority that signed it: ssl_ca_certs=/path/to/ca.pem"
        said = getattr(error, "verify_message", words)
        return Refused(f"{where} shows a certificate that is not trusted: {said} ({step})", code="CERTIFICATE")
    reason = str(getattr(error, "reason", "") or "")
    if "ALERT" in reason and any(word in reason for word in _OF_THE_CLIENT):
        return Refused(
            f"{where} refuses the client's certificate, or its lack: {words} (give one that it trusts: "
            "ssl_certfile=/path/to/client.crt&ssl_keyfile=/path/to/client.key)",
            code="CERTIFICATE",
        )
    return None


def flaw_of(refusal: Refused) -> str:
    """What a CERTIFICATE refusal is about: the server's "authority", "name" or "expired"; or the "client"'s own.

    By OpenSSL's code of what was checked here: only what the other side refuses comes without one.
    """
    cause = refusal.__cause__
    while cause is not None and getattr(cause, "verify_code", None) is None:
        cause = cause.__cause__
    if cause is None:
        return "client"
    code = getattr(cause, "verify_code", None)
    return "expired" if code == _EXPIRED else "name" if code in _OTHER_HOST else "authority"


def explain(endpoint: Endpoint, error: BaseException) -> Refused | None:
    """What is wrong with a server that took the connection and then broke it off; None when that cannot be told."""
    if endpoint.path or endpoint.embedded or endpoint.sentinels:
        return None
    cause: BaseException | None = error
    while cause is not None:
        told = of_certificates(cause, endpoint.where)
        if told is not None:
            return told
        cause = cause.__cause__
    if endpoint.tls is None:
        return _look(_is_tls, endpoint, LOOK_S)
    return _look(_is_picky, endpoint, LOOK_S) or _look(_is_plain, endpoint, LOOK_S)


def suspect_s(by: float) -> float:
    """How long to wait for a handshake that is to be done by then, before its server is asked beside it."""
    return min(SUSPECT_S, max(by - now(), LEAST_S) / 2)


def explain_silence(endpoint: Endpoint, by: float) -> Refused | None:
    """What to say of a server that does not answer a handshake, if it speaks without TLS."""
    return _look(_is_plain, endpoint, min(LOOK_S, (by - now()) / 2))  # the handshake may still come about


def in_scheme(scheme: str, refusal: Refused) -> Refused:
    """The same, with the URL that it tells to write as those of sentinels or clusters begin."""
    words = (
        str(refusal).replace("write rediss://", f"write {scheme}s://").replace("write redis://", f"write {scheme}://")
    )
    return Refused(words, code=refusal.code)


def _look(question: Callable[[Endpoint, float], Refused | None], endpoint: Endpoint, look_s: float) -> Refused | None:
    try:
        return question(endpoint, now() + look_s)
    except OSError:
        return None  # it does not say; what went wrong at first is what the caller hears


def _is_plain(endpoint: Endpoint, by: float) -> Refused | None:
    if endpoint.spoken:
        return None
    with _reach(endpoint, by) as sock:
        sock.sendall(b"PING\r\n")
        if sock.recv(16)[:1] not in (b"+", b"-"):
            return None
    where = endpoint.where
    return Refused(f"{where} speaks without TLS on this port (name its TLS port, or write redis://)", code="TLS")


def _is_tls(endpoint: Endpoint, by: float) -> Refused | None:
    import ssl

    if endpoint.spoken:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False  # nothing is said here that others may not hear
    context.verify_mode = ssl.CERT_NONE
    try:
        with _reach(endpoint, by) as sock, context.wrap_socket(sock):
            pass
    except ssl.SSLError as error:
        if "ALERT" not in str(error.reason):
            return None
    return Refused(f"{endpoint.where} speaks TLS on this port (write rediss://)", code="TLS")


def _is_picky(endpoint: Endpoint, by: float) -> Refused | None:
    """Whether it refuses the client's certificate. It says so behind the handshake, to whoever only listens."""
    import ssl

    context = endpoint.tls_context()
    assert context is not None
    try:
        with _reach(endpoint, by) as sock, context.wrap_socket(sock, server_hostname=endpoint.host) as secured:
            secured.recv(1)
    except ssl.SSLError as error:
        return of_certificates(error, endpoint.where)
    return None


def _reach(endpoint: Endpoint, by: float) -> socket.socket:
    sock = reach(endpoint.host, endpoint.port, by)
    sock.settimeout(max(by - now(), LEAST_S))
    return sock


def shake_hands(sock: ssl.SSLSocket, endpoint: Endpoint, by: float) -> None:
    """Do the handshake. A server that says nothing for a while is asked, beside it, whether it speaks TLS at all."""
    if not endpoint.spoken:
        sock.settimeout(suspect_s(by))
        try:
            sock.do_handshake()
        except TimeoutError:
            told = explain_silence(endpoint, by)
            if told is not None:
                raise told from None
    sock.settimeout(max(by - now(), LEAST_S))
    sock.do_handshake()  # does nothing if it is done
