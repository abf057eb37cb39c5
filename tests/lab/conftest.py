"""Fixtures of the lab's tests: a browser where there is one."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from lab.webdriver import Browser, programs

if TYPE_CHECKING:
    from collections.abc import Iterator


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Tests that need a browser are skipped by name without one; LOCKFAST_CI_STRICT=1 makes them fail."""
    if not item.get_closest_marker("needs_chromium"):
        return
    packages = ("chromium", "chromium-driver")
    missing = [package for package, program in zip(packages, programs(), strict=True) if not program]
    if not missing:
        return
    reason = f"{' and '.join(missing)} not installed (apt-get install {' '.join(missing)})"
    if os.environ.get("LOCKFAST_CI_STRICT"):
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """One browser for all tests of a file: each opens its page afresh and sets its screen. Mark it `needs_chromium`."""
    with Browser() as browser:
        yield browser
