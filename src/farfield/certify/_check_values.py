"""The checker's own arithmetic: numbers that err on the safe side, activations, and a program as affine layers.

Nothing here is shared with the code that finds bounds. Three ideas carry everything:

- a ``Rough`` array is (mid, rad): the true number lies within rad of mid. Sums and products add what float64 may
  lose, by the standard bound |fl(Σ a·b) − Σ a·b| ≤ γ_k Σ|a||b|, γ_k = k·u/(1 − k·u), in any order of summation;
- an activation is a row of a table: its slope, its curvature between kinks, its range, its lines at ±∞;
- between activations and norms a program is affine, so every value is a Rough array with one leading axis: row 0 is
  the constant part, row i the coefficient of variable i.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from farfield.errors import FarfieldError
from farfield.graph import Node, Program, compute_node

__all__ = [
    "Activation",
    "Array",
    "CertificateError",
    "Layer",
    "Rough",
    "activation",
    "gamma",
    "layers",
    "over",
]

Array: TypeAlias = npt.NDArray[np.float64]
U = 2.0**-53
OVER = 1.0 + 2.0**-36
"""Above what rounding takes from a sum of up to 2¹⁶ numbers that are not negative."""
TINY = 1e-290
"""Above what underflow takes."""
EVALUATION = 2.0**-46
"""One evaluation of an activation is right to this share of 1 + |z| + |σ(z)|."""
LARGEST = 60_000_000


class CertificateError(FarfieldError):
    """A certificate was refused; the message says which check failed, where, and by how much."""


def gamma(terms: float) -> float:
    """What a sum of this many products may lose, of the sum of their sizes."""
    return terms * U / (1.0 - terms * U) * OVER


def over(value: Array) -> Array:
    """A little more than a computed sum of numbers that are not negative."""
    return value * OVER + TINY


# -- midpoint and radius -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Rough:
    """Numbers within ``rad`` of ``mid``."""

    mid: Array
    rad: Array

    @staticmethod
    def exact(mid: Array) -> Rough:
        """Numbers that are what they are."""
        return Rough(mid, np.zeros_like(mid))

    @property
    def top(self) -> Array:
        """The largest size."""
        return over(np.abs(self.mid) + self.rad)

    @property
    def T(self) -> Rough:  # noqa: N802
        """Transposed."""
        return Rough(self.mid.T, self.rad.T)

    def __add__(self, other: Rough) -> Rough:
        mid = self.mid + other.mid
        lost = np.where((self.mid == 0) | (other.mid == 0), 0.0, np.abs(mid)) * U
        rad = self.rad + other.rad + lost
        return Rough(mid, np.where(rad > 0, over(rad), 0.0))

    def __mul__(self, other: Rough) -> Rough:
        mid = self.mid * other.mid
        trivial = (self.mid == 0) | (np.abs(self.mid) == 1) | (other.mid == 0) | (np.abs(other.mid) == 1)
        rad = np.abs(self.mid) * other.rad + self.rad * (np.abs(other.mid) + other.rad)
        rad = rad + np.where(trivial, 0.0, np.abs(mid) * U + TINY)
        return Rough(mid, np.where(rad > 0, over(rad), 0.0))

    def __neg__(self) -> Rough:
        return Rough(-self.mid, self.rad)

    def __matmul__(self, other: Rough) -> Rough:
        left, right = np.abs(self.mid), np.abs(other.mid)
        rad = gamma(self.mid.shape[-1] + 2) * (left @ right)
        if other.rad.any():
            rad = rad + left @ other.rad
        if self.rad.any():
            rad = rad + self.rad @ (right + other.rad)
        return Rough(self.mid @ other.mid, over(rad))

    def __getitem__(self, key: Any) -> Rough:
        return Rough(self.mid[key], self.rad[key])


def positive_semidefinite(matrix: Rough) -> bool:
    """Whether every symmetric matrix within the radii is positive semidefinite.

    With A scaled by powers of two: if Cholesky runs to its end on A − D, D diagonal, then A − D + Δ is positive
    semidefinite for some |Δ_ij| ≤ γ/(1 − γ)·√(a_ii a_jj), γ = γ_{n+1} (Demmel). A symmetric matrix with entries below
    e_ij is at least −diag(Σ_j e_ij). So D = the row sums of the radii and of that bound proves the claim.
    """
    mid = (matrix.mid + matrix.mid.T) / 2
    rad = np.maximum(matrix.rad, matrix.rad.T) + U * np.abs(mid)
    size, diagonal = mid.shape[0], np.diagonal(mid)
    if not (np.isfinite(mid).all() and np.isfinite(rad).all() and (diagonal > 0).all()):
        return False
    scale = np.exp2(-np.round(0.5 * np.log2(diagonal)))
    mid, rad = scale[:, None] * mid * scale, scale[:, None] * rad * scale
    root = np.sqrt(np.diagonal(mid)) * (1 + 4 * U)
    backward = gamma(size + 1) / (1.0 - gamma(size + 1)) * np.outer(root, root)
    shift = over(rad.sum(1) + backward.sum(1)) * (1 + 2.0**-30) + 4 * U * np.diagonal(mid) + TINY
    lowered = mid - np.diag(shift)
    try:
        return bool(np.isfinite(np.linalg.cholesky(lowered)).all() and (np.diagonal(lowered) > 0).all())
    except np.linalg.LinAlgError:
        return False


def spectral_norm(matrix: Rough) -> float:
    """A proved upper bound of the largest singular value."""
    if matrix.mid.size == 0:
        return 0.0
    small = matrix if matrix.mid.shape[0] >= matrix.mid.shape[1] else matrix.T
    gram = small.T @ small
    guess = float(np.linalg.norm(small.mid, 2)) ** 2
    for spare in (1e-9, 1e-6, 1e-3):
        top = guess * (1 + spare) + TINY
        if positive_semidefinite(Rough.exact(top * np.eye(len(gram.mid))) + -gram):
            return math.sqrt(top) * (1 + 4 * U)
    return math.sqrt(float((small.top * small.top).sum()) * OVER + TINY) * (1 + 4 * U)


# -- activations ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Activation:
    """One scalar function.

    Parameters
    ----------
    function
        σ in float64, right to ``EVALUATION``.
    slope, second, third
        sup|σ′|, sup|σ″| between the kinks, sup|σ‴| away from ``rough``.
    kinks, rough
        Where σ′ jumps (σ″ does for ``rough``).
    pieces
        (slope, intercept) between the kinks of a piecewise linear function.
    low, high
        Range.
    turn
        Where a function that falls and then rises has its minimum.
    tails
        Slope and offset of the lines σ approaches on the left and on the right.
    away
        s ↦ a bound of |σ(x) − line| for |x| ≥ s, never rising.
    rest
        Range of σ(x) − slope·x over both sides of 0.
    above, below
        (m, k): σ(z) ≥ m·z − k, σ(z) ≤ m·z + k for every z.
    defect
        What the model's function may differ from this one.
    wavy
        Neither monotone nor with one minimum: its range is all that is used.
    """

    function: Callable[[Array], Array]
    slope: float
    second: float
    third: float = math.inf
    kinks: tuple[float, ...] = ()
    rough: tuple[float, ...] = ()
    pieces: tuple[tuple[float, float], ...] = ()
    low: float = -math.inf
    high: float = math.inf
    turn: float | None = None
    tails: tuple[tuple[float, float], tuple[float, float]] = ((0.0, 0.0), (1.0, 0.0))
    away: Callable[[Array], Array] | None = None
    rest: tuple[float, float] = (-math.inf, math.inf)
    above: tuple[tuple[float, float], ...] = ()
    below: tuple[tuple[float, float], ...] = ()
    defect: float = 0.0
    wavy: bool = False

    @property
    def homogeneous(self) -> bool:
        """σ(tz) = tσ(z) for t ≥ 0."""
        return bool(self.pieces) and self.kinks == (0.0,) and all(c == 0.0 for _, c in self.pieces)

    def image(self, lo: Array, hi: Array) -> tuple[Array, Array]:
        """A range that contains σ([lo, hi]), entrywise."""
        if self.wavy:
            return np.full_like(lo, self.low), np.full_like(hi, self.high)
        ends = [np.clip(e, -1e150, 1e150) for e in (lo, hi)]
        values = [self.function(e) for e in ends]
        slack = [
            EVALUATION * (1 + np.abs(e) + np.abs(v)) + self.defect for e, v in zip(ends, values, strict=True)
        ]
        low = np.minimum(values[0] - slack[0], values[1] - slack[1])
        high = np.maximum(values[0] + slack[0], values[1] + slack[1])
        if self.turn is not None:
            inside = (lo <= self.turn + 1e-3) & (hi >= self.turn - 1e-3)
            low = np.where(inside, self.low, low)
        low = np.where(np.isneginf(lo) | np.isposinf(hi), np.minimum(low, self.low), low)
        high = np.where(np.isneginf(lo) | np.isposinf(hi), self.high, high)
        if math.isfinite(self.low):
            low = np.maximum(low, self.low)
        return low, np.minimum(high, self.high) if math.isfinite(self.high) else high

    def true_form(self, a: float, b: float, c: float) -> bool:
        """Whether a·σ(z) + b·z + c ≥ 0 for every z: the table has a line that says so."""
        if a == 0.0:
            return b == 0.0 and c >= 0.0
        lines = self.above if a > 0 else self.below
        return any(b == -a * m and c >= abs(a) * k for m, k in lines)


def _torch(function: Callable[..., Tensor], **options: Any) -> Callable[[Array], Array]:
    def apply(z: Array) -> Array:
        made: Array = function(torch.from_numpy(np.ascontiguousarray(z)), **options).numpy()
        return made

    return apply


def _step(point: float, before: float, after: float = 0.0) -> Callable[[Array], Array]:
    return lambda s: np.where(s >= point, after, before)


def _linear(
    pieces: tuple[tuple[float, float], ...],
    kinks: tuple[float, ...],
    function: Callable[[Array], Array],
    **rest: Any,
) -> Activation:
    """A piecewise linear function; its lines at ±∞ are its first and last piece."""
    reach = max(abs(k) for k in kinks)
    steep = max(abs(m) for m, _ in pieces)
    gap = max(abs(c) for _, c in pieces) + 2 * steep * reach
    tails = (pieces[0], pieces[-1])
    return Activation(
        function, steep, 0.0, 0.0, kinks, kinks, pieces, tails=tails, rest=(-gap, gap),
        away=_step(reach, 2 * gap), **rest,
    )  # fmt: skip


def _bump(
    function: Callable[[Array], Array],
    slope: float,
    second: float,
    third: float,
    low: float,
    turn: float,
    over_line: float,
    away: Callable[[Array], Array],
) -> Activation:
    """Gelu and its kin: a valley below 0, close to max(z, 0)."""
    return Activation(
        function, slope, second, third, low=-low, turn=turn, rest=(-max(low, over_line), 0.0), away=away,
        above=((0.0, low), (1.0, over_line)),
    )  # fmt: skip


def _squash(
    function: Callable[[Array], Array],
    slope: float,
    second: float,
    third: float,
    low: float,
    high: float,
    away: Callable[[Array], Array],
    rough: tuple[float, ...] = (),
    falling: bool = False,
) -> Activation:
    """Bounded and monotone."""
    tails = ((0.0, high), (0.0, low)) if falling else ((0.0, low), (0.0, high))
    return Activation(
        function, slope, second, third, rough=rough, low=low, high=high, tails=tails, rest=(low, high), away=away,
        above=((0.0, -low),), below=((0.0, high),),
    )  # fmt: skip


def _exponential(alpha: float, scale: float, rate: float, function: Callable[[Array], Array]) -> Activation:
    """scale·z on the right, scale·alpha·(e^{rate·z} − 1) on the left."""
    if min(alpha, scale, rate) <= 0:
        raise CertificateError(
            f"An exponential unit with alpha {alpha}, scale {scale} can't be re-checked independently."
        )
    steep, floor = scale * alpha * rate, scale * alpha * (1 + 8 * U)
    dip = max(0.0, alpha - (1 + math.log(alpha * rate)) / rate) if alpha * rate > 1 else 0.0
    return Activation(
        function, max(scale, steep) * (1 + 8 * U), steep * rate * (1 + 8 * U), steep * rate**2 * (1 + 8 * U),
        kinks=(0.0,), rough=(0.0,), low=-floor, tails=((0.0, -scale * alpha), (scale, 0.0)), rest=(-floor, 0.0),
        away=lambda s: floor * np.exp(-rate * s) * (1 + 1e-12) + 1e-15 * floor,
        above=((0.0, floor), (scale, scale * dip * (1 + 1e-10) + 1e-13)),
    )  # fmt: skip


def _softplus(beta: float, threshold: float) -> Activation:
    if beta <= 0:
        raise CertificateError(f"softplus with beta {beta} can't be re-checked independently.")
    gap = math.log1p(math.exp(-threshold)) / beta * (1 + 1e-12)
    return Activation(
        lambda z: np.logaddexp(0.0, beta * z) / beta, 1.0, beta / 4, 0.09623 * beta**2, low=0.0,
        rest=(0.0, math.log(2.0) / beta * (1 + 1e-12)), away=lambda s: np.exp(-beta * s) / beta * (1 + 1e-12),
        above=((0.0, 0.0), (1.0, 0.0)), defect=gap,
    )  # fmt: skip


def activation(op: str, attributes: Mapping[str, Any]) -> Activation | None:
    """The row of the table for an operator, ``None`` where there is none.

    Derivatives are closed forms or maxima of one smooth function of one variable, rounded up; tests scan them.

    Examples
    --------
    >>> activation("tanh", {}).true_form(1.0, 0.0, 1.0), activation("tanh", {}).true_form(1.0, 0.0, 0.9)
    (True, False)
    """
    value: Callable[[str, float], float] = lambda key, default: float(attributes.get(key, default))  # noqa: E731
    if op == "leaky_relu":
        a = value("negative_slope", 0.01)
        lines = ((a, 0.0), (1.0, 0.0))
        sides = {"above": lines} if a <= 1 else {"below": lines}
        low = 0.0 if a <= 0 else -math.inf
        return _linear(
            lines, (0.0,), lambda z: np.where(z > 0, z, a * z), low=low, turn=0.0 if a < 0 else None, **sides
        )
    if op == "hardtanh":
        low, high = value("min_val", -1.0), value("max_val", 1.0)
        return _linear(
            ((0.0, low), (1.0, 0.0), (0.0, high)), (low, high), lambda z: np.clip(z, low, high), low=low, high=high,
            above=((0.0, -low),), below=((0.0, high),),
        )  # fmt: skip
    if op == "softshrink":
        w = value("lambd", 0.5)
        return _linear(
            ((1.0, w), (0.0, 0.0), (1.0, -w)), (-w, w), lambda z: np.sign(z) * np.maximum(np.abs(z) - w, 0.0),
            above=((1.0, w),), below=((1.0, w),),
        )  # fmt: skip
    if op == "softplus":
        return _softplus(value("beta", 1.0), value("threshold", 20.0))
    if op == "elu":
        alpha, scale, rate = value("alpha", 1.0), value("scale", 1.0), value("input_scale", 1.0)
        unit: Callable[[Array], Array] = lambda z: np.where(  # noqa: E731
            z > 0, scale * z, scale * alpha * np.expm1(rate * np.minimum(z, 0.0))
        )
        return _exponential(alpha, scale, rate, unit)
    if op == "selu":
        return _exponential(
            1.6732632423543772848170429916717, 1.0507009873554804934193349852946, 1.0, _torch(torch.selu)
        )
    if op == "celu":
        alpha = value("alpha", 1.0)
        return _exponential(alpha, 1.0, 1.0 / alpha, _torch(torch.celu, alpha=alpha))
    if op == "gelu" and attributes.get("approximate", "none") == "tanh":
        gelu = _torch(torch.nn.functional.gelu, approximate="tanh")
        return _bump(gelu, 1.12901, 0.798, 0.78, 0.17005, -0.7525, 0.17005, _GELU_AWAY)
    return _TABLE.get(op)


def _gaussian_tail(s: Array) -> Array:
    return np.where(s >= 1, np.exp(-0.5 * s * s), 0.1701)


def _logistic_tail(s: Array) -> Array:
    clear = np.maximum(s, 1.0)
    return np.where(s >= 1, clear * np.exp(-clear) * (1 + 1e-12) + TINY, 0.37)


_GELU_AWAY = _step(7.0, 0.1701, 1e-9)
_nn = torch.nn.functional
_TABLE: Mapping[str, Activation] = {
    "relu": _linear(
        ((0.0, 0.0), (1.0, 0.0)), (0.0,), lambda z: np.maximum(z, 0.0), low=0.0, above=((0.0, 0.0), (1.0, 0.0))
    ),
    "abs": _linear(((-1.0, 0.0), (1.0, 0.0)), (0.0,), np.abs, low=0.0, turn=0.0, above=((-1.0, 0.0), (1.0, 0.0))),
    "hardsigmoid": _linear(
        ((0.0, 0.0), (1 / 6, 0.5), (0.0, 1.0)), (-3.0, 3.0), lambda z: np.clip(z / 6 + 0.5, 0.0, 1.0), low=0.0,
        high=1.0, above=((0.0, 0.0),), below=((0.0, 1.0),), defect=1e-15,
    ),
    "hardswish": Activation(
        lambda z: z * np.clip(z / 6 + 0.5, 0.0, 1.0), 1.5, 0.33334, 0.0, (-3.0, 3.0), (-3.0, 3.0), low=-0.375,
        turn=-1.5, rest=(-0.375, 0.0), away=_step(3.0, 0.3751), above=((0.0, 0.375), (1.0, 0.375)),
    ),
    "gelu": _bump(_torch(_nn.gelu), 1.12891, 0.798, 0.78, 0.16998, -0.7518, 0.16998, _gaussian_tail),
    "silu": _bump(_torch(_nn.silu), 1.09985, 0.5001, 0.3083, 0.278465, -1.2785, 0.278465, _logistic_tail),
    "mish": _bump(
        _torch(_nn.mish), 1.0886, 0.6443, 0.5886, 0.308844, -1.1924, 0.1404, lambda s: 2 * _logistic_tail(s)
    ),
    "tanh": _squash(np.tanh, 1.0, 0.76981, 2.0, -1.0, 1.0, lambda s: 2.0 * np.exp(-2.0 * s) * (1 + 1e-12)),
    "sigmoid": _squash(_torch(torch.sigmoid), 0.25, 0.09623, 0.125, 0.0, 1.0, lambda s: np.exp(-s) * (1 + 1e-12)),
    "erf": _squash(_torch(torch.erf), 1.12838, 0.96789, 2.25676, -1.0, 1.0, lambda s: np.exp(-s * s) * (1 + 1e-12)),
    "erfc": _squash(
        _torch(torch.erfc), 1.12838, 0.96789, 2.25676, 0.0, 2.0, lambda s: np.exp(-s * s) * (1 + 1e-12), falling=True
    ),
    "atan": _squash(
        np.arctan, 1.0, 0.64952, 2.0, -1.5707963267949, 1.5707963267949, lambda s: 1 / np.maximum(s, 0.5)
    ),
    "softsign": _squash(
        lambda z: z / (1 + np.abs(z)), 1.0, 2.0, 6.0, -1.0, 1.0, lambda s: 1 / (1 + s), rough=(0.0,)
    ),
    "logsigmoid": Activation(
        lambda z: -np.logaddexp(0.0, -z), 1.0, 0.25, 0.09623, high=0.0, tails=((1.0, 0.0), (0.0, 0.0)),
        rest=(-0.6931472, 0.0), away=lambda s: np.exp(-s) * (1 + 1e-12), below=((0.0, 0.0), (1.0, 0.0)),
    ),
    "tanhshrink": Activation(
        lambda z: z - np.tanh(z), 1.0, 0.76981, 2.0, tails=((1.0, 1.0), (1.0, -1.0)), rest=(-1.0, 1.0),
        away=lambda s: 2.0 * np.exp(-2.0 * s) * (1 + 1e-12), above=((1.0, 1.0),), below=((1.0, 1.0),),
    ),
    "sin": Activation(
        np.sin, 1.0, 1.0, 1.0, low=-1.0, high=1.0, above=((0.0, 1.0),), below=((0.0, 1.0),), wavy=True,
        tails=((0.0, 0.0), (0.0, 0.0)), rest=(-1.0, 1.0),
    ),
    "cos": Activation(
        np.cos, 1.0, 1.0, 1.0, low=-1.0, high=1.0, above=((0.0, 1.0),), below=((0.0, 1.0),), wavy=True,
        tails=((0.0, 0.0), (0.0, 0.0)), rest=(-1.0, 1.0),
    ),
}  # fmt: skip


# -- a program as affine layers ------------------------------------------------------------------------------

_MOVING = """identity reshape permute expand repeat squeeze unsqueeze flip roll slice select diagonal cat stack split
    chunk unbind copy dropout pixel_shuffle pixel_unshuffle unfold tril triu getitem cast"""
MOVING = frozenset(_MOVING.split())
AVERAGES = frozenset(["sum", "mean", "avg_pool", "adaptive_avg_pool"])
WEIGHTED: Mapping[str, tuple[int, ...]] = {
    "linear": (0,),
    "conv": (0,),
    "conv_transpose": (0,),
    "matmul": (0, 1),
    "addmm": (1, 2),
}
NORMS = frozenset(["layer_norm", "rms_norm", "group_norm", "instance_norm", "l2_normalize"])


@dataclass(frozen=True)
class Form:
    """A value as constant + coefficients·variables: (1 + variables, *shape). Degree 1: the constant multiplies t."""

    value: Rough
    degree: int = 0

    @property
    def moving(self) -> bool:
        """Some variable enters."""
        return bool(self.value.mid.shape[0] > 1)

    def padded(self, rows: int) -> Rough:
        """With as many variables as asked for."""
        more = ((0, rows - self.value.mid.shape[0]), *((0, 0),) * (self.value.mid.ndim - 1))
        return Rough(np.pad(self.value.mid, more), np.pad(self.value.rad, more))

    def rows(self, start: int, stop: int) -> Rough:
        """Coefficients of some variables, one row per entry of the value."""
        flat = self.padded(max(stop, self.value.mid.shape[0]))
        count = flat.mid.shape[0]
        return Rough(flat.mid.reshape(count, -1)[start:stop].T, flat.rad.reshape(count, -1)[start:stop].T)


@dataclass(frozen=True)
class Layer:
    """Variables that are no affine function of earlier ones.

    ``kind`` is ``"input"`` (of ℝⁿ), ``"box"``, ``"curve"`` or ``"norm"``; ``columns`` are its rows in later forms.
    A norm is y = c/√(Σc²/count + ε) within each of its groups, c = z or z − mean (``centred``); ‖y‖ ≤ radius.
    """

    kind: str
    node: Node
    columns: slice
    argument: Form | None = None
    sigma: Activation | None = None
    groups: npt.NDArray[np.int64] = field(default_factory=lambda: np.zeros((0, 0), dtype=np.int64))
    centred: bool = False
    count: float = 1.0
    eps: float | None = None

    @property
    def size(self) -> int:
        """How many variables."""
        return int(self.columns.stop - self.columns.start)

    @property
    def radius(self) -> float:
        """Largest ‖y‖₂ of a group, rounded up."""
        return math.sqrt(self.count if self.count > 1 else 1.0) * (1 + 4 * U)


def layers(
    program: Program, output: str, boxes: frozenset[str], unbounded: str | None
) -> tuple[list[Layer], Form]:
    """The layers an output is made of, and the output as a form over them.

    Parameters
    ----------
    program, output
        What is bounded.
    boxes
        Nodes that are known by their range alone.
    unbounded
        The input that runs through all of ℝⁿ, if there is one.
    """
    reader = _Reader(program, boxes, unbounded)
    wanted = {output}
    for node in reversed(program.nodes):
        if node.name in wanted and node.name not in boxes:
            wanted.update(node.operands)
    for node in program.nodes:
        if node.name in wanted:
            reader.forms[node.name] = reader.read(node)
    form = reader.forms[output]
    if not isinstance(form, Form):
        raise CertificateError(
            f"{output!r} is no affine function of the layers this proof names: {reader.lost or 'an operation'} "
            "between them can't be re-checked independently."
        )
    return reader.made, form


class _Reader:
    def __init__(self, program: Program, boxes: frozenset[str], unbounded: str | None) -> None:
        self.program, self.boxes, self.unbounded = program, boxes, unbounded
        self.forms: dict[str, Any] = {}
        self.made: list[Layer] = []
        self.rows = 1
        self.lost = ""

    def read(self, node: Node) -> Any:
        """The node as a form (a tuple of them where it has several values), ``None`` where it is none."""
        if node.name in self.boxes:
            return self._variables("box", node, math.prod(_sizes(node)))
        if node.role == "constant":
            value = self.program.constants[node.name].detach()
            if value.is_complex():
                return None
            return Form(Rough.exact(value.to(torch.float64).numpy()[None].copy()))
        if node.role == "input":
            if node.name != self.unbounded:
                return None
            return self._variables("input", node, math.prod(_sizes(node)), degree=1)
        operands = [None if name is None else self.forms.get(name) for name in node.inputs]
        missing = [
            name is not None and form is None for name, form in zip(node.inputs, operands, strict=True)
        ]
        made = None
        if not any(missing) or (node.op in NORMS and not any(missing[1:])):
            made = self._step(node, operands)
        if made is None and not self.lost:
            self.lost = f"{node.op} ({node.name})"
        return made

    def _variables(self, kind: str, node: Node, size: int, degree: int = 0, **details: Any) -> Form:
        if size * (self.rows + size) > LARGEST:
            raise CertificateError(f"{node.name!r} has too many entries to be re-checked independently.")
        columns = slice(self.rows, self.rows + size)
        self.made.append(Layer(kind, node, columns, **details))
        self.rows += size
        mid = np.zeros((self.rows, size))
        mid[columns] = np.eye(size)
        return Form(Rough.exact(mid.reshape(self.rows, *_sizes(node))), degree)

    def _step(self, node: Node, operands: list[Any]) -> Any:
        if node.op == "getitem":
            return operands[0][int(node.attributes["index"])] if isinstance(operands[0], tuple) else None
        if any(isinstance(o, tuple) for o in operands):
            return None
        if node.op in NORMS:
            return self._norm(node, operands)
        moving = [o for o in operands if o is not None and o.moving]
        if len({o.degree for o in moving}) > 1:
            return None
        degree = moving[0].degree if moving else 0
        made: Any = None
        if node.op in MOVING:
            made = self._moved(node, operands)
        elif node.op in AVERAGES:
            made = self._averaged(node, operands[0])
        elif node.op in WEIGHTED:
            made = self._weighted(node, operands)
        elif node.op in ("add", "sub", "mul", "div", "neg"):
            made = self._arithmetic(node, operands)
        elif node.op == "batch_norm" and not node.attributes.get("training"):
            made = self._batch_norm(node, operands)
        elif (
            moving and len(node.operands) == 1 and (sigma := activation(node.op, node.attributes)) is not None
        ):
            return self._variables(
                "curve", node, math.prod(_sizes(node)), degree, argument=operands[0], sigma=sigma
            )
        if isinstance(made, tuple):
            return tuple(Form(m, degree) for m in made)
        return None if made is None else Form(made, degree)

    # -- operations that are affine --------------------------------------------------------------------------

    def _moved(self, node: Node, operands: list[Form | None]) -> Any:
        if node.op == "cast" and (node.dtype is None or not node.dtype.is_floating_point):
            return None  # rounds to integers
        rows = max(o.value.mid.shape[0] for o in operands if o is not None)
        given = [None if o is None else o.padded(rows) for o in operands]
        mid = _over_rows(node, [None if g is None else g.mid for g in given])
        rad = _over_rows(node, [None if g is None else g.rad for g in given])
        if isinstance(mid, tuple):
            return tuple(Rough(m, r) for m, r in zip(mid, rad, strict=True))
        return Rough(mid, rad)

    def _averaged(self, node: Node, x: Form) -> Rough:
        value = x.value
        loss = gamma(value.mid[0].size + 8) * np.abs(value.mid) + value.rad * OVER
        return Rough(_over_rows(node, [value.mid]), over(_over_rows(node, [loss])))

    def _weighted(self, node: Node, operands: list[Form | None]) -> Rough | None:
        places = [i for i, o in enumerate(operands) if o is not None and o.moving] or [WEIGHTED[node.op][0]]
        if len(places) != 1 or places[0] not in WEIGHTED[node.op]:
            return None
        place = places[0]
        x = operands[place]
        assert x is not None
        bias = 0 if node.op == "addmm" else 2
        fixed = [None if o is None else o.value[0] for o in operands]
        attributes = {k: abs(v) if k in ("alpha", "beta") else v for k, v in node.attributes.items()}
        plain = replace(node, attributes=attributes)

        def run(of: Node, rows: Array, pick: Callable[[Rough], Array], offset: bool) -> Array:
            given: list[Array | None] = [None if f is None else pick(f) for f in fixed]
            if bias < len(given) and given[bias] is not None and not offset:
                given[bias] = np.zeros_like(given[bias]) if node.op == "addmm" else None
            made: Array = _over_rows(of, [rows if i == place else g for i, g in enumerate(given)], {place})
            return made

        def both(of: Node, rows: Array, pick: Callable[[Rough], Array]) -> Array:
            return np.concatenate([run(of, rows[:1], pick, True), run(of, rows[1:], pick, False)])

        mid, size = x.value.mid, np.abs(x.value.mid)
        exact_weights = not any(f is not None and f.rad.any() for i, f in enumerate(fixed) if i != place)
        loss = gamma(_terms(node, fixed, place) + 8) * both(plain, size, lambda f: np.abs(f.mid))
        rad = loss + both(plain, x.value.rad, lambda f: f.top) * OVER
        if not exact_weights:
            rad = rad + both(plain, size, lambda f: f.rad)
        # A unit vector picks one entry of the weights, and nothing is rounded.
        flat, unsure = mid.reshape(len(mid), -1), x.value.rad.reshape(len(mid), -1).any(1)
        units = ((flat != 0).sum(1) <= 1) & (np.abs(flat) == (flat != 0)).all(1) & ~unsure
        units &= exact_weights and attributes.get("alpha", 1) == 1 and attributes.get("beta", 1) == 1
        if bias < len(fixed) and fixed[bias] is not None:
            units[0] &= not flat[0].any()
        rad = over(rad)
        rad[units] = 0.0
        return Rough(both(node, mid, lambda f: f.mid), rad)

    def _arithmetic(self, node: Node, operands: list[Form | None]) -> Rough | None:
        parts = [_operand(node, operands, i, key) for i, key in ((0, "input"), (1, "other"))]
        rank = len(node.shape)
        first = _ranked(parts[0], rank)
        if first is None:
            return None
        if node.op == "neg":
            return -first
        second = _ranked(parts[1], rank)
        if second is None or node.attributes.get("rounding_mode") is not None:
            return None
        shape = _sizes(node)
        if node.op in ("add", "sub"):
            alpha = float(node.attributes.get("alpha", 1)) * (1 if node.op == "add" else -1)
            second = second * Rough.exact(np.full((1,), alpha))
            count = max(len(first.mid), len(second.mid))
            return _spread(Form(first).padded(count), shape) + _spread(Form(second).padded(count), shape)
        if len(second.mid) > 1:
            first, second = second, first
            if len(second.mid) > 1 or node.op == "div":
                return None
        if node.op == "div":
            second = _inverse(second)
        return _spread(first * second, shape)

    def _batch_norm(self, node: Node, operands: list[Form | None]) -> Rough | None:
        x, weight, bias, mean, variance = operands
        if (
            x is None
            or mean is None
            or variance is None
            or any(o is not None and o.moving for o in operands[1:])
        ):
            return None
        view = (1, 1, -1, *(1,) * (len(node.shape) - 2))

        def channel(form: Form) -> Rough:
            return Rough(form.value.mid.reshape(view), form.value.rad.reshape(view))

        squares = channel(variance) + Rough.exact(np.full((1,), float(node.attributes["eps"])))
        factor = _inverse_root(squares)
        if weight is not None:
            factor = factor * channel(weight)
        offset = -(channel(mean) * factor)
        if bias is not None:
            offset = offset + channel(bias)
        made = x.value * factor
        return made + Form(_spread(offset, _sizes(node))).padded(len(made.mid))

    def _norm(self, node: Node, operands: list[Form | None]) -> Form | None:
        if any(o is not None and o.moving for o in operands[1:]):
            return None
        shape, a = _sizes(node), node.attributes
        index = np.arange(math.prod(shape)).reshape(shape)
        axes: tuple[int, ...] = (1,)
        count, centred = 1.0, True
        if node.op in ("layer_norm", "rms_norm", "l2_normalize"):
            axes = tuple(int(d) for d in a["dim"])
            if a.get("correction", 0) != 0 or float(a.get("p", 2.0)) != 2.0:
                return None
            kept = [d for d in range(len(shape)) if d not in axes]
            groups = index.transpose(*kept, *axes).reshape(-1, math.prod(shape[d] for d in axes))
            centred = node.op == "layer_norm"
        else:
            if node.op == "instance_norm" and not a.get("use_input_stats", True):
                return None
            parts = int(a["num_groups"]) if node.op == "group_norm" else shape[1]
            groups = index.reshape(shape[0] * parts, -1)
        if node.op != "l2_normalize":
            count = float(groups.shape[1])
        eps = float(a.get("eps") or 0.0)
        inside = a.get("eps_mode", "inside") == "inside"
        made = self._variables(
            "norm", node, index.size, argument=operands[0], groups=groups, centred=centred, count=count,
            eps=eps if inside else None,
        ).value  # fmt: skip
        view = [shape[d] if d in axes else 1 for d in range(len(shape))]
        given = operands[1:2] if node.op == "rms_norm" else operands[1:3]
        laid = [
            None if o is None else Rough(o.value.mid.reshape(1, *view), o.value.rad.reshape(1, *view))
            for o in given
        ]
        if laid and laid[0] is not None:
            made = made * laid[0]
        if len(laid) > 1 and laid[1] is not None:
            made = made + Form(_spread(laid[1], shape)).padded(len(made.mid))
        return Form(made)


def _sizes(node: Node) -> tuple[int, ...]:
    return tuple(int(d) for d in node.shape)


def _terms(node: Node, fixed: Sequence[Rough | None], place: int) -> int:
    """Products that are added up in one entry of the result."""
    other = fixed[
        1 if node.op not in ("matmul", "addmm") else next(i for i in WEIGHTED[node.op] if i != place)
    ]
    assert other is not None
    return (
        int(other.mid.size) if node.op in ("conv", "conv_transpose") else int(max(other.mid.shape, default=1))
    )


def _over_rows(node: Node, arrays: Sequence[Array | None], along: set[int] | None = None) -> Any:
    """The operation on every row of its operands (of those in ``along``; the others are taken as they are)."""
    tensors = [None if a is None else torch.from_numpy(np.ascontiguousarray(a)) for a in arrays]
    moving = [i for i, t in enumerate(tensors) if t is not None and (along is None or i in along)]
    count = next(tensors[i].shape[0] for i in moving)  # type: ignore[union-attr]
    if count == 0:
        return np.zeros((0, *_sizes(node)))

    def step(*given: Tensor) -> Any:
        full = list(tensors)
        for i, tensor in zip(moving, given, strict=True):
            full[i] = tensor
        return compute_node(node, full, {}, torch.float64)

    made: Any = torch.vmap(step)(*[t for i, t in enumerate(tensors) if i in moving and t is not None])
    return tuple(m.numpy() for m in made) if isinstance(made, tuple) else made.numpy()


def _operand(node: Node, operands: Sequence[Form | None], place: int, key: str) -> Rough | None:
    form = operands[place] if place < len(operands) else None
    if form is not None:
        return form.value
    number = node.attributes.get(key)
    return Rough.exact(np.full((1,), float(number))) if isinstance(number, int | float) else None


def _ranked(value: Rough | None, rank: int) -> Rough | None:
    """With axes of size 1 in front of the shape, so that rows stay rows when shapes are broadcast."""
    if value is None:
        return None
    shape = (value.mid.shape[0], *(1,) * (rank - value.mid.ndim + 1), *value.mid.shape[1:])
    return Rough(value.mid.reshape(shape), value.rad.reshape(shape))


def _spread(value: Rough, shape: tuple[int, ...]) -> Rough:
    full = (value.mid.shape[0], *shape)
    return Rough(np.broadcast_to(value.mid, full).copy(), np.broadcast_to(value.rad, full).copy())


def _inverse(value: Rough) -> Rough:
    least = np.abs(value.mid) - value.rad
    if not (least > 0).all():
        raise CertificateError("A division by what may be 0 can't be re-checked independently.")
    mid = 1.0 / value.mid
    return Rough(mid, over(np.abs(mid) * (2 * U + value.rad / least)))


def _inverse_root(value: Rough) -> Rough:
    least = value.mid - value.rad
    if not (least > 0).all():
        raise CertificateError("A root of what may be 0 or less can't be re-checked independently.")
    mid = 1.0 / np.sqrt(value.mid)
    return Rough(mid, over(mid * (8 * U + value.rad / least)))


# -- plain intervals -----------------------------------------------------------------------------------------

Span: TypeAlias = tuple[Array, Array]


class Ranges:
    """Where every entry of every node lies, as far as the rules below reach."""

    def __init__(self, program: Program, inputs: Mapping[str, Span]) -> None:
        self.program, self.found, self.reasons = program, dict[str, Any](), dict[str, str]()
        with np.errstate(all="ignore"):
            for node in program.nodes:
                self.found[node.name] = self._range(node, inputs)

    def get(self, name: str) -> Span | None:
        """The range of a node with one value, if there is one."""
        found = self.found.get(name)
        return found if isinstance(found, tuple) and isinstance(found[0], np.ndarray) else None

    def of(self, name: str) -> Span:
        """The range, flat; refused where no rule reaches."""
        found = self.get(name)
        if found is None:
            raise CertificateError(
                f"The range of {name!r} can't be re-checked independently: "
                f"{self.reasons.get(name, 'there is no rule for it')}."
            )
        return found[0].reshape(-1), found[1].reshape(-1)

    def _range(self, node: Node, inputs: Mapping[str, Span]) -> Any:
        if node.role == "constant":
            value = self.program.constants[node.name].detach()
            if value.is_complex():
                return None
            mid = value.to(torch.float64).numpy().copy()
            return mid, mid
        if node.role == "input":
            shape = _sizes(node)
            return inputs.get(node.name, (np.full(shape, -math.inf), np.full(shape, math.inf)))
        operands = [None if name is None else self.found.get(name) for name in node.inputs]
        for name, operand in zip(node.inputs, operands, strict=True):
            if name is not None and operand is None and node.op not in NORMS:
                self.reasons[node.name] = self.reasons.get(name, f"nothing is known of {name!r}")
                return None
        made = _range_rule(node, operands, self)
        if made is None:
            self.reasons[node.name] = f"{node.op} ({node.name}) has no rule here"
            return None
        if isinstance(made[0], tuple):
            return made
        # What is not a number is not known.
        shape = _sizes(node)
        lo, hi = (np.broadcast_to(end, shape) for end in made)
        return np.where(np.isnan(lo), -math.inf, lo), np.where(np.isnan(hi), math.inf, hi)


def ranges(program: Program, inputs: Mapping[str, Span]) -> Ranges:
    """Plain interval propagation through a program; inputs without a range are unbounded."""
    return Ranges(program, inputs)


def _down(value: Array) -> Array:
    return np.nextafter(value, -math.inf)


def _up(value: Array) -> Array:
    return np.nextafter(value, math.inf)


def _times(a: Span, b: Span) -> Span:
    """Products of two intervals; 0·∞ is 0."""
    ends = [np.where((x == 0) | (y == 0), 0.0, x * y) for x in a for y in b]
    return _down(np.minimum.reduce(ends)), _up(np.maximum.reduce(ends))


def _plus(a: Span, b: Span) -> Span:
    return _down(a[0] + b[0]), _up(a[1] + b[1])


def _reciprocal(b: Span) -> Span | None:
    if not ((b[0] > 0) | (b[1] < 0)).all():
        return None
    return _down(1.0 / b[1]), _up(1.0 / b[0])


def _run(node: Node, arrays: Sequence[Array | None]) -> Array:
    tensors = [None if a is None else torch.from_numpy(np.ascontiguousarray(a)) for a in arrays]
    made: Array = compute_node(node, tensors, {}, torch.float64).numpy()
    return made


def _range_rule(node: Node, given: list[Any], known: Ranges) -> Any:
    """Lower and upper ends of one operation, ``None`` where there is no rule."""
    op, a = node.op, node.attributes
    if op == "getitem":
        return given[0][int(a["index"])] if isinstance(given[0][0], tuple) else None
    if any(g is not None and isinstance(g[0], tuple) for g in given):
        return None
    if op in MOVING or op in ("amax", "amin", "max_pool", "adaptive_max_pool", "maximum", "minimum", "clamp"):
        if op == "cast" and (node.dtype is None or not node.dtype.is_floating_point):
            return None
        low, high = (
            compute_node(
                node,
                [None if g is None else torch.from_numpy(np.ascontiguousarray(g[side])) for g in given],
                {},
                torch.float64,
            )
            for side in (0, 1)
        )
        if isinstance(low, tuple):
            return tuple((x.numpy(), y.numpy()) for x, y in zip(low, high, strict=True))
        return low.numpy(), high.numpy()
    if op in AVERAGES:
        low, high = given[0]
        if not (np.isfinite(low).all() and np.isfinite(high).all()):
            return np.full(_sizes(node), -math.inf), np.full(_sizes(node), math.inf)
        loss = gamma(low.size + 8) * over(_run(node, [np.maximum(np.abs(low), np.abs(high))]))
        return _run(node, [low]) - loss, _run(node, [high]) + loss
    if op in ("add", "sub", "mul", "div", "neg"):
        return _range_arithmetic(node, given)
    if op in WEIGHTED:
        return _range_product(node, given, known)
    if op in NORMS:
        return _range_norm(node, given)
    if op == "batch_norm" and not a.get("training"):
        return _range_batch_norm(node, given)
    if op == "softmax":
        return _range_softmax(given[0], int(a["dim"]))
    if op == "attention":
        if a["enable_gqa"] or a["dropout_p"] or given[3] is not None:
            return None
        low, high = given[2]
        return _averaged_rows(low, high, _sizes(node))
    if op == "embedding":
        low, high = given[0]
        return np.broadcast_to(low.min(0), _sizes(node)), np.broadcast_to(high.max(0), _sizes(node))
    if (sigma := activation(op, a)) is not None and len(node.operands) == 1:
        return sigma.image(*given[0])
    return None


def _averaged_rows(low: Array, high: Array, shape: tuple[int, ...]) -> Span:
    """Σ p_j v_j for weights p ≥ 0 that sum to 1: within the hull of the rows v_j."""
    lo, hi = low.min(-2, keepdims=True), high.max(-2, keepdims=True)
    return np.broadcast_to(lo, shape), np.broadcast_to(hi, shape)


def _range_arithmetic(node: Node, given: list[Any]) -> Span | None:
    def part(place: int, key: str) -> Span | None:
        if place < len(given) and given[place] is not None:
            found: Span = given[place]
            return found
        number = node.attributes.get(key)
        return (np.array(float(number)),) * 2 if isinstance(number, int | float) else None

    first, second = part(0, "input"), part(1, "other")
    if first is None:
        return None
    if node.op == "neg":
        return -first[1], -first[0]
    if second is None or node.attributes.get("rounding_mode") is not None:
        return None
    if node.op in ("add", "sub"):
        alpha = float(node.attributes.get("alpha", 1)) * (1 if node.op == "add" else -1)
        scaled = (
            (second[0] * alpha, second[1] * alpha)
            if abs(alpha) == 1
            else _times(second, (np.array(alpha),) * 2)
        )
        return _plus(first, (np.minimum(*scaled), np.maximum(*scaled)))
    if node.op == "mul" and len(node.operands) == 2 and node.inputs[0] == node.inputs[1]:
        ends = _times(first, second)
        return np.maximum(ends[0], 0.0), ends[1]
    inverse = _reciprocal(second) if node.op == "div" else second
    return None if inverse is None else _times(first, inverse)


def _range_product(node: Node, given: list[Any], known: Ranges) -> Span | None:
    """A product with a constant by its positive and its negative part; of two moving tensors term by term."""
    places = WEIGHTED[node.op]
    fixed = {i: g is not None and np.array_equal(g[0], g[1]) for i, g in enumerate(given)}
    bias = 0 if node.op == "addmm" else 2
    if bias < len(given) and given[bias] is not None and not fixed[bias]:
        return None
    attributes = {k: abs(v) if k in ("alpha", "beta") else v for k, v in node.attributes.items()}
    others = (
        [i for i in range(len(given)) if i not in (bias, *places)]
        if node.op not in ("matmul", "addmm")
        else []
    )
    if node.op in ("matmul", "addmm"):
        left, right = places
        if not fixed[left] and not fixed[right]:
            return _range_matmul(node, given, known) if node.op == "matmul" else None
        place, other = (right, left) if fixed[left] else (left, right)
    else:
        place, other = 0, 1
        if not fixed[1] or others not in ([1], [1, 2]):
            return None
    low, high = given[place]
    if not (np.isfinite(low).all() and np.isfinite(high).all()):
        return np.full(_sizes(node), -math.inf), np.full(_sizes(node), math.inf)
    weight = given[other][0]
    if any(node.attributes.get(k, 1) != 1 for k in ("alpha", "beta")):
        return None
    start = None if bias >= len(given) or given[bias] is None else given[bias][0]
    plain = replace(node, attributes=attributes)

    def run(x: Array, w: Array, b: Array | None) -> Array:
        arrays: list[Array | None] = [None] * len(given)
        arrays[place], arrays[other] = x, w
        if bias < len(given):
            arrays[bias] = (
                np.zeros_like(start) if b is None and node.op == "addmm" and start is not None else b
            )
        return _run(plain, arrays)

    up, down = np.maximum(weight, 0.0), np.minimum(weight, 0.0)
    top = np.maximum(np.abs(low), np.abs(high))
    terms = int(weight.size) if node.op.startswith("conv") else int(max(weight.shape, default=1))
    loss = over(gamma(2 * terms + 16) * run(top, np.abs(weight), None if start is None else np.abs(start)))
    return run(low, up, start) + run(high, down, None) - loss, run(high, up, start) + run(
        low, down, None
    ) + loss


def _range_matmul(node: Node, given: list[Any], known: Ranges) -> Span | None:
    (a_lo, a_hi), (b_lo, b_hi) = given
    if a_lo.ndim < 2 or b_lo.ndim < 2:
        return None
    shape, terms = _sizes(node), a_lo.shape[-1]
    lo, hi, top = np.zeros(shape), np.zeros(shape), np.zeros(shape)
    for k in range(terms):
        piece = _times(
            (a_lo[..., :, k, None], a_hi[..., :, k, None]), (b_lo[..., None, k, :], b_hi[..., None, k, :])
        )
        lo, hi = lo + piece[0], hi + piece[1]
        top = top + np.maximum(np.abs(piece[0]), np.abs(piece[1]))
    loss = over(gamma(terms + 4) * top)
    lo, hi = lo - loss, hi + loss
    left = known.program.node(node.operands[0])
    while left.op in ("identity", "dropout") and left.operands:
        left = known.program.node(left.operands[0])
    if left.op == "softmax" and int(left.attributes["dim"]) == len(left.shape) - 1:
        hull = _averaged_rows(b_lo, b_hi, shape)
        lo, hi = np.fmax(lo, hull[0]), np.fmin(hi, hull[1])
    return lo, hi


def _range_softmax(span: Span, axis: int) -> Span:
    """e^{x_i}/Σ e^{x_j} rises with x_i and falls with the others."""
    low, high = np.moveaxis(span[0], axis, -1), np.moveaxis(span[1], axis, -1)
    if not (np.isfinite(low).all() and np.isfinite(high).all()):
        return np.zeros_like(span[0]), np.ones_like(span[0])
    peak = high.max(-1, keepdims=True)
    bottom, top = np.exp(low - peak), np.exp(high - peak)
    slack = 1e-12

    def share(own: Array, others: Array) -> Array:
        rest = np.stack([np.delete(others, i, -1).sum(-1) for i in range(others.shape[-1])], -1)
        made: Array = own / (own + rest + TINY)
        return made

    lo, hi = share(bottom, top) * (1 - slack) - TINY, share(top, bottom) * (1 + slack) + TINY
    return np.moveaxis(np.maximum(lo, 0.0), -1, axis), np.moveaxis(np.minimum(hi, 1.0), -1, axis)


def _range_norm(node: Node, given: list[Any]) -> Span | None:
    """A norm's image: |y_i| ≤ √(n − 1) where it centres, √n where not, 1 for ℓ₂; closer where the box is small."""
    shape, a = _sizes(node), node.attributes
    if any(g is not None and not np.array_equal(*g) for g in given[1:]):
        return None
    axes: tuple[int, ...] = (1,)
    index = np.arange(math.prod(shape)).reshape(shape)
    if node.op in ("layer_norm", "rms_norm", "l2_normalize"):
        axes = tuple(int(d) for d in a["dim"])
        if a.get("correction", 0) != 0 or float(a.get("p", 2.0)) != 2.0:
            return None
        kept = [d for d in range(len(shape)) if d not in axes]
        groups = index.transpose(*kept, *axes).reshape(-1, math.prod(shape[d] for d in axes))
    else:
        if node.op == "instance_norm" and not a.get("use_input_stats", True):
            return None
        parts = int(a["num_groups"]) if node.op == "group_norm" else shape[1]
        groups = index.reshape(shape[0] * parts, -1)
    width, eps = groups.shape[1], float(a.get("eps") or 0.0)
    if eps <= 0:
        return None
    centred = node.op not in ("rms_norm", "l2_normalize")
    count = 1.0 if node.op == "l2_normalize" else float(width)
    top = math.sqrt((1 - 1 / width) * count if centred else count) * (1 + 8 * U)
    lo, hi = np.full(index.size, -top), np.full(index.size, top)
    x = given[0]
    if x is not None and np.isfinite(x[0]).all() and np.isfinite(x[1]).all():
        low, high = x[0].reshape(-1)[groups], x[1].reshape(-1)[groups]
        near = _closer_norm(low, high, centred, count, eps, str(a.get("eps_mode", "inside")))
        lo[groups], hi[groups] = np.maximum(-top, near[0]), np.minimum(top, near[1])
    made: Span = (lo.reshape(shape), hi.reshape(shape))
    view = [shape[d] if d in axes else 1 for d in range(len(shape))]
    if len(given) > 1 and given[1] is not None:
        made = _times(made, (given[1][0].reshape(view),) * 2)
    if len(given) > 2 and given[2] is not None and node.op != "rms_norm":
        made = _plus(made, (given[2][0].reshape(view),) * 2)
    return made


def _closer_norm(low: Array, high: Array, centred: bool, count: float, eps: float, mode: str) -> Span:
    """t/√((t² + Q)/count + ε) rises with t and shrinks as Q, the others' squares, grows: its ends."""
    width = low.shape[1]
    if centred:
        size = gamma(2 * width + 16) * np.maximum(np.abs(low), np.abs(high)).max(1, keepdims=True) * 4
        least, most = low.sum(1, keepdims=True), high.sum(1, keepdims=True)
        low, high = low - (low + (most - high)) / width - size, high - (high + (least - low)) / width + size
    squares = (
        np.where((low <= 0) & (high >= 0), 0.0, np.minimum(low**2, high**2)),
        np.maximum(low**2, high**2),
    )
    rest = [np.stack([np.delete(s, i, 1).sum(1) for i in range(width)], 1) for s in squares]
    rest = [rest[0] * (1 - 1e-11), rest[1] * (1 + 1e-11)]

    def quotient(t: Array, others: Array) -> Array:
        square = (t * t + others) / count
        under = {
            "inside": np.sqrt(square + eps),
            "outside": np.sqrt(square) + eps,
            "clamp": np.maximum(np.sqrt(square), eps),
        }[mode]
        made: Array = t / under
        return made

    up = quotient(high, np.where(high >= 0, rest[0], rest[1]))
    down = quotient(low, np.where(low <= 0, rest[0], rest[1]))
    return down - 1e-13 * np.abs(down) - TINY, up + 1e-13 * np.abs(up) + TINY


def _range_batch_norm(node: Node, given: list[Any]) -> Span | None:
    x, weight, bias, mean, variance = given
    if mean is None or variance is None or any(g is not None and not np.array_equal(*g) for g in given[1:]):
        return None
    view = (1, -1, *(1,) * (len(node.shape) - 2))
    factor = _inverse_root(
        Rough.exact(variance[0].reshape(view)) + Rough.exact(np.full((1,), float(node.attributes["eps"])))
    )
    if weight is not None:
        factor = factor * Rough.exact(weight[0].reshape(view))
    span: Span = (_down(factor.mid - factor.rad), _up(factor.mid + factor.rad))
    made = _times(_plus(x, (-mean[0].reshape(view),) * 2), span)
    return made if bias is None else _plus(made, (bias[0].reshape(view),) * 2)
