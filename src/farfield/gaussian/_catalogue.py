"""The registered activations: function, derivative, kinks, tails, range and Lipschitz constant of each."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812  (the name every PyTorch user reads it by)

from farfield.errors import InvalidValueError
from farfield.gaussian import _closed_forms as closed
from farfield.gaussian._activation import Activation, Growth, Tail

__all__ = ["CATALOGUE"]

_INF: Final = math.inf
_SELU_SCALE: Final = 1.0507009873554804934193349852946
_SELU_ALPHA: Final = 1.6732632423543772848170429916717
_ROOT_2: Final = math.sqrt(2.0)
_ROOT_6: Final = math.sqrt(6.0)
_ROOT_2_OVER_PI: Final = math.sqrt(2.0 / math.pi)


def _flat(offset: float = math.nan) -> Tail:
    return Tail("bounded", 0.0, offset)


def _ray(slope: float, offset: float = math.nan) -> Tail:
    return Tail("linear", slope, offset)


def _relu_like(recession_gap: float, slope: float = 1.0, left: float = 0.0, right: float = 0.0) -> Growth:
    return Growth(_flat(left), _ray(slope, right), recession_gap)


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


def _relu() -> Activation:
    return Activation(
        "relu", torch.relu, lambda x: _indicator(x > 0, x), (0.0,), (), _relu_like(0.0),
        1.0, (0.0, _INF), 1, closed.two_sided_power(1, 1.0, 0.0), "max(x, 0)",
    )  # fmt: skip


def _leaky_relu(negative_slope: float = 0.01) -> Activation:
    a = float(negative_slope)
    if a in (0.0, 1.0):
        raise InvalidValueError(
            f"leaky_relu with slope {a} is {'relu' if a == 0 else 'identity'}: name that."
        )
    return Activation(
        "leaky_relu",
        lambda x: F.leaky_relu(x, a),
        lambda x: _where(x > 0, torch.ones_like(x), a),
        (0.0,), (), Growth(_ray(a, 0.0), _ray(1.0, 0.0), 0.0),
        max(1.0, abs(a)), (-_INF if a > 0 else 0.0, _INF), 1, closed.two_sided_power(1, 1.0, -a),
        f"max(x, 0) + {a:g}·min(x, 0)", (("negative_slope", a),),
    )  # fmt: skip


def _abs() -> Activation:
    return Activation(
        "abs", torch.abs, torch.sign, (0.0,), (), Growth(_ray(-1.0, 0.0), _ray(1.0, 0.0), 0.0),
        1.0, (0.0, _INF), 1, closed.two_sided_power(1, 1.0, 1.0), "|x|",
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
    return Activation(
        "elu",
        lambda x: F.elu(x, a),
        lambda x: _where(x > 0, 1.0, a * torch.exp(x.clamp(max=0))),
        (0.0,), (), _relu_like(abs(a), left=-a), max(1.0, abs(a)), (min(-a, 0.0), _INF), None, None,
        f"x if x > 0 else {a:g}(eˣ − 1)", (("alpha", a),),
    )  # fmt: skip


def _celu(alpha: float = 1.0) -> Activation:
    a = float(alpha)
    if not a > 0:
        raise InvalidValueError(f"celu takes alpha > 0, got {a:g}.")
    return Activation(
        "celu",
        lambda x: F.celu(x, a),
        lambda x: _where(x > 0, 1.0, torch.exp(x.clamp(max=0) / a)),
        (0.0,), (), _relu_like(a, left=-a), 1.0, (-a, _INF), None, None,
        f"x if x > 0 else {a:g}(e^(x/{a:g}) − 1)", (("alpha", a),),
    )  # fmt: skip


def _selu() -> Activation:
    top = _SELU_SCALE * _SELU_ALPHA
    return Activation(
        "selu",
        torch.selu,
        lambda x: _where(x > 0, _SELU_SCALE, top * torch.exp(x.clamp(max=0))),
        (0.0,), (), _relu_like(top, slope=_SELU_SCALE, left=-top), top, (-top, _INF), None, None,
        "1.0507·(x if x > 0 else 1.6733(eˣ − 1))",
    )  # fmt: skip


def _gelu() -> Activation:
    def derivative(x: Tensor) -> Tensor:
        phi: Tensor = torch.special.ndtr(x)
        return phi + x * _bump(x) / math.sqrt(2.0 * math.pi)

    return Activation(
        "gelu", F.gelu, derivative, (), (), _relu_like(0.16997120747990367),
        1.1289041451851548, (-0.16997120747990367, _INF), None, closed.GELU, "x·Φ(x)",
    )  # fmt: skip


def _gelu_tanh() -> Activation:
    def derivative(x: Tensor) -> Tensor:
        t = torch.tanh(_ROOT_2_OVER_PI * (x + 0.044715 * x**3))
        return 0.5 * (1.0 + t) + 0.5 * x * (1.0 - t * t) * _ROOT_2_OVER_PI * (1.0 + 3 * 0.044715 * x * x)

    return Activation(
        "gelu_tanh", lambda x: F.gelu(x, approximate="tanh"), derivative, (), (),
        _relu_like(0.17004075057125405), 1.1289930686587718, (-0.17004075057125405, _INF), None, None,
        "x/2·(1 + tanh(√(2/π)(x + 0.044715x³)))",
    )  # fmt: skip


def _silu() -> Activation:
    def derivative(x: Tensor) -> Tensor:
        s = torch.sigmoid(x)
        return s + x * s * (1.0 - s)

    return Activation(
        "silu", F.silu, derivative, (), (), _relu_like(0.2784645427610738),
        1.0998393201288670, (-0.2784645427610738, _INF), None, None, "x·sigmoid(x)",
    )  # fmt: skip


def _softplus_value(x: Tensor) -> Tensor:
    # torch's own softplus switches to x at 20: a jump of 2e-9 that would spoil 1e-12 quadrature.
    return torch.logaddexp(x, torch.zeros_like(x))


def _mish() -> Activation:
    def derivative(x: Tensor) -> Tensor:
        t = torch.tanh(_softplus_value(x))
        return t + x * (1.0 - t * t) * torch.sigmoid(x)

    return Activation(
        "mish", lambda x: x * torch.tanh(_softplus_value(x)), derivative, (), (),
        _relu_like(0.3088434130172504), 1.0884981612517279, (-0.3088434130172504, _INF), None, None,
        "x·tanh(ln(1 + eˣ))",
    )  # fmt: skip


def _softplus() -> Activation:
    return Activation(
        "softplus", _softplus_value, torch.sigmoid, (), (), _relu_like(math.log(2.0)),
        1.0, (0.0, _INF), None, None, "ln(1 + eˣ)",
    )  # fmt: skip


def _logsigmoid() -> Activation:
    return Activation(
        "logsigmoid", lambda x: -_softplus_value(-x), lambda x: torch.sigmoid(-x), (), (),
        Growth(_ray(1.0, 0.0), _flat(0.0), math.log(2.0)), 1.0, (-_INF, 0.0), None, None, "−ln(1 + e⁻ˣ)",
    )  # fmt: skip


def _softsign() -> Activation:
    return Activation(
        "softsign", F.softsign, lambda x: 1.0 / (1.0 + x.abs()) ** 2, (0.0,), (),
        Growth(_flat(-1.0), _flat(1.0), 1.0), 1.0, (-1.0, 1.0), None, None, "x/(1 + |x|)",
    )  # fmt: skip


def _tanh() -> Activation:
    return Activation(
        "tanh", torch.tanh, lambda x: 1.0 - torch.tanh(x) ** 2, (), (),
        Growth(_flat(-1.0), _flat(1.0), 1.0), 1.0, (-1.0, 1.0), None, None, "tanh x",
    )  # fmt: skip


def _tanhshrink_value(x: Tensor) -> Tensor:
    # Near 0 the difference x − tanh x loses every digit. Lambert's fraction tanh x = x/(1 + t) with
    # t = x²/(3 + x²/(5 + x²/(7 + …))) turns it into x·t/(1 + t).
    square = (x * x).clamp(max=1.0)
    t = square / 21.0
    for odd in range(19, 1, -2):
        t = square / (odd + t)
    return _where(x.abs() < 1.0, x * t / (1.0 + t), x - torch.tanh(x))


def _tanhshrink() -> Activation:
    return Activation(
        "tanhshrink", _tanhshrink_value, lambda x: torch.tanh(x) ** 2, (), (),
        Growth(_ray(1.0, 1.0), _ray(1.0, -1.0), 1.0), 1.0, (-_INF, _INF), None, None, "x − tanh x",
    )  # fmt: skip


def _sigmoid() -> Activation:
    return Activation(
        "sigmoid", torch.sigmoid, lambda x: torch.sigmoid(x) * torch.sigmoid(-x), (), (),
        Growth(_flat(0.0), _flat(1.0), 1.0), 0.25, (0.0, 1.0), None, None, "1/(1 + e⁻ˣ)",
    )  # fmt: skip


def _hardtanh(low: float = -1.0, high: float = 1.0) -> Activation:
    low, high = float(low), float(high)
    if not low < high:
        raise InvalidValueError(f"hardtanh takes low < high, got {low:g} and {high:g}.")
    parameters = () if (low, high) == (-1.0, 1.0) else (("low", low), ("high", high))
    return Activation(
        "hardtanh", lambda x: F.hardtanh(x, low, high), lambda x: _indicator((x > low) & (x < high), x),
        (low, high), (), Growth(_flat(low), _flat(high), max(abs(low), abs(high))),
        1.0, (low, high), None, None, f"clip(x, {low:g}, {high:g})", parameters,
    )  # fmt: skip


def _relu6() -> Activation:
    return Activation(
        "relu6", F.relu6, lambda x: _indicator((x > 0) & (x < 6), x), (0.0, 6.0), (),
        Growth(_flat(0.0), _flat(6.0), 6.0), 1.0, (0.0, 6.0), None, None, "clip(x, 0, 6)",
    )  # fmt: skip


def _hardsigmoid() -> Activation:
    # torch's own has its derivative 1/6 rounded to float32.
    return Activation(
        "hardsigmoid", lambda x: (x + 3.0).clamp(0.0, 6.0) / 6.0,
        lambda x: _indicator((x > -3) & (x < 3), x) / 6.0, (-3.0, 3.0), (),
        Growth(_flat(0.0), _flat(1.0), 1.0), 1.0 / 6.0, (0.0, 1.0), None, None, "clip(x/6 + 1/2, 0, 1)",
    )  # fmt: skip


def _hardswish() -> Activation:
    return Activation(
        "hardswish",
        F.hardswish,
        lambda x: _where(x <= -3, 0.0, _where(x >= 3, 1.0, (2.0 * x + 3.0) / 6.0)),
        (-3.0, 3.0), (), _relu_like(0.375), 1.5, (-0.375, _INF), None, None, "x·clip(x + 3, 0, 6)/6",
    )  # fmt: skip


def _erf() -> Activation:
    return Activation(
        "erf", torch.erf, lambda x: 2.0 / math.sqrt(math.pi) * torch.exp(-x * x), (), (),
        Growth(_flat(-1.0), _flat(1.0), 1.0), 2.0 / math.sqrt(math.pi), (-1.0, 1.0), None, closed.ERF,
        "erf x",
    )  # fmt: skip


def _sin() -> Activation:
    return Activation(
        "sin", torch.sin, torch.cos, (), (), Growth(_flat(), _flat(), 1.0),
        1.0, (-1.0, 1.0), None, closed.SINE, "sin x",
    )  # fmt: skip


def _cos() -> Activation:
    return Activation(
        "cos", torch.cos, lambda x: -torch.sin(x), (), (), Growth(_flat(), _flat(), 1.0),
        1.0, (-1.0, 1.0), None, closed.COSINE, "cos x",
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
    return Activation(
        "sign", torch.sign, torch.zeros_like, (0.0,), ((0.0, 2.0),),
        Growth(_flat(-1.0), _flat(1.0), 1.0), _INF, (-1.0, 1.0), 0, closed.SIGN, "sign x",
    )  # fmt: skip


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


CATALOGUE: Final[dict[str, Callable[..., Activation]]] = {
    make.__name__.removeprefix("_"): make
    for make in (
        _identity, _relu, _leaky_relu, _abs, _power_relu, _relu_squared, _elu, _celu, _selu, _gelu,
        _gelu_tanh, _silu, _mish, _softplus, _logsigmoid, _softsign, _tanh, _tanhshrink, _sigmoid, _hardtanh, _relu6,
        _hardsigmoid, _hardswish, _erf, _sin, _cos, _gaussian, _exp, _step, _sign, _he2, _he3,
    )
}  # fmt: skip
"""Name → factory. Each factory takes its parameters as keywords and returns the Activation."""
