"""One spelling for each step: aliases removed, powers and products named, affine maps written as ``linear``.

Every rewrite is an identity of real arithmetic on the values of the program; none changes which tensor
depends on which.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from torch import Tensor

from farfield.graph._compose import compose
from farfield.graph._describe import describe
from farfield.graph._node import Node
from farfield.graph._program import Program

__all__ = ["prune", "rewire", "simplify"]

_POWERS = {2: "square", 0.5: "sqrt", -0.5: "rsqrt", -1: "reciprocal"}


def simplify(program: Program) -> Program:
    """The same program with aliases and repeated steps removed and each operation under its plainest name.

    ``x·x`` and ``x²`` become ``square``; ``x^½``, ``x^−½``, ``x^−1`` and ``1/x`` become ``sqrt``, ``rsqrt``
    and ``reciprocal``; ``max(x, 0)`` becomes ``relu``; a number or a constant on the left of a sum or product
    moves to the right; ``addmm`` becomes ``linear`` or a product and a sum; a product with a constant matrix
    on the right becomes ``linear``.
    """
    program = rewire(rewire(program, _alias_of), _Repeats())
    nodes: list[Node] = []
    constants = dict(program.constants)
    names = dict(program.constant_names)
    for node in program.nodes:
        if node.role != "operation":
            nodes.append(node)
            continue
        node = _plain_arithmetic(_constant_right(node, constants))
        if node.op in ("addmm", "matmul"):
            nodes.extend(_product(program, node, constants, names))
        else:
            nodes.append(node)
    return prune(replace(program, nodes=tuple(nodes), constants=constants, constant_names=names))


def rewire(program: Program, alias: Callable[[Program, Node], str | None]) -> Program:
    """Remove every operation for which ``alias`` names an earlier node of the same value."""
    moved: dict[str, str] = {}
    kept: list[Node] = []
    for node in program.nodes:
        inputs = tuple(None if name is None else moved.get(name, name) for name in node.inputs)
        if inputs != node.inputs:
            node = replace(node, inputs=inputs)
        same = alias(program, node) if node.role == "operation" else None
        if same is None:
            kept.append(node)
        else:
            moved[node.name] = same
    return replace(program, nodes=tuple(kept))


def prune(program: Program) -> Program:
    """Drop operations and constants that no output uses; inputs stay."""
    wanted = set(program.outputs)
    kept: list[Node] = []
    for node in reversed(program.nodes):
        if node.name in wanted or node.role == "input":
            wanted.update(node.operands)
            kept.append(node)
    kept.reverse()
    alive = {node.name for node in kept}
    return replace(
        program,
        nodes=tuple(kept),
        constants={k: v for k, v in program.constants.items() if k in alive},
        constant_names={k: v for k, v in program.constant_names.items() if k in alive},
    )


def _alias_of(program: Program, node: Node) -> str | None:
    """The operand whose value this node repeats, if it repeats one."""
    operands = node.operands
    if node.op == "identity":
        return operands[0]
    if not operands:
        return None
    source = program.node(operands[0])
    if node.op == "cast" and node.dtype == source.dtype:
        return source.name
    if node.op in ("reshape", "expand", "squeeze") and node.shape == source.shape:
        return source.name
    if node.op == "permute" and node.attributes["dims"] == tuple(range(len(node.shape))):
        return source.name
    if node.op == "slice" and node.shape == source.shape and node.attributes["step"] == 1:
        return source.name
    if node.op == "cat" and len(node.inputs) == 1:
        return source.name
    if node.op == "pow" and node.inputs[1] is None and node.attributes["exponent"] == 1:
        return source.name
    if node.op in ("mul", "div") and node.inputs[1] is None and _number(node, "other") == 1:
        same_kind = node.dtype == source.dtype and node.attributes.get("rounding_mode") is None
        return source.name if same_kind else None
    if node.op in ("add", "sub") and node.inputs[1] is None and _number(node, "other") == 0:
        return source.name if node.dtype == source.dtype else None
    return None


class _Repeats:
    """Finds operations that repeat an earlier one of the same module on the same inputs."""

    def __init__(self) -> None:
        self._seen: dict[str, str] = {}

    def __call__(self, program: Program, node: Node) -> str | None:
        if node.op == "unknown" or not describe(node).deterministic:
            return None
        key = repr(
            (node.op, node.module_path, node.inputs, node.dtype, sorted(node.attributes.items(), key=str))
        )
        first = self._seen.setdefault(key, node.name)
        return None if first == node.name else first


def _number(node: Node, name: str) -> float | None:
    value = node.attributes.get(name)
    return value if isinstance(value, int | float) else None


def _constant_right(node: Node, constants: Mapping[str, Tensor]) -> Node:
    """A sum, product, maximum or minimum with its constant on the right."""
    if node.op not in ("add", "mul", "maximum", "minimum") or node.attributes.get("alpha", 1) != 1:
        return node
    left, right = node.inputs
    if left in constants and right is not None and right not in constants:
        return replace(node, inputs=(right, left))
    return node


def _plain_arithmetic(node: Node) -> Node:
    attributes: Mapping[str, Any] = node.attributes
    if node.op in ("add", "mul") and node.inputs[0] is None and attributes.get("alpha", 1) == 1:
        rest = {k: v for k, v in attributes.items() if k != "input"}
        node = replace(node, inputs=(node.inputs[1], None), attributes={**rest, "other": attributes["input"]})
    elif node.op == "mul" and node.inputs[0] == node.inputs[1]:
        node = replace(node, op="square", inputs=node.inputs[:1], attributes={})
    elif node.op == "pow" and node.inputs[1] is None and attributes["exponent"] in _POWERS:
        node = replace(node, op=_POWERS[attributes["exponent"]], inputs=node.inputs[:1], attributes={})
    elif (
        node.op == "div"
        and node.inputs[0] is None
        and attributes["input"] == 1
        and attributes.get("rounding_mode") is None
    ):
        node = replace(node, op="reciprocal", inputs=node.inputs[1:2], attributes={})
    elif node.op == "clamp" and node.inputs[1:] == (None, None) and dict(attributes) == {"min": 0}:
        node = replace(node, op="relu", inputs=node.inputs[:1], attributes={})
    return node


def _product(program: Program, node: Node, constants: dict[str, Tensor], names: dict[str, str]) -> list[Node]:
    """``matmul`` and ``addmm`` as ``linear`` where the right factor is a constant, else taken apart."""
    bias: str | None = None
    if node.op == "addmm":
        bias, left, right = node.inputs
        scales = (node.attributes.get("beta", 1), node.attributes.get("alpha", 1))
    else:
        left, right = node.inputs
        scales = (1, 1)
    assert left is not None
    assert right is not None
    matrix = _matrix(constants.get(right), len(program.node(left).shape))
    if scales == (1, 1) and matrix is not None and left not in constants:
        per_feature = bias is None or (bias in constants and constants[bias].shape == matrix.shape[1:])
        if per_feature:
            name = f"{right}__transposed"
            made = [] if name in constants else [_transposed(name, right, matrix, constants, names)]
            return [*made, replace(node, op="linear", inputs=(left, name, bias), attributes={})]
    return [node] if node.op == "matmul" else list(compose(node))


def _matrix(tensor: Tensor | None, rank: int) -> Tensor | None:
    """A constant right factor as a matrix, if its leading axes have length 1 and the left one has them too."""
    if tensor is None or tensor.ndim < 2 or tensor.ndim > max(rank, 2):
        return None
    return tensor.reshape(tensor.shape[-2:]) if all(n == 1 for n in tensor.shape[:-2]) else None


def _transposed(
    name: str, right: str, matrix: Tensor, constants: dict[str, Tensor], names: dict[str, str]
) -> Node:
    """The constant's transpose as a constant of its own: a view, nothing is copied."""
    constants[name] = matrix.mT
    names[name] = names.get(right, right)
    return Node(
        name,
        "constant",
        names[name],
        shape=tuple(matrix.mT.shape),
        dtype=matrix.dtype,
        role="constant",
        module_path=names[name].rpartition(".")[0],
    )
