"""Words that made readers stumble stay out of messages, pages and docstrings."""

from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
FORBIDDEN = (
    "which is not correct",
    "Floating point leaves it",
    "Not to be re-checked",
    "predictions for every input.",
    "is on one way from input to output",
    "A rise that never ends",
    "counted as protection",
    "which is in none of",
    "F at one number",
    "C such that",
    "that are what they are",
    "that are their own size",
    "remainder is owed to",
    "halved to the last bit",
    "does not want the known worse",
    "For everything but the result",
    "Of the random batch",
    "can't go crazy",
    "it makes no difference but",
)
FILES = [
    *(ROOT / "src").rglob("*.py"),
    *(ROOT / "docs").rglob("*.md"),
    *(ROOT / "examples").rglob("*.py"),
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
]


@pytest.mark.parametrize("phrase", FORBIDDEN)
def test_nobody_reads_this(phrase):
    found = [str(file.relative_to(ROOT)) for file in FILES if phrase in file.read_text(encoding="utf-8")]
    assert not found


def test_there_are_files_to_read():
    assert len(FILES) > 500
