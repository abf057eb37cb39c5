"""The page of the doctor explains every finding there is, in the words that the command prints."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from lockfast.doctor.catalogue import CATALOGUE

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "doctor.md"


def test_page_is_what_the_catalogue_says() -> None:
    made = subprocess.run(
        [sys.executable, "-c", "import make_doctor; print(make_doctor.page(), end='')"],
        cwd=ROOT / "docs",
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    ).stdout
    assert PAGE.read_text() == made, "run: python docs/make_doctor.py"


def test_every_finding_is_explained() -> None:
    text = PAGE.read_text()
    for key, entry in CATALOGUE.items():
        assert f"| `{key}` | {entry.level} | {entry.why} |" in text, key
