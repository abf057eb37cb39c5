"""Who this client is: its channel, its tickets, and the owner text that others read."""

from __future__ import annotations

import os
import socket

MAX_LABEL = 200


def new_client_id() -> str:
    """Random text that names one client in one process."""
    return os.urandom(6).hex()


def new_ticket(client_id: str, agent: int) -> str:
    """ "client.agent.random", never used twice: says whom to push to, and which thread or task (`agent`) it is for."""
    return f"{client_id}.{agent:x}.{os.urandom(8).hex()}"


def agent_of(owner_host: str, owner_pid: int, ticket: str) -> str:
    """ "host/pid/agent": the one thread or task in the world that asked for this ticket; "" if it does not say."""
    parts = ticket.split(".")
    return f"{owner_host}/{owner_pid}/{parts[1]}" if len(parts) == 3 else ""


def owner_text(label: str | None) -> str:
    """ "host pid label": what `lockfast show` prints of a holder."""
    host = socket.gethostname().replace(" ", "_") or "?"
    words = "".join(c if c.isprintable() else " " for c in label or "")[:MAX_LABEL]
    return f"{host} {os.getpid()} {words}".rstrip()
