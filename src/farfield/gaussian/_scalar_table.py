"""The scalar functions of exported programs, by the name and the attributes of their operator.

Suprema and extrema without a closed form are given to 17 digits, rounded outwards; the tests compute them again in
mpmath and hold every entry against it.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from fractions import Fraction
from itertools import pairwise
from typing import Any, Final, Literal, TypeAlias

import torch
from torch import Tensor
from torch.nn import functional

from farfield.gaussian._activation import ScalarMap, Tail
from farfield.gaussian._scalar_function import EVALUATION, ScalarFunction, Shape

__all__ = ["SELU_ALPHA", "SELU_SCALE", "scalar_function", "scalar_function_names"]

INF: Final = math.inf
SELU_ALPHA: Final = 1.6732632423543772848170429916717
SELU_SCALE: Final = 1.0507009873554804934193349852946
HALF_PI: Final = 1.5707963267948968
LN_2: Final = 0.6931471805599454
TANH_SECOND: Final = 0.769800358919501
LOGISTIC_SECOND: Final = 0.09622504486493763

Attributes: TypeAlias = Mapping[str, Any]
Planes: TypeAlias = tuple[tuple[float, float, float], ...]
Remainder: TypeAlias = Literal["exact", "flat", "algebraic", "bounded"]


def _tail(slope: float, offset: float = 0.0, remainder: Remainder = "exact") -> Tail:
    return Tail("linear" if slope else "bounded", slope, offset, remainder)


_ZERO, _FLAT_ZERO = _tail(0.0), _tail(0.0, 0.0, "flat")
_IDENTITY, _FLAT_IDENTITY = _tail(1.0), _tail(1.0, 0.0, "flat")


def _above(value: Fraction | float) -> float:
    """The least float64 that is not below a number."""
    near = float(value)
    return near if Fraction(near) >= value else math.nextafter(near, INF)


def _bound(formula: ScalarMap) -> ScalarMap:
    """A formula's values, rounded up; not 0 where they underflow."""
    return lambda r: formula(r) * (1.0 + 1e-9) + 1e-300


def _band(slope: float, low: float, high: float) -> Planes:
    """The half-planes of low ≤ σ(z) − slope·z ≤ high."""
    return (1.0, 0.0 - slope, 0.0 - low), (-1.0, slope, high)


# ------------------------------------------------------------------ piecewise linear


def _piecewise(
    name: str, function: ScalarMap, kinks: tuple[float, ...], *pieces: tuple[float, float], **more: Any
) -> ScalarFunction:
    """Continuous lines between kinks: everything follows from them."""
    slopes = [slope for slope, _ in pieces]
    (first, start), (last, end) = pieces[0], pieces[-1]

    def value(k: float, both: tuple[tuple[float, float], tuple[float, float]]) -> float:
        slope, shift = min(both, key=lambda piece: abs(piece[0]))  # exact where one of the two is constant
        return slope * k + shift

    values = [value(k, both) for k, both in zip(kinks, pairwise(pieces), strict=True)]
    turn = next((i for i, (a, b) in enumerate(pairwise(slopes)) if a < 0 < b), None)
    shape: Shape = "other"
    if turn is not None and all((s > 0) is (i > turn) for i, s in enumerate(slopes)):
        shape = "valley"
    elif all(s >= 0 for s in slopes) or all(s <= 0 for s in slopes):
        shape = "increasing" if max(slopes) > 0 else "decreasing"
    # σ minus the slope of its tail is linear between the kinks and 0, and constant beyond them.
    center = next(shift for k, (_, shift) in zip((*kinks, INF), pieces, strict=True) if k >= 0)
    below = [v - first * k for k, v in zip(kinks, values, strict=True) if k < 0] + [center]
    above = [v - last * k for k, v in zip(kinks, values, strict=True) if k >= 0] + [center]
    low, high = min(below + above), max(below + above)
    off = max(*(abs(v - start) for v in below), *(abs(v - end) for v in above))
    reach = max((abs(k) for k in kinks), default=0.0)
    planes: Planes = ()
    if slopes in (sorted(slopes), sorted(slopes, reverse=True)):
        sign = 1.0 if slopes == sorted(slopes) else -1.0
        planes = tuple((sign, 0.0 - sign * s, 0.0 - sign * c) for s, c in pieces)
    elif first == last:
        planes = _band(first, low, high)
    facts: dict[str, Any] = {
        "slope": max(abs(s) for s in slopes),
        "loss": 0.0,
        "lo": -INF if first > 0 or last < 0 else min(values),
        "hi": INF if first < 0 or last > 0 else max(values),
    }
    return ScalarFunction(
        name, function, _tail(first, start), _tail(last, end), shape=shape,
        valley=kinks[turn] if turn is not None and shape == "valley" else 0.0, kinks=kinks,
        bends=tuple((k, b - a) for k, (a, b) in zip(kinks, pairwise(slopes), strict=True)), curvature=0.0,
        third=0.0, half_planes=planes, pieces=pieces, homogeneous=kinks == (0.0,) and start == end == 0.0,
        remainder=(low, high),
        remainder_beyond=lambda s: torch.where(s >= reach, 0.0, torch.full_like(s, off)), **{**facts, **more},
    )  # fmt: skip


def _leaky(a: Attributes) -> ScalarFunction:
    slope = float(a.get("negative_slope", 0.01))
    lines = (slope, 0.0), (1.0, 0.0)
    return _piecewise(
        "leaky_relu", lambda x: torch.where(x > 0, x, slope * x), (0.0,), *lines, loss=EVALUATION
    )


def _hardtanh(a: Attributes) -> ScalarFunction | None:
    low, high = float(a.get("min_val", -1.0)), float(a.get("max_val", 1.0))
    lines = (0.0, low), (1.0, 0.0), (0.0, high)
    return _piecewise("hardtanh", lambda x: x.clamp(low, high), (low, high), *lines) if low < high else None


def _softshrink(a: Attributes) -> ScalarFunction | None:
    width = float(a.get("lambd", 0.5))
    if width <= 0:
        return None
    lines = (1.0, width), (0.0, 0.0), (1.0, -width)
    shrink = functools.partial(functional.softshrink, lambd=width)
    return _piecewise("softshrink", shrink, (-width, width), *lines, loss=EVALUATION)


def _hardsigmoid(a: Attributes) -> ScalarFunction:
    # torch's own has its derivative 1/6 rounded to float32, and 1/6 is no float64 either.
    return _piecewise(
        "hardsigmoid", lambda x: (x + 3.0).clamp(0.0, 6.0) / 6.0, (-3.0, 3.0),
        *((0.0, 0.0), (1.0 / 6.0, 0.5), (0.0, 1.0)), slope=_above(Fraction(1, 6)), loss=EVALUATION,
        roughness=1e-15, rough_from=-INF,
    )  # fmt: skip


# ------------------------------------------------------------------ like relu


def _unit(name: str, alpha: float, scale: float, rate: Fraction | None = None) -> ScalarFunction | None:
    """scale·x on the right, scale·alpha·(e^{rate·x} − 1) on the left; rate 1/alpha for celu."""
    if not all(map(math.isfinite, (alpha, scale))) or (rate is None and alpha <= 0):
        return None
    rate = 1 / Fraction(alpha) if rate is None else rate
    if rate <= 0 or scale == 0:
        return None
    if alpha == 0:
        return _piecewise(
            name, lambda x: scale * x.clamp_min(0.0), (0.0,), (0.0, 0.0), (scale, 0.0), loss=EVALUATION
        )
    size = abs(Fraction(scale) * Fraction(alpha))
    floor, steep, speed = -scale * alpha, Fraction(scale) * Fraction(alpha) * rate, float(rate)
    rest = (-_above(size), 0.0) if floor < 0 else (0.0, _above(size))

    def function(x: Tensor) -> Tensor:
        return torch.where(x > 0, scale * x, scale * alpha * torch.expm1(speed * x.clamp_max(0.0)))

    shape: Shape = "other"
    if alpha >= 0:
        shape = "increasing" if scale > 0 else "decreasing"
    elif scale > 0:
        shape = "valley"
    planes: Planes = ()
    if alpha >= 0 and scale > 0:
        # Below 0 the curve may pass under the right-hand line, by most where its slope is that line's.
        gain = alpha * speed
        dip = 0.0 if gain <= 1 else scale * (alpha - (1 + math.log(gain)) / speed)
        planes = (1.0, 0.0, _above(size)), (1.0, -scale, max(0.0, dip) * (1 + 1e-9) + 1e-12)
    return ScalarFunction(
        name, function, _tail(0.0, floor, "flat"), _tail(scale),
        lo=(rest[0] if alpha >= 0 else 0.0) if scale > 0 else -INF,
        hi=(rest[1] if alpha >= 0 else 0.0) if scale < 0 else INF, shape=shape, kinks=(0.0,),
        bends=() if steep == scale else ((0.0, float(scale - steep)),),
        slope=_above(max(abs(Fraction(scale)), abs(steep))), curvature=_above(abs(steep) * rate),
        third=_above(abs(steep) * rate**2), half_planes=planes, remainder=rest,
        curvature_beyond=_bound(lambda r: float(abs(steep) * rate) * torch.exp(-speed * r)),
        remainder_beyond=_bound(lambda s: float(size) * torch.exp(-speed * s)),
    )  # fmt: skip


def _elu(a: Attributes) -> ScalarFunction | None:
    alpha, scale, rate = (float(a.get(key, 1.0)) for key in ("alpha", "scale", "input_scale"))
    return _unit("elu", alpha, scale, Fraction(rate)) if math.isfinite(rate) else None


def _gate(
    name: str,
    function: ScalarMap,
    valley: float,
    dip: float,
    suprema: tuple[float, float, float],
    curvature_beyond: ScalarMap | None,
    remainder_beyond: ScalarMap,
    right_dip: float | None = None,
    **more: Any,
) -> ScalarFunction:
    """Towards x on the right and 0 on the left, a dip between; ``right_dip`` is sup(x − σ(x))."""
    return ScalarFunction(
        name, function, more.pop("left", _FLAT_ZERO), more.pop("right", _FLAT_IDENTITY), lo=-dip,
        shape="valley", valley=valley, saturates=False, slope=suprema[0], curvature=suprema[1],
        third=suprema[2], half_planes=((1.0, 0.0, dip), (1.0, -1.0, dip if right_dip is None else right_dip)),
        remainder=(-dip, 0.0), curvature_beyond=curvature_beyond, remainder_beyond=remainder_beyond, **more,
    )  # fmt: skip


def _steps(first: float, second: float, third: float) -> ScalarMap:
    """A bound that steps down at 4 and at 6.5."""
    return lambda r: torch.where(r >= 6.5, third, torch.where(r >= 4.0, second, torch.full_like(r, first)))


def _gelu(a: Attributes) -> ScalarFunction:
    if a.get("approximate", "none") == "tanh":
        return _gate(
            "gelu",
            functools.partial(functional.gelu, approximate="tanh"),
            -0.7524614220710163,
            0.17004075057125406,
            (1.128993068658772, 0.7978845608028654, 0.7766914503985405),
            _steps(0.7978845608028654, 0.006, 1e-9),
            _steps(0.17004075057125406, 2e-4, 1e-9),
        )
    root = 1.0 / math.sqrt(2 * math.pi)
    return _gate(
        "gelu", functional.gelu, -0.7517915246935645, 0.16997120747990369,
        (1.128904145185155, 0.7978845608028654, 0.7787696350557324),
        _bound(lambda r: root * (2.0 + r * r) * torch.exp(-0.5 * r * r)),
        _bound(lambda s: root * torch.exp(-0.5 * s * s)),
    )  # fmt: skip


def _fading(s: Tensor) -> Tensor:
    """s·e^{−s} from its maximum on."""
    return s.clamp_min(1.0) * torch.exp(-s.clamp_min(1.0))


def _silu(a: Attributes) -> ScalarFunction:
    return _gate(
        "silu", functional.silu, -1.2784645427610737, 0.2784645427610738,
        (1.099839320128867, 0.5, 0.3081815157964791), _bound(lambda r: (2.0 + r) * torch.exp(-r)),
        _bound(_fading),
    )  # fmt: skip


def _mish(a: Attributes) -> ScalarFunction:
    return _gate(
        "mish", functional.mish, -1.1924312145154952, 0.30884341301725043,
        (1.088498161251728, 0.6442046372369725, 0.5884120448690198),
        _bound(lambda r: (3.0 + 2.0 * r) * torch.exp(-r)), _bound(_fading), 0.14030290126648154,
    )  # fmt: skip


def _hardswish(a: Attributes) -> ScalarFunction:
    return _gate(
        "hardswish", functional.hardswish, -1.5, 0.375, (1.5, _above(Fraction(1, 3)), 0.0), None,
        lambda s: torch.where(s >= 3.0, 0.0, torch.full_like(s, 0.375)), left=_ZERO, right=_IDENTITY,
        kinks=(-3.0, 3.0), bends=((-3.0, -0.5), (3.0, -0.5)),
    )  # fmt: skip


def _softplus(a: Attributes) -> ScalarFunction | None:
    """Switches to the identity at beta·x = threshold, as torch does: a drop of ln(1 + e^{−threshold})/beta."""
    beta, threshold = float(a.get("beta", 1.0)), float(a.get("threshold", 20.0))
    if not 0 < beta < INF or math.isnan(threshold):
        return None
    # e^{−beta·x} keeps what rounding beta·x, up to 745, leaves of it.
    place = threshold / beta
    drop = (max(-threshold, 0.0) + math.log1p(math.exp(-abs(threshold)))) / beta * (1 + 2**-50)

    def smooth(x: Tensor) -> Tensor:
        return torch.logaddexp(beta * x, torch.zeros_like(x)) / beta

    return ScalarFunction(
        "softplus",
        functools.partial(functional.softplus, beta=beta, threshold=threshold) if drop else smooth,
        _FLAT_ZERO, _IDENTITY if drop else _FLAT_IDENTITY, lo=min(0.0, place),
        jumps=((place, place + drop, place),) if drop else (), slope=1.0, curvature=beta / 4,
        third=LOGISTIC_SECOND * beta**2 * (1 + 1e-15), half_planes=((1.0, 0.0, 0.0), (1.0, -1.0, 0.0)),
        remainder=(0.0, LN_2 / beta * (1 + 1e-15)),
        curvature_beyond=_bound(lambda r: beta * torch.exp(-beta * r)),
        remainder_beyond=_bound(lambda s: torch.exp(-beta * s) / beta), smooth=smooth if drop else None,
        roughness=drop, rough_from=place - 1e-9 * abs(place) if drop else INF,
        loss=2.0**-42,
    )  # fmt: skip


def _logsigmoid(a: Attributes) -> ScalarFunction:
    return ScalarFunction(
        "logsigmoid", functional.logsigmoid, _FLAT_IDENTITY, _FLAT_ZERO, hi=0.0, slope=1.0, curvature=0.25,
        third=LOGISTIC_SECOND, half_planes=((-1.0, 0.0, 0.0), (-1.0, 1.0, 0.0)), remainder=(-LN_2, 0.0),
        curvature_beyond=_bound(lambda r: torch.exp(-r)), remainder_beyond=_bound(lambda s: torch.exp(-s)),
    )  # fmt: skip


# ------------------------------------------------------------------ between two parallel lines


def _squash(
    name: str,
    function: ScalarMap,
    low: float,
    high: float,
    suprema: tuple[float, float, float],
    curvature_beyond: ScalarMap,
    remainder_beyond: ScalarMap,
    remainder: Remainder = "flat",
    **more: Any,
) -> ScalarFunction:
    """From ``low`` to ``high``, monotone."""
    start, end = (high, low) if more.get("shape") == "decreasing" else (low, high)
    return ScalarFunction(
        name, function, _tail(0.0, start, remainder), _tail(0.0, end, remainder), lo=low, hi=high,
        slope=suprema[0], curvature=suprema[1], third=suprema[2], half_planes=_band(0.0, low, high),
        remainder=(low, high), curvature_beyond=_bound(curvature_beyond),
        remainder_beyond=_bound(remainder_beyond), **more,
    )  # fmt: skip


_TANH = (
    (1.0, TANH_SECOND, 2.0),
    lambda r: 8.0 * torch.exp(-2.0 * r),
    lambda s: 2.0 * torch.exp(-2.0 * s),
)
_ERF = (
    (1.1283791670955128, 0.9678828980765735, 2.2567583341910256),
    lambda r: (4 / math.sqrt(math.pi) * r.clamp_min(math.sqrt(0.5)) * torch.exp(-(r.clamp_min(math.sqrt(0.5)) ** 2))),
    lambda s: torch.exp(-s * s),
)  # fmt: skip


def _tanhshrink_value(x: Tensor) -> Tensor:
    # Near 0 the difference x − tanh x loses every digit. Lambert's fraction tanh x = x/(1 + t) with
    # t = x²/(3 + x²/(5 + x²/(7 + …))) turns it into x·t/(1 + t).
    square = (x * x).clamp(max=1.0)
    t = square / 21.0
    for odd in range(19, 1, -2):
        t = square / (odd + t)
    return torch.where(x.abs() < 1.0, x * t / (1.0 + t), x - torch.tanh(x))


def _tanhshrink(a: Attributes) -> ScalarFunction:
    tanh = _squash("tanhshrink", _tanhshrink_value, -1.0, 1.0, *_TANH)
    return replace(
        tanh, left=_tail(1.0, 1.0, "flat"), right=_tail(1.0, -1.0, "flat"), lo=-INF, hi=INF,
        half_planes=_band(1.0, -1.0, 1.0),
    )  # fmt: skip


def _wave(name: str, function: ScalarMap) -> ScalarFunction:
    tail = Tail("bounded")
    return ScalarFunction(
        name, function, tail, tail, lo=-1.0, hi=1.0, shape="other", saturates=False, slope=1.0, curvature=1.0,
        third=1.0, half_planes=_band(0.0, -1.0, 1.0), remainder=(-1.0, 1.0),
    )  # fmt: skip


# ------------------------------------------------------------------ with jumps


def _rounding(name: str, function: ScalarMap, low: float, high: float) -> ScalarFunction:
    """A whole number within [low, high] of x."""
    tail = Tail("linear", 1.0)
    return ScalarFunction(name, function, tail, tail, saturates=False, loss=0.0, remainder=(low, high))


def _sign(a: Attributes) -> ScalarFunction:
    return ScalarFunction(
        "sign", torch.sign, _tail(0.0, -1.0), _tail(0.0, 1.0), lo=-1.0, hi=1.0, kinks=(0.0,),
        jumps=((0.0, -1.0, 1.0),), loss=0.0, remainder=(-1.0, 1.0),
    )  # fmt: skip


def _hardshrink(a: Attributes) -> ScalarFunction | None:
    width = float(a.get("lambd", 0.5))
    if width <= 0:
        return None
    return ScalarFunction(
        "hardshrink", functools.partial(functional.hardshrink, lambd=width), _IDENTITY, _IDENTITY,
        kinks=(-width, width), jumps=((-width, -width, 0.0), (width, 0.0, width)), loss=0.0,
        remainder=(-width, width),
    )  # fmt: skip


def _threshold(a: Attributes) -> ScalarFunction:
    point, value = float(a["threshold"]), float(a["value"])
    function = functools.partial(functional.threshold, threshold=point, value=value)
    if value == point:
        return _piecewise("threshold", function, (point,), (0.0, value), (1.0, 0.0))
    ends = (value, 0.0, value - point if point > 0 else point)
    return ScalarFunction(
        "threshold", function, _tail(0.0, value), _IDENTITY, lo=min(point, value), kinks=(point,),
        jumps=((point, value, point),), loss=0.0, remainder=(min(ends), max(ends)),
    )  # fmt: skip


# ------------------------------------------------------------------ the table

_TABLE: Final[Mapping[str, Callable[[Attributes], ScalarFunction | None]]] = {
    "relu": lambda a: _piecewise("relu", torch.relu, (0.0,), (0.0, 0.0), (1.0, 0.0)),
    "leaky_relu": _leaky,
    "abs": lambda a: _piecewise("abs", torch.abs, (0.0,), (-1.0, 0.0), (1.0, 0.0)),
    "hardtanh": _hardtanh,
    "hardsigmoid": _hardsigmoid,
    "softshrink": _softshrink,
    "elu": _elu,
    "selu": lambda a: _unit("selu", SELU_ALPHA, SELU_SCALE, Fraction(1)),
    "celu": lambda a: _unit("celu", float(a.get("alpha", 1.0)), 1.0),
    "gelu": _gelu,
    "silu": _silu,
    "mish": _mish,
    "hardswish": _hardswish,
    "softplus": _softplus,
    "logsigmoid": _logsigmoid,
    "tanh": lambda a: _squash("tanh", torch.tanh, -1.0, 1.0, *_TANH),
    "sigmoid": lambda a: _squash(
        *("sigmoid", torch.sigmoid, 0.0, 1.0, (0.25, LOGISTIC_SECOND, 0.125)),
        lambda r: torch.exp(-r),
        lambda s: torch.exp(-s),
    ),
    "erf": lambda a: _squash("erf", torch.erf, -1.0, 1.0, *_ERF),
    "erfc": lambda a: _squash("erfc", torch.erfc, 0.0, 2.0, *_ERF, shape="decreasing"),
    "atan": lambda a: replace(
        _squash(
            *("atan", torch.atan, -HALF_PI, HALF_PI, (1.0, 0.649519052838329, 2.0)),
            lambda r: 2.0 * r.clamp_min(1e-3) ** -3,
            lambda s: 1.0 / s.clamp_min(0.5),
        ),
        left=_tail(0.0, -math.pi / 2, "algebraic"),
        right=_tail(0.0, math.pi / 2, "algebraic"),
    ),
    "softsign": lambda a: _squash(
        *("softsign", functional.softsign, -1.0, 1.0, (1.0, 2.0, 6.0)),
        lambda r: 2.0 * (1.0 + r) ** -3,
        lambda s: 1.0 / (1.0 + s),
        "algebraic",
        kinks=(0.0,),
        saturates=False,
    ),
    "tanhshrink": _tanhshrink,
    "sin": lambda a: _wave("sin", torch.sin),
    "cos": lambda a: _wave("cos", torch.cos),
    "sign": _sign,
    "hardshrink": _hardshrink,
    "threshold": _threshold,
    "floor": lambda a: _rounding("floor", torch.floor, -1.0, 0.0),
    "ceil": lambda a: _rounding("ceil", torch.ceil, 0.0, 1.0),
    "round": lambda a: _rounding("round", torch.round, -0.5, 0.5),
    "trunc": lambda a: _rounding("trunc", torch.trunc, -1.0, 1.0),
}


def scalar_function_names() -> tuple[str, ...]:
    """Operators with an entry in the table, sorted."""
    return tuple(sorted(_TABLE))


@functools.lru_cache(maxsize=1024)
def _make(name: str, attributes: tuple[tuple[str, Any], ...]) -> ScalarFunction | None:
    return _TABLE[name](dict(attributes))


def scalar_function(name: str, attributes: Attributes | None = None) -> ScalarFunction | None:
    """What is known of an operator that applies one scalar function to every entry.

    Parameters
    ----------
    name
        An operator of :mod:`farfield.graph`.
    attributes
        Its attributes; those left out have torch's defaults.

    Returns
    -------
    ScalarFunction or None
        ``None`` for an operator without an entry, and for parameters that make it another kind of function
        (``celu`` with a negative alpha grows exponentially).

    Examples
    --------
    >>> gate = scalar_function("softplus")
    >>> gate.left.slope, gate.right.slope, gate.lo
    (0.0, 1.0, 0.0)
    >>> scalar_function("gelu", {"approximate": "tanh"}).lo
    -0.17004075057125406
    >>> scalar_function("matmul") is None
    True
    """
    if name not in _TABLE:
        return None
    try:
        return _make(name, tuple(sorted((attributes or {}).items())))
    except TypeError:  # a parameter that is not a number
        return None
