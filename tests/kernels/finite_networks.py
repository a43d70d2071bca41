"""Many finite networks at once: outputs' covariance and tangent kernel of each, by matrix products.

Written for one architecture, Dense–[norm]–φ–[norm] a few times and a readout, in the NTK parametrization with ε = 0.
No code of the kernels is used. The tangent kernel is Σ_l (σ_w² A_l A_lᵀ/fan_in + σ_b²) ⊙ B_l B_lᵀ with A_l the
features below layer l and B_l the derivatives of one output with respect to its pre-activations.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["PHI", "Weights", "draw", "kernels_of"]

Phi = tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor], float]


def _second_of_tanh() -> float:
    """E tanh(u)², by the trapezoidal rule, which is exact to rounding for such functions."""
    u = torch.linspace(-12.0, 12.0, 2401, dtype=torch.float64)
    return float((torch.tanh(u) ** 2 * torch.exp(-u * u / 2)).sum() * 0.01 / (2 * math.pi) ** 0.5)


PHI: dict[str, Phi] = {
    # φ, φ′ and E φ(u)² for a standard normal u
    "relu": (lambda z: z.clamp(min=0), lambda z: (z > 0).to(z.dtype), 0.5),
    "leaky_relu": (
        lambda z: torch.where(z > 0, z, 0.01 * z),
        lambda z: torch.where(z > 0, 1.0, 0.01 * torch.ones_like(z)),
        0.5 * (1 + 1e-4),
    ),
    "gelu": (
        lambda z: 0.5 * z * (1 + torch.erf(z / 2**0.5)),
        lambda z: 0.5 * (1 + torch.erf(z / 2**0.5)) + z * torch.exp(-0.5 * z * z) / (2 * torch.pi) ** 0.5,
        1 / 3 + 1 / (2 * math.pi * 3**0.5),
    ),
    "tanh": (torch.tanh, lambda z: 1 - torch.tanh(z) ** 2, _second_of_tanh()),
    "erf": (torch.erf, lambda z: 2 / torch.pi**0.5 * torch.exp(-z * z), 2 / math.pi * math.asin(2 / 3)),
    "abs": (torch.abs, torch.sign, 1.0),
    "relu_squared": (lambda z: z.clamp(min=0) ** 2, lambda z: 2 * z.clamp(min=0), 1.5),
}


@dataclass(frozen=True)
class Weights:
    """Standard normal entries of many networks: (s, out, in) and (s, out) a layer; readouts (s, m, width)."""

    matrices: tuple[Tensor, ...]
    biases: tuple[Tensor, ...]
    readouts: Tensor


def draw(
    count: int,
    d: int,
    width: int,
    depth: int,
    generator: torch.Generator,
    outputs: int = 4,
    dtype: torch.dtype = torch.float32,
) -> Weights:
    """Fresh weights for ``count`` networks."""

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=dtype)

    sizes = [d] + [width] * depth
    return Weights(
        tuple(normal(count, sizes[k + 1], sizes[k]) for k in range(depth)),
        tuple(normal(count, width) for _ in range(depth)),
        normal(count, outputs, width),
    )


def _norm(z: Tensor) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
    """LayerNorm with ε = 0 over the last axis, and its backward pass for (s, m, n, width)."""
    centered = z - z.mean(-1, keepdim=True)
    size = centered.square().mean(-1, keepdim=True).sqrt()
    y = centered / size

    def back(g: Tensor) -> Tensor:
        own, by = y.unsqueeze(1), size.unsqueeze(1)
        return (g - g.mean(-1, keepdim=True) - own * (g * own).mean(-1, keepdim=True)) / by

    return y, back


def kernels_of(
    weights: Weights,
    x: Tensor,
    phi: Phi,
    norms: frozenset[int],
    order: str,
    weight_var: float,
    bias_var: float,
) -> tuple[Tensor, Tensor]:
    """Covariance given the hidden layers, and tangent kernel averaged over the readouts: (s, n, n) each."""
    value, slope, second = phi
    depth, scale = len(weights.matrices), second**-0.5
    features = x.expand(len(weights.readouts), *x.shape)
    grams: list[Tensor] = []
    backs: list[Callable[[Tensor], Tensor]] = []
    for k, (matrix, bias) in enumerate(zip(weights.matrices, weights.biases, strict=True)):
        fan_in = matrix.shape[-1]
        grams.append(weight_var * features @ features.mT / fan_in + bias_var)
        z = (weight_var / fan_in) ** 0.5 * features @ matrix.mT + bias_var**0.5 * bias.unsqueeze(1)
        steps: list[Callable[[Tensor], Tensor]] = []
        if k in norms and order == "pre":
            z, back = _norm(z)
            steps.append(back)
        local = (scale * slope(z)).unsqueeze(1)
        steps.append(lambda g, local=local: g * local)
        features = scale * value(z)
        if k in norms and order == "post":
            features, back = _norm(features)
            steps.append(back)
        backs.append(lambda g, steps=tuple(steps): _through(steps, g))
    width = features.shape[-1]
    covariance = weight_var * features @ features.mT / width + bias_var
    tangent = covariance.clone()
    s, m, _ = weights.readouts.shape
    g = ((weight_var / width) ** 0.5 * weights.readouts).unsqueeze(2).expand(s, m, x.shape[0], width)
    for k in reversed(range(depth)):
        g = backs[k](g)
        tangent = tangent + grams[k] * (g @ g.mT).mean(1)
        if k:
            matrix = weights.matrices[k]
            g = (weight_var / matrix.shape[-1]) ** 0.5 * (g.flatten(1, 2) @ matrix).unflatten(1, g.shape[1:3])
    return covariance, tangent


def _through(steps: tuple[Callable[[Tensor], Tensor], ...], g: Tensor) -> Tensor:
    for step in reversed(steps):
        g = step(g)
    return g


def sampled_kernels(
    x: Tensor,
    phi: Phi,
    norms: frozenset[int],
    order: str,
    weight_var: float,
    bias_var: float,
    *,
    width: int,
    count: int,
    generator: torch.Generator,
    depth: int = 3,
    outputs: int = 2,
) -> tuple[Tensor, Tensor]:
    """As :func:`kernels_of` in law, at a cost of O(width) instead of O(width²) a network.

    The weights of a layer are never drawn, only what n inputs see of them: Z = ÃW̃ᵀ with independent columns of
    covariance G = ÃÃᵀ, and on the way back W̃ᵀB = Ã⁺ZB + (1 − Ã⁺Ã)ΩB with a fresh Ω, which is the law of W̃ given Z.
    """
    value, slope, second = phi
    scale = second**-0.5

    def rows(gram: Tensor, columns: int) -> Tensor:
        """Independent columns of the given covariance: (s, n, columns)."""
        values, vectors = torch.linalg.eigh(gram.double())
        factor = (vectors * values.clamp(min=0).sqrt().unsqueeze(-2)).to(x.dtype)
        return factor @ torch.randn(count, gram.shape[-1], columns, generator=generator, dtype=x.dtype)

    features = x.expand(count, *x.shape)
    layers = []
    for k in range(depth):
        fan_in = features.shape[-1]
        ones = torch.full((count, len(x), 1), bias_var**0.5, dtype=x.dtype)
        seen = torch.cat([(weight_var / fan_in) ** 0.5 * features, ones], -1)
        gram = seen @ seen.mT
        below = z = rows(gram, width)
        steps: list[Callable[[Tensor], Tensor]] = []
        if k in norms and order == "pre":
            z, back = _norm(z)
            steps.append(back)
        local = (scale * slope(z)).unsqueeze(1)
        steps.append(lambda g, local=local: g * local)
        features = scale * value(z)
        if k in norms and order == "post":
            features, back = _norm(features)
            steps.append(back)
        layers.append((seen, gram, below, tuple(steps)))
    covariance = weight_var * features @ features.mT / width + bias_var
    tangent = covariance.clone()
    readouts = torch.randn(count, outputs, 1, width, generator=generator, dtype=x.dtype)
    g = ((weight_var / width) ** 0.5 * readouts).expand(count, outputs, len(x), width)
    for k in reversed(range(depth)):
        seen, gram, z, steps = layers[k]
        g = _through(steps, g)
        tangent = tangent + gram * (g @ g.mT).mean(1)
        if k:
            flat = g.flatten(1, 2)
            inverse = torch.linalg.pinv(gram.double(), hermitian=True, rtol=1e-10).to(x.dtype)
            fresh = rows(flat @ flat.mT, seen.shape[-1])
            rest = flat @ z.mT - fresh @ seen.mT
            back_to = fresh + rest @ inverse @ seen
            fan_in = seen.shape[-1] - 1
            g = (weight_var / fan_in) ** 0.5 * back_to[..., :fan_in].unflatten(1, g.shape[1:3])
    return covariance, tangent
