"""Where the time of the tests goes: by folder, and the fifty slowest functions, as tables in ``tests/README.md``.

    python -m pytest -n 2 --junitxml=run.xml && python tests/durations.py run.xml

Several reports are taken as one: ``.ci/run`` leaves ``.ci/unit.xml`` and ``.ci/full.xml``. Times of a machine that
does something else as well are too long; shares of the whole are what to read.
"""

import argparse
import collections
import itertools
import re
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import tiers

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "tests" / "README.md"
SLOWEST = 50
BEGIN, END = "<!-- begin: durations -->", "<!-- end: durations -->"


def cases(reports):
    """(test's file, function without parameters, seconds) for every test that ran; skipped ones are left out."""
    for case in itertools.chain.from_iterable(ElementTree.parse(r).iter("testcase") for r in reports):
        if case.find("skipped") is None:
            yield file_of(case.get("classname")), case.get("name").partition("[")[0], float(case.get("time"))


def file_of(dotted):
    """The file that a dotted name begins with, from the project's root."""
    parts = dotted.split(".")
    for length in range(len(parts), 0, -1):
        path = ROOT.joinpath(*parts[:length]).with_suffix(".py")
        if path.exists():
            return path.relative_to(ROOT)
    return Path(*parts)


def folder_of(file):
    """The folder under ``tests`` that a file counts to."""
    return file.parts[1] if len(file.parts) > 2 else "tests"


def tables(*reports):
    """Both tables, as Markdown."""
    folders = collections.defaultdict(lambda: collections.defaultdict(list))
    functions = collections.defaultdict(list)
    for file, name, seconds in cases(reports):
        folders[folder_of(file)][tiers.of_file(file.relative_to("tests"))].append(seconds)
        functions[f"{file.relative_to('tests')}::{name}"].append(seconds)
    whole = sum(map(sum, functions.values())) or 1.0
    lines = [
        f"{sum(map(len, functions.values()))} tests, {whole:.0f} seconds of one core.", "",
        "| folder | tests | in files of the tier `unit` | seconds | share |", "|---|---|---|---|---|",
    ]  # fmt: skip
    for name, parts in sorted(folders.items(), key=lambda f: -sum(map(sum, f[1].values()))):
        every = [s for part in parts.values() for s in part]
        lines.append(
            f"| {name} | {len(every)} | {len(parts['unit'])} | {sum(every):.0f} | {sum(every) / whole:.1%} |"
        )
    lines += ["", "| slowest functions | tests | seconds | share |", "|---|---|---|---|"]
    for name, some in sorted(functions.items(), key=lambda f: -sum(f[1]))[:SLOWEST]:
        lines.append(f"| `{name}` | {len(some)} | {sum(some):.1f} | {sum(some) / whole:.1%} |")
    return "\n".join(lines)


def write(text, page=PAGE):
    """Put the tables between the page's two marks."""
    old = page.read_text(encoding="utf-8")
    new = re.sub(f"{BEGIN}.*{END}", lambda _: f"{BEGIN}\n{text}\n{END}", old, flags=re.DOTALL)
    page.write_text(new, encoding="utf-8")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("reports", type=Path, nargs="+", help="what --junitxml wrote")
    write(tables(*parser.parse_args().reports))
    sys.exit()
