from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from embedded.machine import processes, wait_until
from lockfast import embedded

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A meeting place of the test's own, without grace time; nothing may be left running in it afterwards."""
    directory = tmp_path / "home"
    monkeypatch.setenv("LOCKFAST_HOME", str(directory))
    monkeypatch.setenv("LOCKFAST_GRACE_S", "0")
    yield directory
    embedded.stop()
    wait_until(lambda: not processes(directory))
