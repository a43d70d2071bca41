"""Random networks with a norm on every path, and attacks that try to leave a certificate's bounds."""

from __future__ import annotations

import random

import torch
from torch import Tensor, nn

ACTIVATIONS = {
    "relu": nn.ReLU,
    "leaky": lambda: nn.LeakyReLU(0.1),
    "gelu": nn.GELU,
    "gelu_tanh": lambda: nn.GELU(approximate="tanh"),
    "silu": nn.SiLU,
    "mish": nn.Mish,
    "softplus": nn.Softplus,
    "elu": nn.ELU,
    "selu": nn.SELU,
    "celu": nn.CELU,
    "tanh": nn.Tanh,
    "sigmoid": nn.Sigmoid,
    "hardtanh": nn.Hardtanh,
    "hardswish": nn.Hardswish,
    "softsign": nn.Softsign,
}


class Rms(nn.Module):
    """RMSNorm written by hand."""

    def __init__(self, width: int, norm_eps: float = 1e-6) -> None:
        super().__init__()
        self.weight, self.norm_eps = nn.Parameter(torch.ones(width)), norm_eps

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.norm_eps) * self.weight


class Residual(nn.Module):
    """x + f(x)."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        return x + self.inner(x)


def _norm(kind: str, width: int) -> nn.Module:
    if kind == "rms":
        return Rms(width)
    if kind == "group":
        return nn.GroupNorm(4 if width % 4 == 0 else 1, width)
    return nn.LayerNorm(width, elementwise_affine=kind != "plain", eps=1e-12 if kind == "sharp" else 1e-5)


def network(seed: int, largest: int = 512, deepest: int = 6) -> tuple[nn.Module, int, str]:
    """(model in float64, input dimension, what it is)."""
    rng = random.Random(seed)
    torch.manual_seed(seed)
    dim = rng.choice([1, 1, 2, 3, 5, 9, 17, 64])
    width = rng.choice([w for w in (8, 16, 32, 64, 128, 512) if w <= largest])
    depth = rng.randint(1, deepest if width <= 128 else 2)
    norm = rng.choice(["layer", "layer", "rms", "group", "plain", "sharp"])
    name = rng.choice(list(ACTIVATIONS))
    where = rng.choice(["first", "every", "last"])
    outputs = rng.choice([1, 1, 1, 3])
    layers: list[nn.Module] = []
    size = dim
    for i in range(depth):
        linear = nn.Linear(size, width)
        size = width
        normed = where == "every" or (where == "first" and i == 0) or (where == "last" and i == depth - 1)
        act = ACTIVATIONS[name]()
        if i > 0 and not normed and rng.random() < 0.3 and where != "last":
            layers.append(Residual(nn.Sequential(linear, act)))
        else:
            layers += [linear, *([_norm(norm, width)] if normed else []), act]
    layers.append(nn.Linear(size, outputs))
    model = nn.Sequential(*layers)
    with torch.no_grad():
        for p in model.parameters():
            if p.ndim == 1:
                p.add_(0.3 * torch.randn_like(p))
    if rng.random() < 0.5:
        _train(model, dim, outputs)
    return (
        model.double().eval(),
        dim,
        f"{seed}: dim {dim} width {width} depth {depth} {norm} {where} {name} → {outputs}",
    )


def _train(model: nn.Module, dim: int, outputs: int) -> None:
    x = 4 * torch.rand(64, dim) - 2
    y = torch.sin(2 * x.sum(-1, keepdim=True)).expand(-1, outputs)
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    for _ in range(40):
        optimizer.zero_grad()
        ((model(x) - y) ** 2).mean().backward()
        optimizer.step()


def attack(model: nn.Module, dim: int, seed: int, steps: int = 60) -> tuple[Tensor, Tensor]:
    """(least, greatest) of every output over samples, corners, far points, the horizon and gradient ascent."""
    generator = torch.Generator().manual_seed(seed)
    u = nn.functional.normalize(torch.randn(300, dim, generator=generator, dtype=torch.float64), dim=-1)
    radii = 10 ** torch.linspace(-3, 9, 25, dtype=torch.float64)
    corners = torch.sign(torch.randn(200, dim, generator=generator, dtype=torch.float64))
    points = torch.cat(
        [
            (u[:, None] * radii[None, :, None]).reshape(-1, dim),
            *(corners * s for s in (1e-6, 0.5, 1.0, 3.0, 1e6)),
            torch.zeros(1, dim, dtype=torch.float64),
            *(torch.eye(dim, dtype=torch.float64) * s for s in (1.0, -1.0, 1e6, -1e6)),
        ]
    )
    with torch.no_grad():
        values = model(points)
    low, high = values.amin(0), values.amax(0)
    for sign in (1.0, -1.0):
        start = points[(sign * values).topk(20, dim=0).indices.reshape(-1)].clone()
        x, log_radius = start, start.norm(dim=-1, keepdim=True).clamp_min(1e-9).log()
        direction = start / log_radius.exp()
        for step in range(steps):
            direction = direction.detach().requires_grad_(True)
            log_radius = log_radius.detach().requires_grad_(True)
            x = nn.functional.normalize(direction, dim=-1) * log_radius.exp()
            y = model(x)
            low, high = torch.minimum(low, y.detach().amin(0)), torch.maximum(high, y.detach().amax(0))
            g, h = torch.autograd.grad((sign * y).sum(), (direction, log_radius))
            size = 0.2 * 0.93**step
            direction = direction + size * g / g.norm(dim=-1, keepdim=True).clamp_min(1e-300)
            log_radius = (log_radius + 2 * size * torch.sign(h)).clamp(-12, 20)
    return low, high
