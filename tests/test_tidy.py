"""The shape of the package: who imports whom, what loads at start, and flows that stay flows."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import lockfast

if TYPE_CHECKING:
    from kit.servers import Server

SOURCE = Path(lockfast.__file__).parent
FILES = sorted(SOURCE.rglob("*.py"))
CLIENTS = ("__init__.py", "client.py", "aio.py", "recipes.py")  # of the classics: they run flows
CLASSICS = [path for path in sorted((SOURCE / "classic").glob("*.py")) if path.name not in CLIENTS]
FLOWS = [*sorted((SOURCE / "flows").glob("*.py")), *CLASSICS]
MAX_LINES = 400

# What each layer must not know of: imports point one way.
LAYERS = {
    "flows": ("drivers", "sync", "aio", "cli", "embedded", "endpoints", "classic", "sim", "check", "lab"),
    "drivers": ("sync", "aio", "cli", "classic", "sim", "check", "lab"),
    "sync": ("aio", "cli", "classic", "sim", "check", "lab"),
    "aio": ("sync", "cli", "classic", "sim", "check", "lab"),
    "check": ("flows", "drivers", "sync", "aio", "cli", "classic", "sim", "lab"),
    "classic": ("sync", "aio", "cli", "sim", "check", "lab"),
    "sim": ("sync", "aio", "cli", "classic", "lab"),
    "compat": ("cli", "classic", "sim", "check", "lab"),
    "lab": ("aio", "cli"),
    "doctor": ("sync", "aio", "cli", "classic", "sim", "check", "lab"),
    "errors": ("flows", "drivers", "sync", "aio", "cli"),
    "names": ("flows", "drivers", "sync", "aio", "cli"),
    "specs": ("flows", "drivers", "sync", "aio", "cli"),
    "snapshots": ("flows", "drivers", "sync", "aio", "cli"),
    "fencing": ("flows", "drivers", "sync", "aio", "cli", "classic", "sim", "check", "lab"),
    "embedded": ("flows", "drivers", "sync", "aio", "cli"),
}
NOT_IN_FLOWS = {"time", "random", "threading", "asyncio", "socket", "logging", "redis", "select", "os", "ssl"}
NOT_AT_START = ["redis", "asyncio", "ssl", "dataclasses", "inspect", "logging", "subprocess"]


def imports(path: Path) -> list[str]:
    """Every module that a file imports, also inside functions; not those for type checkers alone."""
    tree = ast.parse(path.read_text())
    for_types = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        for inner in ast.walk(node)
    }
    found = []
    for node in ast.walk(tree):
        if id(node) in for_types:
            continue
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are written in full here"
            found += [f"{node.module}.{alias.name}" for alias in node.names]
    return found


def shown(path: Path) -> str:
    return str(path.relative_to(SOURCE))


@pytest.mark.parametrize("path", FLOWS, ids=shown)
def test_flows_import_no_clock_no_chance_no_threads_and_no_sockets(path: Path) -> None:
    assert not {module.partition(".")[0] for module in imports(path)} & NOT_IN_FLOWS


def test_there_are_flows_to_look_at() -> None:
    assert {path.name for path in FLOWS} >= {"admission.py", "ending.py", "renewal.py", "looking.py", "effects.py"}


@pytest.mark.parametrize("layer", LAYERS)
def test_imports_point_one_way(layer: str) -> None:
    files = sorted((SOURCE / layer).glob("*.py")) if (SOURCE / layer).is_dir() else [SOURCE / f"{layer}.py"]
    for path in files:
        for module in imports(path):
            for above in LAYERS[layer]:
                upper = f"lockfast.{above}"
                assert module != upper, f"{shown(path)} imports {module}"
                assert not module.startswith(f"{upper}."), f"{shown(path)} imports {module}"


def test_nobody_but_the_command_itself_imports_the_command() -> None:
    for path in FILES:
        if path.parent.name != "cli" and path.name != "__main__.py":
            assert not [module for module in imports(path) if module.startswith("lockfast.cli")], shown(path)


def generators(path: Path) -> dict[str, ast.FunctionDef]:
    """The flows of a file: functions with a yield of their own."""
    return {
        node.name: node
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef)
        and any(isinstance(inner, (ast.Yield, ast.YieldFrom)) for inner in ast.walk(node))
    }


@pytest.mark.parametrize("path", FLOWS, ids=shown)
def test_flows_do_not_yield_in_finally(path: Path) -> None:
    """close() on a flow that yields in finally raises RuntimeError, and hides that the process died there."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Try):
            for statement in node.finalbody:
                yields = [inner for inner in ast.walk(statement) if isinstance(inner, (ast.Yield, ast.YieldFrom))]
                assert not yields, f"{shown(path)}:{node.lineno}"


@pytest.mark.parametrize("path", FLOWS, ids=shown)
def test_flows_that_catch_everything_let_generator_exit_pass(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text())):
        if not isinstance(node, ast.Try):
            continue
        caught = [ast.unparse(handler.type) if handler.type else "" for handler in node.handlers]
        for everything in ("", "BaseException"):
            if everything in caught and any(isinstance(inner, (ast.Yield, ast.YieldFrom)) for inner in ast.walk(node)):
                assert "GeneratorExit" in caught[: caught.index(everything)], f"{shown(path)}:{node.lineno}"


def test_no_flow_is_called_and_then_forgotten() -> None:
    """A bare call makes a generator that nobody runs: the step would silently not happen."""
    flows = {name for path in [*FLOWS, SOURCE / "drivers" / "ledger.py"] for name in generators(path)}
    assert {"acquire", "leave", "release", "extend", "renew_all"} <= flows
    for path in FLOWS:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
                called = node.value.func
                if isinstance(called, ast.Name):
                    assert called.id not in flows, f"{shown(path)}:{node.lineno}"
            if isinstance(node, ast.Expr) and isinstance(node.value, ast.Yield) and node.value.value is not None:
                inner = node.value.value
                if isinstance(inner, ast.Call) and isinstance(inner.func, ast.Name):
                    assert inner.func.id not in flows, f"{shown(path)}:{node.lineno}: yield from, not yield"


@pytest.mark.parametrize("module", ["lockfast", "lockfast.sync", "lockfast.cli.main", "lockfast.cli.run"])
def test_start_loads_nothing_heavy(module: str) -> None:
    code = f"import sys; import {module}; print(*[name for name in {NOT_AT_START!r} if name in sys.modules])"
    done = run_python(code)
    assert done.stdout.split() == [], f"loaded by `import {module}`: {done.stdout}"


@pytest.mark.parametrize("module", ["lockfast.aio"])
def test_asyncio_side_loads_no_redis_client(module: str) -> None:
    done = run_python(
        f"import sys; import {module}; print(*[name for name in ['redis', 'ssl'] if name in sys.modules])"
    )
    assert "redis" not in done.stdout.split()


def test_a_lock_is_taken_without_loading_anything_heavy(valkey_server: Server) -> None:
    code = f"""
import sys, lockfast
with lockfast.Lockfast({valkey_server.url!r}) as lf:  # the whole main job
    with lf.lock("x", lease=5, wait=1) as grant:
        grant.extend()
print(*[name for name in {NOT_AT_START!r} if name in sys.modules])
"""
    assert run_python(code).stdout.split() == []


def run_python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(SOURCE.parent)!r})\n{code}"],
        capture_output=True,
        text=True,
        check=True,
    )


@pytest.mark.parametrize("path", [*FILES, *sorted(SOURCE.rglob("*.lua"))], ids=shown)
def test_files_stay_short_enough_to_read(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= MAX_LINES


@pytest.mark.parametrize("path", FILES, ids=shown)
def test_every_module_says_what_it_is(path: Path) -> None:
    if path.name == "_version.py":
        return
    assert ast.get_docstring(ast.parse(path.read_text())), shown(path)


def test_all_is_complete_and_sorted() -> None:
    assert lockfast.__all__ == sorted(lockfast.__all__)
    for name in lockfast.__all__:
        assert getattr(lockfast, name) is not None
    own = {name for name, value in vars(lockfast).items() if not name.startswith("_") and isinstance(value, type)}
    assert own <= set(lockfast.__all__)


def test_all_holds_every_error() -> None:
    from lockfast import errors

    raised = {
        name for name, value in vars(errors).items() if isinstance(value, type) and value.__module__ == errors.__name__
    }
    assert raised <= set(lockfast.__all__)


def test_package_is_typed_and_its_scripts_are_in_it() -> None:
    assert (SOURCE / "py.typed").exists()
    assert {path.name for path in (SOURCE / "lua").glob("*.lua")} >= {
        "admit.lua",
        "leave.lua",
        "renew.lua",
        "inspect.lua",
        "state.lua",
    }


def test_version_is_one_text() -> None:
    assert lockfast.__version__.split(".")[0].isdigit()
