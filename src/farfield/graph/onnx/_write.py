"""An ONNX file with nodes put in: everything else is copied byte for byte.

The file is walked as in ``_wire``; only the nodes whose names have to change are parsed and written anew. Weights are
copied from file to file and never parsed.
"""

from __future__ import annotations

import mmap
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any, TypeAlias

from torch import Tensor

from farfield.errors import InvalidValueError
from farfield.graph.onnx._file import onnx_package, read_onnx_file
from farfield.graph.onnx._tensors import external_files
from farfield.graph.onnx._wire import GRAPH, Field, fields, length_delimited, varint

__all__ = ["Addition", "Splice", "write_spliced"]

_NODE, _INITIALIZER = 1, 5
"""Field numbers of ``GraphProto``."""
_VERSION, _CONSTANTS_ARE_INPUTS = 1, 3
"""Field of ``ModelProto``, and the last version of the format in which every initializer is an input of the graph."""
_CHECKED = 1 << 31
"""Files of up to this many bytes are checked by ``onnx.checker`` after writing."""
_Piece: TypeAlias = "bytes | tuple[int, int]"
"""New bytes, or a stretch of the old file."""


@dataclass(frozen=True)
class Addition:
    """One node of standard operators to put in: operator, input names, output name and attributes.

    ``name`` is the node's own, that of its output by default: no two nodes of a file may share one.
    """

    operator: str
    inputs: tuple[str, ...]
    output: str
    attributes: Mapping[str, Any] = field(default_factory=dict)
    name: str = ""


@dataclass(frozen=True)
class Splice:
    """Nodes that take one value of the graph and give another instead.

    Parameters
    ----------
    value
        Name of the value in the file.
    kind
        ``"input"``: whoever uses the graph's input uses the new value. ``"behind"``: so does whoever uses the result
        of a node. ``"output"``: only what the graph returns is new.
    nodes
        What is put in, in order; the first uses ``source``, the last gives ``result``.
    tensors
        Initializers of these nodes by name.
    source, result
        Names that the nodes read and give.
    """

    value: str
    kind: str
    nodes: tuple[Addition, ...]
    tensors: Mapping[str, Tensor]
    source: str
    result: str


def write_spliced(
    source: str | os.PathLike[str], out: str | os.PathLike[str], splices: Sequence[Splice]
) -> None:
    """Write a copy of an ONNX file with nodes put in.

    Of the rest, only the names of the values that are replaced change; every other byte of the graph is copied. Files
    that hold weights beside the model are copied too, if ``out`` lies in another folder.

    Raises
    ------
    InvalidValueError
        If the names can't be changed: a value inside the body of an ``If``, ``Loop`` or ``Scan`` uses them.
    """
    package = onnx_package()
    read_onnx_file(source)  # refuses what can't be read safely
    place = Path(out)
    with open(source, "rb") as file:
        data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        pieces = _model(package, data, splices)
        part = place.with_name(f".{place.name}.part")
        try:
            with part.open("wb") as target:
                for piece in pieces:
                    target.write(piece if isinstance(piece, bytes) else data[piece[0] : piece[1]])
            _copy_beside(package, data, Path(source).parent, place.parent)
            if part.stat().st_size < _CHECKED:
                _check(package, part, source)
            part.replace(place)
        finally:
            part.unlink(missing_ok=True)


def _check(package: Any, part: Path, source: str | os.PathLike[str]) -> None:
    try:
        package.checker.check_model(str(part))
    except package.checker.ValidationError as error:
        said = " ".join(str(error).split())[:300]
        raise InvalidValueError(
            f"onnx.checker refuses {os.fspath(source)!r} with the nodes put in: {said}. Save the repaired model "
            "as .pt2."
        ) from error


def _model(package: Any, data: mmap.mmap, splices: Sequence[Splice]) -> list[_Piece]:
    pieces: list[_Piece] = []
    old = False
    for item in fields(data, 0, len(data)):
        if item.number == _VERSION and item.kind == 0:
            version = package.ModelProto.FromString(data[item.begin : item.end]).ir_version
            old = int(version) <= _CONSTANTS_ARE_INPUTS
    for item in fields(data, 0, len(data)):
        if item.number == GRAPH and item.kind == 2:
            inner = _graph(package, data, item, splices, as_nodes=old)
            pieces += [varint(GRAPH << 3 | 2) + varint(sum(map(_length, inner))), *inner]
        else:
            pieces.append((item.begin, item.end))
    return pieces


def _length(piece: _Piece) -> int:
    return len(piece) if isinstance(piece, bytes) else piece[1] - piece[0]


def _graph(
    package: Any, data: mmap.mmap, graph: Field, splices: Sequence[Splice], *, as_nodes: bool
) -> list[_Piece]:
    """The graph with its new nodes; their constants are initializers, or nodes too."""
    uses, makes = _renamings(splices)
    ends = {s.source: s for s in splices if s.kind != "input"}
    waiting = [s for s in splices if s.kind == "input"]
    pieces: list[_Piece] = []
    placed: set[str] = set()
    for item in fields(data, graph.start, graph.end):
        if item.number != _NODE or item.kind != 2:
            pieces.append((item.begin, item.end))
            continue
        for splice in waiting:
            pieces += _added(package, splice, as_nodes=as_nodes)
        waiting = []
        node = package.NodeProto.FromString(data[item.start : item.end])
        changed = _rename(node, uses, makes)
        pieces.append(
            length_delimited(_NODE, node.SerializeToString()) if changed else (item.begin, item.end)
        )
        for name in node.output:
            while name in ends and name not in placed:
                placed.add(name)
                pieces += _added(package, ends[name], as_nodes=as_nodes)
                name = ends[name].result
    missing = [s.value for name, s in ends.items() if name not in placed]
    if missing:
        raise InvalidValueError(
            f"No node of the graph makes {missing[0]!r}, so nothing can be put behind it."
        )
    for splice in splices if not as_nodes else ():
        pieces += [
            length_delimited(_INITIALIZER, _tensor(package, name, value).SerializeToString())
            for name, value in splice.tensors.items()
        ]
    return pieces


def _renamings(splices: Sequence[Splice]) -> tuple[dict[str, str], dict[str, str]]:
    """Old name → new one, for those who use a value and for the one who makes it."""
    uses = {s.value: s.result for s in splices if s.kind == "input"}
    makes: dict[str, str] = {}
    for splice in splices:
        if splice.kind == "input":
            continue
        makes.setdefault(splice.value, splice.source)
        if splice.kind == "output":
            uses.setdefault(splice.value, splice.source)  # the graph's own nodes see what they saw
    return uses, makes


def _rename(node: Any, uses: Mapping[str, str], makes: Mapping[str, str]) -> bool:
    if any(int(a.type) in (5, 10) for a in node.attribute):
        raise InvalidValueError(
            f"The node {node.name[:80]!r} ({node.op_type}) holds a graph of its own, in which names can't be "
            "changed. Save the repaired model as .pt2."
        )
    changed = False
    for names, table in ((node.input, uses), (node.output, makes)):
        for k, name in enumerate(names):
            if name in table and name:
                names[k] = table[name]
                changed = True
    return changed


def _added(package: Any, splice: Splice, *, as_nodes: bool) -> list[_Piece]:
    constants = [
        package.helper.make_node("Constant", [], [name], name=name, value=_tensor(package, name, value))
        for name, value in splice.tensors.items()
        if as_nodes
    ]
    pieces: list[_Piece] = [length_delimited(_NODE, node.SerializeToString()) for node in constants]
    pieces += [
        length_delimited(
            _NODE,
            package.helper.make_node(
                node.operator,
                list(node.inputs),
                [node.output],
                name=node.name or node.output,
                **node.attributes,
            ).SerializeToString(),
        )
        for node in splice.nodes
    ]
    return pieces


def _tensor(package: Any, name: str, value: Tensor) -> Any:
    return package.numpy_helper.from_array(value.detach().cpu().numpy(), name)


def _copy_beside(package: Any, data: mmap.mmap, old: Path, new: Path) -> None:
    """Files of weights from the old folder to the new one, if that is another."""
    if old.resolve() == new.resolve():
        return
    graph = next(item for item in fields(data, 0, len(data)) if item.number == GRAPH)
    protos = []
    for item in fields(data, graph.start, graph.end):
        if item.number == _INITIALIZER:
            inner = list(fields(data, item.start, item.end))
            # Everything but the numbers themselves: names and places.
            content = b"".join(data[f.begin : f.end] for f in inner if f.number in (1, 2, 8, 13, 14))
            protos.append(package.TensorProto.FromString(content))
    for name in external_files(protos):
        target = new / PurePosixPath(name)
        if target.exists():
            raise InvalidValueError(
                f"The weights of the model lie in {name!r}, and {str(target)!r} exists already. Write to "
                "another folder."
            )
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(old / PurePosixPath(name), target)
