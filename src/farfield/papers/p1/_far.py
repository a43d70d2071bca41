"""How trained networks behave far away: certificates held against rays, slopes against the horizon."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from farfield.certify import certify
from farfield.growth import horizon
from farfield.learn import predict_all

__all__ = ["Bounds", "Slopes", "bounds", "outputs_along", "slopes", "unit_directions"]


def unit_directions(count: int, dimension: int, seed: int) -> Tensor:
    """Uniform on the sphere, (count, dimension), float64."""
    drawn = torch.randn(count, dimension, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return torch.nn.functional.normalize(drawn)


def outputs_along(models: Sequence[nn.Module], directions: Tensor, radii: Tensor) -> Tensor:
    """f(λu) for every model, radius and direction, (models, radii, directions)."""
    points = (radii[:, None, None] * directions).flatten(0, 1)
    return predict_all(models, points).reshape(len(models), len(radii), len(directions))


@dataclass(frozen=True)
class Bounds:
    """Certified lower and upper bounds of the networks' outputs for every input, (networks,), and their methods."""

    lower: Tensor
    upper: Tensor
    methods: tuple[str, ...]

    def excess(self, outputs: Tensor) -> Tensor:
        """By how much outputs, (networks, …), leave the bounds at worst, (networks,); negative inside."""
        flat = outputs.flatten(1)
        return torch.maximum(flat.amax(1) - self.upper, self.lower - flat.amin(1))


def bounds(
    models: Sequence[nn.Module], inputs: int, *, time_budget: float, done: Callable[[], None]
) -> Bounds:
    """A certificate of every model, each searched for so many seconds; 0: intervals only, the same every time."""
    made = []
    for model in models:
        made.append(certify(model, torch.zeros(1, inputs, dtype=torch.float64), time_budget=time_budget))
        done()
    return Bounds(
        torch.stack([certificate.lower.flatten()[0] for certificate in made]),
        torch.stack([certificate.upper.flatten()[0] for certificate in made]),
        tuple(certificate.method for certificate in made),
    )


@dataclass(frozen=True)
class Slopes:
    """lim f(λu)/λ as the horizon says, and (f(2λu) − f(λu))/λ as measured far out; both (networks, directions).

    A direction that rounding cannot decide is NaN in ``exact``.
    """

    exact: Tensor
    measured: Tensor

    @property
    def degenerate(self) -> int:
        """How many directions could not be decided."""
        return int(self.exact.isnan().sum())

    @property
    def error(self) -> float:
        """Largest |measured − exact|/|exact| over networks and directions."""
        difference = (self.measured - self.exact).abs()
        relative = torch.where(difference == 0, 0.0, difference / self.exact.abs())
        return float(relative[~self.exact.isnan()].max())


def slopes(
    models: Sequence[nn.Module], directions: Tensor, *, radius: float, done: Callable[[], None]
) -> Slopes:
    """Slopes along every direction, measured between ``radius`` and twice that."""
    exact = []
    for model in models:
        exact.append(horizon(model, directions).slope[:, 0])
        done()
    near, far = outputs_along(
        models, directions, torch.tensor([radius, 2 * radius], dtype=torch.float64)
    ).unbind(1)
    return Slopes(torch.stack(exact), (far - near) / radius)
