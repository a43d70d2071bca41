"""Anything elementwise as an Activation: recognised where it is a known one, else wrapped and probed."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from farfield.errors import InvalidValueError
from farfield.gaussian._activation import Activation, ScalarMap
from farfield.gaussian._quadrature import flat_panels, legendre_rule

__all__ = ["recognise", "wrap_activation"]

_FUNCTIONS: dict[Any, str] = {
    torch.relu: "relu",
    torch.tanh: "tanh",
    torch.sigmoid: "sigmoid",
    torch.sin: "sin",
    torch.cos: "cos",
    torch.exp: "exp",
    torch.erf: "erf",
    torch.abs: "abs",
    torch.sign: "sign",
    torch.selu: "selu",
    nn.functional.relu: "relu",
    nn.functional.relu6: "relu6",
    nn.functional.gelu: "gelu",
    nn.functional.silu: "silu",
    nn.functional.mish: "mish",
    nn.functional.selu: "selu",
    nn.functional.elu: "elu",
    nn.functional.celu: "celu",
    nn.functional.softplus: "softplus",
    nn.functional.softsign: "softsign",
    nn.functional.tanh: "tanh",
    nn.functional.sigmoid: "sigmoid",
    nn.functional.hardtanh: "hardtanh",
    nn.functional.hardsigmoid: "hardsigmoid",
    nn.functional.hardswish: "hardswish",
    nn.functional.leaky_relu: "leaky_relu",
    nn.functional.logsigmoid: "logsigmoid",
    nn.functional.tanhshrink: "tanhshrink",
}

_MODULES: dict[type[nn.Module], Callable[[Any], tuple[str, dict[str, float]] | None]] = {
    nn.Identity: lambda m: ("identity", {}),
    nn.ReLU: lambda m: ("relu", {}),
    nn.ReLU6: lambda m: ("relu6", {}),
    nn.LeakyReLU: lambda m: ("leaky_relu", {"negative_slope": m.negative_slope}),
    nn.ELU: lambda m: ("elu", {"alpha": m.alpha}),
    nn.CELU: lambda m: ("celu", {"alpha": m.alpha}),
    nn.SELU: lambda m: ("selu", {}),
    nn.GELU: lambda m: ("gelu_tanh" if m.approximate == "tanh" else "gelu", {}),
    nn.SiLU: lambda m: ("silu", {}),
    nn.Mish: lambda m: ("mish", {}),
    # Another β or threshold is another function, which wrapping handles.
    nn.Softplus: lambda m: ("softplus", {}) if (m.beta, m.threshold) == (1, 20) else None,
    nn.Softsign: lambda m: ("softsign", {}),
    nn.Tanh: lambda m: ("tanh", {}),
    nn.Sigmoid: lambda m: ("sigmoid", {}),
    nn.LogSigmoid: lambda m: ("logsigmoid", {}),
    nn.Tanhshrink: lambda m: ("tanhshrink", {}),
    nn.Hardtanh: lambda m: ("hardtanh", {"low": m.min_val, "high": m.max_val}),
    nn.Hardsigmoid: lambda m: ("hardsigmoid", {}),
    nn.Hardswish: lambda m: ("hardswish", {}),
}


def recognise(sigma: object) -> tuple[str, dict[str, float]] | None:
    """The registered name and parameters of a torch module or function, or None."""
    if isinstance(sigma, nn.Module):
        make = _MODULES.get(type(sigma))
        return make(sigma) if make else None
    try:
        name = _FUNCTIONS.get(sigma)
    except TypeError:  # unhashable callables are nobody's registered function
        return None
    return (name, {}) if name else None


def _check_elementwise(function: ScalarMap, name: str) -> None:
    x = torch.linspace(-3.0, 3.0, 24, dtype=torch.float64)
    with torch.no_grad():
        y = function(x)
        if not isinstance(y, Tensor) or y.shape != x.shape:
            got = tuple(y.shape) if isinstance(y, Tensor) else type(y).__name__
            raise InvalidValueError(
                f"An activation maps a tensor to one of the same shape; {name} maps shape (24,) to {got}."
            )
        one_by_one = torch.cat([function(x[i : i + 1]) for i in range(len(x))])
    same = torch.isclose(y.double(), one_by_one.double(), rtol=1e-12, atol=1e-12, equal_nan=True)
    if not bool(same.all()):
        raise InvalidValueError(
            f"{name} is not elementwise: its value at one point depends on the others (as in softmax or a "
            "norm) or on chance (as in dropout in training mode). Only scalar functions have a dual."
        )


@dataclass(frozen=True)
class AutogradDerivative:
    """σ′ by autograd: a value, so that two wraps of one function are equal and can be pickled with it."""

    function: ScalarMap

    def __call__(self, x: Tensor) -> Tensor:
        """Elementwise, any shape."""
        with torch.enable_grad():
            z = x if x.requires_grad else x.detach().requires_grad_()
            y = self.function(z)
            if not y.requires_grad:
                return torch.zeros_like(x)
            (slope,) = torch.autograd.grad(y.sum(), z, create_graph=x.requires_grad, allow_unused=True)
        return torch.zeros_like(x) if slope is None else slope


def _find_kinks(function: ScalarMap) -> tuple[tuple[float, ...], tuple[tuple[float, float], ...]]:
    """Points of [−40, 40] where refinement never settles, and the jump heights there."""
    kinks: list[float] = []
    jumps: list[tuple[float, float]] = []
    with torch.no_grad():
        # The grid is shifted off the round numbers: a kink on a panel end would go unseen.
        edges = flat_panels(function, torch.linspace(-40.0, 40.0, 161, dtype=torch.float64) + 0.1372549)
        widths = edges[1:] - edges[:-1]
        for cluster in _clusters(torch.nonzero(widths < 0.5 / 2**7).flatten()):
            finest = cluster[widths[cluster] <= 2.5 * widths[cluster].min()]
            left, right = int(finest[0]) - 1, int(finest[-1]) + 2
            point = _pin_down(function, float(edges[max(left, 0)]), float(edges[min(right, len(edges) - 1)]))
            if point is None:
                continue
            kinks.append(point)
            near, nearer = (
                function(torch.tensor([point - step, point + step], dtype=torch.float64))
                for step in (1e-7 * max(1.0, abs(point)), 1e-13 * max(1.0, abs(point)))
            )
            # A jump keeps its height however close one looks; a kink does not.
            height = float(nearer[1] - nearer[0])
            if abs(height) > 1e-4 * max(1.0, float(near.abs().max())):
                jumps.append((point, height))
    return tuple(sorted(set(kinks))), tuple(sorted(set(jumps)))


def _pin_down(function: ScalarMap, left: float, right: float) -> float | None:
    """Bisect towards the one point of [left, right] where f is not smooth; None if it turns out smooth."""
    nodes, weights = legendre_rule(10)

    def roughness(a: float, b: float) -> float:
        """How far the panel's rule is from its halves', relative to what rounding alone would give."""
        m = (a + b) / 2
        whole, first, second = (function(lo + (hi - lo) * nodes) for lo, hi in ((a, b), (a, m), (m, b)))
        difference = float((whole * weights).sum() - ((first + second) * weights).sum() / 2)
        return abs(difference) / (float(whole.abs().max()) * 1e-15 + 1e-300)

    while right - left > 4e-16 * max(1.0, abs(left)):
        third = (right - left) / 3
        # Overlapping halves, so that a kink on the middle is still inside one of them.
        options = ((left, left + 2 * third), (left + third, right))
        left, right = max(options, key=lambda panel: roughness(*panel))
        if roughness(left, right) < 30.0 and right - left > 1e-5:
            return None
        if roughness(left, right) < 30.0:
            break
    point = (left + right) / 2
    rounded = round(point, 4) + 0.0
    # A kink at a number a person would write (0, 1, 6, 0.5) is meant to be exactly there.
    return rounded if abs(point - rounded) < 3 * (right - left) + 1e-9 else point


def _clusters(indices: Tensor) -> list[Tensor]:
    if indices.numel() == 0:
        return []
    breaks = torch.nonzero(indices[1:] - indices[:-1] > 2).flatten() + 1
    return list(torch.tensor_split(indices, breaks.tolist()))


@functools.lru_cache(maxsize=256)
def _wrap(function: ScalarMap) -> Activation:
    name = (
        type(function).__name__
        if isinstance(function, nn.Module)
        else getattr(function, "__name__", type(function).__name__)
    )
    _check_elementwise(function, name)
    kinks, jumps = _find_kinks(function)
    return Activation(
        name=name,
        function=function,
        derivative=AutogradDerivative(function),
        kinks=kinks,
        jumps=jumps,
        formula=f"{name}(x)",
    )


def wrap_activation(function: ScalarMap) -> Activation:
    """An :class:`Activation` around any elementwise callable or module.

    Its kinks and jumps on [−40, 40] are located by refinement; growth, range and Lipschitz constant stay
    unknown (``None``): a finite number of evaluations proves none of them.

    Parameters
    ----------
    function
        Maps a float64 tensor to one of the same shape, elementwise and deterministically. A module is used as
        it is, parameters included.

    Raises
    ------
    InvalidValueError
        If the function is not elementwise.

    Examples
    --------
    >>> import torch
    >>> wrap_activation(lambda x: torch.relu(x - 1) - torch.relu(-x)).kinks
    (0.0, 1.0)
    """
    if isinstance(function, nn.Module) and any(p.dtype != torch.float64 for p in function.parameters()):
        raise InvalidValueError(
            f"{type(function).__name__} has parameters of a dtype other than float64, in which its integrals "
            "are taken. Call .double() on a copy of it first."
        )
    try:
        return _wrap(function)
    except TypeError:  # an unhashable callable is simply not cached
        return _wrap.__wrapped__(function)
