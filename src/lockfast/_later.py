"""Names of a package that are imported when they are first asked for: most programs need only some of them."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable


def names_from(package: str, where: dict[str, str]) -> Callable[[str], Any]:
    """A `__getattr__` for a package. where: the module of each name."""

    def find(name: str) -> Any:
        try:
            module = where[name]
        except KeyError:
            raise AttributeError(f"module {package!r} has no attribute {name!r}") from None
        return getattr(import_module(module), name)

    return find
