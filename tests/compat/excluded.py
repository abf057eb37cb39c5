"""Cases of CPython's own lock tests that the drop-ins are not asked to pass, each with its reason.

The same table stands in docs/primitives/drop-in.md; a test compares them.
"""

from __future__ import annotations

THREADS: dict[str, str] = {}
ASYNCIO: dict[str, str] = {}
