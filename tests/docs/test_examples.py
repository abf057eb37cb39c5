"""Every example of the README and the docs is run: Python blocks in order, shell lines one by one."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from kit.servers import FreshServer, Server

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
REDLOCK_NODES = 5


def shown(page: Path) -> str:
    return str(page.relative_to(ROOT))


def blocks(page: Path, language: str) -> list[str]:
    """The fenced blocks of a page in one language."""
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)


def headings(page: Path) -> list[str]:
    """The anchors of a page, as they are made of its headings."""
    found = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return [re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in found]


@pytest.mark.slow
@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page, "python")], ids=shown)
def test_python_examples_run(page: Path, valkey_server: Server, fresh_server: FreshServer, tmp_path: Path) -> None:
    program = tmp_path / "example.py"
    program.write_text("\n".join(blocks(page, "python")))
    env = {**os.environ, "LOCKFAST_URL": valkey_server.url}
    if "REDLOCK_NODES" in program.read_text():
        env["REDLOCK_NODES"] = " ".join(fresh_server().url for _ in range(REDLOCK_NODES))
    done = subprocess.run(
        [sys.executable, "-W", "error", program],
        env=env,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr


WITH_A_CLIENT = ("howto.md", "migrating.md", "transactions.md")  # those that need more than `Lockfast()`, or did


@pytest.mark.slow
@pytest.mark.parametrize("page", [page for page in PAGES if page.name in WITH_A_CLIENT], ids=shown)
def test_python_examples_run_on_the_embedded_server_without_any_variable(page: Path, tmp_path: Path) -> None:
    program = tmp_path / "example.py"
    program.write_text("\n".join(blocks(page, "python")))
    with tempfile.TemporaryDirectory(prefix="lockfast-test-") as home:  # a short path: that of a socket has a limit
        env = {**os.environ, "LOCKFAST_HOME": home, "LOCKFAST_GRACE_S": "5"}
        env.pop("LOCKFAST_URL", None)
        try:
            done = subprocess.run(
                [sys.executable, "-W", "error", program],
                env=env,
                cwd=tmp_path,
                capture_output=True,
                text=True,
                timeout=60,
                check=False,
            )
        finally:
            stop = [sys.executable, "-m", "lockfast", "server", "stop"]
            subprocess.run(stop, env=env, capture_output=True, timeout=60, check=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("page", [page for page in PAGES if page.name.startswith("latch")], ids=shown)
def test_example_can_be_run_again(page: Path, valkey_server: Server, tmp_path: Path) -> None:
    """What it leaves on the server is not in its way."""
    program = tmp_path / "example.py"
    program.write_text("\n".join(blocks(page, "python")))
    for _ in range(2):
        subprocess.run([sys.executable, program], env={**os.environ, "LOCKFAST_URL": valkey_server.url}, check=True)


@pytest.mark.slow
@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page, "console")], ids=shown)
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
        for target, anchor in re.findall(r"\]\(([^)#:]*)(?:#([^):]*))?\)", page.read_text()):
            found = page.parent / target if target else page
            assert found.exists(), f"{shown(page)} points to {target}"
            if anchor:
                assert anchor in headings(found), f"{shown(page)} points to {target}#{anchor}"


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
