"""How a captured call's arguments become an operator's: names, axes counted from the front, fixed values."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from farfield.graph.operators._registry import Binding, Call, Example, Reference, Sample

__all__ = [
    "all_axes",
    "binding",
    "boolean",
    "complex_",
    "example",
    "front",
    "integer",
    "positive",
    "real",
    "unit",
]


def front(axis: int, rank: int) -> int:
    """The axis counted from the front (a tensor of rank 0 is treated as having one axis, as torch does)."""
    return axis % max(rank, 1)


def all_axes(axes: int | tuple[int, ...] | None, rank: int) -> tuple[int, ...]:
    """The axes counted from the front; every axis for ``None`` and for an empty list, as in reductions."""
    if axes is None or axes == ():
        return tuple(range(rank))
    if isinstance(axes, int):
        axes = (axes,)
    return tuple(front(a, rank) for a in axes) if rank else ()


def binding(
    rename: Mapping[str, str] | None = None,
    *,
    axis: tuple[str, ...] = (),
    axes: tuple[str, ...] = (),
    add: Mapping[str, Any] | None = None,
    compute: Callable[[Call], Mapping[str, Any]] | None = None,
    drop: tuple[str, ...] = (),
    of: str = "input",
) -> Binding:
    """Build a binding from the few changes that occur.

    Parameters
    ----------
    rename
        Schema name → operator's name.
    axis, axes
        Names (after renaming) of arguments that hold one axis, or any number of them, of the tensor ``of``.
    add
        Fixed values.
    compute
        Further values worked out from the call; applied last.
    drop
        Schema names that don't matter to the value.
    """
    names = dict(rename or {})

    def bind(call: Call) -> Mapping[str, Any]:
        out = {names.get(k, k): v for k, v in call.arguments.items() if k not in drop}
        if axis or axes:
            tensor = out[of]
            if isinstance(tensor, tuple):
                tensor = tensor[0]
            rank = len(tensor.shape) if isinstance(tensor, Reference) else len(call.shape)
            for key in axis:
                if out[key] is not None:
                    out[key] = front(out[key], rank)
            for key in axes:
                out[key] = all_axes(out.get(key), rank)
        out.update(add or {})
        if compute is not None:
            out.update(compute(call))
        return out

    return bind


def real(*shape: int) -> Sample:
    """A standard normal tensor."""
    return Sample(shape)


def positive(*shape: int) -> Sample:
    """A tensor with entries in [0.1, 3.1]."""
    return Sample(shape, "positive")


def unit(*shape: int) -> Sample:
    """A tensor with entries in [0.05, 0.95]."""
    return Sample(shape, "unit")


def integer(bound: int, *shape: int) -> Sample:
    """Integers in [0, bound)."""
    return Sample(shape, "integer", bound)


def boolean(*shape: int) -> Sample:
    """Fair coin flips."""
    return Sample(shape, "boolean")


def complex_(*shape: int) -> Sample:
    """A complex tensor."""
    return Sample(shape, "complex")


def example(function: Callable[..., Any], *samples: Sample) -> Example:
    """An example call."""
    return Example(function, samples)
