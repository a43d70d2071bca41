"""How fast empirical tangent kernels approach those of infinite width.

Run: ``farfield reproduce p1.width``
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from farfield.kernels import mlp
from farfield.ntk import empirical_ntk
from farfield.papers._experiment import ClaimVerdict, Experiment, ExperimentResult, Progress
from farfield.papers.p1.fig2_finite import NormPlacement, network
from farfield.report import Figure, Panel, Series, Table


def run(
    *,
    progress: Progress,
    seed: int,
    networks: Mapping[str, NormPlacement],
    activation: str,
    depth: int,
    bias_var: float,
    widths: Sequence[int],
    seeds: int,
    half_width: float,
    points: int,
) -> ExperimentResult:
    """Relative distance ‖Θ̂ − Θ‖/‖Θ‖ on a grid for every width, of ``seeds`` networks of each kind."""
    grid = torch.linspace(-half_width, half_width, points, dtype=torch.float64)[:, None]
    shape = {"depth": depth, "activation": activation, "bias_var": bias_var}
    found: dict[str, Tensor] = {}
    done, total = 0, len(networks) * len(widths) * seeds
    for name, where in networks.items():
        limit = mlp(layer_norm=where, **shape).ntk(grid)  # type: ignore[arg-type]
        rows = []
        for width in widths:
            draws = []
            for s in range(seeds):
                model = network(where, width=width, seed=1000 * seed + s, **shape)  # type: ignore[arg-type]
                draws.append((empirical_ntk(model, grid) - limit).norm() / limit.norm())
                done += 1
                progress(done, total)
            rows.append(torch.stack(draws))
        found[name] = torch.stack(rows)  # (widths, seeds)
    verdicts = [_rate(name, widths, distances) for name, distances in found.items()]
    return ExperimentResult(
        tuple(verdicts), _numbers(found, widths), _figure(found, widths), _table(found, widths)
    )


def _root_mean_square(distances: Tensor) -> Tensor:
    return distances.square().mean(1).sqrt()


def _slope(widths: Sequence[int], distances: Tensor) -> tuple[float, float]:
    """Of log distance against log width by least squares, with its standard error from the spread of the draws."""
    x = torch.tensor([math.log(w) for w in widths], dtype=torch.float64)
    u = x - x.mean()
    share = u / (u * u).sum()
    slope = float((share * _root_mean_square(distances).log()).sum())
    squares = distances.square()
    # d log √m = dm / 2m, and the mean m of the squares has the standard error of its draws.
    errors = squares.std(1) / math.sqrt(distances.shape[1]) / (2 * squares.mean(1))
    return slope, float((share * errors).square().sum().sqrt())


def _rate(name: str, widths: Sequence[int], distances: Tensor) -> ClaimVerdict:
    slope, error = _slope(widths, distances)
    last = float(_root_mean_square(distances)[-1])
    return ClaimVerdict(
        f"{name}: the distance from infinite width falls like 1/√width",
        abs(slope + 0.5) < 0.1 and error < 0.06,
        f"slope {slope:.3f} ± {error:.3f} over widths {widths[0]} to {widths[-1]}; {last:.2%} at the widest",
    )


def _figure(found: Mapping[str, Tensor], widths: Sequence[int]) -> Figure:
    series = []
    x = tuple(float(w) for w in widths)
    for k, (name, distances) in enumerate(found.items()):
        y = tuple(_root_mean_square(distances).tolist())
        low, high = tuple(distances.amin(1).tolist()), tuple(distances.amax(1).tolist())
        series.append(Series(name, x, y, low, high, color=k))
    start = max(float(_root_mean_square(d)[0]) for d in found.values())
    guide = tuple(1.3 * start * math.sqrt(widths[0] / w) for w in widths)
    series.append(Series("1/√width", x, guide, style="dashed", color=7))
    panel = Panel(
        "distance from infinite width", "width", "‖Θ̂ − Θ‖ / ‖Θ‖", tuple(series), x_scale="log", y_scale="log"
    )
    caption = "Root mean square over networks drawn at random; bands from the smallest to the largest."
    return Figure("Empirical to infinite width", (panel,), caption, columns=1)


def _numbers(found: Mapping[str, Tensor], widths: Sequence[int]) -> dict[str, Any]:
    return {
        "widths": list(widths),
        **{name: {"slope": _slope(widths, d), "distances": d.tolist()} for name, d in found.items()},
    }


def _table(found: Mapping[str, Tensor], widths: Sequence[int]) -> Table:
    rows = []
    for name, distances in found.items():
        slope, error = _slope(widths, distances)
        rows.append((name, *_root_mean_square(distances).tolist(), slope, error))
    return Table(("network", *(f"width {w}" for w in widths), "slope", "its standard error"), tuple(rows))


EXPERIMENT = Experiment(
    name="p1.width",
    description=(
        "The infinite-width theory speaks about real networks: the tangent kernel of a network drawn at random "
        "approaches that of infinite width like 1/√width, without and with LayerNorm."
    ),
    settings={
        "networks": {"no LayerNorm": None, "LayerNorm first": "first", "LayerNorm every": "every"},
        "activation": "relu", "depth": 2, "bias_var": 0.01, "widths": [64, 128, 256, 512, 1024, 2048], "seeds": 100,
        "half_width": 25.0, "points": 21,
    },
    quick={
        "networks": {"no LayerNorm": None, "LayerNorm first": "first"}, "widths": [64, 256, 1024], "points": 9,
        "seeds": 60,
    },
    paper_size={},
    run=run,
)  # fmt: skip
