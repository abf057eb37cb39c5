"""The pages say what the tests do."""

from __future__ import annotations

from pathlib import Path

from compat import excluded

PAGE = Path(__file__).parents[2] / "docs" / "primitives" / "drop-in.md"


def rows() -> list[str]:
    """The table of what is left out, as the page has it."""
    tables = (("threading", excluded.THREADS), ("asyncio", excluded.ASYNCIO))
    return [f"| {tests} | `{case}` | {why} |" for tests, table in tables for case, why in table.items()]


def test_page_lists_exactly_the_excluded_cases() -> None:
    listed = [line for line in PAGE.read_text().splitlines() if line.startswith(("| threading |", "| asyncio |"))]
    assert listed == rows()
