r"""E σ′(x)σ′(y) for every pair of a list of variances at once, by quadrature in polar coordinates.

With x = r₁R sin w and y = r₂R sin(w+θ), R the length and w the direction of a standard normal pair, the lines
x = 0 and y = 0, where σ may have a kink, are two directions whatever the variances: the plane falls into four sectors
in each of which everything is smooth. The nodes do not depend on r₁ or r₂, so all pairs come from one
matrix product. Panels shrink towards the ends of a sector, where σ′(rR sin w) bends within w ~ 1/(rR).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from farfield._typing import Float
from farfield.errors import PrecisionError
from farfield.gaussian._activation import Activation
from farfield.gaussian._quadrature import legendre_rule
from farfield.gaussian.angular._series import Parity

__all__ = ["SectorRule", "line_rule"]

_NODES = 16
_CHUNK = 8_000_000  # values of σ′ held at once


def _panels(edges: Tensor) -> tuple[Tensor, Tensor]:
    """Composite Gauss–Legendre nodes and weights between sorted edges."""
    nodes, weights = legendre_rule(_NODES)
    width = (edges[1:] - edges[:-1])[:, None]
    return (edges[:-1, None] + width * nodes).reshape(-1), (width * weights).reshape(-1)


def _graded(end: float, smallest: float) -> Tensor:
    """0, …, end/4, end/2, end, the first step no longer than ``smallest``."""
    steps = max(0, math.ceil(math.log2(end / smallest)))
    return torch.cat(
        [torch.zeros(1, dtype=torch.float64), end * 2.0 ** torch.arange(-steps, 1, dtype=torch.float64)]
    )


def _reach(sigma: Activation, root: float) -> float:
    """How many deviations out σ′(x)σ′(y) and σ(x)σ(y) matter."""
    far = torch.arange(9, 38, dtype=torch.float64)
    x = torch.cat([-far, far]) * root
    near = torch.linspace(-3, 3, 25, dtype=torch.float64) * root
    for f in (sigma.function, sigma.derivative):
        size = float((f(near) ** 2).max())
        outside = (f(x) ** 2).reshape(2, -1).amax(0) * far * torch.exp(-0.5 * far * far)
        violations = torch.nonzero(~(outside <= 1e-18 * size)).flatten()
        if violations.numel():
            far = far[int(violations[-1]) :]
            x = torch.cat([-far, far]) * root
        if not bool(torch.isfinite(outside).all()) or far.numel() < 2:
            raise PrecisionError(
                f"{sigma.name} grows too fast for a Gaussian of variance {root * root:g}. Use smaller variances."
            )
    return float(far[0]) + 1.0


@dataclass(frozen=True)
class SectorRule:
    """The quadrature for one activation and a largest r; ``sharpness`` is how much faster than 1 it may turn."""

    sigma: Activation
    parity: Parity
    largest: float
    reach: float
    sharpness: float

    @classmethod
    def of(cls, sigma: Activation, parity: Parity, largest: float, sharpness: float) -> SectorRule:
        """The rule, once the reach is known."""
        with torch.no_grad():
            return cls(sigma, parity, largest, _reach(sigma, largest), sharpness)

    def _radii(self) -> tuple[Tensor, Tensor]:
        inner = _graded(1.0, min(1.0, 1.0 / (self.largest * self.sharpness)))
        outer = torch.arange(2.0, self.reach + 1.0, dtype=torch.float64)
        return _panels(torch.cat([inner, outer]))

    def _half_sector(self, length: float) -> tuple[Tensor, Tensor, Tensor]:
        """Sin w, sin(length − w) and weights over the half of a sector next to the line x = 0."""
        w, weights = _panels(_graded(length / 2.0, 0.5 / (self.largest * self.sharpness * self.reach)))
        return torch.sin(w), torch.sin(length - w), weights

    @torch.no_grad()
    def slopes(self, roots: Float[Tensor, " b"], theta: Float[Tensor, " k"]) -> Float[Tensor, "k b b"]:
        """E σ′(x)σ′(y) at every angle for every pair of standard deviations."""
        radii, radial = self._radii()
        radial = radial * radii * torch.exp(-0.5 * radii * radii) / (2.0 * math.pi)
        result = torch.zeros(len(theta), len(roots), len(roots), dtype=torch.float64)
        # Where σ′ is even or odd the opposite sector gives the same product.
        signs = (1.0,) if self.parity != "none" else (1.0, -1.0)
        for k, angle in enumerate(theta.tolist()):
            for length, side in ((math.pi - angle, 1.0), (angle, -1.0)):
                first, second, weights = self._half_sector(length)
                for part in torch.arange(len(radii)).split(max(1, _CHUNK // (len(first) * len(roots)))):
                    weight = torch.outer(radial[part], weights).reshape(-1)
                    for sign in signs:
                        x = roots[:, None] * torch.outer(sign * radii[part], first).reshape(-1)
                        y = roots[:, None] * torch.outer(side * sign * radii[part], second).reshape(-1)
                        result[k] += (self.sigma.derivative(x) * weight) @ self.sigma.derivative(y).T
        result *= 1.0 if self.parity == "none" else 2.0
        # The other half of each sector has x and y, and so the two variances, exchanged.
        return result + result.mT


def line_rule(rule: SectorRule) -> tuple[Tensor, Tensor]:
    """Nodes and weights for E f(z), z standard normal, with the same panels on either side of 0."""
    z, weights = rule._radii()
    weights = weights * torch.exp(-0.5 * z * z) / math.sqrt(2.0 * math.pi)
    return torch.cat([z, -z]), weights.repeat(2)
