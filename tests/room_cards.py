"""Who imports whom in farfield, read from the source, and the room cards' "May import" lines that follow from it.

    python tests/room_cards.py [--write]

prints the lines that are wrong, or writes the right ones. Every import counts: inside functions and under
``TYPE_CHECKING`` as well.
"""

import ast
import functools
import re
import sys
import textwrap
from pathlib import Path

SOURCE = Path(__file__).resolve().parent.parent / "src" / "farfield"
WIDTH = 118
LINE = re.compile(r"May import:(?P<names>[\w\s.,]*?)(?P<stop>;|\.(?=\s|$))")
"""Names, separated by commas; what stands behind a semicolon is prose, about packages of other people."""
NONE = "nothing of farfield"


def modules(source=SOURCE):
    """Every module by its dotted name, packages by the name of the package."""
    found = {}
    for path in sorted(source.rglob("*.py")):
        parts = ("farfield", *path.relative_to(source).with_suffix("").parts)
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imported(name, path, known):
    """The modules of ``known`` that one file imports."""
    package = name.split(".") if path.name == "__init__.py" else name.split(".")[:-1]
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else []
            origin = ".".join([*above, *([node.module] if node.module else [])])
            found |= {
                f"{origin}.{alias.name}" if f"{origin}.{alias.name}" in known else origin
                for alias in node.names
            }
    return (found & known.keys()) - {name}


@functools.cache
def imports(source=SOURCE):
    """Module → the modules it imports, as the files stood when it was first asked."""
    known = modules(source)
    return {name: imported(name, path, known) for name, path in known.items()}


@functools.cache
def rooms(source=SOURCE):
    """Package → the rooms it imports: outside its own house by their first name, inside it by the package's."""
    known, graph = modules(source), imports(source)
    packages = {name for name, path in known.items() if path.name == "__init__.py"}
    found = {}
    for package in sorted(packages - {"farfield"}):
        own, house = f"{package}.", ".".join(package.split(".")[:2])
        targets = {
            target
            for name, some in graph.items()
            if name == package or name.startswith(own)
            for target in some
            if target != package and not target.startswith(own)
        }
        found[package] = {_room(target, house, packages) for target in targets}
    return found


def _room(target, house, packages):
    if target == house or target.startswith(f"{house}."):
        while target not in packages:
            target = target.rpartition(".")[0]
        return target.removeprefix("farfield.")
    return target.removeprefix("farfield.").partition(".")[0]


def card(path):
    """A package's docstring."""
    return ast.get_docstring(ast.parse(path.read_text()), clean=False) or ""


def stated(text):
    """The names in a card's line, or None if it has none that can be read."""
    match = LINE.search(text)
    return None if match is None else {n for n in re.split(r"[,\s]+", match["names"]) if n}


def corrected(text, names):
    """The card with the names as they should be, on lines of their own."""
    listed = ", ".join(sorted(names, key=lambda n: (n.startswith("_"), n))) or NONE
    head, mark, rest = text.partition("May import:")
    match = LINE.search(mark + rest)
    tail = rest[rest.index(".") :] if match is None else (mark + rest)[match.end("names") :]
    first, never, last = f"{mark} {listed}{tail}".partition("Never:")
    lines = (" ".join(part.split()) for part in (first, never + last))
    folded = ("\n".join(textwrap.wrap(line, WIDTH, break_on_hyphens=False)) for line in lines)
    return f"{head.rstrip()}\n" + "\n".join(folded) + "\n"


def wrong_cards(source=SOURCE):
    """Package → (what its card says, what it imports), where they differ."""
    known = modules(source)
    found = {}
    for package, real in rooms(source).items():
        said = stated(card(known[package]))
        if said is None or said - {*NONE.split()} != real - {"farfield"}:
            found[package] = (said, real)
    return found


if __name__ == "__main__":
    for package in wrong_cards():
        path = modules()[package]
        text = card(path)
        new = corrected(text, rooms()[package] - {"farfield"})
        print(f"{package}: {new.partition('May import:')[2].partition('Never:')[0].strip()}")
        if "--write" in sys.argv:
            path.write_text(path.read_text().replace(text, new, 1))
