"""The one clock that deadlines are on: seconds that keep counting while the machine sleeps.

`time.monotonic` stops during suspend on Linux, so a laptop or a paused virtual machine would wake up and believe
that a lease which ended hours ago has seconds left. CLOCK_BOOTTIME counts on. Wall clocks are never read: they step.
"""

from __future__ import annotations

import sys
import time
from functools import partial
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

now: Callable[[], float]
if hasattr(time, "CLOCK_BOOTTIME"):
    now = partial(time.clock_gettime, time.CLOCK_BOOTTIME)
elif sys.platform == "darwin":  # CLOCK_MONOTONIC of macOS counts through sleep; time.monotonic there does not.
    now = partial(time.clock_gettime, time.CLOCK_MONOTONIC)
else:
    now = time.monotonic
