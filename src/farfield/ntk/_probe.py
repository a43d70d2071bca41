"""Whether a model is a function of one input at a time: looked at, on a few inputs, not believed."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from farfield.errors import InvalidValueError
from farfield.ntk._calls import TrackedParameters
from farfield.ntk._record import Recorder

__all__ = ["in_order", "probe_rows", "require_function", "require_separate"]

_GOLDEN = (math.sqrt(5) - 1) / 2


def probe_rows(x1: Tensor, x2: Tensor | None) -> Tensor:
    """Three inputs, the first of ``x1`` first; fewer if there are no more, but two at least."""
    rows = x1[:3] if x2 is None or len(x1) > 2 else torch.cat([x1[:3], x2[:3]])[:3]
    return rows if len(rows) > 1 else torch.cat([rows, rows])


def require_function(model: nn.Module, tracked: TrackedParameters, rows: Tensor) -> Any:
    """The output for the first of some inputs, if it is the same with the others beside it and without."""
    with torch.no_grad():
        alone, together = Recorder(tracked, keep=True), Recorder(tracked, keep=True)
        with alone:
            first = tracked.substitute(model, {}, rows[:1])
        if isinstance(first, Tensor):  # whoever selects from it says what is wrong with anything else
            with together:
                several = tracked.substitute(model, {}, rows)
            require_separate(alone, first, several, rows)
    return first


def require_separate(alone: Recorder, first: Tensor, several: Any, rows: Tensor) -> None:
    """Refuse a model whose output for an input changes when others are beside it, or from run to run.

    Up to the root of the rounding of the coarsest numbers in it, relative to the largest: a batch of one is summed in
    another order than one of three.
    """
    n = len(rows)
    if not isinstance(several, Tensor) or several.dim() == 0 or len(several) != n:
        got = tuple(several.shape) if isinstance(several, Tensor) else type(several).__name__
        raise InvalidValueError(
            f"A model maps a batch (n, …) to outputs (n, …), one for each input; this one gives {got} for {n} inputs."
        )
    again = several[0].detach().reshape(-1)
    once = first.detach().reshape(-1)
    seen = [once, rows, *(kept.detach() for kept in alone.kept)]
    real = [v for v in seen if v.is_floating_point()]
    scale = max((float(v.abs().max()) for v in real if v.numel()), default=0.0)
    rounding = max(torch.finfo(v.dtype).eps for v in real) if real else 0.0
    if again.shape != once.shape or (
        once.numel() and float((again - once).abs().max()) > math.sqrt(rounding) * scale
    ):
        raise InvalidValueError(
            "The tangent kernel is of a function of one input, and this model gives another output for the same "
            f"input when {n - 1} others are beside it: it is random, or mixes the inputs of a batch (a mean or a "
            "softmax over the first axis, batch statistics). Call model.eval(), and make each output depend on its "
            "own input alone."
        )


def in_order(y: Tensor, kept: list[Tensor], alone: Callable[[int], list[Tensor]]) -> bool:
    """Whether row i of what the calls gave belongs to input i, for every i.

    The derivative of Σ_i c_i f(x_i) by row i is then c_i times that of Σ_i f(x_i). Two backward passes over a few
    inputs. A row without a derivative (behind units that are all off, or a last layer of zeros) says nothing; what
    the call gave for every input by itself, ``alone(i)``, must then be the row, and the rows must differ.
    """
    if not kept:
        return True
    n = len(y)
    c = 1 + torch.arange(n, device=y.device, dtype=torch.float64).mul_(_GOLDEN).remainder_(1.0)
    outputs = y[0].numel()
    # Weights that differ: the outputs of a softmax sum to 1, whatever the parameters.
    weights = torch.arange(1, outputs + 1, device=y.device, dtype=torch.float64).cos_().to(y.dtype)
    with torch.enable_grad():
        numbers = (y.reshape(n, -1) * weights).sum(1)
    try:
        plain, scaled = (
            torch.autograd.grad(
                numbers, kept, by.to(y.dtype), retain_graph=True, allow_unused=True, materialize_grads=True
            )
            for by in (torch.ones_like(c), c)
        )
    except RuntimeError:  # what can't be run back here is not trusted
        return False
    silent = []
    for index, (a, b) in enumerate(zip(plain, scaled, strict=True)):
        tolerance = _tolerance(a)
        expected = c.to(a.dtype).reshape(-1, *(1,) * (a.dim() - 1)) * a
        if bool(((b - expected).abs() > tolerance).any()):
            return False
        if a.numel() and not bool((a.reshape(n, -1).abs() > tolerance).any(1).all()):
            silent.append(index)
    if not silent:
        return True
    singles = [alone(i) for i in range(n)]
    if any(len(single) != len(kept) for single in singles):  # other calls for other inputs
        return False
    return all(_same_rows(kept[k], [single[k] for single in singles]) for k in silent)


def _same_rows(together: Tensor, singles: list[Tensor]) -> bool:
    """Whether a call gave for each input by itself what it gave in its row, and no two rows are alike."""
    n, tolerance = len(singles), _tolerance(together)
    rows = together.detach().reshape(n, -1)
    if any(single.numel() != rows.shape[1] for single in singles):
        return False
    distances = (rows[:, None] - torch.stack([s.detach().reshape(-1) for s in singles])[None]).abs().amax(2)
    same = torch.eye(n, dtype=torch.bool, device=rows.device)
    return bool(((distances <= tolerance) == same).all())


def _tolerance(value: Tensor) -> float:
    """The root of the rounding, relative to the largest entry."""
    return math.sqrt(torch.finfo(value.dtype).eps) * float(value.abs().max() if value.numel() else 0.0)
