"""Who this client is: its channel, its tickets, and the owner text that others read."""

from __future__ import annotations

import os
import socket

MAX_LABEL = 200


def new_id() -> str:
    """96 random bits as text: for tickets and clients alike, never used twice."""
    return os.urandom(12).hex()


def owner_text(label: str | None) -> str:
    """ "host pid label": what `lockfast show` prints of a holder."""
    host = socket.gethostname().replace(" ", "_") or "?"
    words = "".join(c if c.isprintable() else " " for c in label or "")[:MAX_LABEL]
    return f"{host} {os.getpid()} {words}".rstrip()
