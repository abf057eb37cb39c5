"""Worker processes that leave interrupts to their parent, and never outlive it."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from concurrent.futures import ProcessPoolExecutor


def workers(jobs: int) -> ProcessPoolExecutor:
    """A pool. Spawned, not forked: a fork copies whatever threads hold locked at that moment."""
    return ProcessPoolExecutor(jobs, mp_context=multiprocessing.get_context("spawn"), initializer=_begin)


def end(executor: ProcessPoolExecutor, finished: bool) -> None:
    """Close the pool. Not finished: what runs is of no use any more, and is stopped."""
    if not finished:
        for process in list((executor._processes or {}).values()):
            process.terminate()
    executor.shutdown(wait=True, cancel_futures=True)


def _begin() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, name="lockfast-parent", daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
