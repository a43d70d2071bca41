"""Heat maps of empirical tangent kernels, networks of finite width drawn at random, without and with LayerNorm.

Run: ``farfield reproduce p1.fig2_finite``
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from farfield.kernels import NetworkKernel, mlp
from farfield.nn import MLP
from farfield.ntk import empirical_ntk
from farfield.papers._curves import digits, exponent
from farfield.papers._experiment import ClaimVerdict, Experiment, ExperimentResult, Progress
from farfield.report import Figure, Heatmap, Panel, Series, Table

NormPlacement = str | Sequence[int] | None


def network(
    where: NormPlacement, *, width: int, depth: int, activation: str, bias_var: float, seed: int
) -> nn.Module:
    """A network drawn at random in the parametrization of :func:`farfield.kernels.mlp`, one input, one output."""
    return MLP(
        1, 1, width=width, depth=depth, activation=activation,
        norm=None if where is None else "layer", placement="none" if where is None else where,  # type: ignore[arg-type]
        parametrization="ntk", bias_var=bias_var, norm_eps=1e-12,
        generator=torch.Generator().manual_seed(seed), dtype=torch.float64,
    ).eval()  # fmt: skip


@dataclass(frozen=True)
class _FiniteKernels:
    """Kernels of one architecture: of each network drawn, and of infinite width."""

    name: str
    kernel: NetworkKernel
    grid: Tensor
    squares: Tensor
    """Θ on the square, (seeds, points, points)."""
    limit: Tensor
    """The same at infinite width."""
    radii: Tensor
    diagonals: Tensor
    """Θ(r, r), (seeds, radii)."""

    @property
    def ceiling(self) -> float:
        return self.kernel.sup_diagonal()

    @property
    def mean(self) -> Tensor:
        return self.squares.mean(0)

    @property
    def distance(self) -> float:
        """Of the mean from infinite width, relative, in the Frobenius norm."""
        return float((self.mean - self.limit).norm() / self.limit.norm())


def run(
    *,
    progress: Progress,
    seed: int,
    networks: Mapping[str, NormPlacement],
    activation: str,
    depth: int,
    bias_var: float,
    width: int,
    seeds: int,
    half_width: float,
    points: int,
    farthest: float,
) -> ExperimentResult:
    """Θ on [−half_width, half_width]² and on the diagonal up to ``farthest``, of ``seeds`` networks of each kind."""
    grid = torch.linspace(-half_width, half_width, points, dtype=torch.float64)[:, None]
    radii = torch.logspace(-1, math.log10(farthest), 29, dtype=torch.float64)
    shape = {"depth": depth, "activation": activation, "bias_var": bias_var}
    samples = []
    for k, (name, where) in enumerate(networks.items()):
        squares, diagonals = [], []
        for s in range(seeds):
            model = network(where, width=width, seed=1000 * seed + s, **shape)  # type: ignore[arg-type]
            squares.append(empirical_ntk(model, grid))
            diagonals.append(empirical_ntk(model, radii[:, None]).diagonal())
            progress(k * seeds + s + 1, len(networks) * seeds)
        kernel = mlp(layer_norm=where, **shape)  # type: ignore[arg-type]
        found = (torch.stack(squares), kernel.ntk(grid), radii, torch.stack(diagonals))
        samples.append(_FiniteKernels(name, kernel, grid, *found))
    verdicts = [v for s in samples for v in (*_growth(s), _close(s, width))]
    caption = (
        f"Mean of {seeds} networks of width {width}, {depth} hidden layers, {activation}, σ_b² = {bias_var:g}, drawn "
        "at random; inputs in one dimension. Diagonal: mean, with the smallest and the largest; dotted: infinite "
        "width."
    )
    panels: tuple[Panel | Heatmap, ...] = (*_maps(samples), _diagonals(samples), _ratios(samples))
    figure = Figure("Empirical NTK, without and with LayerNorm", panels, caption, columns=2)
    return ExperimentResult(tuple(verdicts), {s.name: _numbers(s) for s in samples}, figure, _table(samples))


# ------------------------------------------------------------------ claims


def _growth(s: _FiniteKernels) -> list[ClaimVerdict]:
    far = s.radii >= 1e3
    last = float(s.radii[-1])
    if math.isinf(s.ceiling):
        exponents = [exponent(s.radii[far], d[far]) for d in s.diagonals]
        worst = max(abs(e - 2.0) for e in exponents)
        return [
            ClaimVerdict(
                f"{s.name}: Θ(x, x) grows without limit, like x², in every network drawn",
                worst < 1e-2,
                f"exponents within {worst:.1e} of 2 from x = 10³ to {last:g}; Θ({last:g}, {last:g}) ≥ "
                f"{float(s.diagonals[:, -1].min()):.3g}",
            )
        ]
    moved = float((s.diagonals[:, far] - s.diagonals[:, far][:, :1]).abs().max())
    largest = float(max(s.squares.abs().max(), s.diagonals.max()))
    return [
        ClaimVerdict(
            f"{s.name}: Θ stays bounded in every network drawn: beyond x = 10³ the diagonal moves by less than C/100",
            moved < 1e-2 * s.ceiling,
            f"by at most {moved / s.ceiling:.1e}·C up to {last:g}; largest |Θ| anywhere {largest:.4g}, "
            f"C = {s.ceiling:.4g}",
        )
    ]


def _close(s: _FiniteKernels, width: int) -> ClaimVerdict:
    limit = 10 / math.sqrt(len(s.squares) * width)
    return ClaimVerdict(
        f"{s.name}: the mean over networks is the kernel of infinite width, to 10/√(networks × width)",
        s.distance < limit,
        f"relative distance {s.distance:.4f} on the square, limit {limit:.4f}",
    )


# ------------------------------------------------------------------ what is shown


def _maps(samples: Sequence[_FiniteKernels]) -> list[Heatmap]:
    bounded = [s for s in samples if math.isfinite(s.ceiling)]
    low = min((float(s.mean.min()) for s in bounded), default=0.0)
    high = max((float(s.mean.max()) for s in bounded), default=1.0)
    return [
        Heatmap(
            s.name, "x", "x′", digits(s.grid[:, 0]), digits(s.grid[:, 0]), tuple(digits(r) for r in s.mean),
            value_label="mean Θ(x, x′)",
            value_range=(min(low, 0.0), high) if math.isfinite(s.ceiling) else None,
        )
        for s in samples
    ]  # fmt: skip


def _diagonals(samples: Sequence[_FiniteKernels]) -> Panel:
    series = []
    for k, s in enumerate(samples):
        x = digits(s.radii)
        low, high = digits(s.diagonals.amin(0)), digits(s.diagonals.amax(0))
        series.append(Series(s.name, x, digits(s.diagonals.mean(0)), low, high, color=k))
        series.append(Series("", x, digits(s.kernel.diagonal(s.radii[:, None])), style="dotted", color=k))
    return Panel("with itself", "x", "Θ(x, x)", tuple(series), x_scale="log", y_scale="log")


def _ratios(samples: Sequence[_FiniteKernels]) -> Panel:
    series = []
    for k, s in enumerate(samples):
        ratios = s.diagonals / s.kernel.diagonal(s.radii[:, None])
        low, high = digits(ratios.amin(0)), digits(ratios.amax(0))
        series.append(Series(s.name, digits(s.radii), digits(ratios.mean(0)), low, high, color=k))
    return Panel("against infinite width", "x", "Θ̂(x, x) / Θ(x, x)", tuple(series), x_scale="log")


def _numbers(s: _FiniteKernels) -> dict[str, Any]:
    return {
        "sup_diagonal_at_infinite_width": s.ceiling,
        "radii": s.radii.tolist(),
        "diagonals": s.diagonals.tolist(),
        "relative_distance_of_the_mean": s.distance,
        "relative_distances": [float((q - s.limit).norm() / s.limit.norm()) for q in s.squares],
    }


def _table(samples: Sequence[_FiniteKernels]) -> Table:
    rows = []
    for s in samples:
        last = s.diagonals[:, -1]
        rows.append(
            (
                s.name,
                s.ceiling if math.isfinite(s.ceiling) else "∞",
                float(last.mean()),
                float(last.min()),
                float(last.max()),
                s.distance,
            )
        )
    far = f"{float(samples[0].radii[-1]):g}"
    names = ("network", "C", f"Θ({far}, {far}), mean", "smallest", "largest", "distance from infinite width")
    return Table(names, tuple(rows))


EXPERIMENT = Experiment(
    name="p1.fig2_finite",
    description=(
        "Empirical tangent kernels of ReLU networks of finite width on [−25, 25]², averaged over five draws: without "
        "LayerNorm they grow without limit, with one LayerNorm anywhere they stay bounded, as at infinite width. "
        "Width 128 is that of the paper's other experiments; its text gives none for this figure. p1.fig2_wide "
        "has 1024."
    ),
    settings={
        "networks": {
            "no LayerNorm": None, "LayerNorm first": "first",
            "LayerNorm second": "second", "LayerNorm every": "every",
        },
        "activation": "relu", "depth": 2, "bias_var": 0.01, "width": 128, "seeds": 5, "half_width": 25.0,
        "points": 81, "farthest": 1e6,
    },
    quick={"points": 11},
    paper_size={"width": None, "depth": 2, "bias_var": 0.01, "seeds": 5, "half_width": 25.0},
    run=run,
)  # fmt: skip
