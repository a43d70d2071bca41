"""What the graph tests share: a program before any pass, and comparison of a program with its model."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map

from farfield.graph import Program
from farfield.graph._export import export_model, lower_exported
from farfield.graph._prepare import prepared

EXACT = {"rtol": 1e-12, "atol": 1e-12}


class Function(nn.Module):
    """A function of tensors as a module."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, *inputs):
        return self.function(*inputs)


class InDouble(TorchFunctionMode):
    """Runs a model that casts to float32 inside as if it had cast to float64."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        if function is Tensor.float:
            function = Tensor.double
        args, kwargs = tree_map(
            lambda v: torch.float64 if isinstance(v, torch.dtype) and v.is_floating_point else v,
            (args, kwargs or {}),
        )
        return function(*args, **kwargs)


def raw_program(
    model: nn.Module, inputs: tuple, *, decompose: bool | None = None, dynamic_batch: bool = True
) -> Program:
    """The captured program before folding, simplification and recognition."""
    with prepared(model):
        exported = export_model(model, inputs, {}, dynamic_batch=dynamic_batch)
        lowering, outputs = lower_exported(exported, {}, decompose=decompose)
    return Program(
        nodes=tuple(lowering.nodes),
        inputs=tuple(lowering.inputs),
        outputs=tuple(outputs),
        constants=lowering.constants,
        constant_names=lowering.constant_names,
    )


def double(tree):
    """Every floating tensor of a structure in float64."""
    return tree_map(lambda t: t.double() if isinstance(t, Tensor) and t.is_floating_point() else t, tree)


def tensors_of(tree) -> list[Tensor]:
    """The tensors a model returns, in order."""
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]


def assert_same(program: Program, inputs, returned, **tolerance) -> None:
    """Every output of the program equals what the model returned: value, shape, type and declared shape."""
    values = program.evaluate(*inputs)
    expected = tensors_of(returned)
    assert len(program.outputs) == len(expected)
    for name, want in zip(program.outputs, expected, strict=True):
        got, node = values[name], program.node(name)
        assert got.shape == want.shape
        assert all(isinstance(d, str) or d == n for d, n in zip(node.shape, got.shape, strict=True))
        torch.testing.assert_close(got, want, equal_nan=True, **(tolerance or EXACT))
