"""A program's graph in as many boxes as a person can take in: nodes as they are, or grouped by module."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from farfield.report._words import AuditData, joint_verdicts, listed, node_label, shape_text, short_source

__all__ = ["KINDS", "NORMS", "Drawing", "DrawnBox", "Marks", "collapse", "marks_of"]

KINDS = ("constant", "bounded", "sublinear", "linear", "polynomial", "exponential", "unknown")
"""Kinds of growth, slowest first."""
NORMS = frozenset(["layer_norm", "rms_norm", "group_norm", "instance_norm", "l2_normalize", "batch_norm"])
DETAILED = 60
"""Up to this many nodes are drawn one by one, and no drawing has more boxes."""
_COMFORTABLE = 40
"""Boxes of a grouped drawing, where the modules allow it."""
_ENDS = 24
_TELLING = ("attention", "conv", "lstm", "gru", "rnn", "embedding", "linear", "matmul")
"""Operators that say what a group is, most telling first."""
_INDEX = re.compile(r"\d+")

Key = Callable[[Mapping[str, Any]], str | None]
"""Node → name of its group; None for a node that stands alone."""


@dataclass(frozen=True, slots=True)
class Marks:
    """What the audit says about single nodes.

    Parameters
    ----------
    path
        Nodes on the escape path of each output that is not bounded.
    steps
        Consecutive pairs of them.
    bypassed
        Norms that such a path goes round.
    cuts
        Nodes that bound an output: every path to it passes one.
    wanted
        Where a norm would bound an output that is not bounded.
    open
        Where the analysis could not decide.
    codes
        Node → codes of the findings placed there.
    """

    path: frozenset[str]
    steps: frozenset[tuple[str, str]]
    bypassed: frozenset[str]
    cuts: frozenset[str]
    wanted: frozenset[str]
    open: frozenset[str]
    codes: Mapping[str, tuple[str, ...]]

    @property
    def all(self) -> frozenset[str]:
        """Every node that is marked in some way."""
        return self.path | self.bypassed | self.cuts | self.wanted | self.open | frozenset(self.codes)


@dataclass(frozen=True, slots=True)
class DrawnBox:
    """One box of the drawing.

    Parameters
    ----------
    key
        Unique among the boxes.
    members
        Names of the nodes inside, in program order.
    label, detail
        First and second line of text.
    facts
        Everything known about it, name → text, for titles and tables.
    growth
        The fastest kind among the values that leave the box.
    role
        ``input``, ``output``, ``norm``, ``operation`` or ``group``.
    on_path
        An escape path runs through it.
    tags
        Short words beside it.
    """

    key: str
    members: tuple[str, ...]
    label: str
    detail: str
    facts: Mapping[str, str]
    growth: str
    role: str
    on_path: bool
    tags: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Drawing:
    """Boxes in topological order, links between them (with a flag: on the escape path), and what was left out."""

    boxes: tuple[DrawnBox, ...]
    links: tuple[tuple[str, str, bool], ...]
    notes: tuple[str, ...] = field(default=())


def marks_of(audit: AuditData) -> Marks:
    """Collect what the audit says about nodes."""
    nodes = audit["graph"]["nodes"]
    path: list[str] = []
    steps: set[tuple[str, str]] = set()
    bypassed: set[str] = set()
    cuts: set[str] = set()
    wanted: set[str] = set()
    undecided: set[str] = set()
    for verdict in joint_verdicts(audit):
        for way in verdict["paths"][:1]:
            path += way["nodes"]
            steps.update(pairwise(way["nodes"]))
            names = set(way["bypassed"])
            bypassed.update(n["name"] for n in nodes if n["op"] in NORMS and node_label(n) in names)
        if verdict["cut"] is not None and verdict["cut"]["verified"]:
            (cuts if verdict["status"] == "bounded" else wanted).update(verdict["cut"]["nodes"])
        if verdict["reason"] is not None:
            undecided.add(verdict["reason"]["node"])
    codes: dict[str, tuple[str, ...]] = {}
    outputs = {n["name"] for n in nodes if n["role"] == "output"}
    for finding in audit["findings"]:
        place = finding["place"]["node"]
        if place and place not in outputs and finding["code"] not in codes.get(place, ()):
            codes[place] = (*codes.get(place, ()), finding["code"])
    return Marks(
        frozenset(path),
        frozenset(steps),
        frozenset(bypassed),
        frozenset(cuts),
        frozenset(wanted),
        frozenset(undecided),
        codes,
    )


def collapse(audit: AuditData) -> Drawing:
    """Choose the boxes: single nodes up to sixty, otherwise groups by module, as fine as forty boxes allow.

    The escape path, norms and every marked node stand alone as long as they fit; then the middle of a row of repeated
    modules (``layers.1 … 22``) is drawn as one box, and as a last resort the middle of the program.
    """
    marks = marks_of(audit)
    nodes = _sorted(audit["graph"]["nodes"], audit["graph"]["edges"])
    notes: list[str] = []
    if len(nodes) > DETAILED:
        # Masks and positions that no input moves would draw a line to every layer.
        still = {
            n["name"] for n in nodes if n["growth"] == "constant" and n["role"] == "operation"
        } - marks.all
        nodes = [n for n in nodes if n["name"] not in still]
        if still:
            notes.append(f"{len(still):,} operations that no input moves are left out.")
    known = {n["name"] for n in nodes}
    operands: dict[str, list[str]] = defaultdict(list)
    for a, b in audit["graph"]["edges"]:
        if a in known and b in known:
            operands[b].append(a)
    groups = _groups(nodes, operands, marks)
    if len(groups) < len(nodes):
        notes.insert(0, f"{len(nodes):,} operations drawn as {len(groups)} boxes, grouped by module.")
    return _drawing(groups, operands, marks, notes)


def _sorted(nodes: Sequence[Mapping[str, Any]], edges: Iterable[Sequence[str]]) -> list[Mapping[str, Any]]:
    """Topological order, as close as possible to the order given."""
    by_name = {n["name"]: n for n in nodes}
    after: dict[str, list[str]] = defaultdict(list)
    waiting: Counter[str] = Counter()
    for a, b in edges:
        if a in by_name and b in by_name:
            after[a].append(b)
            waiting[b] += 1
    order: list[Mapping[str, Any]] = []
    ready = [n["name"] for n in reversed(nodes) if not waiting[n["name"]]]
    while ready:
        name = ready.pop()
        order.append(by_name[name])
        for following in reversed(after[name]):
            waiting[following] -= 1
            if not waiting[following]:
                ready.append(following)
    return order


def _groups(
    nodes: Sequence[Mapping[str, Any]], operands: Mapping[str, Sequence[str]], marks: Marks
) -> list[list[Mapping[str, Any]]]:
    if len(nodes) <= DETAILED:
        return [[n] for n in nodes]
    depths = range(max(n["module_path"].count(".") + 1 for n in nodes), 0, -1)
    norms = {n["module_path"] for n in nodes if n["op"] in NORMS and "norm" in n["module_type"].lower()}
    norms.discard("")
    best: list[list[Mapping[str, Any]]] = [[n] for n in nodes]
    for ends in (None, 2, 1):
        middle = {} if ends is None else _repeated(nodes, ends)
        tries = []
        for depth in depths:
            key = _key(depth, marks, middle, norms)
            # There are at least as many groups as keys: most depths need not be tried.
            if len({f"={n['name']}" if (own := key(n)) is None else own for n in nodes}) <= DETAILED:
                tries.append(_quotient(nodes, operands, key))
        for most in (_COMFORTABLE, DETAILED):
            for groups in tries:
                if len(groups) <= most:
                    return groups
        best = min([best, *tries], key=len)
    # An interval of a topological order has no way out and back in: drawing it as one box makes no cycle.
    inner = [n for group in best[_ENDS:-_ENDS] for n in group]
    return [*best[:_ENDS], inner, *best[-_ENDS:]]


def _key(depth: int, marks: Marks, middle: Mapping[str, str], norms: Set[str]) -> Key:
    alone = marks.path | marks.bypassed
    always = marks.cuts | marks.wanted | marks.open | frozenset(marks.codes)

    def key(node: Mapping[str, Any]) -> str | None:
        name = node["name"]
        if node["role"] != "operation" or name in always:
            return None
        if name in middle:
            return middle[name]
        # A norm's scale and shift are part of it.
        if node["module_path"] in norms:
            return f"norm {node['module_path']}"
        if name in alone or node["op"] in NORMS:
            return None
        return ".".join(node["module_path"].split(".")[:depth])

    return key


def _repeated(nodes: Sequence[Mapping[str, Any]], ends: int) -> dict[str, str]:
    """Node → group, for nodes in numbered modules (``layers.7``) that are not among the first or last few."""
    places: dict[str, tuple[str, int]] = {}
    indices: dict[str, set[int]] = defaultdict(set)
    for node in nodes:
        parts = node["module_path"].split(".")
        position = next((i for i, part in enumerate(parts) if _INDEX.fullmatch(part)), None)
        if position is not None:
            parent = ".".join(parts[:position])
            places[node["name"]] = (parent, int(parts[position]))
            indices[parent].add(int(parts[position]))
    inner = {parent: set(sorted(found)[ends:-ends]) for parent, found in indices.items()}
    return {
        name: f"{parent}.#"
        for name, (parent, index) in places.items()
        if index in inner[parent] and len(inner[parent]) > 1
    }


def _quotient(
    nodes: Sequence[Mapping[str, Any]], operands: Mapping[str, Sequence[str]], key: Key
) -> list[list[Mapping[str, Any]]]:
    """Groups of equal key, split where needed so that no cycle arises.

    Every node gets a rank that never falls along an edge and rises wherever the key changes; a group is a key and a
    rank. Between two groups the rank rises strictly, so the groups have no cycle.
    """
    rank: dict[str, int] = {}
    keys: dict[str, str] = {}
    groups: dict[tuple[int, str], list[Mapping[str, Any]]] = defaultdict(list)
    for node in nodes:
        name = node["name"]
        own = key(node)
        keys[name] = f"={name}" if own is None else f"+{own}"
        rank[name] = max((rank[a] + (keys[a] != keys[name]) for a in operands.get(name, ())), default=0)
        groups[rank[name], keys[name]].append(node)
    return [groups[k] for k in sorted(groups, key=lambda k: k[0])]


def _drawing(
    groups: Sequence[Sequence[Mapping[str, Any]]],
    operands: Mapping[str, Sequence[str]],
    marks: Marks,
    notes: Sequence[str],
) -> Drawing:
    home = {n["name"]: f"b{i}" for i, group in enumerate(groups) for n in group}
    links: dict[tuple[str, str], bool] = {}
    leaving: set[str] = set()
    for name, sources in operands.items():
        for source in sources:
            pair = (home[source], home[name])
            if pair[0] != pair[1]:
                leaving.add(source)
                links[pair] = links.get(pair, False) or (source, name) in marks.steps
    boxes = tuple(_box(f"b{i}", group, leaving, marks) for i, group in enumerate(groups))
    return Drawing(boxes, tuple((a, b, flag) for (a, b), flag in links.items()), tuple(notes))


def _box(key: str, group: Sequence[Mapping[str, Any]], leaving: set[str], marks: Marks) -> DrawnBox:
    names = tuple(n["name"] for n in group)
    inside = set(names)
    last = [n for n in group if n["name"] in leaving] or [group[-1]]
    growth = max((n["growth"] for n in last), key=_speed)
    tags: list[str] = []
    passed = len(inside & marks.bypassed)
    if passed:
        tags.append("bypassed" if passed == 1 else f"{passed} norms bypassed")
    if inside & marks.cuts:
        tags.append("cuts the paths")
    if inside & marks.wanted:
        tags.append("+ norm after")
    if inside & marks.open:
        tags.append("open")
    tags += sorted({code for name in names for code in marks.codes.get(name, ())})
    on_path = bool(inside & marks.path)
    if len(group) == 1:
        return _single(key, group[0], growth, on_path, tuple(tags))
    paths = list(dict.fromkeys(n["module_path"] for n in group))
    label, blocks = _group_label(paths)
    label = label or "top level"
    ops = Counter(n["op"] for n in group)
    telling = next((op for op in _TELLING if op in ops), "")
    detail = f"{len(group):,} operations" + (f", {telling}" if telling else "")
    if len(group) <= 3:
        detail = listed(list(ops), 3)
    if blocks > 1:
        detail = f"{blocks} modules, {len(group):,} operations"
    kinds = dict.fromkeys(n["module_type"] for n in group if n["module_path"] == label and n["module_type"])
    facts = {
        "module": " ".join([label, *(f"({kind})" for kind in kinds)]),
        "holds": listed([f"{op} ×{count}" if count > 1 else op for op, count in ops.most_common()], 6),
        "norms inside": str(sum(ops[op] for op in NORMS)),
        "leaves with shape": shape_text(last[-1]["shape"]),
        "growth": growth,
        "source": short_source(group[0]["source"]),
    }
    role = "group"
    if len(paths) == 1 and sum(ops[op] for op in NORMS) == 1:
        role, detail = "norm", f"{listed(list(ops), 3)} {facts['leaves with shape']}"
    return DrawnBox(key, names, label, detail, _filled(facts), growth, role, on_path, tuple(tags))


def _single(key: str, node: Mapping[str, Any], growth: str, on_path: bool, tags: tuple[str, ...]) -> DrawnBox:
    role = node["role"] if node["role"] != "operation" else "norm" if node["op"] in NORMS else "operation"
    shape = shape_text(node["shape"])
    facts = {
        "node": node["name"],
        "operator": node["op"] if role in ("operation", "norm") else "",
        "module": node["module_path"] + (f" ({node['module_type']})" if node["module_path"] else ""),
        "shape": shape,
        "growth": growth,
        "source": short_source(node["source"]),
    }
    label = node_label(node)
    what = node["op"] if role in ("operation", "norm") else role
    detail = shape if label in (node["op"], node["name"]) and what == node["op"] else f"{what} {shape}"
    return DrawnBox(key, (node["name"],), label, detail, _filled(facts), growth, role, on_path, tags)


def _filled(facts: Mapping[str, str]) -> dict[str, str]:
    return {key: value for key, value in facts.items() if value and value != "0"}


def _speed(kind: str) -> int:
    return KINDS.index(kind) if kind in KINDS else len(KINDS)


def _group_label(paths: Sequence[str]) -> tuple[str, int]:
    """The module that holds all these, or a row of its numbered children; and how many modules that is."""
    split = [path.split(".") if path else [] for path in paths]
    shared: list[str] = []
    for parts in zip(*split, strict=False):
        if len(set(parts)) > 1:
            break
        shared.append(parts[0])
    following = {parts[len(shared)] for parts in split if len(parts) > len(shared)}
    whole = all(len(parts) > len(shared) for parts in split)
    name = ".".join(shared)
    if whole and len(following) > 1 and all(_INDEX.fullmatch(f) for f in following):
        found = sorted(int(f) for f in following)
        return f"{name}{'.' if name else ''}{found[0]} … {found[-1]}", len(found)
    return name, 1
