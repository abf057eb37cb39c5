"""Every colour of the lab, for light and for dark, in one place.

Verdicts are told apart with any kind of colour vision: blue, amber, vermilion and purple after Okabe and Ito, and
each has a sign of its own. Texts have at least 4.5:1 against what they stand on; a test measures it.
"""

from __future__ import annotations

COLOURS: dict[str, tuple[str, str]] = {
    "paper": ("#ffffff", "#14171c"),
    "ground": ("#f5f6f8", "#0d1014"),
    "raised": ("#ffffff", "#1b1f26"),
    "ink": ("#1b1f24", "#e8eaed"),
    "soft": ("#59616b", "#a2abb6"),
    "line": ("#d9dde3", "#323943"),
    "faint": ("#eceef1", "#232932"),
    "link": ("#0b5cad", "#7db8f5"),
    # A verdict is `sign` on `back`.
    "violated-sign": ("#ffffff", "#1a0d05"),
    "violated-back": ("#b93a0a", "#ff8a55"),
    "stuck-sign": ("#ffffff", "#170a1f"),
    "stuck-back": ("#7a3a94", "#d09be6"),
    "fenced-sign": ("#5a3d00", "#ffd98a"),
    "fenced-back": ("#ffe2a3", "#4d3a10"),
    "unknown-sign": ("#4a525c", "#b6bec8"),
    "unknown-back": ("#e6e9ed", "#2b323c"),
    "safe-sign": ("#0b5a94", "#8cc4f2"),
    "safe-back": ("#e3f0fa", "#16283a"),
    "na-sign": ("#6a727c", "#8f98a4"),
    "na-back": ("#ffffff", "#1b1f26"),
    # The fatal moment, and what is wrong in a picture.
    "fatal": ("#b93a0a", "#ff8a55"),
    "fault": ("#8a5a00", "#f0b848"),
    # Clients: `full` under white or black text, `tint` under ink.
    "c0-full": ("#0d62a3", "#6db3ee"), "c0-tint": ("#dcebf8", "#17304a"),
    "c1-full": ("#00715a", "#45c7a4"), "c1-tint": ("#d6efe8", "#0f3a31"),
    "c2-full": ("#7a4aa3", "#c59be8"), "c2-tint": ("#ece2f6", "#352548"),
    "c3-full": ("#7d5c00", "#d9b44a"), "c3-tint": ("#f5ebcc", "#3b3011"),
    "c4-full": ("#a3346b", "#ee8fba"), "c4-tint": ("#f8dfea", "#45202f"),
    "c5-full": ("#4d5966", "#a9b6c4"), "c5-tint": ("#e2e6ea", "#2c343d"),
    "on-full": ("#ffffff", "#0d1014"),
}  # fmt: skip

CLIENTS = 6


def css(selector: str) -> str:
    """The colours as variables of a selector, dark ones where the reader prefers dark; paper is always light."""
    light = "".join(f"--{name}:{pair[0]};" for name, pair in COLOURS.items())
    dark = "".join(f"--{name}:{pair[1]};" for name, pair in COLOURS.items())
    return f"{selector}{{{light}}}\n@media screen and (prefers-color-scheme:dark){{{selector}{{{dark}}}}}\n"


def styled(rules: list[tuple[str, str, str]]) -> str:
    """Rules (selector, property, colour) in plain values, dark ones behind: for readers that know no variables."""
    light = "".join(f"{selector}{{{name}:{COLOURS[colour][0]}}}\n" for selector, name, colour in rules)
    dark = "".join(f"{selector}{{{name}:{COLOURS[colour][1]}}}\n" for selector, name, colour in rules)
    return f"{light}@media screen and (prefers-color-scheme:dark){{\n{dark}}}\n"
