"""Words that made readers stumble stay out of messages, pages and docstrings."""

import io
import re
import tokenize
from pathlib import Path

import pytest

STRINGS = {tokenize.STRING, getattr(tokenize, "FSTRING_MIDDLE", tokenize.STRING)}
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
    "Bounded is not correct",
    "was seen to leave real arithmetic",
    "Wrong before:",
    "Put in: ",
    "Trained already?",
    "at inputs of norm about",
    "farfield repair TARGET",
    "to be held at",
    "data is gone through",
    "nobody can look into",
    "is unbounded is open",
    "no number was proved",
    "would be worth little",
    "watch looks with",
    "is looked at, got",
    "Repeat or comma",
    "So many seeds",
    "of the experiment otherwise",
    "It is not read.",
    "{str(folder)!r} is none",
    "3: a bug here",
    '"""V + w',
    '"""V − w',
    '"""X if the value',
    '"""Sign · output',
)
BRITISH = re.compile(
    r"\b(?:(?:un|re)?(?:normal|standard|initial|factor|recogn|stabil|parametr|general|summar|minim|maxim|optim|linear|random)"
    r"is(?:e|es|ed|ing|er|ers|ation|ations)|cent(?:re|red|ring)|coloured|colours?|behaviour|neighbours?|analys(?:e|ed|ing)|"
    r"artefacts?|labelled|labellings?|cancelled|learnt|judgements?)\b",
    re.IGNORECASE,
)
"""As PyTorch has it: normalized, analyze, center."""
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


def british(source):
    """British words in the sentences of a program: string literals of several words. Names stay as they are."""
    found = []
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type in STRINGS and " " in token.string.strip():
            lines = (
                line for line in token.string.splitlines() if not line.lstrip().startswith((">>>", "..."))
            )
            words = re.sub(r"`+[^`]*`+|\{[^}]*\}", "", "\n".join(lines))
            found += [m.group(0) for m in BRITISH.finditer(words) if not is_name(words, m)]
    return found


def is_name(text, match):
    """A parameter in a list of parameters, an attribute, a call."""
    line = text[text.rfind("\n", 0, match.start()) + 1 :].partition("\n")[0].strip()
    return bool(re.fullmatch(r"[\w, ]+", line) and len(line.split(",")) == len(line.split())) or (
        text[match.start() - 1 : match.start()] in ("_", ".")
    )


@pytest.mark.full
def test_one_spelling_in_programs():
    found = {
        str(file.relative_to(ROOT)): words
        for file in FILES
        if file.suffix == ".py" and (words := british(file.read_text(encoding="utf-8")))
    }
    assert not found


def test_one_spelling_on_pages():
    pages = [
        file for file in (*FILES, ROOT / "CHANGELOG.md", ROOT / "ARCHITECTURE.md") if file.suffix == ".md"
    ]
    found = {
        str(page.relative_to(ROOT)): words
        for page in pages
        if (words := BRITISH.findall(re.sub(r"`+[^`]*`+", "", page.read_text(encoding="utf-8"))))
    }
    assert not found


def test_the_spelling_test_can_fail():
    assert british('x = "The input is normalised first."') == ["normalised"]
    assert british('def f():\n    """Centred rows."""') == ["Centred"]
    assert not british('analyse = f"The input is normalized by {analyse}, see ``centred``."')


def test_there_are_files_to_read():
    assert len(FILES) > 500
