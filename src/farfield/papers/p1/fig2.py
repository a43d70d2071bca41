"""Heat maps of the tangent kernel of infinite width, without and with LayerNorm.

Run: ``farfield reproduce p1.fig2``
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from farfield.kernels import NetworkKernel, mlp
from farfield.papers._curves import digits, exponent
from farfield.papers._experiment import ClaimVerdict, Experiment, ExperimentResult, Progress
from farfield.report import Figure, Heatmap, Panel, Series, Table

_ROUNDING = 1e-12
"""Relative; the kernels are right to a few 1e-13."""


@dataclass(frozen=True)
class _KernelSample:
    """One network's tangent kernel where the figure looks at it."""

    name: str
    kernel: NetworkKernel
    grid: Tensor
    """The square's coordinates, (points, 1)."""
    square: Tensor
    """Θ on the square, (points, points)."""
    radii: Tensor
    diagonal: Tensor
    """Θ(r, r) for the radii."""
    ray: Tensor
    """Θ(±r, x′) for the radii and the square's coordinates, (2, radii, points)."""
    with_one: Tensor
    """Θ(r, 1) for the radii."""

    @property
    def ceiling(self) -> float:
        return self.kernel.sup_diagonal()


def _sample(name: str, kernel: NetworkKernel, grid: Tensor, radii: Tensor) -> _KernelSample:
    r = radii[:, None]
    ray = torch.stack([kernel.ntk(r, grid), kernel.ntk(-r, grid)])
    one = torch.ones(1, 1, dtype=torch.float64)
    with_one = kernel.ntk(r, one)[:, 0]
    return _KernelSample(name, kernel, grid, kernel.ntk(grid), radii, kernel.diagonal(r), ray, with_one)


def run(
    *,
    progress: Progress,
    seed: int,
    networks: Mapping[str, str | Sequence[int] | None],
    activation: str,
    depth: int,
    bias_var: float,
    half_width: float,
    points: int,
    farthest: float,
) -> ExperimentResult:
    """Θ on [−half_width, half_width]², and along rays as far as ``farthest``; the seed plays no part."""
    grid = torch.linspace(-half_width, half_width, points, dtype=torch.float64)[:, None]
    radii = torch.logspace(-2, math.log10(farthest), 97, dtype=torch.float64)
    samples = []
    for k, (name, where) in enumerate(networks.items()):
        kernel = mlp(depth=depth, activation=activation, layer_norm=where, bias_var=bias_var)  # type: ignore[arg-type]
        samples.append(_sample(name, kernel, grid, radii))
        progress(k + 1, len(networks))
    verdicts = [v for s in samples for v in (_bounded(s) if math.isfinite(s.ceiling) else _unbounded(s))]
    caption = (
        f"Θ(x, x′) of a network of infinite width with {depth} hidden layers, {activation}, σ_w² = 1 on "
        f"activations of unit mean square, σ_b² = {bias_var:g}, inputs in one dimension. C is the supremum of "
        "Θ(x, x); panels with one share their color scale."
    )
    panels: tuple[Panel | Heatmap, ...] = (
        *_maps(samples),
        _along(samples, "with itself", "Θ(x, x)", [s.diagonal for s in samples]),
        _along(samples, "with x′ = 1", "Θ(x, 1)", [s.with_one for s in samples]),
    )
    figure = Figure("Infinite-width NTK, without and with LayerNorm", panels, caption, columns=2)
    return ExperimentResult(
        tuple(verdicts), {s.name: _numbers(s) for s in samples}, figure, _table(samples, farthest)
    )


# ------------------------------------------------------------------ claims


def _unbounded(s: _KernelSample) -> list[ClaimVerdict]:
    far = s.radii >= 1e3
    power = exponent(s.radii[far], s.diagonal[far])
    ends = torch.tensor([[1.0], [-1.0]], dtype=torch.float64)
    slope = s.kernel.slope(ends, s.grid)
    last = float(s.radii[-1])
    error = float((s.ray[:, -1] / last - slope).abs().max() / slope.abs().max())
    return [
        ClaimVerdict(
            f"{s.name}: Θ(x, x) grows without limit, like x²",
            math.isinf(s.ceiling) and abs(power - 2.0) < 1e-3,
            f"Θ(x, x) = {float(s.diagonal[-1]):.4g} at x = {last:g}; exponent {power:.6f} from x = 10³ on",
        ),
        ClaimVerdict(
            f"{s.name}: for fixed x′, Θ(x, x′) grows linearly in x, with the slope the recursion at infinity gives",
            error < 1e-3,
            f"|Θ(±x, x′)/x − slope| at most {error:.1e} of the largest slope, at x = {last:g} for {len(s.grid)} x′",
        ),
    ]


def _bounded(s: _KernelSample) -> list[ClaimVerdict]:
    largest = max(float(t.abs().max()) for t in (s.square, s.diagonal, s.ray))
    last = float(s.radii[-1])
    gap = abs(float(s.diagonal[-1]) / s.ceiling - 1.0)
    lowered = float((s.diagonal[1:] - s.diagonal[:-1]).min())
    from_here = int((s.radii < 1e3).sum())
    moved = float((s.ray[:, from_here:] - s.ray[:, from_here : from_here + 1]).abs().max())
    return [
        ClaimVerdict(
            f"{s.name}: |Θ| ≤ C = {s.ceiling:.6g} on the square and as far as {last:g}",
            largest <= s.ceiling * (1 + _ROUNDING),
            f"largest {largest:.12g}, C − largest = {s.ceiling - largest:.1e}",
        ),
        ClaimVerdict(
            f"{s.name}: Θ(x, x) → C, never falling as x grows",
            gap < 1e-9 and lowered > -_ROUNDING * s.ceiling,
            f"Θ(x, x)/C − 1 = {float(s.diagonal[0]) / s.ceiling - 1:.1e} at x = {float(s.radii[0]):g}, "
            f"{float(s.diagonal[-1]) / s.ceiling - 1:.1e} at x = {last:g}",
        ),
        ClaimVerdict(
            f"{s.name}: far away Θ(x, x′) depends on the sign of x alone: it moves by less than C/1000 beyond 10³",
            moved < 1e-3 * s.ceiling,
            f"by at most {moved / s.ceiling:.1e}·C from x = ±10³ to ±{last:g}, for {len(s.grid)} x′",
        ),
    ]


# ------------------------------------------------------------------ what is shown


def _maps(samples: Sequence[_KernelSample]) -> list[Heatmap]:
    bounded = [s.ceiling for s in samples if math.isfinite(s.ceiling)]
    top = max(bounded, default=1.0)
    lowest = min((float(s.square.min()) for s in samples if math.isfinite(s.ceiling)), default=0.0)
    return [
        Heatmap(
            s.name if math.isinf(s.ceiling) else f"{s.name}, C = {s.ceiling:.5g}", "x", "x′",
            digits(s.grid[:, 0]), digits(s.grid[:, 0]), tuple(digits(row) for row in s.square),
            value_label="Θ(x, x′)",
            value_range=(min(lowest, 0.0), top) if math.isfinite(s.ceiling) else None,
        )
        for s in samples
    ]  # fmt: skip


def _along(samples: Sequence[_KernelSample], title: str, y_label: str, values: Sequence[Tensor]) -> Panel:
    series = [
        Series(s.name, digits(s.radii), digits(own), style=_style(k), color=k)
        for k, (s, own) in enumerate(zip(samples, values, strict=True))
    ]
    return Panel(title, "x", y_label, tuple(series), x_scale="log", y_scale="log")


def _style(k: int) -> Any:
    """Curves that coincide still show."""
    return ("line", "line", "dashed", "dotted")[k % 4]


def _numbers(s: _KernelSample) -> dict[str, Any]:
    return {
        "sup_diagonal": s.ceiling,
        "radii": s.radii.tolist(),
        "diagonal": s.diagonal.tolist(),
        "square_range": [float(s.square.min()), float(s.square.max())],
    }


def _table(samples: Sequence[_KernelSample], farthest: float) -> Table:
    pairs = [
        (0.0, 0.0),
        (1.0, 1.0),
        (25.0, 25.0),
        (25.0, -25.0),
        (farthest, farthest),
        (farthest, -farthest),
        (farthest, 1.0),
    ]
    rows = []
    for s in samples:
        values = [
            float(
                s.kernel.ntk(
                    torch.tensor([[a]], dtype=torch.float64), torch.tensor([[b]], dtype=torch.float64)
                )
            )
            for a, b in pairs
        ]
        rows.append((s.name, s.ceiling if math.isfinite(s.ceiling) else "∞", *values))
    return Table(("network", "C", *(f"Θ({a:g}, {b:g})" for a, b in pairs)), tuple(rows))


EXPERIMENT = Experiment(
    name="p1.fig2",
    description=(
        "The tangent kernel of an infinitely wide ReLU network on [−25, 25]²: without LayerNorm it grows "
        "without limit, with one LayerNorm anywhere it stays bounded."
    ),
    settings={
        "networks": {
            "no LayerNorm": None, "LayerNorm first": "first",
            "LayerNorm second": "second", "LayerNorm every": "every",
        },
        "activation": "relu", "depth": 2, "bias_var": 0.01, "half_width": 25.0, "points": 81, "farthest": 1e6,
    },
    quick={"points": 11},
    paper_size={"half_width": 25.0},
    run=run,
)  # fmt: skip
