"""``{tests}`isometry_gap` ``: the test files whose tests call a function, with how many do.

Found by reading ``tests/`` at build time, so the theory table cannot promise a test that is not there. Several names
are separated by commas; a test that mentions any of them counts once.
"""

from __future__ import annotations

import ast
import functools
import re
from pathlib import Path

from docutils import nodes

_TESTS = Path(__file__).resolve().parents[2] / "tests"


@functools.cache
def _bodies() -> tuple[tuple[str, tuple[str, ...]], ...]:
    found = []
    for path in sorted(_TESTS.rglob("test_*.py")):
        source = path.read_text(encoding="utf-8")
        bodies = tuple(
            ast.get_source_segment(source, node) or ""
            for node in ast.walk(ast.parse(source))
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
        )
        found.append((path.relative_to(_TESTS).as_posix(), bodies))
    return tuple(found)


def tests_of(names: list[str]) -> list[tuple[str, int]]:
    """(file, number of tests) for every test file that calls one of the names, most tests first."""
    pattern = re.compile("|".join(rf"\b{re.escape(n)}\b" for n in names))
    counts = [(file, sum(bool(pattern.search(b)) for b in bodies)) for file, bodies in _bodies()]
    return sorted(((f, c) for f, c in counts if c), key=lambda pair: (-pair[1], pair[0]))


def _role(name, rawtext, text, lineno, inliner, options=None, content=()):
    found = tests_of([word.strip() for word in text.split(",")])
    if not found:
        return [nodes.emphasis("", "none yet")], []
    made: list[nodes.Node] = []
    for file, count in found[:2]:
        made += [nodes.literal("", file), nodes.Text(f" ({count}) ")]
    return made, []


def setup(app):
    app.add_role("tests", _role)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
