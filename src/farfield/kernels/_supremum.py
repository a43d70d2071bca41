r"""The supremum of a kernel's diagonal over every input.

On the diagonal the angle is 0, so only the input's mean square q₀ ∈ [σ_b², ∞) matters, and three numbers an
activation: E φ², E φ and E φ′² under N(0, q). Above the first norm everything is a constant plus a positive
constant times the tangent kernel that enters. What is left is R(q₀), the tangent kernel behind that norm.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass

import torch

from farfield.errors import InvalidValueError
from farfield.gaussian import Activation, gaussian_expectation, moments
from farfield.kernels._layers import (
    Activate,
    Dense,
    Identity,
    Layer,
    LayerNorm,
    Residual,
    RMSNorm,
    number,
)
from farfield.kernels._program import KernelKind, Parts

__all__ = ["sup_diagonal"]

_LARGEST = 1e14
_MARGIN = 1e-6


@dataclass(frozen=True)
class _Point:
    """One input with itself: mean square, mean over units, tangent kernel, and whether units are Gaussian."""

    q: float
    mean: float
    ntk: float
    gaussian: bool


@functools.lru_cache(maxsize=8192)
def _three(sigma: Activation, variance: float) -> tuple[float, float, float]:
    """E φ², E φ, E φ′² under N(0, q)."""
    m = moments(sigma, variance=variance)
    if sigma.homogeneity is not None:
        n = float(sigma.homogeneity)
        slope = math.inf if 2 * n <= 1 else n * n / (2 * n - 1) * m.second / variance
        return m.second, m.mean, slope
    if sigma.jumps:
        return m.second, m.mean, math.inf
    with torch.no_grad():
        expected = gaussian_expectation(
            lambda x: sigma.derivative(x) ** 2, variance=variance, kinks=sigma.kinks
        ).value
    return m.second, m.mean, float(expected)


def _step(layer: Layer, at: _Point, *, bias: bool = True) -> _Point:
    """The diagonal's recursion, one layer."""
    if isinstance(layer, Dense):
        w, b = number(layer.weight_var), number(layer.bias_var) if bias else 0.0
        q = w * at.q + b
        return _Point(q, 0.0, q + w * at.ntk, True)
    if isinstance(layer, Activate):
        second, mean, slope = _three(layer.sigma, at.q)
        c = layer.factor
        ntk = c * slope * at.ntk if at.ntk else 0.0
        return _Point(c * second, math.sqrt(c) * mean, ntk, False)
    if isinstance(layer, LayerNorm | RMSNorm):
        spread = at.q - at.mean**2 if isinstance(layer, LayerNorm) else at.q
        mean = 0.0 if isinstance(layer, LayerNorm) else at.mean / math.sqrt(at.q)
        return _Point(1.0, mean, at.ntk / spread, at.gaussian)
    if isinstance(layer, Residual):
        side = _walk(layer.branch, at, bias=bias)
        return _Point(at.q + side.q, at.mean, at.ntk + side.ntk, at.gaussian and side.gaussian)
    assert isinstance(layer, Identity)
    return at


def _walk(layers: tuple[Layer, ...], at: _Point, *, bias: bool = True) -> _Point:
    for layer in layers:
        at = _step(layer, at, bias=bias)
    return at


def sup_diagonal(parts: Parts, kind: KernelKind = "ntk") -> float:
    r"""C = sup over x of Θ(x, x), or of K(x, x).

    With the first norm at pre-activation h and activations positively homogeneous of degree n, a = n²/(2n−1): R
    = Θ/K grows with ‖x‖ from 1 to Σ_{j≤h} a^j (h + 1 for ReLU), so C is the recursion's value from q = 1, Θ = Σ
    a^j. Behind an activation, the same with the factor E φ²/Var φ. Exact, and never attained where h > 0.

    For activations that are not homogeneous R(q₀) is maximized over q₀ ∈ [σ_b², 10¹⁴] and compared with its
    limit, which is that of the activation's slopes at ±∞; the result is right to 1e-6 and widened by as much.
    An activation bounded on both sides before the first norm makes C infinite: E φ′² falls like q^{−1/2} only,
    while Θ grows like q.

    Without a norm on every path C = ∞ (for the NNGP: unless an activation is bounded).

    Parameters
    ----------
    parts
        The network taken apart.
    kind
        ``"ntk"`` or ``"nngp"``.

    References
    ----------
    [P1] §3 has that C is finite; its value is ours.

    Examples
    --------
    >>> from farfield import kernels
    >>> round(kernels.mlp(depth=2, layer_norm=[1], bias_var=0.1).sup_diagonal(), 9)
    3.1
    >>> kernels.mlp(depth=2, bias_var=0.1).sup_diagonal()
    inf
    """
    lowest = number(parts.first.bias_var)
    if any(layer.cuts for layer in parts.inputs):
        # Normalized inputs have mean square 1, or 0 where there is nothing to normalize.
        ends = [lowest, lowest + number(parts.first.weight_var)]
        points = [_walk(parts.below + parts.above, _Point(q, 0.0, q, True)) for q in ends if q > 0]
        return max(p.q if kind == "nngp" else p.ntk for p in points)
    if not parts.below:
        return _without_norm(parts, kind, lowest)
    behind = _walk(parts.below, _Point(max(lowest, 1.0), 0.0, max(lowest, 1.0), True))
    if kind == "nngp":
        return _walk(parts.above, behind).q
    largest = _largest_tangent(parts.below, lowest)
    if math.isinf(largest):
        return math.inf
    return _walk(parts.above, _Point(1.0, behind.mean, largest, behind.gaussian)).ntk


def _largest_tangent(below: tuple[Layer, ...], lowest: float) -> float:
    """Sup of R(q₀): the tangent kernel behind the first norm."""
    if len(below) == 1:
        return 1.0
    activations = [layer.sigma for layer in below if isinstance(layer, Activate)]
    chain = not any(isinstance(layer, Residual) for layer in below)
    if chain and all(sigma.homogeneity is not None for sigma in activations):
        # Without biases R does not depend on q₀: that is its limit, and it only grows towards it.
        return _walk(below, _Point(1.0, 0.0, 1.0, True), bias=False).ntk
    if chain and any(sigma.growth is not None and sigma.growth.bounded for sigma in activations):
        return math.inf
    limit = 0.0
    if chain:
        limit = _limit(below)

    def tangent(q: float) -> float:
        return _walk(below, _Point(q, 0.0, q, True)).ntk

    return max(limit, _largest(tangent, lowest)) * (1.0 + _MARGIN)


def _largest(f: Callable[[float], float], lowest: float) -> float:
    """The largest value of f(q) for q from the bias up to 10¹⁴: a grid in log q, then golden sections."""
    low, high = math.log10(max(lowest, 1e-8)), math.log10(_LARGEST)
    grid = [low + (high - low) * k / 96 for k in range(97)]
    values = [f(10.0**t) for t in grid]
    best = max(range(97), key=lambda k: values[k])
    low, high = grid[max(best - 1, 0)], grid[min(best + 1, 96)]
    ratio = (math.sqrt(5.0) - 1.0) / 2.0
    for _ in range(30):
        a, b = high - ratio * (high - low), low + ratio * (high - low)
        if f(10.0**a) < f(10.0**b):
            low = a
        else:
            high = b
    return max(f(10.0 ** ((low + high) / 2.0)), values[best])


def _limit(below: tuple[Layer, ...]) -> float:
    """Lim R(q₀) as q₀ → ∞: biases vanish, and a smooth activation becomes the ramp of its slopes at ±∞."""
    ratio, centered = 1.0, 1.0
    for layer in below:
        if isinstance(layer, Dense):
            ratio, centered = 1.0 + ratio, 1.0
        elif isinstance(layer, Activate):
            growth = layer.sigma.growth
            if layer.sigma.homogeneity is not None:
                second, mean, slope = _three(layer.sigma, 1.0)
                ratio, centered = ratio * slope / second, 1.0 - mean**2 / second
                continue
            linear = growth is not None and "linear" in (growth.left.kind, growth.right.kind)
            if growth is None or not linear or not math.isfinite(growth.recession_gap):
                raise InvalidValueError(
                    f"The supremum of the tangent kernel needs to know how {layer.sigma.name} grows: here it "
                    f"stands before "
                    "the first norm, and is neither homogeneous nor asymptotically linear nor bounded. Put the "
                    "norm first."
                )
            right, left = growth.right.slope, growth.left.slope
            # E φ′² = E φ²/q for the ramp right·x₊ + left·min(x, 0), whose mean is (right − left)√(q/2π).
            centered = 1.0 - (right - left) ** 2 / (math.pi * (right**2 + left**2))
        elif isinstance(layer, LayerNorm):
            ratio /= centered
    return ratio


def _without_norm(parts: Parts, kind: KernelKind, lowest: float) -> float:
    """No norm on every path: infinite, unless an activation caps the covariance."""
    chain = [layer for layer in parts.above if isinstance(layer, Activate)]
    residual = any(isinstance(layer, Residual) for layer in parts.above)
    capped = any(a.sigma.growth is not None and a.sigma.growth.bounded for a in chain)
    if kind == "ntk" or residual or not capped:
        return math.inf

    def covariance(q: float) -> float:
        return _walk(parts.above, _Point(q, 0.0, 0.0, True)).q

    return _largest(covariance, lowest) * (1.0 + _MARGIN)
