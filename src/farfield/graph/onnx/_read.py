"""The front door for ONNX: a path in, a module and example inputs for it out."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from farfield._regular_file import UnsafeFileError
from farfield.graph._unknown import OpaqueNodeError
from farfield.graph.onnx._file import OnnxInput, read_onnx_file
from farfield.graph.onnx._module import OnnxModule, translated
from farfield.graph.onnx.operators.create import TYPES

__all__ = ["is_onnx", "onnx_example", "open_onnx", "open_sizes", "read_onnx"]

GUESSES = (8, 32, 64, 224, 1, 16, 128, 256)
"""Sizes tried for an axis that the file leaves open and that is not the batch."""
MOST_ENTRIES = 1 << 31
"""Entries of an input; a file that declares more is refused."""


def is_onnx(model: Any) -> bool:
    """Whether something is the path of an ``.onnx`` file."""
    return isinstance(model, str | os.PathLike) and Path(os.fsdecode(model)).suffix.lower() == ".onnx"


def read_onnx(path: str | os.PathLike[str]) -> OnnxModule:
    """The module of an ``.onnx`` file; nothing in the file is executed.

    Every node is a submodule under its own name, so that reports name ONNX nodes and a repair can stand behind one.
    Weights are mapped from the file and from the files beside it. A node without a translation (``If``, ``Loop``,
    ``Scan``, operators of other domains, texts) is an opaque call: an audit answers UNKNOWN at that place.

    Raises
    ------
    UnsafeFileError
        With what in the file can't be read safely.
    MissingExtraError
        If ``onnx`` is not installed.
    """
    return translated(read_onnx_file(path))


def open_onnx(path: Any, example_inputs: Any = (), *, rows: int = 2) -> tuple[OnnxModule, Any]:
    """The module of a file, and inputs for it: those given, or :func:`onnx_example`."""
    module = read_onnx(path)
    given = any(isinstance(leaf, Tensor) for leaf in tree_leaves(example_inputs))
    return module, example_inputs if given else onnx_example(module, rows)


def onnx_example(module: OnnxModule, rows: int = 2) -> tuple[Tensor, ...]:
    """Zeros of the shapes that the file declares.

    An open first axis is the batch and gets ``rows``. Any other open axis gets the first of a few usual sizes on
    which the graph runs.

    Raises
    ------
    UnsafeFileError
        If an input is no tensor of numbers, has no shape, or is too large.
    """
    specs = module.input_specs
    for spec in specs:
        if spec.code not in TYPES:
            what = "texts" if spec.code == 8 else "no tensor of numbers"
            raise UnsafeFileError(f"{module.path!r} is refused. Its input {spec.name[:80]!r} takes {what}.")
        if not spec.ranked:
            raise UnsafeFileError(
                f"{module.path!r} declares no shape for its input {spec.name[:80]!r}. Pass example inputs."
            )
    batch = _batch_names(specs)
    free = list(_free_sizes(specs))
    if not free:
        return tuple(_zeros(spec, rows, batch, 1) for spec in specs)
    for guess in GUESSES:
        inputs = tuple(_zeros(spec, rows, batch, guess) for spec in specs)
        try:
            with torch.no_grad():
                module(*inputs)
        except OpaqueNodeError:
            pass
        except Exception:  # this size does not fit the graph
            continue
        return inputs
    raise UnsafeFileError(
        f"{module.path!r} leaves {', '.join(free)} open, and the graph runs on none of the sizes "
        f"{', '.join(map(str, GUESSES))}. Pass example inputs."
    )


def open_sizes(module: OnnxModule, inputs: Any) -> tuple[str, ...]:
    """What was chosen for the axes, other than the batch, that the file leaves open; one sentence or none."""
    tensors = [leaf for leaf in tree_leaves(inputs) if isinstance(leaf, Tensor)]
    free = _free_sizes(module.input_specs)
    if not free or len(tensors) != len(module.input_specs):
        return ()
    chosen = ", ".join(f"{words} is {tensors[k].shape[axis]}" for words, (k, axis) in free.items())
    return (f"The file leaves sizes open: {chosen} here. Pass example inputs for other sizes.",)


def _batch_names(specs: tuple[OnnxInput, ...]) -> set[Any]:
    return {spec.sizes[0] for spec in specs if spec.sizes and isinstance(spec.sizes[0], str)}


def _free_sizes(specs: tuple[OnnxInput, ...]) -> dict[str, tuple[int, int]]:
    """Sizes left open, in words → the input and axis where each is met first."""
    found: dict[str, tuple[int, int]] = {}
    batch = _batch_names(specs)
    for number, spec in enumerate(specs):
        for axis, size in enumerate(spec.sizes):
            if axis and not isinstance(size, int) and not (size is not None and size in batch):
                found.setdefault(f"{size!r}" if size else f"axis {axis} of {spec.name!r}", (number, axis))
    return found


def _zeros(spec: OnnxInput, rows: int, batch: set[Any], guess: int) -> Tensor:
    sizes = []
    for axis, size in enumerate(spec.sizes):
        if isinstance(size, int):
            sizes.append(size)
        else:
            sizes.append(rows if axis == 0 or (size is not None and size in batch) else guess)
    if math.prod(sizes) > MOST_ENTRIES:
        raise UnsafeFileError(
            f"The input {spec.name[:80]!r} is declared with {math.prod(sizes):,} entries; at most "
            f"{MOST_ENTRIES:,} are taken."
        )
    return torch.zeros(sizes, dtype=TYPES[spec.code])
