"""A program with open axes, written for numbers of rows and lengths that are fixed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor

from farfield.errors import InvalidValueError
from farfield.graph._program import Program
from farfield.graph._size import SymbolicSize

__all__ = ["with_fixed_sizes"]


def with_fixed_sizes(program: Program, examples: Sequence[Tensor] = ()) -> Program:
    """The same program with every open axis of its inputs closed: a file takes any number of rows, a proof is of one.

    Parameters
    ----------
    program
        Captured with open axes; one without them is handed back.
    examples
        Its inputs, whose sizes are taken. Without them a batch (the first axis of an input) has one row; another
        open axis needs an example, since nothing says how long it is.

    Returns
    -------
    Program
        Counts that only running tells (``u0``: how many entries of a mask are true) stay open.
    """
    sizes: dict[str, int] = {}
    fitting = len(examples) == len(program.inputs)
    for number, spec in enumerate(program.inputs):
        example = examples[number] if fitting and examples[number].ndim == len(spec.shape) else None
        for axis, size in enumerate(spec.shape):
            if not isinstance(size, SymbolicSize) or len(size.symbols) != 1:
                continue
            (symbol,) = size.symbols
            if example is not None:
                sizes.setdefault(symbol, _solved(size, example.shape[axis]))
            elif axis == 0:
                sizes.setdefault(symbol, 1)
    named = {
        s for spec in program.inputs for d in spec.shape if isinstance(d, SymbolicSize) for s in d.symbols
    }
    if lost := sorted(named - set(sizes)):
        shapes = ", ".join(f"{spec.name} ({', '.join(map(str, spec.shape))})" for spec in program.inputs)
        raise InvalidValueError(
            f"The program leaves the sizes {', '.join(lost)} open, and a bound is of fixed sizes; its inputs are "
            f"{shapes}. Pass example inputs of the sizes you mean; in a shell --input, such as --input 1x16x8."
        )
    if not sizes:
        return program

    def closed(value: Any) -> Any:
        if isinstance(value, SymbolicSize):
            return value.value(sizes) if value.symbols <= sizes.keys() else value
        if isinstance(value, tuple | list):
            return type(value)(closed(part) for part in value)
        return {key: closed(part) for key, part in value.items()} if isinstance(value, dict) else value

    nodes = [
        replace(
            node,
            shape=closed(node.shape),
            attributes={name: closed(value) for name, value in node.attributes.items()},
        )
        for node in program.nodes
    ]
    inputs = [replace(spec, shape=closed(spec.shape)) for spec in program.inputs]
    return replace(program, nodes=tuple(nodes), inputs=tuple(inputs))


def _solved(size: SymbolicSize, length: int) -> int:
    """The symbol's value where the axis has this length: exact for ``s0`` and for multiples of it."""
    (symbol,) = size.symbols
    ratio = size.value({symbol: 1})
    return int(length / ratio) if ratio and size.value({symbol: 2}) == 2 * ratio else length
