"""Who this client is: its channel, its tickets, and the owner text that others read."""

from __future__ import annotations

import itertools
import os
import socket
import threading
import weakref
from os import urandom

MAX_LABEL = 200


class _Here(threading.local):
    agent = ""


# Agents are never used twice: the number that Python gives a thread or task is, once that has ended. The random part
# tells processes apart where host and pid do not (containers that share a host name, all of them with pid 1).
_process = os.urandom(5).hex()
_agents_made = itertools.count(1)
_here = _Here()
_tasks: weakref.WeakKeyDictionary[object, str] = weakref.WeakKeyDictionary()


def new_client_id() -> str:
    """Random text that names one client in one process."""
    return os.urandom(6).hex()


def new_ticket(client_id: str, agent: str) -> str:
    """ "client.agent.random", never used twice: says whom to push to, and which thread or task (`agent`) it is for."""
    return f"{client_id}.{agent}.{urandom(8).hex()}"


def agent_of_thread() -> str:
    """The one thread in the world that asks: "process_number", the same for all clients of a process."""
    agent = _here.agent
    if not agent:
        agent = _here.agent = _new_agent()
    return agent


def agent_of_task(task: object) -> str:
    """The same for a task."""
    agent = _tasks.get(task)
    if agent is None:
        agent = _tasks[task] = _new_agent()
    return agent


def _new_agent() -> str:
    return f"{_process}_{next(_agents_made)}"


def _forget() -> None:
    """In a forked child: its threads and tasks are others than the parent's."""
    global _process, _here, _tasks
    _process = os.urandom(5).hex()
    _here = _Here()
    _tasks = weakref.WeakKeyDictionary()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)


def owner_text(label: str | None) -> str:
    """ "host pid label": what `lockfast show` prints of a holder."""
    host = socket.gethostname().replace(" ", "_") or "?"
    words = "".join(c if c.isprintable() else " " for c in label or "")[:MAX_LABEL]
    return f"{host} {os.getpid()} {words}".rstrip()
