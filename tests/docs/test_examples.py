"""Every example of the README and the docs is run: Python blocks in order, shell lines one by one."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from kit.servers import Server

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def blocks(page: Path, language: str) -> list[str]:
    """The fenced blocks of a page in one language."""
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)


@pytest.mark.slow
@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page, "python")], ids=lambda page: page.name)
def test_python_examples_run(page: Path, valkey_server: Server, tmp_path: Path) -> None:
    program = tmp_path / "example.py"
    program.write_text("\n".join(blocks(page, "python")))
    env = {**os.environ, "LOCKFAST_URL": valkey_server.url}
    done = subprocess.run(
        [sys.executable, "-W", "error", program], env=env, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page, "console")], ids=lambda page: page.name)
def test_shell_examples_run(page: Path, valkey_server: Server, tmp_path: Path) -> None:
    report = tmp_path / "report.sh"
    report.write_text('#!/bin/sh\ntest -n "$LOCKFAST_FENCE"\n')
    report.chmod(0o755)
    lockfast = tmp_path / "lockfast"
    lockfast.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m lockfast "$@"\n')
    lockfast.chmod(0o755)
    env = {**os.environ, "LOCKFAST_URL": valkey_server.url, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    lines = [line[2:] for block in blocks(page, "console") for line in block.splitlines() if line.startswith("$ ")]
    assert lines
    for line in lines:
        done = subprocess.run(
            line, shell=True, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == 0, (line, done.stderr)


def test_links_between_pages_lead_somewhere() -> None:
    for page in [*PAGES, ROOT / "ARCHITECTURE.md", ROOT / "CONTRIBUTING.md"]:
        for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name} points to {target}"


def test_reference_is_what_the_docstrings_say() -> None:
    made = subprocess.run(
        [sys.executable, "-c", "import make_reference; print(make_reference.page(), end='')"],
        cwd=ROOT / "docs",
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    ).stdout
    assert (ROOT / "docs" / "reference.md").read_text() == made, "run: python docs/make_reference.py"
