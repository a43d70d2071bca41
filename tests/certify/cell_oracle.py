"""What cells claim, against evaluation of the model itself in float64 at points of the cells. No slack."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from farfield.certify.affine import Network, build_network
from farfield.certify.cells._compile import CellNetwork, compile_cells
from farfield.certify.intervals import Interval, propagate
from farfield.graph import capture

DOUBLE = torch.float64


class L2(nn.Module):
    """x/√(Σx² + ε)."""

    def __init__(self, eps: float) -> None:
        super().__init__()
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.rsqrt((x * x).sum(-1, keepdim=True) + self.eps)


class Residual(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        return x + self.inner(x)


ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {
    "relu": nn.ReLU,
    "leaky": lambda: nn.LeakyReLU(0.2),
    "gelu": nn.GELU,
    "gelu_tanh": lambda: nn.GELU(approximate="tanh"),
    "tanh": nn.Tanh,
    "silu": nn.SiLU,
    "elu": nn.ELU,
    "selu": nn.SELU,
    "softplus": nn.Softplus,
    "sigmoid": nn.Sigmoid,
    "mish": nn.Mish,
    "hardswish": nn.Hardswish,
    "hardtanh": nn.Hardtanh,
    "softsign": nn.Softsign,
}
NORMS: dict[str, Callable[[int, float, bool], nn.Module]] = {
    "layer": lambda w, e, a: nn.LayerNorm(w, eps=e, elementwise_affine=a),
    "rms": lambda w, e, a: nn.RMSNorm(w, eps=e, elementwise_affine=a),
    "group": lambda w, e, a: nn.GroupNorm(2, w, eps=e, affine=a),
    "l2": lambda w, e, a: L2(e),
}
PLACES = ("first", "second", "every", "input")


def random_net(seed: int, dim: int, norm: str, act: str, place: str, eps: float, width: int = 8) -> nn.Module:
    """A small network with weights of several sizes."""
    torch.manual_seed(seed)
    affine, residual = seed % 3 != 0, seed % 2 == 0
    made = NORMS[norm]
    layers: list[nn.Module] = []
    if place == "input":
        layers.append(nn.LayerNorm(dim, eps=eps) if norm == "layer" and dim > 1 else nn.RMSNorm(dim, eps=eps))
    layers.append(nn.Linear(dim, width))
    if place in ("first", "every"):
        layers.append(made(width, eps, affine))
    layers.append(ACTIVATIONS[act]())
    hidden: nn.Module = nn.Linear(width, width)
    if residual:
        hidden = Residual(nn.Sequential(nn.Linear(width, width), ACTIVATIONS[act](), nn.Linear(width, width)))
    layers.append(hidden)
    if place in ("second", "every"):
        layers.append(made(width, eps, affine))
    layers += [ACTIVATIONS[act](), nn.Linear(width, 2)]
    model = nn.Sequential(*layers).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1 + torch.rand(1).double() * 2).add_(0.2 * torch.randn_like(parameter))
    return model.eval().requires_grad_(False)


def network_of(model: nn.Module, dim: int, box: Interval | None = None) -> Network:
    program = capture(model, torch.randn(1, dim, dtype=DOUBLE), dynamic_batch=False)
    boxes = {} if box is None else {program.inputs[0].name: box}
    return build_network(program, program.outputs[0], propagate(program, boxes), boxes)


def samples(dim: int, count: int, generator: torch.Generator) -> Tensor:
    """Inputs of magnitudes 1e-6 to 1e8 in all directions, and far beyond."""
    x = torch.randn(count, dim, generator=generator, dtype=DOUBLE)
    x = x / x.norm(dim=1, keepdim=True).clamp_min(1e-9)
    power = torch.rand(count, 1, generator=generator, dtype=DOUBLE) * 14 - 6
    power[: count // 8] = 40.0
    return x * 10.0**power


def violations(
    model: nn.Module,
    compiled: CellNetwork,
    index: int,
    sign: int,
    generator: torch.Generator,
    cells: int = 64,
    points: int = 96,
) -> list[tuple[float, float]]:
    """(value, bound) of cells of many sizes whose bound the model passes."""
    axes = compiled.axes
    level = torch.randint(0, 26, (cells, axes), generator=generator)
    half = torch.exp2(-level.to(DOUBLE))
    steps = torch.exp2(level.to(DOUBLE))
    at = torch.floor(torch.rand(cells, axes, generator=generator, dtype=DOUBLE) * steps)
    center = -1 + half * (2 * at + 1)
    face = torch.randint(0, compiled.faces, (cells,), generator=generator)
    upper, _, _ = compiled.bound(face, center, half)
    offset = torch.rand(points, cells, axes, generator=generator, dtype=DOUBLE) * 2 - 1
    offset[: points // 3] = torch.sign(offset[: points // 3])
    offset[0] = 0.0
    place = (center + half * offset).reshape(-1, axes)
    u = compiled.points(face.repeat(points), place) @ compiled.matrix.T + compiled.shift
    u = u.reshape(points, cells, -1)
    valid = torch.ones(points, cells, dtype=torch.bool)
    if compiled.homogeneous:
        valid = u[..., -1] > 0
        x = u[..., :-1] / torch.where(valid, u[..., -1], 1.0)[..., None]
    else:
        x = u
    values = sign * model(x.reshape(-1, x.shape[-1])).reshape(points, cells, -1)[..., index]
    values = torch.where(valid & torch.isfinite(values), values, -math.inf)
    best = values.amax(0)
    bad = ~(best <= upper)
    return list(zip(best[bad].tolist(), upper[bad].tolist(), strict=True))


def compiled_of(
    model: nn.Module, dim: int, index: int = 0, sign: int = 1, box: Interval | None = None
) -> CellNetwork:
    return compile_cells(network_of(model, dim, box), index, sign)
