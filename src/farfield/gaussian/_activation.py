"""The value every other function of this package takes: one scalar activation and what is known of it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from torch import Tensor

from farfield.errors import InvalidValueError

__all__ = ["Activation", "ClosedForm", "Growth", "PairMap", "ScalarMap", "Tail"]

ScalarMap: TypeAlias = Callable[[Tensor], Tensor]
"""An elementwise map of tensors."""

PairMap: TypeAlias = Callable[[Tensor, Tensor, Tensor], Tensor]
"""A function of (correlation, first variance, second variance), elementwise and differentiable."""


@dataclass(frozen=True)
class Tail:
    """What an activation does towards one end of the line.

    Parameters
    ----------
    kind
        ``"bounded"`` (stays in a finite interval), ``"sublinear"`` (grows, but σ(x)/x → 0), ``"linear"``
        or ``"superlinear"``.
    slope
        lim σ(x)/x. Zero for bounded and sublinear tails, ±∞ for superlinear ones.
    offset
        lim σ(x) − slope·x where that limit exists (for a bounded tail: its limit), else ``nan``.
    remainder
        σ(x) − slope·x − offset is zero from some point on (``"exact"``), smaller than every power (``"flat"``),
        O(1/x) (``"algebraic"``), or no more is known or true than that it is bounded (``"bounded"``: oscillation,
        rounding).
    """

    kind: Literal["bounded", "sublinear", "linear", "superlinear"]
    slope: float = 0.0
    offset: float = math.nan
    remainder: Literal["exact", "flat", "algebraic", "bounded"] = "bounded"

    def __post_init__(self) -> None:
        if self.kind in ("bounded", "sublinear") and self.slope != 0.0:
            raise InvalidValueError(f"A {self.kind} tail has slope 0, not {self.slope}.")
        if self.kind == "linear" and not (math.isfinite(self.slope) and self.slope != 0.0):
            raise InvalidValueError(f"A linear tail has a finite, non-zero slope, not {self.slope}.")
        if self.kind == "superlinear" and not math.isinf(self.slope):
            raise InvalidValueError(f"A superlinear tail has slope ±inf, not {self.slope}.")


@dataclass(frozen=True)
class Growth:
    """Both tails of an activation, and how far it ever strays from the piecewise-linear map they define.

    ``recession_gap`` is sup over x of |σ(x) − (slope_left·min(x, 0) + slope_right·max(x, 0))|: finite
    exactly when the activation has the same slopes at infinity as that map, up to a constant (0 for ReLU,
    0.1700 for GELU, 1 for tanh). ``inf`` for superlinear activations.
    """

    left: Tail
    right: Tail
    recession_gap: float

    @property
    def bounded(self) -> bool:
        """Whether the activation is bounded on the whole line."""
        return self.left.kind == "bounded" and self.right.kind == "bounded"


@dataclass(frozen=True)
class ClosedForm:
    """Known formulas for E σ(x)σ(y) with x ~ N(0, q₁), y ~ N(0, q₂), correlation ρ.

    Parameters
    ----------
    dual
        (ρ, q₁, q₂) ↦ E σ(x)σ(y).
    slope
        (ρ, q₁, q₂) ↦ ∂/∂ρ of it. ``None`` where the formula for the dual is smooth on all of [−1, 1] and can
        be differentiated as it is.
    reduced
        (ρ, q₁, q₂) ↦ Cov(σ(x), σ(y)) without the cancellation of dual − mean², where that is known.
    """

    dual: PairMap
    slope: PairMap | None = None
    reduced: PairMap | None = None


@dataclass(frozen=True)
class Activation:
    """One scalar activation σ and what is known of it.

    A plain value: build one with :func:`farfield.gaussian.activation` (by name, from a callable or from an
    elementwise ``nn.Module``) and call it like a function.

    Parameters
    ----------
    name
        Registered name, or the callable's own name for a wrapped one.
    function, derivative
        Elementwise maps of tensors. At a kink the derivative may take either one-sided value; at a jump it
        is the derivative of the continuous part.
    kinks
        Every point where σ is not analytic: integrals are split there.
    jumps
        Pairs (point, height) where σ is discontinuous; each point is among ``kinks``.
    growth
        Both tails; ``None`` where unknown (a wrapped callable).
    lipschitz
        Smallest Lipschitz constant on the line, ``inf`` if there is none, ``None`` where unknown.
    range
        (infimum, supremum) on the line; ``None`` where unknown.
    homogeneity
        n with σ(ax) = aⁿσ(x) for every a > 0, if there is one.
    closed_form
        Formulas for the dual activation, if known.
    formula
        σ(x) in words a person reads.
    parameters
        What a parametrized activation was made with, as (name, value) pairs.

    Examples
    --------
    >>> import torch
    >>> from farfield.gaussian import activation
    >>> relu = activation("relu")
    >>> relu(torch.tensor([-1.0, 2.0]))
    tensor([0., 2.])
    >>> relu.kinks, relu.homogeneity, relu.growth.right.slope
    ((0.0,), 1, 1.0)
    """

    name: str
    function: ScalarMap = field(repr=False)
    derivative: ScalarMap = field(repr=False)
    kinks: tuple[float, ...] = ()
    jumps: tuple[tuple[float, float], ...] = ()
    growth: Growth | None = None
    lipschitz: float | None = None
    range: tuple[float, float] | None = None
    homogeneity: float | None = None
    closed_form: ClosedForm | None = field(default=None, repr=False)
    formula: str = ""
    parameters: tuple[tuple[str, float], ...] = ()

    def __post_init__(self) -> None:
        if tuple(sorted(set(self.kinks))) != self.kinks:
            raise InvalidValueError(f"{self.name}: kinks must be sorted and distinct, got {self.kinks}.")
        for point, height in self.jumps:
            if point not in self.kinks or height == 0.0:
                raise InvalidValueError(
                    f"{self.name}: a jump is a pair (kink, non-zero height), got ({point}, {height}) "
                    f"beside kinks {self.kinks}."
                )

    def __call__(self, x: Tensor) -> Tensor:
        return self.function(x)

    # A value is never copied: a copied network shares it, and what was computed from it stays cached.
    def __copy__(self) -> Activation:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Activation:
        return self
