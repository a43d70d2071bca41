"""Reading an ``.onnx`` file: its graph as plain data, checked before anything is built from it.

The only place that imports ``onnx``. Nothing in a file is executed: the message is parsed, names and sizes are
checked, tensors are mapped. What can't be read safely is refused with the reason.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import Tensor

from farfield._regular_file import UnsafeFileError, open_regular
from farfield.errors import MissingExtraError
from farfield.graph.onnx._tensors import TensorReader
from farfield.graph.onnx._wire import read_frame

__all__ = [
    "InnerGraph",
    "OnnxFile",
    "OnnxInput",
    "OnnxStep",
    "file_stamp",
    "inferred_shapes",
    "onnx_package",
    "read_onnx_file",
]

OLDEST = 7
"""Operator set from which files are read; meanings of earlier ones differ."""
MOST_NODES = 1_000_000
LONGEST_NAME = 4096
_DOMAINS = {"ai.onnx": ""}


@dataclass(frozen=True)
class OnnxInput:
    """An input of the graph: name, element type's code, and sizes (a number, a symbol's name, or None).

    ``ranked`` is False where the file says nothing of the shape, not even the number of axes.
    """

    name: str
    code: int
    sizes: tuple[int | str | None, ...]
    ranked: bool = True


class InnerGraph:
    """An attribute that is a graph of its own: the body of an ``If``, ``Loop`` or ``Scan``."""


@dataclass(frozen=True)
class OnnxStep:
    """One node: its label in reports, operator, input and output names ("" for one left out), attributes."""

    label: str
    operator: str
    domain: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, Any]

    @property
    def title(self) -> str:
        """Operator with its domain."""
        return f"{self.domain}.{self.operator}" if self.domain else self.operator


@dataclass(frozen=True)
class OnnxFile:
    """What an ONNX file says, checked: inputs, steps in the order of computation, outputs and tensors."""

    path: Path
    inputs: tuple[OnnxInput, ...]
    outputs: tuple[OnnxInput, ...]
    steps: tuple[OnnxStep, ...]
    tensors: Mapping[str, Tensor]
    opsets: Mapping[str, int]
    message: bytes
    stamp: tuple[int, int]


def onnx_package() -> Any:
    """The package ``onnx``.

    Raises
    ------
    MissingExtraError
        With the command that installs it.
    """
    try:
        import onnx
    except ImportError as error:
        raise MissingExtraError("Reading an .onnx file", "onnx", "onnx") from error
    return onnx


def read_onnx_file(path: str | os.PathLike[str]) -> OnnxFile:
    """The graph in an ``.onnx`` file; weights are mapped from it and from the files beside it.

    Raises
    ------
    UnsafeFileError
        With what in the file can't be read safely.
    """
    package = onnx_package()
    try:
        with open_regular(path) as file:
            size = os.fstat(file.fileno()).st_size
            if size == 0:
                raise UnsafeFileError("The file is empty.")
            data = mmap.mmap(file.fileno(), size, access=mmap.ACCESS_COPY)
        return replace(_parsed(package, Path(path), data), stamp=file_stamp(path))
    except UnsafeFileError as error:
        raise UnsafeFileError(f"{os.fspath(path)!r} is refused. {error}") from error


def file_stamp(path: str | os.PathLike[str]) -> tuple[int, int]:
    """Size and time of the last change of a file; (0, 0) if it is gone."""
    try:
        found = os.stat(path)
    except OSError:
        return 0, 0
    return found.st_size, found.st_mtime_ns


def _parsed(package: Any, path: Path, data: mmap.mmap) -> OnnxFile:
    frame = read_frame(data)
    try:
        model = package.ModelProto.FromString(frame.message)
        return _checked(model, path, data, frame.payloads, frame.message)
    except UnicodeDecodeError as error:
        raise UnsafeFileError(f"A name in the file is not UTF-8: {error.reason}.") from error
    except (UnsafeFileError, MemoryError):
        raise
    except Exception as error:  # protobuf raises its own DecodeError
        if type(error).__name__ != "DecodeError":
            raise
        said = " ".join(str(error).split())[:200]
        raise UnsafeFileError(f"It can't be parsed as an ONNX file: {said}.") from error


def _checked(
    model: Any, path: Path, data: mmap.mmap, payloads: Mapping[int, tuple[int, int]], message: bytes
) -> OnnxFile:
    opsets = {_DOMAINS.get(_name(o.domain), o.domain): int(o.version) for o in model.opset_import}
    if len(model.functions):
        raise UnsafeFileError("The file defines functions of its own. Inline them with onnx.inliner first.")
    if opsets.get("", OLDEST) < OLDEST:
        raise UnsafeFileError(f"The file uses operator set {opsets['']}; sets from {OLDEST} on are read.")
    graph = model.graph
    if len(graph.sparse_initializer):
        raise UnsafeFileError("The file holds sparse tensors, which are not read.")
    if len(graph.node) > MOST_NODES:
        raise UnsafeFileError(f"The graph has {len(graph.node):,} nodes; at most {MOST_NODES:,} are read.")
    reader = TensorReader(path.parent, data)
    tensors: dict[str, Tensor] = {}
    for position, proto in enumerate(graph.initializer):
        name = _name(proto.name)
        if name in tensors or not name:
            raise UnsafeFileError(f"Two initializers are called {name[:80]!r}, or one has no name.")
        if int(proto.data_type) != 8:  # texts have no numbers; whoever uses them is unknown
            tensors[name] = reader.tensor(proto, payloads.get(position))
    texts = {_name(p.name) for p in graph.initializer if int(p.data_type) == 8}
    declared = [_value(v) for v in graph.input]
    if len({v.name for v in declared}) != len(declared):
        raise UnsafeFileError("Two inputs have the same name.")
    inputs = tuple(v for v in declared if v.name not in tensors and v.name not in texts)
    steps = _steps(graph, reader)
    _check_order(steps, {*tensors, *texts, *(v.name for v in inputs)}, [_name(v.name) for v in graph.output])
    outputs = tuple(_value(v) for v in graph.output)
    return OnnxFile(path, inputs, outputs, steps, tensors, opsets, message, (0, 0))


def _name(name: Any) -> str:
    if not isinstance(name, str):  # protobuf hands on the bytes
        raise UnsafeFileError(f"The name {name[:40]!r} is not UTF-8.")
    if len(name) > LONGEST_NAME or "\0" in name:
        raise UnsafeFileError(f"A name of {len(name):,} characters, or one with a zero in it, is refused.")
    return name


def _value(proto: Any) -> OnnxInput:
    kind = proto.type.WhichOneof("value")
    if kind != "tensor_type":
        return OnnxInput(_name(proto.name), -1, ())
    tensor = proto.type.tensor_type
    if not tensor.HasField("shape"):
        return OnnxInput(_name(proto.name), int(tensor.elem_type), (), ranked=False)
    sizes: list[int | str | None] = []
    for dim in tensor.shape.dim:
        which = dim.WhichOneof("value")
        size = (
            dim.dim_value
            if which == "dim_value"
            else _name(dim.dim_param) or None
            if which == "dim_param"
            else None
        )
        if isinstance(size, int) and size < 0:
            size = None
        sizes.append(size)
    return OnnxInput(_name(proto.name), int(tensor.elem_type), tuple(sizes))


def _steps(graph: Any, reader: TensorReader) -> tuple[OnnxStep, ...]:
    steps = []
    for number, node in enumerate(graph.node):
        attributes = {_name(a.name): _attribute(a, reader) for a in node.attribute}
        steps.append(
            OnnxStep(
                _name(node.name) or f"{_name(node.op_type)}_{number}",
                _name(node.op_type),
                _DOMAINS.get(_name(node.domain), node.domain),
                tuple(_name(n) for n in node.input),
                tuple(_name(n) for n in node.output),
                attributes,
            )
        )
    return tuple(steps)


def _attribute(proto: Any, reader: TensorReader) -> Any:
    """A number, a text, a list of them or a tensor; a graph is not looked into."""
    kind = int(proto.type)
    if kind == 1:
        return float(proto.f)
    if kind == 2:
        return int(proto.i)
    if kind == 3:
        return proto.s.decode("utf-8", "replace")
    if kind == 4:
        return None if int(proto.t.data_type) == 8 else reader.tensor(proto.t)
    if kind == 6:
        return [float(v) for v in proto.floats]
    if kind == 7:
        return [int(v) for v in proto.ints]
    if kind == 8:
        return [v.decode("utf-8", "replace") for v in proto.strings]
    return InnerGraph() if kind in (5, 10) else None


def _check_order(steps: tuple[OnnxStep, ...], given: set[str], outputs: list[str]) -> None:
    """Every name is made once, and before it is used: a graph with a cycle has no such order."""
    known = set(given)
    made = {name for step in steps for name in step.outputs if name}
    for step in steps:
        for name in step.inputs:
            if name and name not in known:
                why = "only later: the graph has a cycle, or is out of order" if name in made else "nowhere"
                raise UnsafeFileError(
                    f"The node {step.label[:80]!r} uses {name[:80]!r}, which is made {why}."
                )
        for name in step.outputs:
            if name in known and name:
                raise UnsafeFileError(f"The value {name[:80]!r} is made twice.")
            known.add(name)
    missing = [name for name in outputs if name not in known]
    if missing:
        raise UnsafeFileError(f"The output {missing[0][:80]!r} is made nowhere.")
    if not outputs:
        raise UnsafeFileError("The graph has no output.")


def inferred_shapes(file: OnnxFile) -> dict[str, OnnxInput]:
    """Value name → type and sizes, as far as ONNX's own shape inference finds them."""
    package = onnx_package()
    try:
        model = package.ModelProto.FromString(file.message)
        graph = package.shape_inference.infer_shapes(model).graph
    except Exception:  # whatever inference stumbles over: it is only a help
        return {}
    return {v.name: _value(v) for v in (*graph.value_info, *graph.output)}
