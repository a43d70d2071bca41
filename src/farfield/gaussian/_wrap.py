"""Anything elementwise as an Activation: recognized where it is a known one, else wrapped and probed."""

from __future__ import annotations

import copy
import functools
import math
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from farfield.errors import InvalidValueError
from farfield.gaussian._activation import Activation, ScalarMap
from farfield.gaussian._quadrature import flat_panels, legendre_rule

__all__ = ["NATIVE", "recognize", "wrap_activation"]

_SHIFT = math.sqrt(2.0) / 10.0

_SPELLINGS: dict[str, tuple[type[nn.Module] | None, tuple[Any, ...]]] = {
    "identity": (nn.Identity, ()),
    "relu": (nn.ReLU, (torch.relu, functional.relu)),
    "relu6": (nn.ReLU6, (functional.relu6,)),
    "leaky_relu": (nn.LeakyReLU, (functional.leaky_relu,)),
    "elu": (nn.ELU, (functional.elu,)),
    "celu": (nn.CELU, (functional.celu,)),
    "selu": (nn.SELU, (torch.selu, functional.selu)),
    "gelu": (nn.GELU, (functional.gelu,)),
    "silu": (nn.SiLU, (functional.silu,)),
    "mish": (nn.Mish, (functional.mish,)),
    "softplus": (nn.Softplus, (functional.softplus,)),
    "softsign": (nn.Softsign, (functional.softsign,)),
    "tanh": (nn.Tanh, (torch.tanh, functional.tanh)),
    "sigmoid": (nn.Sigmoid, (torch.sigmoid, functional.sigmoid)),
    "logsigmoid": (nn.LogSigmoid, (functional.logsigmoid,)),
    "tanhshrink": (nn.Tanhshrink, (functional.tanhshrink,)),
    "hardtanh": (nn.Hardtanh, (functional.hardtanh,)),
    "hardsigmoid": (nn.Hardsigmoid, (functional.hardsigmoid,)),
    "hardswish": (nn.Hardswish, (functional.hardswish,)),
    "sin": (None, (torch.sin,)),
    "cos": (None, (torch.cos,)),
    "exp": (None, (torch.exp,)),
    "erf": (None, (torch.erf,)),
    "abs": (None, (torch.abs,)),
    "sign": (None, (torch.sign,)),
}
"""What torch calls a registered activation: its module, and its functions."""
NATIVE: dict[str, type[nn.Module]] = {name: module for name, (module, _) in _SPELLINGS.items() if module}
"""Torch's module of a registered activation."""
_FUNCTIONS = {function: name for name, (_, functions) in _SPELLINGS.items() for function in functions}
_MODULES = {module: name for name, module in NATIVE.items()}
_WITH_PARAMETERS: dict[type[nn.Module], Callable[[Any], tuple[str, dict[str, float]] | None]] = {
    nn.LeakyReLU: lambda m: (
        ({0: "relu", 1: "identity"}[m.negative_slope], {})
        if m.negative_slope in (0, 1)
        else ("leaky_relu", {"negative_slope": m.negative_slope})
    ),
    nn.ELU: lambda m: ("elu", {"alpha": m.alpha}),
    # torch takes a negative α too, which gives another shape altogether.
    nn.CELU: lambda m: ("celu", {"alpha": m.alpha}) if m.alpha > 0 else None,
    nn.GELU: lambda m: ("gelu_tanh" if m.approximate == "tanh" else "gelu", {}),
    # Another β or threshold is another function, which wrapping handles.
    nn.Softplus: lambda m: ("softplus", {}) if (m.beta, m.threshold) == (1, 20) else None,
    nn.Hardtanh: lambda m: ("hardtanh", {"low": m.min_val, "high": m.max_val}),
}


def recognize(sigma: object) -> tuple[str, dict[str, float]] | None:
    """The registered name and parameters of a torch module or function, or None."""
    if isinstance(sigma, nn.Module):
        make = _WITH_PARAMETERS.get(type(sigma))
        if make is not None:
            return make(sigma)
        name = _MODULES.get(type(sigma))
    else:
        # Unhashable callables are nobody's registered function.
        name = _FUNCTIONS.get(sigma) if isinstance(sigma, Hashable) else None
    return (name, {}) if name else None


def _check_elementwise(function: ScalarMap, name: str) -> None:
    # Not in order, and on two axes: sorting or turning them maps no entry by itself.
    x = torch.linspace(-3.0, 3.0, 24, dtype=torch.float64)[torch.arange(24) * 7 % 24].reshape(8, 3)
    try:
        with torch.no_grad():
            y = function(x)
            one_by_one = [function(point) for point in x.reshape(-1, 1)]
    except Exception as error:
        raise InvalidValueError(
            f"{name} is not an elementwise map of tensors: it fails on float64 points of shape (8, 3) or (1,) with "
            f"{type(error).__name__}: {error}"
        ) from error
    if not isinstance(y, Tensor) or y.shape != x.shape:
        got = tuple(y.shape) if isinstance(y, Tensor) else type(y).__name__
        raise InvalidValueError(
            f"An activation maps a tensor to one of the same shape; {name} maps shape (8, 3) to {got}."
        )
    if y.dtype != torch.float64:
        raise InvalidValueError(
            f"{name} maps float64 to {y.dtype}; integrals are taken in float64. Keep the dtype of the input, as in "
            "(x > 0).to(x.dtype)."
        )
    if not bool(torch.isfinite(y).all()):
        raise InvalidValueError(f"{name} is not finite at x = {float(x[~torch.isfinite(y)][0]):g}.")
    same = torch.isclose(y, torch.cat(one_by_one).reshape(x.shape), rtol=1e-12, atol=1e-12)
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
    """Points of [−40, 40] (or as far as f is finite) where refinement never settles, and the jumps there."""
    kinks: list[float] = []
    jumps: list[tuple[float, float]] = []
    with torch.no_grad():
        # The grid is shifted off the numbers a person writes: a kink on a panel end would go unseen.
        grid = torch.linspace(-40.0, 40.0, 161, dtype=torch.float64) + _SHIFT
        values = function(grid)
        if not bool(torch.isfinite(values).all()):
            grid = grid[grid.abs() < grid[~torch.isfinite(values)].abs().min()]
        # asinh is analytic and strictly increasing: it keeps every kink and lets none drown in eˣ further out.
        level = float(function(grid[grid.abs() < 3.0]).abs().max()) or 1.0
        edges = flat_panels(lambda x: torch.asinh(function(x) / level), grid)
        for first, last in _narrowest((edges[1:] - edges[:-1]).tolist()):
            left, right = max(first - 1, 0), min(last + 2, len(edges) - 1)
            point = _pin_down(function, float(edges[left]), float(edges[right]))
            if point is None or any(abs(point - k) <= 1e-12 * max(1.0, abs(k)) for k in kinks):
                continue
            kinks.append(point)
            steps = max(1.0, abs(point)) * torch.tensor([1e-13, 1e-9, 2e-9], dtype=torch.float64)
            below, above = function(point - steps), function(point + steps)
            rise = (above - below).tolist()
            # A jump keeps its height however close one looks; a kink, even that of a root, does not.
            if abs(rise[0]) > max(
                0.9 * abs(rise[1]), 1e-10 * float(torch.maximum(above.abs(), below.abs()).max())
            ):
                jumps.append((point, 2.0 * rise[1] - rise[2]))  # without the slope on either side
    return tuple(sorted(kinks)), tuple(sorted(jumps))


def _narrowest(widths: list[float]) -> Iterator[tuple[int, int]]:
    """Runs (first, last) of equally narrow panels between wider ones."""
    first = 0
    for last, width in enumerate(widths):
        following = widths[last + 1] if last + 1 < len(widths) else math.inf
        if following < 0.7 * width:
            first = last + 1
        elif following > 1.4 * width:
            if width < 0.5 / 2**6.5 and (first == 0 or widths[first - 1] > 1.4 * width):
                yield first, last
            first = last + 1


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


@dataclass(frozen=True)
class Wrapped:
    """What was given, called on a copy: it may work in place (``inplace=True``), and x is used again."""

    given: ScalarMap

    def __call__(self, x: Tensor) -> Tensor:
        return self.given(x.clone())


@functools.lru_cache(maxsize=256)
def _wrap(given: ScalarMap) -> Activation:
    name = getattr(given, "__name__", type(given).__name__)
    function = Wrapped(given)
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

    Its jumps and kinks on [−40, 40] are located by refinement, down to a jump of the second derivative; fainter
    ones, as that of max(x, 0)³ at 0, are not seen, and integrals refine around them instead. Growth, range and
    Lipschitz constant stay unknown (``None``): a finite number of evaluations proves none of them.

    Parameters
    ----------
    function
        Maps a float64 tensor to one of the same shape and dtype, elementwise and deterministically. A module
        is copied as it is now, parameters included: training it further does not change the activation. A
        callable is taken to mean the same function for ever, since what is computed from it is cached.

    Raises
    ------
    InvalidValueError
        If the function is not elementwise, or not in float64.

    Examples
    --------
    >>> import torch
    >>> wrap_activation(lambda x: torch.relu(x - 1) - torch.relu(-x)).kinks
    (0.0, 1.0)
    """
    if isinstance(function, nn.Module):
        if any(p.dtype != torch.float64 for p in function.parameters()):
            raise InvalidValueError(
                f"{type(function).__name__} has parameters of a dtype other than float64, in which its integrals "
                "are taken. Call .double() on a copy of it first."
            )
        # The copy is this call's own, so there is nothing to cache it under.
        return _wrap.__wrapped__(copy.deepcopy(function).requires_grad_(False))
    try:
        return _wrap(function)
    except TypeError:  # an unhashable callable is simply not cached
        return _wrap.__wrapped__(function)
