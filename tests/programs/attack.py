"""Attacks on bounds: what a program attains near, far, at corners and by gradient ascent; mpmath decides."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from programs.exact import Exact, array, mp
from programs.generator import Source

__all__ = ["Target", "attack", "rays"]

NEAR, FAR = -3.0, 12.0
"""Decimal exponents of ‖x‖."""


@dataclass(eq=False)
class Target:
    """A program as a function of one flat vector, in float64 and exactly."""

    source: Source
    model: nn.Module
    """In float64 throughout: casts to fewer digits are left out, bounds speak of real numbers."""

    def __post_init__(self) -> None:
        self.sizes = [math.prod(s) for s in self.source.shapes]
        self._exact: Exact | None = None

    @classmethod
    def of(cls, source: Source) -> Target:
        """From a source; its weights are those of the program with its casts, which may have been trained."""
        model = source.exactly().build()
        model.load_state_dict(source.build().state_dict())
        return cls(source, model)

    def inputs(self, flat: Tensor) -> tuple[Tensor, ...]:
        """Rows of all inputs together, as the model takes them."""
        pieces = flat.split(self.sizes, -1)
        return tuple(p.reshape(-1, *s) for p, s in zip(pieces, self.source.shapes, strict=True))

    def __call__(self, flat: Tensor) -> Tensor:
        """Every row's outputs, (rows, outputs)."""
        if self.source.single_row:
            return torch.cat([self.model(*self.inputs(row[None])).reshape(1, -1) for row in flat])
        return self.model(*self.inputs(flat)).reshape(len(flat), -1)

    def exactly(self, flat: Any) -> list[Any] | None:
        """One row in mpmath: a tensor, or a tensor times a number given as a pair (unit vector, radius)."""
        if self._exact is None:
            self._exact = Exact(self.model, self.source.inputs)
        if isinstance(flat, tuple):
            direction, radius = flat
            arrays = [array(t) * mp.mpf(radius) for t in self.inputs(direction[None])]
            return self._exact(*arrays)
        return self._exact(*self.inputs(flat[None]))


def rays(size: int, generator: torch.Generator, count: int = 40) -> Tensor:
    """Unit directions: random, sign patterns, axes."""
    eye = torch.eye(size, dtype=torch.float64)
    drawn = torch.randn(count, size, generator=generator, dtype=torch.float64)
    flat = torch.cat([drawn, torch.sign(drawn[: count // 2] * drawn[count // 2 :][: count // 2]), eye, -eye])
    return flat / flat.norm(dim=-1, keepdim=True).clamp_min(1e-300)


def attack(
    target: Target, seed: int, *, samples: int = 3000, steps: int = 60
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """(least, greatest, points of the least, points of the greatest) of every output that evaluations met."""
    generator = torch.Generator().manual_seed(seed)
    size = sum(target.sizes)
    if target.source.single_row:
        samples, steps = 200, 0
    u = rays(size, generator, max(20, samples // 25))
    radii = 10 ** torch.linspace(NEAR, FAR, 16, dtype=torch.float64)
    anywhere = torch.randn(samples, size, generator=generator, dtype=torch.float64)
    scales = 10 ** (8 * torch.rand(samples, 1, generator=generator, dtype=torch.float64) - 3)
    mixed = 10 ** (8 * torch.rand(samples // 4, size, generator=generator, dtype=torch.float64) - 4)
    points = torch.cat(
        [
            (u[:, None] * radii[None, :, None]).reshape(-1, size)[: 2 * samples],
            anywhere * scales,
            anywhere[: len(mixed)].sign() * mixed,
            torch.zeros(1, size, dtype=torch.float64),
        ]
    )
    with torch.no_grad():
        values = target(points)
    tops = [_Best(values.shape[1], size), _Best(values.shape[1], size)]
    for top, sign in zip(tops, (1.0, -1.0), strict=True):
        top.see(points, sign * values)
        if steps:
            _climb(target, points, sign, values, top, steps)
    return -tops[1].value, tops[0].value, tops[1].point, tops[0].point


class _Best:
    """The greatest value of every output, and where; what is not finite does not count."""

    def __init__(self, outputs: int, size: int) -> None:
        self.value = torch.full((outputs,), -math.inf, dtype=torch.float64)
        self.point = torch.zeros(outputs, size, dtype=torch.float64)

    def see(self, points: Tensor, values: Tensor) -> None:
        best, place = values.nan_to_num(-math.inf, -math.inf, -math.inf).max(0)
        better = best > self.value
        self.value = torch.where(better, best, self.value)
        self.point = torch.where(better[:, None], points[place], self.point)


def _climb(target: Target, points: Tensor, sign: float, values: Tensor, top: _Best, steps: int) -> None:
    """Adam from the best samples of every output, once in x and once in (direction, log radius)."""
    worth = (sign * values).nan_to_num(-math.inf, -math.inf, -math.inf)
    outputs = worth.shape[1]
    starts = points[worth.topk(min(12, len(points)), 0).indices.T.reshape(-1)]
    own = torch.arange(outputs).repeat_interleave(len(starts) // outputs)
    for polar in (False, True):
        radius = starts.norm(dim=-1, keepdim=True).clamp_min(1e-9)
        z = torch.cat([starts / radius, radius.log()], -1) if polar else starts / radius
        z = z.clone().requires_grad_(True)
        optimizer = torch.optim.Adam([z], lr=0.05)
        for step in range(steps):
            x = (
                torch.nn.functional.normalize(z[:, :-1], dim=-1) * z[:, -1:].clamp(-12, 26).exp()
                if polar
                else z * radius
            )
            try:
                y = sign * target(x)
                top.see(x.detach(), y.detach())
                loss = -y.gather(1, own[:, None]).nan_to_num(0.0, 0.0, 0.0).sum()
                if not loss.requires_grad:
                    return
                optimizer.zero_grad()
                loss.backward()
            except RuntimeError:  # floor division has no derivative
                return
            if z.grad is not None:
                size = z.grad.norm(dim=-1, keepdim=True).clamp_min(1e-300)
                z.grad = (z.grad / size).nan_to_num(0.0, 0.0, 0.0)
            for group in optimizer.param_groups:
                group["lr"] = 0.05 * 0.95**step
            optimizer.step()
