"""The tangent kernel by its definition: Jacobians, a chunk of inputs at a time, and their product."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.func import jacrev, vmap

from farfield.engine import Tile
from farfield.errors import FarfieldError
from farfield.ntk._calls import TrackedParameters
from farfield.ntk._model import Selection
from farfield.ntk._transforms import dense, transforms

__all__ = ["JacobianTile", "jacobian"]


def jacobian(model: nn.Module, tracked: TrackedParameters, select: Selection, x: Tensor) -> Tensor:
    """∂f_k(x_i)/∂θ for every input and output: shape (n, K, parameters).

    By ``vmap`` of reverse mode; input by input where a model can't be vectorized. Memory n·K·P.
    """
    parameters = {name: p.detach() for name, p in tracked.parameters.items()}

    def one(values: dict[str, Tensor], z: Tensor) -> Tensor:
        return select(tracked.substitute(model, values, z.unsqueeze(0)))

    try:
        with transforms():
            parts = vmap(jacrev(one), (None, 0))(parameters, x)
    except FarfieldError:
        raise
    except RuntimeError:
        return torch.stack([_one(model, tracked, select, z) for z in x])
    flat = [parts[name].reshape(*parts[name].shape[:2], -1).to(tracked.dtype) for name in parameters]
    return torch.cat(flat, -1)


def _one(model: nn.Module, tracked: TrackedParameters, select: Selection, z: Tensor) -> Tensor:
    wanted = tuple(tracked.parameters.values())
    with torch.enable_grad():
        y = select(tracked.substitute(model, {}, z.unsqueeze(0)))
        rows = [
            torch.autograd.grad(v, wanted, retain_graph=True, allow_unused=True, materialize_grads=True)
            for v in y
        ]
    return torch.stack([torch.cat([dense(g).reshape(-1).to(tracked.dtype) for g in row]) for row in rows])


@dataclass(frozen=True)
class JacobianTile:
    """Task: one tile of the kernel from two Jacobians."""

    model: nn.Module
    tracked: TrackedParameters
    select: Selection
    x1: Tensor
    x2: Tensor

    def __call__(self, tile: Tile) -> Tensor:
        """(rows, columns) if one number a pair is asked for, else (K, K, rows, columns)."""
        a = jacobian(self.model, self.tracked, self.select, self.x1[tile.row_slice])
        same = tile.on_diagonal and self.x1 is self.x2
        b = a if same else jacobian(self.model, self.tracked, self.select, self.x2[tile.column_slice])
        if self.select.trace:
            return a.flatten(1) @ b.flatten(1).T
        return torch.einsum("nkp,mlp->klnm", a, b)
