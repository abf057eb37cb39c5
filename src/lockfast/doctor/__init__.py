"""Is this server fit for locks? Connects, asks, judges; writes no key.

`facts` asks one server and measures, `findings` judges what it said; `quorum`, `sentinel` and `cluster` do the same for
several; `catalogue` says why each finding matters and what mends it; `shape` reads the URL.
"""

from __future__ import annotations

from lockfast.doctor.report import Report, examine

__all__ = ["Report", "examine"]
