"""Running the model itself, in float64, to confirm what the jets say."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from farfield.graph import ModelState, Program, call_model, spread_rows

__all__ = ["Evaluator", "rows_are_samples"]

LARGEST_COPY = 20_000_000
"""Modules with more parameters are not copied to float64; their captured program, run in float64, stands for them."""


BESIDE = 1e6
"""Size of the row beside another, relative to that, in the test whether rows are samples."""


class Evaluator:
    """One output of a model as a function of its tensor inputs, in float64 and eval mode.

    The module itself, copied to float64, where one was given and it is small enough; the captured program
    otherwise.

    Parameters
    ----------
    program
        The captured program.
    model
        The module it was captured from, if any.
    example_inputs
        As given to the capture: the structure in which the module takes its inputs.
    """

    def __init__(self, program: Program, model: Any = None, example_inputs: Any = None) -> None:
        self.program = program
        self.example_inputs = example_inputs
        self.module: nn.Module | None = None
        if isinstance(model, nn.Module) and sum(p.numel() for p in model.parameters()) <= LARGEST_COPY:
            try:
                self.module = copy.deepcopy(model)._apply(_widest).eval()
            except Exception:  # some modules hold what can't be copied; the program speaks for them
                self.module = None
        self._state = None if self.module is None else ModelState(self.module)
        self._samples: dict[tuple[str, str], bool] = {}

    def rows_are_samples(self, starts: Sequence[Tensor], axis: str, output: str) -> bool:
        """See :func:`rows_are_samples`; found out once."""
        if (axis, output) not in self._samples:
            self._samples[axis, output] = rows_are_samples(self.program, starts, axis, [output])
        return self._samples[axis, output]

    @property
    def source(self) -> str:
        """What is run."""
        return "module in float64" if self.module is not None else "captured program in float64"

    @torch.no_grad()
    def __call__(self, inputs: Sequence[Tensor], output: int) -> Tensor:
        """The value of one output."""
        if self.module is not None:
            try:
                with torch.random.fork_rng(devices=[]):
                    found = call_model(self.module, self.example_inputs, inputs)
            except Exception:  # a forward that builds its own float32 tensors, say, does not run in float64
                self.module = None
            else:
                if self._state is not None:
                    self._state.settle()
                if len(found) == len(self.program.outputs):
                    return found[output].to(torch.float64)
                self.module = None
        name = self.program.outputs[output]
        value: Tensor = self.program.evaluate(*inputs, keep=[name])[name].to(torch.float64)
        return value


def _widest(tensor: Tensor) -> Tensor:
    """In double precision; ``Module.to(float64)`` would cut off imaginary parts."""
    if tensor.is_complex():
        return tensor.to(torch.complex128)
    return tensor.to(torch.float64) if tensor.is_floating_point() else tensor


def rows_are_samples(
    program: Program, starts: Sequence[Tensor], axis: str, outputs: Sequence[str] | None = None
) -> bool:
    """Whether a row along this axis is a sample: with other rows beside it, or with none, it gives the same.

    Nodes of a graph are not: they are joined by edges, and one alone is no graph. Tried by evaluation in float32 at
    random inputs, a row alone and beside one a million times as large, so that little of it is seen too.

    Parameters
    ----------
    program
        The captured program.
    starts
        Example of every input.
    axis
        Name of an open axis.
    outputs
        The outputs asked about, all by default. One without that axis (a loss) joins the rows.
    """
    names = program.outputs if outputs is None else outputs
    if any(str((*program.node(name).shape, "")[0]) != axis for name in names):
        return False
    two = spread_rows(program, starts, 2, axis)
    if two is None:
        return False
    source = torch.Generator().manual_seed(0)
    rows = []
    shared = [bool(spec.shape) and str(spec.shape[0]) == axis for spec in program.inputs]
    for spec, row, cut in zip(program.inputs, two, shared, strict=True):
        if spec.kind == "real":
            drawn = torch.randn(row.shape, generator=source, dtype=torch.float64)
            if cut:
                drawn[1:] *= BESIDE
            row = drawn.to(row.device, row.dtype)
        rows.append(row)
    one = [row[:1] if cut else row for row, cut in zip(rows, shared, strict=True)]
    # What float32 finds apart may be its rounding, or a choice that rounding turned: float64 decides then.
    for dtype, relative, absolute in ((torch.float32, 1e-2, 0.0), (torch.float64, 1e-6, 1e-9)):
        try:
            few, many = (program.evaluate(*given, dtype=dtype, keep=names) for given in (one, rows))
        except Exception:  # an index that points at another row, say
            return False
        pairs = [(few[name], many[name][:1]) for name in names]
        if dtype == torch.float32 and not all(_tells(one) for one, _ in pairs):
            continue
        if all(
            a.shape == b.shape and torch.allclose(a, b, rtol=relative, atol=absolute, equal_nan=True)
            for a, b in pairs
        ):
            return True
    return False


def _tells(value: Tensor) -> bool:
    """Whether float32 has numbers for it: not too large, not all too small."""
    return bool(torch.isfinite(value).all()) and bool((value != 0).any())
