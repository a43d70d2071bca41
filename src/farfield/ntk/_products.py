"""Products of the tangent kernel with vectors: J(Jᵀv), never J itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import jvp, vmap

from farfield.engine import Tile
from farfield.errors import FarfieldError, InvalidValueError
from farfield.ntk._calls import TrackedParameters
from farfield.ntk._model import ParameterFilter, Selection, require_evaluation, track
from farfield.ntk._probe import probe_rows, require_function
from farfield.ntk._transforms import GradientSwitch, dense, ordinary, transforms

__all__ = ["NTKOperator", "ProductTile", "pull", "push", "push_many"]


def _forward(
    model: nn.Module, tracked: TrackedParameters, select: Selection, x: Tensor
) -> Callable[[dict[str, Tensor]], Tensor]:
    """Parameters → (n, K) for a batch; a batch goes through the model at once."""

    def outputs(values: dict[str, Tensor]) -> Tensor:
        y = tracked.substitute(model, values, x)
        if not isinstance(y, Tensor):
            return select(y)  # raises, with the reason
        if select.outputs in ("full", "trace"):
            return y.reshape(len(x), -1)
        if select.outputs == "sum":
            return y.reshape(len(x), -1).sum(1, keepdim=True)
        place: tuple[slice | int, ...] = (slice(None), *select.index)
        return y[place].reshape(len(x), -1)

    return outputs


def pull(
    model: nn.Module, tracked: TrackedParameters, select: Selection, x: Tensor, v: Tensor
) -> dict[str, Tensor]:
    """Jᵀv, a value for every parameter; v has shape (n, K)."""
    leaves = {name: p.detach().requires_grad_() for name, p in tracked.parameters.items()}
    with torch.enable_grad():
        y = _forward(model, tracked, select, x)(leaves)
        if not y.requires_grad:  # it depends on none of them
            return {name: torch.zeros_like(p) for name, p in tracked.parameters.items()}
        found = torch.autograd.grad(
            y, list(leaves.values()), v.to(y.dtype), allow_unused=True, materialize_grads=True
        )
    return {name: dense(g) for name, g in zip(leaves, found, strict=True)}


def push(
    model: nn.Module, tracked: TrackedParameters, select: Selection, x: Tensor, direction: dict[str, Tensor]
) -> Tensor:
    """J·direction, shape (n, K): in forward mode, or however the model's operators allow."""
    parameters = {name: p.detach() for name, p in tracked.parameters.items()}
    outputs = _forward(model, tracked, select, x)
    with transforms():
        ways = (_push_forward, _push_twice, _push_rows)
        for k in range(tracked.known.get("way", 0), len(ways)):
            try:
                moved = ways[k](outputs, parameters, direction)
            except FarfieldError:
                raise
            except (RuntimeError, NotImplementedError):
                if k + 1 == len(ways):
                    raise
            else:
                tracked.known["way"] = k
                return moved.to(tracked.dtype)
    raise AssertionError("one of the ways returns or raises")


def push_many(
    model: nn.Module,
    tracked: TrackedParameters,
    select: Selection,
    x: Tensor,
    directions: list[dict[str, Tensor]],
) -> Tensor:
    """J·direction for each of several, shape (r, n, K): all at once where forward mode and ``vmap`` allow."""
    if len(directions) > 1 and not tracked.known.get("way", 0) and not tracked.known.get("single", 0):
        parameters = {name: p.detach() for name, p in tracked.parameters.items()}
        outputs = _forward(model, tracked, select, x)
        stacked = {name: torch.stack([d[name] for d in directions]) for name in parameters}
        try:
            with transforms():
                moved: Tensor = vmap(lambda d: _push_forward(outputs, parameters, d))(stacked)
            return moved.to(tracked.dtype)
        except FarfieldError:
            raise
        except (RuntimeError, NotImplementedError):
            tracked.known["single"] = 1
    return torch.stack([push(model, tracked, select, x, direction) for direction in directions])


Values = dict[str, Tensor]


def _push_forward(outputs: Any, parameters: Values, direction: Values) -> Tensor:
    """J·d in forward mode."""
    switch = GradientSwitch()

    def watched(values: Values) -> Tensor:
        with switch:
            y: Tensor = outputs(values)
        return y

    result: Any = jvp(watched, (parameters,), (direction,))
    if switch.off:
        raise NotImplementedError("forward mode does not stop where the model switches gradients off")
    moved: Tensor = result[1]
    return moved


def _push_twice(outputs: Any, parameters: Values, direction: Values) -> Tensor:
    """J·d as the derivative of u ↦ ⟨Jᵀu, d⟩, which is linear in u."""
    with torch.enable_grad():
        leaves = {name: p.clone().requires_grad_() for name, p in parameters.items()}
        y = outputs(leaves)
        if not y.requires_grad:
            return torch.zeros_like(y)
        u = torch.zeros_like(y, requires_grad=True)
        pulled = torch.autograd.grad(
            y, list(leaves.values()), u, create_graph=True, allow_unused=True, materialize_grads=True
        )
        total = _inner(dict(zip(leaves, pulled, strict=True)), direction)
        (moved,) = torch.autograd.grad(total, u, allow_unused=True, materialize_grads=True)
    return moved.detach()


def _push_rows(outputs: Any, parameters: Values, direction: Values) -> Tensor:
    """J·d from the rows of J, one backward pass for each: for operators that can be differentiated once only."""
    with torch.enable_grad():
        leaves = {name: p.clone().requires_grad_() for name, p in parameters.items()}
        y = outputs(leaves)
        if not y.requires_grad:
            return torch.zeros_like(y)
        rows = [
            torch.autograd.grad(
                v, list(leaves.values()), retain_graph=True, allow_unused=True, materialize_grads=True
            )
            for v in y.reshape(-1)
        ]
    moved = [_inner(dict(zip(leaves, row, strict=True)), direction) for row in rows]
    return torch.stack(moved).reshape(y.shape)


def _inner(first: Values, second: Values) -> Tensor:
    return torch.stack([(g * second[name]).sum() for name, g in first.items()]).sum()


@dataclass(frozen=True)
class ProductTile:
    """Task: one tile of the kernel, column by column, from products with unit vectors.

    Memory: a few copies of the parameters, whatever the tile. Time: one backward and one forward pass a column.
    """

    model: nn.Module
    tracked: TrackedParameters
    select: Selection
    x1: Tensor
    x2: Tensor

    def __call__(self, tile: Tile) -> Tensor:
        """(rows, columns) if one number a pair is asked for, else (K, K, rows, columns)."""
        rows, columns = self.x1[tile.row_slice], self.x2[tile.column_slice]
        parts: list[Tensor] = []
        outputs = 0
        for z in columns:
            single = z.unsqueeze(0)
            if not outputs:
                with torch.no_grad():
                    outputs = self.select(self.tracked.substitute(self.model, {}, single)).numel()
            unit = torch.eye(outputs, dtype=self.tracked.dtype, device=rows.device)
            for k in range(outputs):
                direction = pull(self.model, self.tracked, self.select, single, unit[k : k + 1])
                moved = push(self.model, self.tracked, self.select, rows, direction)
                parts.append(moved[:, k] if self.select.trace else moved)
        if self.select.trace:
            return torch.stack(parts, -1).reshape(len(rows), len(columns), outputs).sum(-1)
        # parts: columns × l, each (rows, k)
        full = torch.stack(parts).reshape(len(columns), outputs, len(rows), outputs)
        return full.permute(3, 1, 2, 0).contiguous()


class NTKOperator:
    r"""The tangent kernel of a model on a set of inputs as a linear operator: v ↦ Θv = J(Jᵀv), Θ never formed.

    A vector has one entry for every input and output, n·K in all, in that order. One product costs a backward
    and a forward pass over all inputs, and memory for one copy of the parameters.

    Parameters
    ----------
    model
        In evaluation mode.
    x
        Inputs, (n, …).
    outputs
        ``"full"`` (K outputs), ``"sum"`` or an index (K = 1).
    parameters
        Which parameters count; all that require a gradient if None.
    batch
        Inputs that go through the model at once.

    Examples
    --------
    >>> net = nn.Linear(3, 1).double()
    >>> x = torch.randn(5, 3, dtype=torch.float64)
    >>> theta = NTKOperator(net, x)
    >>> v = torch.randn(5, dtype=torch.float64)
    >>> torch.allclose(theta @ v, (x @ x.T + 1.0) @ v)
    True
    """

    def __init__(
        self,
        model: nn.Module,
        x: Tensor,
        *,
        outputs: str | int | tuple[int, ...] = "full",
        parameters: ParameterFilter = None,
        batch: int = 256,
    ) -> None:
        require_evaluation(model)
        if x.dim() < 1 or len(x) == 0 or batch < 1:
            raise InvalidValueError(
                f"An operator has a batch of inputs (n, …) with n ≥ 1, and batch ≥ 1; got shape {tuple(x.shape)} and "
                f"batch {batch}."
            )
        if outputs == "trace":
            raise InvalidValueError("An operator acts on all outputs ('full'), their sum or one of them.")
        self._select = Selection(outputs)
        self._tracked = track(model, parameters)
        with torch.inference_mode(False), torch.no_grad():
            self.model, self.x, self.batch = model, ordinary(x), batch
            first = require_function(model, self._tracked, probe_rows(self.x, None))
            self.outputs = self._select(first).numel()
        self.dtype = self._tracked.dtype

    @property
    def shape(self) -> tuple[int, int]:
        """(n·K, n·K)."""
        size = len(self.x) * self.outputs
        return size, size

    def __matmul__(self, v: Tensor) -> Tensor:
        """Θv for v of shape (n·K,) or (n·K, c)."""
        if v.dim() == 2:
            return torch.stack([self @ column for column in v.unbind(1)], 1)
        if v.shape != (self.shape[0],):
            raise InvalidValueError(
                f"The operator has {self.shape[0]} columns ({len(self.x)} inputs × {self.outputs} outputs); "
                f"got a vector of shape "
                f"{tuple(v.shape)}."
            )
        with torch.inference_mode(False), torch.no_grad():
            grid = ordinary(v).reshape(len(self.x), self.outputs)
            total: dict[str, Tensor] = {}
            for part, piece in zip(self.x.split(self.batch), grid.split(self.batch), strict=True):
                pulled = pull(self.model, self._tracked, self._select, part, piece.to(self.dtype))
                total = {name: total[name] + g if total else g for name, g in pulled.items()}
            moved = [
                push(self.model, self._tracked, self._select, part, total)
                for part in self.x.split(self.batch)
            ]
            return torch.cat(moved).reshape(-1)
