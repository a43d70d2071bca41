"""The kernel recursion a second time: mpmath, in correlations instead of angles, from the formulas of the papers.

A network is the tuple of farfield's own layer objects, read for their parameters only. Everything is computed with
50 digits, which the correlations of points 1e-12 apart need.
"""

from dataclasses import dataclass
from typing import Any

import mpmath as mp

from farfield.kernels import Activate, Dense, Identity, Layer, LayerNorm, Residual, RMSNorm

__all__ = ["DIGITS", "Features", "gelu", "leaky", "pair_kernel", "relu_squared", "soft_step"]

DIGITS = 50


@dataclass(frozen=True)
class Features:
    """Mean squares, covariance, tangent kernel and means of one pair's features."""

    q1: Any
    q2: Any
    k: Any
    t: Any
    m1: Any = 0
    m2: Any = 0
    gaussian: bool = True


def _angle(q1: Any, q2: Any, k: Any) -> Any:
    return mp.acos(max(mp.mpf(-1), min(mp.mpf(1), k / mp.sqrt(q1 * q2))))


def leaky(slope: Any, q1: Any, q2: Any, k: Any) -> tuple[Any, Any]:
    """E φφ′ and E φ̇φ̇′ of x₊ − slope·(−x)₊; slope 0 is ReLU and −1 is |x|."""
    s, theta = mp.sqrt(q1 * q2), _angle(q1, q2, k)

    def half(angle: Any) -> Any:
        return (mp.sin(angle) + (mp.pi - angle) * mp.cos(angle)) / (2 * mp.pi)

    value = s * ((1 + slope**2) * half(theta) - 2 * slope * half(mp.pi - theta))
    same, other = (mp.pi - theta) / (2 * mp.pi), theta / (2 * mp.pi)
    return value, (1 + slope**2) * same + 2 * slope * other


def relu_squared(q1: Any, q2: Any, k: Any) -> tuple[Any, Any]:
    """E φφ′ and E φ̇φ̇′ of x₊²: the arc-cosine kernel of degree two."""
    s, theta = mp.sqrt(q1 * q2), _angle(q1, q2, k)
    sine, cosine, rest = mp.sin(theta), mp.cos(theta), mp.pi - theta
    value = s**2 * (3 * sine * cosine + rest * (1 + 2 * cosine**2)) / (2 * mp.pi)
    return value, 4 * s * (sine + rest * cosine) / (2 * mp.pi)


def soft_step(q1: Any, q2: Any, k: Any) -> tuple[Any, Any]:
    """E φφ′ and E φ̇φ̇′ of erf."""
    product = (1 + 2 * q1) * (1 + 2 * q2)
    return 2 / mp.pi * mp.asin(2 * k / mp.sqrt(product)), 4 / mp.pi / mp.sqrt(product - 4 * k * k)


def gelu(q1: Any, q2: Any, k: Any) -> tuple[Any, Any]:
    """E φφ′ and E φ̇φ̇′ of xΦ(x), by partial integration: E ΦΦ′ and E φφ′ (densities) carry everything."""
    det = (1 + q1) * (1 + q2) - k * k
    steps = mp.mpf(1) / 4 + mp.asin(k / mp.sqrt((1 + q1) * (1 + q2))) / (2 * mp.pi)
    bumps = 1 / (2 * mp.pi * mp.sqrt(det))
    mixed = 1 / (1 + q1) + 1 / (1 + q2)
    value = k * steps + bumps * (q1 * q2 + k * k * (mixed - 1))
    return value, steps + bumps * k * (mixed + 1 / det)


def _activation(sigma: Any) -> tuple[Any, Any, Any]:
    """(pair function, second moment and mean as functions of the variance) by name."""
    name, parameters = sigma.name, dict(sigma.parameters)
    if name in ("relu", "leaky_relu", "abs", "identity"):
        slope = {"relu": 0, "abs": -1, "identity": 1}.get(name)
        slope = mp.mpf(parameters["negative_slope"]) if slope is None else mp.mpf(slope)
        return (
            lambda *a: leaky(slope, *a),
            lambda q: (1 + slope**2) * q / 2,
            lambda q: (1 - slope) * mp.sqrt(q / (2 * mp.pi)),
        )
    if name == "relu_squared":
        return relu_squared, lambda q: 3 * q * q / 2, lambda q: q / 2
    if name == "erf":
        return soft_step, lambda q: soft_step(q, q, q)[0], lambda q: mp.mpf(0)
    if name == "gelu":
        return gelu, lambda q: gelu(q, q, q)[0], lambda q: q / mp.sqrt(2 * mp.pi * (1 + q))
    raise NotImplementedError(name)


def _number(value: Any) -> Any:
    return mp.mpf(float(value))


def _apply(layer: Layer, f: Features) -> Features:
    if isinstance(layer, Identity):
        return f
    if isinstance(layer, Dense):
        w, b = _number(layer.weight_var), _number(layer.bias_var)
        k = w * f.k + b
        return Features(w * f.q1 + b, w * f.q2 + b, k, k + w * f.t)
    if isinstance(layer, Activate):
        assert f.gaussian
        pair, second, mean = _activation(layer.sigma)
        root = 1 / mp.sqrt(second(mp.mpf(1))) if layer.scale is None else _number(layer.scale)
        value, slope = pair(f.q1, f.q2, f.k)
        c, means = root * root, (root * mean(f.q1), root * mean(f.q2))
        return Features(
            c * second(f.q1), c * second(f.q2), c * value, c * slope * f.t, *means, gaussian=False
        )
    if isinstance(layer, LayerNorm):
        v1, v2 = f.q1 - f.m1**2, f.q2 - f.m2**2
        w = mp.sqrt(v1 * v2)
        one = mp.mpf(1)
        return Features(one, one, (f.k - f.m1 * f.m2) / w, f.t / w, gaussian=f.gaussian)
    if isinstance(layer, RMSNorm):
        w, one = mp.sqrt(f.q1 * f.q2), mp.mpf(1)
        means = f.m1 / mp.sqrt(f.q1), f.m2 / mp.sqrt(f.q2)
        return Features(one, one, f.k / w, f.t / w, *means, gaussian=f.gaussian)
    assert isinstance(layer, Residual)
    g = f
    for inner in layer.branch:
        g = _apply(inner, g)
    return Features(f.q1 + g.q1, f.q2 + g.q2, f.k + g.k, f.t + g.t, f.m1, f.m2, f.gaussian and g.gaussian)


def pair_kernel(layers: tuple[Layer, ...], x1: list[float], x2: list[float]) -> Features:
    """The output's covariance and tangent kernel for one pair of inputs; the inputs' floats are taken as exact."""
    with mp.workdps(DIGITS):
        a, b = [mp.mpf(v) for v in x1], [mp.mpf(v) for v in x2]
        n = len(a)
        # Raw inputs: no parameters below, so no tangent kernel; the first Dense layer gives Θ = K.
        f = Features(
            mp.fdot(a, a) / n, mp.fdot(b, b) / n, mp.fdot(a, b) / n, mp.mpf(0),
            mp.fsum(a) / n, mp.fsum(b) / n, gaussian=False,
        )  # fmt: skip
        for layer in layers:
            f = _apply(layer, f)
        return f
