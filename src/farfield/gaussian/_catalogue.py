"""The registered activations: function, derivative, kinks, tails, range and Lipschitz constant of each."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Final

import torch
from torch import Tensor

from farfield.errors import InvalidValueError
from farfield.gaussian import _closed_forms as closed
from farfield.gaussian._activation import Activation, ClosedForm, Growth, ScalarMap, Tail
from farfield.gaussian._scalar_table import SELU_ALPHA, SELU_SCALE, scalar_function

__all__ = ["CATALOGUE"]

_INF: Final = math.inf
_ROOT_2: Final = math.sqrt(2.0)
_ROOT_6: Final = math.sqrt(6.0)
_ROOT_2_OVER_PI: Final = math.sqrt(2.0 / math.pi)


def _flat(offset: float = math.nan) -> Tail:
    return Tail("bounded", 0.0, offset)


def _ray(slope: float, offset: float = math.nan) -> Tail:
    return Tail("linear", slope, offset)


def _bump(x: Tensor) -> Tensor:
    return torch.exp(-0.5 * x * x)


def _where(condition: Tensor, yes: Tensor | float, no: Tensor | float) -> Tensor:
    return torch.where(condition, yes, no)


def _indicator(condition: Tensor, x: Tensor) -> Tensor:
    return condition.to(x.dtype)


def _identity() -> Activation:
    return Activation(
        "identity", lambda x: x, torch.ones_like, (), (), Growth(_ray(1.0, 0.0), _ray(1.0, 0.0), 0.0),
        1.0, (-_INF, _INF), 1, closed.IDENTITY, "x",
    )  # fmt: skip


def _known(
    name: str,
    derivative: ScalarMap,
    formula: str,
    closed_form: ClosedForm | None = None,
    *,
    parameters: tuple[tuple[str, float], ...] = (),
    operator: str | None = None,
    **attributes: float | str,
) -> Activation:
    """An activation that exported programs have an operator for: its properties stand in the table of those."""
    f = scalar_function(operator or name, attributes)
    assert f is not None
    return Activation(
        name, f.function, derivative, f.kinks,
        tuple((place, after - before) for place, before, after in f.jumps),
        Growth(f.left, f.right, max(map(abs, f.remainder))), f.slope, (f.lo, f.hi),
        1 if f.homogeneous else None, closed_form, formula, parameters,
    )  # fmt: skip


def _leaky_relu(negative_slope: float = 0.01) -> Activation:
    a = float(negative_slope)
    if a in (0.0, 1.0):
        raise InvalidValueError(
            f"leaky_relu with slope {a} is {'relu' if a == 0 else 'identity'}: name that."
        )
    return _known(
        "leaky_relu", lambda x: _where(x > 0, torch.ones_like(x), a), f"max(x, 0) + {a:g}·min(x, 0)",
        closed.two_sided_power(1, 1.0, -a), parameters=(("negative_slope", a),), negative_slope=a,
    )  # fmt: skip


def _power_relu(n: float = 2.0, *, name: str = "power_relu") -> Activation:
    n = float(n)
    if not 0 < n <= 64:
        raise InvalidValueError(f"x₊ⁿ is registered for 0 < n ≤ 64 (step is n = 0), got n = {n:g}.")
    right = Tail("superlinear", _INF) if n > 1 else _ray(1.0, 0.0) if n == 1 else Tail("sublinear")
    return Activation(
        name,
        lambda x: torch.relu(x) ** n,
        lambda x: _where(x > 0, n * torch.where(x > 0, x, 1.0) ** (n - 1.0), 0.0),
        (0.0,), (), Growth(_flat(0.0), right, 0.0 if n == 1 else _INF),
        1.0 if n == 1 else _INF, (0.0, _INF), n, closed.two_sided_power(n, 1.0, 0.0),
        f"max(x, 0)^{n:g}", (("n", n),),
    )  # fmt: skip


def _relu_squared() -> Activation:
    return _power_relu(2.0, name="relu_squared")


def _elu(alpha: float = 1.0) -> Activation:
    a = float(alpha)
    return _known(
        "elu", lambda x: _where(x > 0, 1.0, a * torch.exp(x.clamp(max=0))), f"x if x > 0 else {a:g}(eˣ − 1)",
        parameters=(("alpha", a),), alpha=a,
    )  # fmt: skip


def _celu(alpha: float = 1.0) -> Activation:
    a = float(alpha)
    if not a > 0:
        raise InvalidValueError(f"celu takes alpha > 0, got {a:g}.")
    return _known(
        "celu", lambda x: _where(x > 0, 1.0, torch.exp(x.clamp(max=0) / a)),
        f"x if x > 0 else {a:g}(e^(x/{a:g}) − 1)", parameters=(("alpha", a),), alpha=a,
    )  # fmt: skip


def _gelu_tanh() -> Activation:
    def derivative(x: Tensor) -> Tensor:
        t = torch.tanh(_ROOT_2_OVER_PI * (x + 0.044715 * x**3))
        return 0.5 * (1.0 + t) + 0.5 * x * (1.0 - t * t) * _ROOT_2_OVER_PI * (1.0 + 3 * 0.044715 * x * x)

    return _known(
        "gelu_tanh", derivative, "x/2·(1 + tanh(√(2/π)(x + 0.044715x³)))", operator="gelu", approximate="tanh"
    )


def _softplus() -> Activation:
    # torch's own switches to x at 20: a jump of 2e-9 that would spoil 1e-12 quadrature.
    return _known("softplus", torch.sigmoid, "ln(1 + eˣ)", threshold=_INF)


def _hardtanh(low: float = -1.0, high: float = 1.0) -> Activation:
    low, high = float(low), float(high)
    if not low < high:
        raise InvalidValueError(f"hardtanh takes low < high, got {low:g} and {high:g}.")
    parameters = () if (low, high) == (-1.0, 1.0) else (("low", low), ("high", high))
    return _known(
        "hardtanh", lambda x: _indicator((x > low) & (x < high), x), f"clip(x, {low:g}, {high:g})",
        parameters=parameters, min_val=low, max_val=high,
    )  # fmt: skip


def _relu6() -> Activation:
    return _known(
        "relu6", lambda x: _indicator((x > 0) & (x < 6), x), "clip(x, 0, 6)", operator="hardtanh",
        min_val=0.0, max_val=6.0,
    )  # fmt: skip


def _gaussian() -> Activation:
    return Activation(
        "gaussian", _bump, lambda x: -x * _bump(x), (), (), Growth(_flat(0.0), _flat(0.0), 1.0),
        math.exp(-0.5), (0.0, 1.0), None, closed.GAUSSIAN, "exp(−x²/2)",
    )  # fmt: skip


def _exp() -> Activation:
    return Activation(
        "exp", torch.exp, torch.exp, (), (), Growth(_flat(0.0), Tail("superlinear", _INF), _INF),
        _INF, (0.0, _INF), None, closed.EXPONENTIAL, "eˣ",
    )  # fmt: skip


def _step() -> Activation:
    return Activation(
        "step", lambda x: _indicator(x > 0, x), torch.zeros_like, (0.0,), ((0.0, 1.0),),
        Growth(_flat(0.0), _flat(1.0), 1.0), _INF, (0.0, 1.0), 0, closed.STEP, "1 if x > 0 else 0",
    )  # fmt: skip


def _sign() -> Activation:
    return replace(_known("sign", torch.zeros_like, "sign x", closed.SIGN), homogeneity=0)


def _he2() -> Activation:
    return Activation(
        "he2", lambda x: (x * x - 1.0) / _ROOT_2, lambda x: _ROOT_2 * x, (), (),
        Growth(Tail("superlinear", -_INF), Tail("superlinear", _INF), _INF),
        _INF, (-1.0 / _ROOT_2, _INF), None, closed.HE2, "(x² − 1)/√2",
    )  # fmt: skip


def _he3() -> Activation:
    return Activation(
        "he3", lambda x: (x**3 - 3.0 * x) / _ROOT_6, lambda x: (3.0 * x * x - 3.0) / _ROOT_6, (), (),
        Growth(Tail("superlinear", _INF), Tail("superlinear", _INF), _INF),
        _INF, (-_INF, _INF), None, closed.HE3, "(x³ − 3x)/√6",
    )  # fmt: skip


def _gelu_slope(x: Tensor) -> Tensor:
    phi: Tensor = torch.special.ndtr(x)
    return phi + x * _bump(x) / math.sqrt(2.0 * math.pi)


def _silu_slope(x: Tensor) -> Tensor:
    s = torch.sigmoid(x)
    return s + x * s * (1.0 - s)


def _mish_slope(x: Tensor) -> Tensor:
    t = torch.tanh(torch.logaddexp(x, torch.zeros_like(x)))
    return t + x * (1.0 - t * t) * torch.sigmoid(x)


_WITHOUT_PARAMETERS: Final[dict[str, tuple[ScalarMap, str, ClosedForm | None]]] = {
    "relu": (lambda x: _indicator(x > 0, x), "max(x, 0)", closed.two_sided_power(1, 1.0, 0.0)),
    "abs": (torch.sign, "|x|", closed.two_sided_power(1, 1.0, 1.0)),
    "selu": (
        lambda x: _where(x > 0, SELU_SCALE, SELU_SCALE * SELU_ALPHA * torch.exp(x.clamp(max=0))),
        "1.0507·(x if x > 0 else 1.6733(eˣ − 1))",
        None,
    ),
    "gelu": (_gelu_slope, "x·Φ(x)", closed.GELU),
    "silu": (_silu_slope, "x·sigmoid(x)", None),
    "mish": (_mish_slope, "x·tanh(ln(1 + eˣ))", None),
    "logsigmoid": (lambda x: torch.sigmoid(-x), "−ln(1 + e⁻ˣ)", None),
    "softsign": (lambda x: 1.0 / (1.0 + x.abs()) ** 2, "x/(1 + |x|)", None),
    "tanh": (lambda x: 1.0 - torch.tanh(x) ** 2, "tanh x", None),
    "tanhshrink": (lambda x: torch.tanh(x) ** 2, "x − tanh x", None),
    "sigmoid": (lambda x: torch.sigmoid(x) * torch.sigmoid(-x), "1/(1 + e⁻ˣ)", None),
    "hardsigmoid": (lambda x: _indicator((x > -3) & (x < 3), x) / 6.0, "clip(x/6 + 1/2, 0, 1)", None),
    "hardswish": (
        lambda x: _where(x <= -3, 0.0, _where(x >= 3, 1.0, (2.0 * x + 3.0) / 6.0)),
        "x·clip(x + 3, 0, 6)/6",
        None,
    ),
    "erf": (lambda x: 2.0 / math.sqrt(math.pi) * torch.exp(-x * x), "erf x", closed.ERF),
    "sin": (torch.cos, "sin x", closed.SINE),
    "cos": (lambda x: -torch.sin(x), "cos x", closed.COSINE),
}
"""Name → derivative, formula and closed forms of what an operator without parameters computes."""


def _factory(name: str) -> Callable[..., Activation]:
    def make() -> Activation:
        return _known(name, *_WITHOUT_PARAMETERS[name])

    make.__qualname__ = name  # what Python's own error calls it
    return make


CATALOGUE: Final[dict[str, Callable[..., Activation]]] = {
    **{name: _factory(name) for name in _WITHOUT_PARAMETERS},
    **{
        make.__name__.removeprefix("_"): make
        for make in (
            _identity, _leaky_relu, _power_relu, _relu_squared, _elu, _celu, _gelu_tanh, _softplus, _hardtanh,
            _relu6, _gaussian, _exp, _step, _sign, _he2, _he3,
        )
    },
}  # fmt: skip
"""Name → factory. Each factory takes its parameters as keywords and returns the Activation."""
