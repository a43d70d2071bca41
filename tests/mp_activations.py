"""The registered activations written a second time, from their formulas, in mpmath."""

import functools
import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Literal

import mpmath as mp
from mpmath.calculus.quadrature import GaussLegendre

from farfield.gaussian import Activation

__all__ = ["TWINS", "hermite", "legendre_nodes", "standard_normal_integrals", "twin"]

Scalar = Callable[[Any], Any]


def _clip(x: Any, low: Any, high: Any) -> Any:
    return min(max(x, low), high)


def _softplus(x: Any) -> Any:
    return mp.log1p(mp.exp(x))


def _selu(x: Any) -> Any:
    scale, alpha = mp.mpf("1.0507009873554804934193349852946"), mp.mpf("1.6732632423543772848170429916717")
    return scale * (x if x > 0 else alpha * mp.expm1(x))


def _gelu_tanh(x: Any) -> Any:
    return x / 2 * (1 + mp.tanh(mp.sqrt(2 / mp.pi) * (x + mp.mpf("0.044715") * x**3)))


TWINS: dict[str, Callable[..., Any]] = {
    "identity": lambda x: x,
    "relu": lambda x: max(x, mp.mpf(0)),
    "leaky_relu": lambda x, negative_slope: x if x > 0 else negative_slope * x,
    "abs": abs,
    "power_relu": lambda x, n: x**n if x > 0 else mp.mpf(0),
    "relu_squared": lambda x, n: x**2 if x > 0 else mp.mpf(0),
    "elu": lambda x, alpha: x if x > 0 else alpha * mp.expm1(x),
    "celu": lambda x, alpha: x if x > 0 else alpha * mp.expm1(x / alpha),
    "selu": _selu,
    "gelu": lambda x: x * mp.ncdf(x),
    "gelu_tanh": _gelu_tanh,
    "silu": lambda x: x / (1 + mp.exp(-x)),
    "mish": lambda x: x * mp.tanh(_softplus(x)),
    "softplus": _softplus,
    "logsigmoid": lambda x: -_softplus(-x),
    "softsign": lambda x: x / (1 + abs(x)),
    "tanh": mp.tanh,
    "tanhshrink": lambda x: x - mp.tanh(x),
    "sigmoid": lambda x: 1 / (1 + mp.exp(-x)),
    "hardtanh": lambda x, low=-1, high=1: _clip(x, mp.mpf(low), mp.mpf(high)),
    "relu6": lambda x: _clip(x, mp.mpf(0), mp.mpf(6)),
    "hardsigmoid": lambda x: _clip(x / 6 + mp.mpf(1) / 2, mp.mpf(0), mp.mpf(1)),
    "hardswish": lambda x: x * _clip(x + 3, mp.mpf(0), mp.mpf(6)) / 6,
    "erf": mp.erf,
    "sin": mp.sin,
    "cos": mp.cos,
    "gaussian": lambda x: mp.exp(-x * x / 2),
    "exp": mp.exp,
    "step": lambda x: mp.mpf(x > 0),
    "sign": mp.sign,
    "he2": lambda x: (x * x - 1) / mp.sqrt(2),
    "he3": lambda x: (x**3 - 3 * x) / mp.sqrt(6),
}


def twin(sigma: Activation) -> Scalar | None:
    """The mpmath function that ``sigma`` should be, or None where nobody wrote it down."""
    formula = TWINS.get(sigma.name)
    parameters = dict(sigma.parameters)
    return None if formula is None else lambda x: formula(x, **parameters)


def standard_normal_integrals(
    integrands: Callable[[Any, Any], list[Any]], sigma: Activation, variance: float
) -> list[Any]:
    """E g(z, σ(√q z)) for every g in the list, z standard normal, q ≤ 1 and σ the twin: Gauss–Legendre in 30
    digits on unit panels split at the kinks; towards a fractional power, not analytic at its end, they shrink.
    """
    function = twin(sigma)
    assert function is not None, f"{sigma.name} has no formula in mp_activations.TWINS"
    with mp.workdps(30):
        root = mp.sqrt(mp.mpf(variance))
        ends = {mp.mpf(k) for k in range(-11, 12)} | {mp.mpf(k) / root for k in sigma.kinks}
        fractional = sigma.homogeneity is not None and sigma.homogeneity % 1 != 0
        if fractional:
            ends |= {sign * mp.mpf(4) ** -j for j in range(1, 23) for sign in (-1, 1)}
        totals = [mp.mpf(0)] * len(integrands(mp.mpf(0), mp.mpf(0)))
        for z, weight in legendre_nodes((z for z in ends if abs(z) <= 11), 24 if fractional else 12):
            mass = weight * mp.npdf(z)
            totals = [t + g * mass for t, g in zip(totals, integrands(z, function(root * z)), strict=True)]
        return totals


def legendre_nodes(ends: Iterable[Any], count: Literal[12, 24] = 24) -> Iterator[tuple[Any, Any]]:
    """Nodes and weights of Gauss–Legendre on the panels between the given points, ``count`` on each."""
    rule = _legendre().get_nodes(-1, 1, {12: 3, 24: 4}[count], mp.mp.prec)
    for left, right in itertools.pairwise(sorted(set(ends))):
        half, middle = (right - left) / 2, (right + left) / 2
        yield from ((middle + half * node, half * weight) for node, weight in rule)


@functools.cache
def _legendre() -> GaussLegendre:
    return GaussLegendre(mp.mp)


def hermite(count: int, z: Any) -> list[Any]:
    """The first ``count`` normalized probabilists' Hermite polynomials."""
    plain = [mp.mpf(1), z]
    for k in range(1, count - 1):
        plain.append(z * plain[k] - k * plain[k - 1])
    return [p / mp.sqrt(mp.factorial(k)) for k, p in enumerate(plain)]
