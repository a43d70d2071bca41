r"""How large a kernel regression gets anywhere, for few inputs: cells on the sphere of directions.

Behind a norm directly above the first Dense layer the kernel is a function κ of the angle between unit vectors
u(x) = (√(σ_w²/d) x, σ_b)/length, so f = Σ α_j κ(θ_j) is a function on a half-sphere; its rim is infinity. In a cell
of angular radius δ about c, along every geodesic,

.. math:: |f| \le |f(c)| + \delta\,|\nabla f(c)| + \tfrac{\delta^2}2 \sum_j |\alpha_j|\, h_j, \qquad
          h_j = \max(|\kappa''|, |\kappa'|\,|\cot\theta|) \text{ over } \theta_j \pm \delta

where terms whose cone at u_j or −u_j lies near the cell are left out of gradient and curvature, and move by at most
δ·|α_j|·sup|κ′|. Cells whose bound is not yet within a percent of the largest value met are divided.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from farfield.gaussian._interpolant import clenshaw
from farfield.kernels import Interpolant, KernelFunction
from farfield.kernels._inputs import angles
from farfield.kernels._table import position

__all__ = ["SphereBound", "on_the_sphere"]

_FEW = 3
"""Most input features: the number of cells grows like a power of them."""
_ENTRIES = 1 << 27
"""Kernel entries that the cells may take."""
_BATCH = 1 << 21
"""Kernel entries at once."""
_CLOSE = 1.005
"""Cells are divided until they are within this factor of the largest value met."""
_CONE = 4.0
"""Terms within this many radii of a cell's center, or of its antipode, are bounded by their slope alone."""


@dataclass(frozen=True)
class SphereBound:
    """What the search has found.

    Parameters
    ----------
    bound
        A number that |f| exceeds at no input, for each output.
    met
        The largest |f| at a cell's center, for each output; for σ_b = 0 or at infinity a limit of values.
    """

    bound: Tensor
    met: Tensor


class _Profile:
    """κ as its table's polynomial, with derivatives and bounds of them over [0, π]."""

    def __init__(self, table: Interpolant) -> None:
        self.strength = table.strength
        series = [table.coefficients[0].detach().cpu().double().numpy()]
        for _ in range(3):
            series.append(np.atleast_1d(np.polynomial.chebyshev.chebder(series[-1])))
        self.series = [torch.from_numpy(np.ascontiguousarray(c)) for c in series]
        # A Chebyshev series is nowhere larger than its coefficients together: the slack between points of a grid.
        sums = [float(np.abs(c).sum()) for c in series]
        first, second, third = self._map_bounds()
        crude2 = sums[2] * first**2 + sums[1] * second
        crude3 = sums[3] * first**3 + 3 * sums[2] * first * second + sums[1] * third
        theta = torch.linspace(0.0, math.pi, 20_001, dtype=torch.float64)
        half = math.pi / 40_000
        _, slope, curve = self(theta)
        self.slope = float(slope.abs().max()) + half * crude2
        self.curve = float(curve.abs().max()) + half * crude3

    def _map_bounds(self) -> tuple[float, float, float]:
        """Largest derivatives of x(θ): all are largest at θ = 0."""
        if self.strength == math.inf:
            return 2 / math.pi, 0.0, 0.0
        a = self.strength
        scale = 2 * (1 + a) / (a * math.pi)
        return scale, 2 * scale / (a * math.pi), 6 * scale / (a * math.pi) ** 2

    def __call__(self, theta: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """κ, κ′, κ″."""
        x = position(theta, self.strength)
        p0, p1, p2 = (clenshaw(c, x) for c in self.series[:3])
        if self.strength == math.inf:
            return p0, p1 * (2 / math.pi), p2 * (4 / math.pi**2)
        a = self.strength
        low = theta / math.pi + a
        first = 2 * (1 + a) * a / (math.pi * low**2)
        return p0, p1 * first, p2 * first**2 - p1 * (2 * first / (math.pi * low))


def on_the_sphere(
    kernel: KernelFunction, x: Tensor, weights: Tensor, spare: Tensor, entries: int = _ENTRIES
) -> SphereBound | None:
    """A bound of |Σ α_j k(·, x_j)| over all inputs, for each column of α; None where the sphere is of no use.

    Parameters
    ----------
    kernel, x, weights
        The kernel, inputs (n, d) and α of shape (n, k).
    spare
        What errors of kernel entries and of sums may add, (k,).
    entries
        Kernel entries to spend; the bound holds however few they are.
    """
    network = kernel.network
    parts = network.parts
    if not (parts.below and parts.direct) or x.shape[1] > _FEW or parts.inputs:
        return None
    table = network._table(kernel.kind, torch.float64)
    if table is None:
        return None
    with torch.no_grad():
        unit, profile = network._rows(x).unit, _Profile(table)
        # Without a bias the last coordinate is 0, and directions fill the sphere of the others.
        if bool((unit[:, -1] == 0).all()):
            unit, half = unit[:, :-1], False
        else:
            half = True
        if unit.shape[1] < 2:
            return None
        return _search(unit, half, weights, spare, profile, entries)


def _search(
    unit: Tensor, half: bool, weights: Tensor, spare: Tensor, profile: _Profile, entries: int
) -> SphereBound:
    n, outputs = weights.shape
    met, done = weights.new_zeros(outputs), weights.new_zeros(outputs)
    size = weights.abs().sum(0)
    faces, corners, width = _faces(unit.shape[1], half)
    spent = 0
    while len(faces):
        above = []
        for f, v in zip(faces.split(max(1, _BATCH // n)), corners.split(max(1, _BATCH // n)), strict=True):
            value, bound = _bounds(_points(f, v), width, unit, weights, size, profile)
            met = torch.maximum(met, value.amax(0))
            above.append(bound)
        spent += len(faces) * n
        bound = torch.cat(above)
        open_ = (bound > _CLOSE * met).any(1)
        if bool((~open_).any()):
            done = torch.maximum(done, bound[~open_].amax(0))
        faces, corners, bound = faces[open_], corners[open_], bound[open_]
        dimension = corners.shape[1]
        if len(faces) * 2**dimension * n + spent > entries:
            if len(faces):
                done = torch.maximum(done, bound.amax(0))
            break
        width /= 2
        shifts = torch.tensor(
            list(itertools.product((-1.0, 1.0), repeat=dimension)), dtype=corners.dtype, device=corners.device
        )
        corners = (corners[:, None] + width * shifts).reshape(-1, dimension)
        faces = faces.repeat_interleave(len(shifts))
        if (
            half
        ):  # the last coordinate is σ_b over a length; after the first division no cell has the rim inside
            upper = (faces == 2 * dimension) | (corners[:, -1] > 0)
            faces, corners = faces[upper], corners[upper]
    return SphereBound((torch.maximum(done, met) + spare) * (1 + 1e-12), met)


def _faces(dimension: int, half: bool) -> tuple[Tensor, Tensor, float]:
    """The faces of a cube, by number, each one cell: its center's coordinates on the face, and half its side.

    Face 2i + (0 or 1) has coordinate i equal to 1 or −1. Of a half-sphere the last coordinate is at least 0.
    """
    count = 2 * dimension - (1 if half else 0)
    centers = torch.zeros(count, dimension - 1, dtype=torch.float64)
    return torch.arange(count), centers, 1.0


def _points(faces: Tensor, on_face: Tensor) -> Tensor:
    """The cells' centers as unit vectors."""
    count, rest = on_face.shape
    points = torch.empty(count, rest + 1, dtype=torch.float64)
    axis, sign = faces // 2, 1.0 - 2.0 * (faces % 2).double()
    columns = torch.arange(rest + 1)
    place = columns[None] != axis[:, None]
    points[place] = on_face.reshape(-1)
    points[~place] = sign
    sizes: Tensor = torch.linalg.vector_norm(points, dim=1, keepdim=True)
    return points / sizes


def _bounds(
    centers: Tensor, width: float, unit: Tensor, weights: Tensor, size: Tensor, profile: _Profile
) -> tuple[Tensor, Tensor]:
    """|f| at the centers and its bounds in the cells, (cells, k) each."""
    # On the cube |v| ≥ 1, and projection to the sphere brings no two points further apart.
    chord = min(width * math.sqrt(centers.shape[1] - 1), 2.0)
    radius = 2 * math.asin(chord / 2) * (1 + 1e-12)
    theta = angles(centers, unit)
    value, slope, _ = profile(theta)
    here = (value @ weights).abs()
    reach = _CONE * radius
    near = (theta < reach) | (theta > math.pi - reach)
    sine = torch.sin(theta)
    scaled = torch.where(near, 0.0, slope / torch.where(near, 1.0, sine))
    clear = torch.where(near, 1.0, torch.minimum(theta, math.pi - theta) - radius)
    curve = torch.where(near, 0.0, torch.clamp(profile.slope / torch.tan(clear), min=profile.curve))
    # Slopes near a cone, curvature of all others.
    moved = (radius * profile.slope) * (near.double() @ weights.abs()) + (radius**2 / 2) * (
        curve @ weights.abs()
    )
    steep = torch.empty_like(here)
    for k in range(weights.shape[1]):
        pull = scaled * weights[:, k]
        gradient = pull @ unit - (pull * torch.cos(theta)).sum(1, keepdim=True) * centers
        steep[:, k] = torch.linalg.vector_norm(gradient, dim=1)
    bound = here + radius * steep + moved
    # The slope alone is better while cells are wide.
    return here, torch.minimum(bound, here + radius * profile.slope * size)
