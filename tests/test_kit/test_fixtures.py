"""What is missing on a machine is skipped by name, and fails where CI asks for everything."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from kit.servers import Server


@pytest.mark.slow
@pytest.mark.parametrize(("strict", "outcome"), [("", "1 passed, 1 skipped"), ("1", "1 passed, 1 error")])
def test_missing_redis_is_skipped_by_name_or_fails_in_ci(strict: str, outcome: str, tmp_path: Path) -> None:
    wanted = f"{Path(__file__).with_name('test_servers.py')}::test_is_of_the_kind_asked_for"
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", wanted],
        cwd=Path(__file__).parents[2],
        env={**os.environ, "PATH": str(tmp_path), "LOCKFAST_CI_STRICT": strict},
        capture_output=True,
        text=True,
        check=False,
    )
    assert outcome in run.stdout, run.stdout + run.stderr
    assert "redis-server not installed" in run.stdout


def test_names_differ_from_test_to_test_part_1(name: str, valkey_server: Server) -> None:
    assert valkey_server.command("SADD", "names seen", name) == 1


test_names_differ_from_test_to_test_part_2 = test_names_differ_from_test_to_test_part_1
