"""What a piece of code left behind: threads, child processes, open sockets and pipes."""

from __future__ import annotations

import gc
import os
import threading
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def no_leaks(*, grace_s: float = 2.0) -> Iterator[None]:
    """Fails when more threads, children, sockets or pipes exist after the block than before it.

    Make servers, proxies and sides before the block: their own threads are not the library's. What is ending
    gets `grace_s` to be gone. Nothing is checked when the block raises: its error says more.
    """
    before = _everything()
    yield
    end = time.monotonic() + grace_s
    while left := _everything() - before:
        if time.monotonic() > end:
            raise AssertionError(f"left behind: {', '.join(sorted(left))}")
        gc.collect()
        time.sleep(0.01)


def _everything() -> set[str]:
    return _threads() | {f"child process {pid}" for pid in child_processes()} | _descriptors()


def _threads() -> set[str]:
    return {f"thread {thread.name} ({thread.ident})" for thread in threading.enumerate()}


def child_processes() -> list[int]:
    """Direct children of this process, zombies too."""
    children = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            text = stat.read_text()
        except OSError:
            continue  # It ended while we looked.
        if int(text.rpartition(")")[2].split()[1]) == os.getpid():
            children.append(int(stat.parent.name))
    return children


def _descriptors() -> set[str]:
    found = set()
    for link in Path("/proc/self/fd").iterdir():
        try:
            target = os.readlink(link)
        except OSError:
            continue  # The descriptor of this very listing.
        if target.startswith(("socket:", "pipe:", "anon_inode:")):
            found.add(f"descriptor {link.name} {target}")
    return found
