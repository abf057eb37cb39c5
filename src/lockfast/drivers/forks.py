"""What a fork does to clients: in the child, each of them forgets all that is the parent's."""

from __future__ import annotations

import os
import weakref
from typing import Protocol


class Forgets(Protocol):
    """A driver that can begin anew."""

    def forget(self) -> None: ...


_drivers: weakref.WeakSet[Forgets] = weakref.WeakSet()


def tell(driver: Forgets) -> None:
    """Have `driver.forget()` called in every child that is forked from now on, as long as the driver lives."""
    _drivers.add(driver)


def _forget_all() -> None:
    for driver in list(_drivers):
        driver.forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_all)
