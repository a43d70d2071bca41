r"""E a(x) b(y) for a correlated Gaussian pair, by nested quadrature split at every kink.

With x = √q₁ u and y = √q₂ (ρu + √(1−ρ²) z), u and z independent and standard normal, the inner integral over
z is split where y meets a kink of b, the outer one over u where x meets a kink of a and, finely, where ρu meets
a kink of b: there the inner integral bends on the scale √(1−ρ²). Panel ends move with (ρ, q₁, q₂) and the nodes
move with the panels, so the result is differentiable by autograd, jumps included, for |ρ| < 1.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from farfield.errors import PrecisionError
from farfield.gaussian._activation import Activation, ScalarMap
from farfield.gaussian._quadrature import adaptive_panels, check_resolved, legendre_rule, rim, standard_edges

__all__ = ["Factor", "derivative_factor", "pair_expectation", "stretch_factor", "value_factor"]

_NODES = 16
_CHUNK = 3_000_000  # points held at once: about 100 MB with temporaries
_MOST = 10 * _CHUNK  # in one entry: about 1 GB
_SHIFT = math.sqrt(2.0) / 10.0
_GRADING = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0)


@dataclass(frozen=True)
class Factor:
    """One factor of the product: an ordinary function, plus point masses at ``atoms`` (position, mass).

    ``size`` stands for |f| where f is a difference whose terms are larger than itself: rounding follows them.
    """

    function: ScalarMap
    kinks: tuple[float, ...]
    atoms: tuple[tuple[float, float], ...] = ()
    size: ScalarMap | None = None


@functools.lru_cache(maxsize=1024)
def value_factor(sigma: Activation) -> Factor:
    """The activation itself."""
    return Factor(sigma.function, sigma.kinks)


@functools.lru_cache(maxsize=1024)
def centered_factor(sigma: Activation, mean: float) -> Factor:
    """The activation less its mean."""
    return Factor(
        lambda x: sigma.function(x) - mean, sigma.kinks, size=lambda x: sigma.function(x).abs() + abs(mean)
    )


@functools.lru_cache(maxsize=1024)
def derivative_factor(sigma: Activation) -> Factor:
    """σ′ as a distribution: a point mass at every jump."""
    return Factor(sigma.derivative, sigma.kinks, sigma.jumps)


@functools.lru_cache(maxsize=1024)
def stretch_factor(sigma: Activation) -> Factor:
    """x·σ′(x): twice its expectation against b, over q, is the derivative in log q."""
    atoms = tuple((k, k * h) for k, h in sigma.jumps if k != 0.0)
    return Factor(lambda x: x * sigma.derivative(x), sigma.kinks, atoms)


@functools.lru_cache(maxsize=1024)
def _partition(factor: Factor, variance: float) -> tuple[tuple[float, ...], float]:
    """Where f bends within a unit panel (points of the x-axis), and how far out it matters (deviations)."""
    root = math.sqrt(variance)
    if root == 0.0:
        return factor.kinks, 9.0

    def weighted(z: Tensor) -> Tensor:
        value = factor.function(root * z)
        return torch.stack([value, value * value]) * torch.exp(-0.5 * z * z)

    def sizes(z: Tensor) -> Tensor:
        value = factor.function(root * z).abs()
        size = factor.size(root * z) if factor.size else value
        return torch.stack([size, value * size]) * torch.exp(-0.5 * z * z)

    with torch.no_grad():
        # Shifted: a kink at 0 that nobody knows of would hide between two panels here, and not in the pair.
        start = standard_edges(weighted, factor.kinks, root, shift=_SHIFT)
        _, error, magnitude, refined, _ = adaptive_panels(weighted, start, size=sizes)
        rim(weighted, start, magnitude, variance)
        check_resolved(error, magnitude, variance, "A factor of E σ(x)σ(y), or its square,")
        far = torch.arange(9, 38, dtype=torch.float64)
        outside = weighted(torch.stack([-far, far])).abs().sum(-2)
        negligible = (outside <= 1e-17 * magnitude[:, None]).all(0)
        finite = torch.isfinite(outside).all(0)
    # The reach must hold from there on, so take the last violation.
    violations = torch.nonzero(~negligible & finite).flatten()
    reach = 9.0 if violations.numel() == 0 else float(far[int(violations[-1])]) + 1.0
    # Panels that were fine as they stood leave no trace: neither the shifted whole numbers nor their middles.
    given = torch.cat(
        [start[(start - _SHIFT - (start - _SHIFT).round()).abs() < 1e-9], (start[1:] + start[:-1]) / 2]
    )
    fine = refined[(refined.abs() < reach) & ~torch.isin(refined, given)]
    interior = sorted({float(e) * root for e in fine} | set(factor.kinks))
    return tuple(interior), reach


def _composite(edges: Tensor, f: Callable[[Tensor], Tensor]) -> Tensor:
    """∫ f over the sorted panel ends in the last axis of ``edges``."""
    nodes, weights = legendre_rule(_NODES)
    width = edges[..., 1:] - edges[..., :-1]
    points = edges[..., :-1, None] + width[..., None] * nodes
    return (f(points) * weights * width[..., None]).sum((-1, -2))


def _inner(b: Factor, mean: Tensor, spread: Tensor, ends: Tensor, reach: float) -> Tensor:
    """E b(mean + spread·z) elementwise; ``ends`` are points of b's axis at which to split."""
    whole = torch.arange(-reach, reach + 1.0, dtype=torch.float64)
    if ends.numel() == 0:  # the same panels for every entry
        nodes, weights = legendre_rule(_NODES)
        z = (whole[:-1, None] + nodes).reshape(-1)
        return b.function(mean[..., None] + spread[..., None] * z) @ (
            weights.repeat(len(whole) - 1) * _density(z)
        )
    safe = spread.clamp(min=1e-150)
    splits = ((ends - mean[..., None]) / safe[..., None]).clamp(-reach, reach)
    edges = torch.cat([whole.expand(*mean.shape, -1), splits], -1).sort(-1).values
    return _composite(
        edges,
        lambda z: b.function(mean[..., None, None] + spread[..., None, None] * z) * torch.exp(-0.5 * z * z),
    ) / math.sqrt(2.0 * math.pi)


def _one_batch(a: Factor, b: Factor, rho: Tensor, across: Tensor, q1: Tensor, q2: Tensor) -> Tensor:
    """All entries of (rho, across, q1, q2), each of shape (p,), at once."""
    root1, root2 = torch.sqrt(q1), torch.sqrt(q2)
    ends_a, reach_a = _partition(a, float(q1.detach().max()))
    ends_b, reach_b = _partition(b, float(q2.detach().max()))
    reach = max(reach_a, reach_b)
    own = torch.tensor(ends_a, dtype=torch.float64)
    other = torch.tensor(ends_b, dtype=torch.float64)
    sharp = torch.tensor(b.kinks, dtype=torch.float64)
    whole = torch.arange(-reach, reach + 1.0, dtype=torch.float64)

    slant = torch.where(rho.abs() < 1e-3, torch.full_like(rho, 1e-3).copysign(rho), rho)[:, None]
    pieces = [whole.expand(len(rho), -1), own / root1[:, None], other / (slant * root2[:, None])]
    if sharp.numel():
        center = sharp / (slant * root2[:, None])
        grades = torch.tensor([s * g for g in _GRADING for s in (-1.0, 1.0)], dtype=torch.float64)
        width = (across[:, None] / slant.abs())[..., None]
        pieces.append((center[..., None] + width * grades).flatten(1))
    edges = torch.cat(pieces, -1).clamp(-reach, reach).sort(-1).values
    wide = (edges[:, 1:] > edges[:, :-1]).any(0)  # many of the graded ends lie beyond the reach
    edges = torch.cat([edges[:, :1], edges[:, 1:][:, wide]], -1)

    def outer(u: Tensor) -> Tensor:
        expand = (slice(None),) + (None,) * (u.dim() - 1)
        mean = root2[expand] * rho[expand] * u
        spread = (root2 * across)[expand].expand_as(u)
        return a.function(root1[expand] * u) * _inner(b, mean, spread, other, reach) * torch.exp(-0.5 * u * u)

    value = _composite(edges, outer) / math.sqrt(2.0 * math.pi)
    # A point mass fixes one of the pair; the other is then Gaussian about ρ times it.
    for position, mass in a.atoms:
        u = position / root1
        value = value + mass * _density(u) / root1 * _inner(b, root2 * rho * u, root2 * across, other, reach)
    for position, mass in b.atoms:
        v = position / root2
        value = value + mass * _density(v) / root2 * _inner(a, root1 * rho * v, root1 * across, own, reach)
    for (at, mass), (at2, mass2) in itertools.product(a.atoms, b.atoms):
        u, v = at / root1, at2 / root2
        value = value + mass * mass2 * _density(u) / (root1 * root2) * _narrow(v - rho * u, across, u.abs())
    return value


def _density(u: Tensor) -> Tensor:
    return torch.exp(-0.5 * u * u) / math.sqrt(2.0 * math.pi)


def _narrow(distance: Tensor, width: Tensor, size: Tensor) -> Tensor:
    """The density of N(0, width²) at ``distance``; at width 0 it is 0, or ∞ where the distance is rounding."""
    spread = torch.where(width > 0, width, 1.0)
    meet = distance.abs() <= 4 * torch.finfo(torch.float64).eps * size
    return torch.where(width > 0, _density(distance / spread) / spread, torch.where(meet, math.inf, 0.0))


def equal_variances(q1: Tensor, q2: Tensor) -> Iterator[tuple[float, float, Tensor]]:
    """Each pair of variances that occurs in two flat tensors, with the places where it does."""
    groups, inverse = torch.unique(torch.stack([q1, q2], -1).detach(), dim=0, return_inverse=True)
    places = torch.argsort(inverse, stable=True).split(torch.bincount(inverse).tolist())
    for (v1, v2), index in zip(groups.tolist(), places, strict=True):
        yield v1, v2, index


def pair_expectation(
    a: Factor, b: Factor, rho: Tensor, q1: Tensor, q2: Tensor, *, across: Tensor | None = None
) -> Tensor:
    """E a(x) b(y), x ~ N(0, q₁), y ~ N(0, q₂), correlation ρ; elementwise over broadcast tensors, float64.

    ``across`` is √(1−ρ²), for a caller who knows it better than ρ does: near ρ = ±1 a rounded ρ has lost it.
    Cost: of the order of 10⁵ evaluations an entry. For many correlations tabulate once
    (:func:`farfield.gaussian.tabulate_dual`).
    """
    if across is None:
        across = torch.sqrt(((1.0 - rho) * (1.0 + rho)).clamp(min=0))
    rho, across, q1, q2 = torch.broadcast_tensors(rho, across, q1, q2)
    shape = rho.shape
    rho, across, q1, q2 = (t.reshape(-1) for t in (rho, across, q1, q2))
    if rho.numel() == 0:
        return torch.zeros(shape, dtype=torch.float64)
    out: list[Tensor] = []
    order: list[Tensor] = []
    # Partitions depend on the variance, so entries go in groups of equal variances.
    for v1, v2, index in equal_variances(q1, q2):
        panels_in = 2 * _partition(b, v2)[1] + len(_partition(b, v2)[0]) + 1
        panels_out = 2 * _partition(a, v1)[1] + len(_partition(a, v1)[0]) + 14 * len(b.kinks) + panels_in
        points = int(panels_in * panels_out) * _NODES * _NODES
        if points > _MOST:
            raise PrecisionError(
                f"E σ(x)σ(y) at variances {v1:g} and {v2:g} needs {points:.1e} points an entry: the function "
                "turns too often under so wide a Gaussian. Use a smaller variance."
            )
        for part in index.split(max(1, _CHUNK // points)):
            out.append(_one_batch(a, b, rho[part], across[part], q1[part], q2[part]))
            order.append(part)
    restored = torch.argsort(torch.cat(order))
    return torch.cat(out)[restored].reshape(shape)
