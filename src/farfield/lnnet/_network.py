"""Linear maps and LayerNorm of width three, as a module."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from farfield._typing import Float
from farfield.lnnet._plan import Numbers, Plan, float_numbers

__all__ = ["LNNet", "maps"]

_LIFT = 1e6
"""What a layer's smallest vector is scaled to before the norm: its ε of 1e-5 then changes less than rounding."""

Matrix = list[list[Any]]


def maps(
    plan: Plan, numbers: Numbers = float_numbers, *, lift: Any = _LIFT
) -> list[tuple[Matrix, list[Any]]]:
    """Weights and biases of the linear maps of a plan, the readout last, in the plan's own numbers.

    The columns of E, (1, −1, 0)/√2 and (1, 1, −2)/√6, span the vectors without a mean, and LayerNorm sends E v to
    √3 E v/|v|. Vectors are at least ``lift`` long before it: ε then moves a point by 1.5e-5/lift² of its place.
    """
    one = plan.folds[0].height * 0 + 1
    root2, root3, root6 = (numbers.sqrt(k * one) for k in (2, 3, 6))
    along, up = (one / root2, -one / root2, one * 0), (one / root6, one / root6, -2 * one / root6)
    row: list[Any] = [one * float(w) for w in plan.weight]
    bias: Any = one * plan.bias
    result = []
    for layer in plan.folds:
        # A power of two, which rounds nothing.
        size = (2 * one) ** numbers.magnitude(lift / layer.height)
        weights = [[size * e * v for v in row] for e in along]
        shift = [
            size * (e * (bias - layer.center) + g * layer.height) for e, g in zip(along, up, strict=True)
        ]
        result.append((weights, shift))
        row = [(layer.cosine * e + layer.sine * g) / root3 for e, g in zip(along, up, strict=True)]
        bias = one * 0
    # Of the lines k t − Σ_{j ≤ k} b_j, the k-th is the highest between the thresholds b_k and b_{k+1}.
    runs = len(plan.classes)
    readout: list[tuple[list[Any], Any]] = []
    total = one * 0
    for k in range(runs):
        if k:
            total = total - plan.thresholds[k - 1]
        slope = k - (runs - 1) / 2
        readout.append(([slope * v for v in row], total))
    place = {c: k for k, c in enumerate(plan.classes)}
    ordered = [readout[place[c]] for c in sorted(place)]
    result.append(([w for w, _ in ordered], [b for _, b in ordered]))
    return result


class LNNet(nn.Module):
    """A classifier of linear maps and LayerNorm alone, three neurons a layer; :func:`construct` builds it.

    ``Linear(d, 3), LayerNorm(3), Linear(3, 3), LayerNorm(3), …, Linear(3, classes)``, with torch's own modules and
    torch's ε = 1e-5, which scaled weights make smaller than rounding. It is an ordinary module: it can be trained,
    exported, audited.

    Parameters
    ----------
    layers
        Weights and biases of the linear maps, the readout last.
    labels
        The label of each output, increasing.
    dtype
        Of the weights.

    Attributes
    ----------
    depth
        LayerNorm layers.
    labels
        The label of each output.
    margin
        The smallest gap between points of different labels on the line that the readout sees, which lies between −1
        and 1.
    precision
        Decimal digits of arithmetic that it takes, estimated: rounding errors to first order, as they are in the
        arithmetic it was built in. With far fewer digits the neglected terms count; of 210 networks 13, all with 50
        points or more, needed up to four digits more. :func:`smallest_digits` measures it, and did for
        networks from exact arithmetic.
    rule
        The rule it was built by.
    """

    labels: Tensor

    def __init__(
        self, layers: list[tuple[Matrix, list[Any]]], labels: Tensor, *, dtype: torch.dtype = torch.float64
    ) -> None:
        super().__init__()
        self.register_buffer("labels", labels)
        body: list[nn.Module] = []
        for weights, bias in layers[:-1]:
            body += [_linear(weights, bias, dtype), nn.LayerNorm(3, elementwise_affine=False)]
        self.body = nn.Sequential(*body)
        self.readout = _linear(*layers[-1], dtype)
        self.depth = len(layers) - 1
        self.margin = math.inf
        self.precision = 0
        self.rule = ""

    def forward(self, x: Float[Tensor, "n d"]) -> Float[Tensor, "n classes"]:
        """A score for every label; the highest counts. x is taken in the weights' precision."""
        result: Tensor = self.readout(self.body(x.to(self.readout.weight.dtype)))
        return result

    @torch.no_grad()
    def predict(self, x: Float[Tensor, "n d"]) -> Tensor:
        """The label of every point, (n,)."""
        return self.labels[self(x).argmax(-1)]

    @torch.no_grad()
    def circles(self, x: Float[Tensor, "n d"]) -> Float[Tensor, "depth n 2"]:
        """Where every point lies on the unit circle after each LayerNorm."""
        y = x.to(self.readout.weight.dtype)
        basis = _basis(y)
        seen = []
        for module in self.body:
            y = module(y)
            if isinstance(module, nn.LayerNorm):
                seen.append(y @ basis / math.sqrt(3.0))
        return torch.stack(seen)

    @torch.no_grad()
    def lines(self, x: Float[Tensor, "n d"]) -> Float[Tensor, "layers n"]:
        """Where every point lies on the line: as projected (from −1 to 1), then as read from each circle."""
        circles = self.circles(x)
        linear = [m for m in self.body if isinstance(m, nn.Linear)]
        readings = []
        basis, tiny = _basis(circles), torch.finfo(circles.dtype).tiny
        # The weights of a map are a multiple of the direction it reads along; of the readout, its last row is.
        for k, circle in enumerate(circles):
            weights = linear[k + 1].weight if k + 1 < len(linear) else self.readout.weight
            direction = weights[weights.abs().sum(1).argmax()] @ basis
            sign = direction[1].sign() if direction[1] != 0 else direction[0].sign()
            size = direction.norm()
            readings.append(circle @ (direction * (sign if size > 0 else 1.0) / size.clamp(min=tiny)))
        first = linear[0]
        row = first.weight[0] / first.weight[0].abs().sum().clamp(min=tiny)
        t = x.to(row.dtype) @ row
        span = (t.max() - t.min()).clamp(min=tiny)
        return torch.stack([2 * (t - t.min()) / span - 1, *readings])

    def extra_repr(self) -> str:
        """What print shows."""
        return f"depth={self.depth}, margin={self.margin:.3g}, precision={self.precision}, rule={self.rule!r}"


def _basis(like: Tensor) -> Tensor:
    columns = [
        [1 / math.sqrt(2), 1 / math.sqrt(6)],
        [-1 / math.sqrt(2), 1 / math.sqrt(6)],
        [0.0, -2 / math.sqrt(6)],
    ]
    return torch.tensor(columns, dtype=like.dtype, device=like.device)


def _linear(weights: Matrix, bias: list[Any], dtype: torch.dtype) -> nn.Linear:
    # Without torch's own initialization, which draws from the global generator.
    linear: nn.Linear = nn.utils.skip_init(nn.Linear, len(weights[0]), len(weights), dtype=dtype)
    with torch.no_grad():
        linear.weight.copy_(torch.tensor([[float(v) for v in row] for row in weights], dtype=torch.float64))
        linear.bias.copy_(torch.tensor([float(v) for v in bias], dtype=torch.float64))
    return linear
