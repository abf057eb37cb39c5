"""Checkers know histories only: nothing of the library they judge, no clock, no files."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import lockfast.check

FILES = sorted(Path(lockfast.check.__file__).parent.glob("*.py"))
OUTSIDE = {"io.py", "record.py", "__init__.py"}  # the two that read and write, and who hands them out


def modules(path: Path) -> set[str]:
    nodes = list(ast.walk(ast.parse(path.read_text())))
    plain = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    return plain | {node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_check_imports_nothing_of_lockfast_but_itself(path: Path) -> None:
    ours = {module for module in modules(path) if module.startswith("lockfast")}
    assert all(module.startswith("lockfast.check") for module in ours)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_checkers_read_no_clock_and_no_files(path: Path) -> None:
    outer = modules(path) & {"time", "os", "pathlib", "json", "random", "threading", "socket", "io", "logging"}
    assert path.name in OUTSIDE or not outer
    assert "open(" not in path.read_text() or path.name in OUTSIDE
    if path.name not in OUTSIDE:
        assert not modules(path) & {"lockfast.check.io", "lockfast.check.record"}
