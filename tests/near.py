"""The tests nearest to a change: those of the rooms it touches, whole, and unit tests of the rooms above.

    python tests/near.py [--base REVISION] [--list] [pytest's options]

A change is what differs from ``main`` (or from the revision given), committed or not. A room is a package of
farfield; the rooms above it are those that import it, directly or through others, by the imports that
``room_cards.py`` reads. Prints what it chose and why, and runs it: first the rooms' own tests (tier ``full``), then
the rooms above (tier ``unit``).
"""

import argparse
import ast
import functools
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import farfield
import room_cards
import tiers

ROOT = Path(__file__).resolve().parents[1]
TESTS = ROOT / "tests"
HOUSE_RULES = ("test_house.py", "test_words.py")
"""Rules that every source file has to keep; a second each."""


@dataclass
class Choice:
    """Test files to run, each with the reason."""

    own: dict[str, str] = field(default_factory=dict)
    above: dict[str, str] = field(default_factory=dict)


def changed(base):
    """Paths that differ from the base, from the project's root: committed, not committed, not yet added."""
    lines = _git("diff", "--name-only", _git("merge-base", base, "HEAD")[0])
    return sorted({*lines, *_git("ls-files", "--others", "--exclude-standard")})


def _git(*words):
    done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"git {' '.join(words)}: {done.stderr.strip()}")
    return done.stdout.split("\n")[:-1]


def room_of(module, packages):
    """The package that a module lies in: itself, if it is one."""
    while module not in packages:
        module = module.rpartition(".")[0]
    return module


def rooms_above(modules, graph, packages):
    """Rooms that import one of the modules, directly or through others. The root imports everything, lazily."""
    users = {name: set() for name in graph}
    for name, targets in graph.items():
        for target in targets if name != "farfield" else ():
            users[target].add(name)
    reached, waiting = set(modules), list(modules)
    while waiting:
        for user in users.get(waiting.pop(), ()):
            if user not in reached:
                reached.add(user)
                waiting.append(user)
    return {room_of(name, packages) for name in reached} - {"farfield"}


@functools.cache
def imported_names(path):
    """What a file imports, and what it takes from farfield's root by attribute (``ff.audit``), by dotted names."""
    nodes = list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
    lazy = {room: f"farfield.{room}" for room in farfield._ROOMS} | farfield._LAZY
    names = {f"{n.module}.{a.name}" for n in nodes if isinstance(n, ast.ImportFrom) for a in n.names}
    names |= {a.name for n in nodes if isinstance(n, ast.Import) for a in n.names}
    taken = (n for n in nodes if isinstance(n, ast.Attribute) and isinstance(n.value, ast.Name))
    roots = {n.attr for n in taken if n.value.id in ("ff", "farfield")}
    return names | {lazy[name].replace(":", ".") for name in roots if name in lazy}


def subjects(file, helpers, packages):
    """Rooms that a test file imports, by itself or by a module of helpers beside the tests."""
    found, waiting, seen = set(), [file], set()
    while waiting:
        path = waiting.pop()
        seen.add(path)
        for name in imported_names(path):
            if name.startswith("farfield."):
                found.add(room_of(name, packages))
            beside = {helpers[h] for h in (name, name.rpartition(".")[0]) if h in helpers}
            waiting.extend(beside - seen)
    return found - {"farfield"}


def choose(paths):
    """What to run after a change of these paths."""
    known, graph = room_cards.modules(), room_cards.imports()
    packages = {name for name, path in known.items() if path.name == "__init__.py"}
    by_path = {path.relative_to(ROOT).as_posix(): name for name, path in known.items()}
    modules = {by_path[p] for p in paths if p in by_path}
    rooms = {room_of(m, packages) for m in modules}
    above = rooms_above(modules, graph, packages)
    choice = Choice()
    files = sorted(TESTS.rglob("test_*.py"))
    helpers = {
        ".".join(f.relative_to(TESTS).with_suffix("").parts): f
        for f in TESTS.rglob("*.py") if not f.name.startswith("test_")
    }  # fmt: skip
    touched = {p.removeprefix("tests/") for p in paths if p.startswith("tests/")}
    for file in files:
        name = file.relative_to(TESTS).as_posix()
        imported = subjects(file, helpers, packages)
        house = f"farfield.{name.partition('/')[0]}"
        mine = {r for r in rooms if r == house or r.startswith(f"{house}.")} & (imported | {house})
        if name in touched:
            choice.own[name] = "changed itself"
        elif mine:
            choice.own[name] = f"tests {', '.join(sorted(mine))}"
        elif tiers.of_file(name) == "unit" and (over := imported & (above | rooms)):
            choice.above[name] = f"imports {', '.join(sorted(over))}"
    if modules:
        choice.own.update(dict.fromkeys(HOUSE_RULES, "a rule for every file"))
    if pages := [p for p in paths if p.endswith(".md")]:
        choice.own["test_code_blocks.py"] = f"runs {', '.join(pages)}"
    return rooms, above, choice


def report(title, chosen):
    """Print files and reasons, one line for all files of a folder that have the same reason."""
    lines = {}
    for name, why in sorted(chosen.items()):
        folder, _, file = name.rpartition("/")
        lines.setdefault((folder, why), []).append(file.removeprefix("test_").removesuffix(".py"))
    print(f"{title}: {len(chosen)} files")
    for (folder, why), names in lines.items():
        print(f"  {folder or 'tests'}: {' '.join(names)}  ({why})")


def main():
    """Choose, print, run; the exit code is the first that is not 0."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--base", default="main", help="what the change is measured from")
    parser.add_argument("--list", action="store_true", help="print the choice and run nothing")
    options, rest = parser.parse_known_args()
    paths = changed(options.base)
    rooms, above, choice = choose(paths)
    if not choice.own and not choice.above:
        print(f"Nothing that tests cover differs from {options.base}.")
        return 0
    print("Rooms changed:", *sorted(rooms) or ["none"])
    print("Rooms above:", *sorted(above - rooms) or ["none"])
    report("Tests of these rooms, whole", choice.own)
    report("Unit tests of the rooms above", choice.above)
    if options.list:
        return 0
    for tier, chosen in (("full", choice.own), ("unit", choice.above)):
        if not chosen:
            continue
        command = [sys.executable, "-m", "pytest", "-q", "-n", "2", "--dist", "loadgroup", "-m", tier, *rest]
        code = subprocess.call([*command, *(f"tests/{name}" for name in sorted(chosen))], cwd=ROOT)
        if code not in (0, 5):  # 5: nothing of this tier in the files
            return code
    return 0


if __name__ == "__main__":
    sys.exit(main())
