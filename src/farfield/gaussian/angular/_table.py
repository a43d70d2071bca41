r"""Two variances in a range: a table in (log q₁, log q₂, θ).

.. math:: \frac{\text{deficit}}{\sqrt{V_1V_2}} = (\log q_1 - \log q_2)^2\,C(q_1, q_2)
          + 2\sin^2(\theta/2)\,M(q_1, q_2, \theta)

The first term is what is left at θ = 0, where x and y are the same variable at two scales: half the squared distance
of the unit vectors σ(√q₁z)/√V₁ and σ(√q₂z)/√V₂ of L². C and M are smooth, symmetric and of order one. Each term
of the series in θ is a symmetric function of two logarithms, stored by its eigenvectors: for n × m pairs it
costs one product of an n × rank and a rank × m matrix.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from farfield._typing import Float
from farfield.errors import InvalidValueError
from farfield.gaussian._activation import Activation
from farfield.gaussian.angular._base import AngularDual, like
from farfield.gaussian.angular._series import Parity, basis, fold, unfold

__all__ = ["Bilinear", "LogRange", "TableDual"]


@dataclass(frozen=True)
class LogRange:
    """The variances [low, high], seen as x ∈ [−1, 1] by their logarithm."""

    low: float
    high: float

    def place(self, q: Tensor, name: str) -> tuple[Tensor, Tensor]:
        """Log q and x, with a word for a variance outside."""
        given = q.detach()
        slack = 1.0 + (1e-5 if q.dtype != torch.float64 else 1e-12)
        if given.numel() and not bool(((given * slack >= self.low) & (given <= self.high * slack)).all()):
            raise InvalidValueError(
                f"This angular dual of {name} was built for variances from {self.low:g} to {self.high:g}, and got "
                f"some from {float(given.min()):g} to {float(given.max()):g}. Build it with a wider "
                "variances=(low, high)."
            )
        log = torch.log(q)
        middle, half = math.log(self.low * self.high) / 2.0, math.log(self.high / self.low) / 2.0
        return log, (log - middle) / half


@dataclass(frozen=True)
class Bilinear:
    """Σ λ_r p_r(x)p_r(y): a symmetric function of two variables, the largest |λ| first.

    Parameters
    ----------
    weights
        λ, shape (rank,).
    vectors
        Chebyshev coefficients of the p, shape (degree + 1, rank).
    """

    weights: Tensor
    vectors: Tensor

    @classmethod
    def of(cls, matrix: Float[Tensor, "b b"], threshold: float) -> Bilinear:
        """By eigenvectors of the matrix of Chebyshev coefficients; what is below the threshold is dropped."""
        values, vectors = torch.linalg.eigh((matrix + matrix.T) / 2.0)
        order = values.abs().argsort(descending=True)
        order = order[: int((values.abs() > threshold).sum())]
        return cls(values[order], vectors[:, order])

    def cut(self, threshold: float) -> Bilinear:
        """Fewer terms, for fewer digits."""
        rank = int((self.weights.abs() > threshold).sum())
        return Bilinear(self.weights[:rank], self.vectors[:, :rank])

    def __call__(self, first: Tensor, second: Tensor, outer: bool) -> Tensor:
        """At the Chebyshev polynomials (…, degree + 1) of two arguments: of all pairs, or elementwise."""
        left = first @ (self.vectors * self.weights).to(first)
        right = second @ self.vectors.to(second)
        return left @ right.mT if outer else (left * right).sum(-1)


@dataclass(frozen=True)
class _Places:
    """Two variances, as logarithms and Chebyshev polynomials, ready to be combined."""

    roots: Tensor
    apart: Tensor
    first: Tensor
    second: Tensor
    outer: bool


@final
@dataclass(frozen=True)
class TableDual(AngularDual):
    """Any activation that is smooth but for kinks at 0, at two variances in a range.

    Parameters
    ----------
    within
        The range.
    squared, average
        Chebyshev coefficients of log V and of E σ/√V in log q.
    apart
        C.
    slopes, means
        S and M, one :class:`Bilinear` for each Chebyshev polynomial of the angle.
    """

    sigma: Activation
    within: LogRange
    squared: Tensor
    average: Tensor
    apart: Bilinear
    slopes: tuple[Bilinear, ...]
    means: tuple[Bilinear, ...]
    parity: Parity
    error: float

    @property
    def top(self) -> float:
        """The end of the interval of angles the series cover."""
        return math.pi if self.parity == "none" else math.pi / 2

    def _one(self, q: Tensor | float, coefficients: Tensor) -> Tensor:
        q = q if isinstance(q, Tensor) else torch.tensor(q, dtype=torch.float64)
        _, x = self.within.place(q, self.sigma.name)
        return basis(x, len(coefficients)) @ coefficients.to(q)

    def second(self, q: Tensor | float) -> Tensor:
        """V(q), by the exponential of a series in log q."""
        return torch.exp(self._one(q, self.squared))

    def mean(self, q: Tensor | float) -> Tensor:
        """E σ(√q z), by a series in log q."""
        return self._one(q, self.average) * torch.exp(self._one(q, self.squared) / 2.0)

    def _places(self, theta: Tensor, q1: Tensor | float, q2: Tensor | float) -> _Places:
        a, b = like(q1, theta), like(q2, theta)
        outer = a.dim() >= 2 and a.shape[-1] == 1 and (b.dim() == 1 or (b.dim() >= 2 and b.shape[-2] == 1))
        if outer and b.dim() == 1:
            b = b[None]
        (log1, x1), (log2, x2) = (self.within.place(q, self.sigma.name) for q in (a, b))
        first, second = (basis(x, len(self.apart.vectors)) for x in (x1, x2))
        width = len(self.squared)
        halves = [torch.exp(basis(x, width) @ self.squared.to(theta) / 2.0) for x in (x1, x2)]
        if outer:
            first, second = first[..., 0, :], second[..., 0, :, :]
        return _Places(halves[0] * halves[1], log1 - log2, first, second, outer)

    def _series(self, terms: tuple[Bilinear, ...], theta: Tensor, at: _Places) -> Tensor:
        """Clenshaw's recurrence in the angle, each coefficient a function of the two variances."""
        if theta.dtype != torch.float64:
            # Below the rounding of the result: fewer and smaller products.
            size = max((float(t.weights[0].abs()) for t in terms if t.weights.numel()), default=1.0)
            terms = tuple(t.cut(0.05 * torch.finfo(theta.dtype).eps * size) for t in terms)
            last = max((k for k, t in enumerate(terms) if t.weights.numel()), default=0)
            terms = terms[: last + 1]
        twice = 2.0 - theta * (4.0 / self.top)
        free = not (torch.is_grad_enabled() and any(t.requires_grad for t in (theta, at.first, at.second)))
        later, latest = torch.zeros_like(theta), torch.zeros_like(theta)
        for term in reversed(terms[1:]):
            c = term(at.first, at.second, at.outer)
            if free:
                later, latest = latest.neg_().addcmul_(twice, later).add_(c), later
            else:
                later, latest = twice * later - latest + c, later
        return twice * later / 2.0 - latest + terms[0](at.first, at.second, at.outer)

    def _spread(self, theta: Tensor, at: _Places) -> Tensor:
        return theta.expand(torch.broadcast_shapes(theta.shape, at.apart.shape))

    def pair(self, theta: Tensor, q1: Tensor | float, q2: Tensor | float) -> tuple[Tensor, Tensor]:
        """Deficit and surplus from the table."""
        at = self._places(theta, q1, q2)
        theta = self._spread(theta, at)
        folded = fold(theta, self.parity)
        turned = 2.0 * torch.sin(folded / 2.0) ** 2 * self._series(self.means, folded, at)
        scaled = at.apart**2 * self.apart(at.first, at.second, at.outer).clamp(min=0)
        deficit, surplus = unfold(theta, scaled + turned, 2.0, self.parity)
        return deficit * at.roots, surplus * at.roots

    def slope(self, theta: Tensor, q1: Tensor | float, q2: Tensor | float) -> Tensor:
        """From the table."""
        at = self._places(theta, q1, q2)
        theta = self._spread(theta, at)
        value = self._series(self.slopes, fold(theta, self.parity), at)
        value = value * at.roots / (torch.sqrt(like(q1, theta)) * torch.sqrt(like(q2, theta)))
        return torch.where(theta > math.pi / 2, -value, value) if self.parity == "even" else value
