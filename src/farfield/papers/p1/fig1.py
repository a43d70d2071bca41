"""Toys in one dimension, trained and followed far outside: without a norm, with LayerNorm, with BatchNorm.

The paper gives the toys, 100 points, two hidden layers of 128, five seeds and 3000 epochs. It does not give the
interval, the noise or whether the norms learn a scale and a shift. Chosen here: [−5, 5], noise 0.1, Adam at 1e-3 over
the whole batch, and norms as torch makes them, with scale and shift. A seed draws the network; all see the same 100
points. As for all of its networks, weights are Kaiming's (variance 2 over the number of inputs, the first layer too)
and biases have variance 0.01.

Run: ``farfield reproduce p1.fig1``
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from farfield._budget import Budget
from farfield._intervals import mean_interval
from farfield.certify import certify
from farfield.data import Dataset, load
from farfield.graph import capture
from farfield.growth import Status, analyze, horizon
from farfield.learn import Training, predict_all, train
from farfield.nn import MLP
from farfield.papers._curves import digits
from farfield.papers._experiment import ClaimVerdict, Experiment, ExperimentResult, Progress
from farfield.report import Figure, Panel, Series, Table

Variant = tuple[str, str | None, str]
"""Activation, norm, and where it sits."""

_FAR = 1e8
"""Slopes are measured from here to twice as far: beyond every kink, with sixteen digits still enough."""


def network(variant: Variant, *, width: int, depth: int, weight_var: float, seed: int) -> nn.Module:
    """One network of a kind, drawn at random."""
    activation, norm, placement = variant
    return MLP(
        1, 1, width=width, depth=depth, activation=activation, norm=norm, placement=placement,  # type: ignore[arg-type]
        weight_var=weight_var, bias_var=0.01, norm_affine=True, generator=torch.Generator().manual_seed(seed),
    )  # fmt: skip


@dataclass(frozen=True)
class _ToyNetworks:
    """The trained networks of one kind on one toy, in float64; the first axis runs over them everywhere."""

    toy: str
    name: str
    activation: str
    r2: Tensor
    """1 − MSE/variance inside the interval, against the function without noise."""
    outside: Tensor
    """Root mean square error beyond it, to ±25."""
    window: Tensor
    """Values on the figure's grid."""
    largest: Tensor
    """max |f(±r)| for every radius r, (networks, radii)."""
    far: Tensor
    """f(±10⁸), (networks, 2), and likewise below."""
    slopes: Tensor
    """(f(±2·10⁸) − f(±10⁸)) / 10⁸."""
    limits: Tensor
    """lim f(±r) by :func:`farfield.growth.horizon`; NaN where there is none."""
    horizon_slopes: Tensor
    """lim f(±r)/r, the same way."""
    relu_slopes: Tensor | None
    """The same after every activation was replaced by ReLU and the weights kept; without a norm only."""
    statuses: tuple[Status, ...]
    bounds: Tensor | None
    """Certified lower and upper bound, (networks, 2); None for kinds without LayerNorm."""
    attained: Tensor | None
    """Smallest and largest value that the certificate's search met."""
    margin: Tensor | None
    """How far inside its certificate a network stays at every point tried: negative if outside."""


def run(
    *,
    progress: Progress,
    seed: int,
    scratch: Path,
    toys: Sequence[str],
    variants: Mapping[str, Sequence[str | None]],
    width: int,
    depth: int,
    weight_var: float,
    seeds: int,
    epochs: int,
    lr: float,
    radii: Sequence[float],
    half_width: float,
    points: int,
    certify_steps: int,
) -> ExperimentResult:
    """Train ``seeds`` networks of every kind on every toy, all of one toy together, and follow them outside."""
    kinds: dict[str, Variant] = {k: (str(a), n, str(p)) for k, (a, n, p) in variants.items()}
    grid = torch.linspace(-half_width, half_width, points, dtype=torch.float64)[:, None]
    # Of a toy's share 4/5 is training and the rest the certificates: about what they take.
    each = 5 * epochs
    samples: list[_ToyNetworks] = []
    data = {toy: load(toy, seed=seed) for toy in toys}
    for t, toy in enumerate(toys):
        x, y = (torch.from_numpy(v).float() for v in (data[toy].train.x, data[toy].train.y))
        models = [
            network(kind, width=width, depth=depth, weight_var=weight_var, seed=1000 * seed + s)
            for kind in kinds.values()
            for s in range(seeds)
        ]
        done = train(
            models, x, y[:, None], training=Training(epochs=epochs, lr=lr), checkpoint=scratch / toy,
            progress=lambda now, _, t=t: progress(t * each + 4 * now, len(toys) * each),  # type: ignore[misc]
        )  # fmt: skip
        for k, (name, kind) in enumerate(kinds.items()):
            members = [copy.deepcopy(m).double() for m in done.models[k * seeds : (k + 1) * seeds]]
            samples.append(_follow(toy, name, kind, members, data[toy], grid, radii, certify_steps))
            progress(t * each + 4 * epochs + epochs * (k + 1) // len(kinds), len(toys) * each)
    verdicts = [
        _fits(samples),
        *(v for name in kinds for v in _far_field(name, samples, radii)),
        *_alike(samples),
    ]
    numbers = {toy: {s.name: _numbers(s) for s in samples if s.toy == toy} for toy in toys}
    return ExperimentResult(
        tuple(verdicts),
        {"radii": list(radii), **numbers},
        _figure(samples, data, grid, radii, seeds),
        _table(samples, radii),
    )


def _follow(
    toy: str,
    name: str,
    kind: Variant,
    models: Sequence[nn.Module],
    data: Dataset,
    grid: Tensor,
    radii: Sequence[float],
    certify_steps: int,
) -> _ToyNetworks:
    """Everything that is measured about the trained networks of one kind."""
    sides = torch.tensor([[1.0], [-1.0]], dtype=torch.float64)
    at = torch.tensor(radii, dtype=torch.float64)
    everywhere = torch.logspace(-3, math.log10(_FAR), 400, dtype=torch.float64)

    def values(x: Tensor) -> Tensor:
        return predict_all(models, x)[..., 0]

    def errors(x: Any, y: Any) -> Tensor:
        return (values(torch.from_numpy(x)) - torch.from_numpy(y)).square().mean(1)

    window, far = values(grid), values(_FAR * sides)
    programs = [capture(m, (sides,)) for m in models]
    horizons = [horizon(p, sides) for p in programs]
    bounds = attained = margin = relu = None
    if kind[0] != "relu" and kind[1] is None:
        relu = torch.stack([horizon(_with_relu(m), sides).slope[:, 0] for m in models])
    if kind[1] == "layer":
        found = [
            certify(m, torch.zeros(1, 1, dtype=torch.float64), time_budget=Budget(steps=certify_steps))
            for m in models
        ]
        bounds = torch.tensor([[c.lower.item(), c.upper.item()] for c in found], dtype=torch.float64)
        attained = torch.tensor(
            [[c.attained_lower.item(), c.attained_upper.item()] for c in found], dtype=torch.float64
        )
        met = torch.cat([window, far, values(torch.cat([everywhere, -everywhere])[:, None])], 1)
        margin = torch.minimum(met.amin(1) - bounds[:, 0], bounds[:, 1] - met.amax(1))
    return _ToyNetworks(
        toy=toy,
        name=name,
        activation=kind[0],
        r2=1 - errors(data.id.x, data.id.y) / float(np.var(data.id.y)),
        outside=errors(data.ood.x, data.ood.y).sqrt(),
        window=window,
        largest=torch.maximum(values(at[:, None]).abs(), values(-at[:, None]).abs()),
        far=far,
        slopes=(values(2 * _FAR * sides) - far) / _FAR,
        limits=torch.stack([h.value[:, 0] for h in horizons]),
        horizon_slopes=torch.stack([h.slope[:, 0] for h in horizons]),
        relu_slopes=relu,
        statuses=tuple(analyze(p, (sides,)).status for p in programs),
        bounds=bounds,
        attained=attained,
        margin=margin,
    )


def _with_relu(model: nn.Module) -> nn.Module:
    layers = (nn.ReLU() if isinstance(m, (nn.GELU, nn.SiLU)) else m for m in model.children())
    return nn.Sequential(*layers).eval()


# ------------------------------------------------------------------ claims


def _fits(samples: Sequence[_ToyNetworks]) -> ClaimVerdict:
    worst = min(samples, key=lambda s: float(s.r2.min()))
    return ClaimVerdict(
        "every network has learned its toy: R² ≥ 0.95 inside the interval",
        float(worst.r2.min()) >= 0.95,
        f"worst {float(worst.r2.min()):.4f} ({worst.name}, {worst.toy}); median of all networks "
        f"{float(torch.cat([s.r2 for s in samples]).median()):.4f}",
    )


def _far_field(name: str, samples: Sequence[_ToyNetworks], radii: Sequence[float]) -> list[ClaimVerdict]:
    own = [s for s in samples if s.name == name]
    return _bounded(name, own) if own[0].bounds is not None else _grows(name, own, radii)


def _grows(name: str, own: Sequence[_ToyNetworks], radii: Sequence[float]) -> list[ClaimVerdict]:
    slopes, predicted = (torch.cat([getattr(s, k) for s in own]) for k in ("slopes", "horizon_slopes"))
    steepest = predicted.abs().amax(1)
    error = float(((slopes - predicted).abs().amax(1) / steepest).max())
    proved = sum(status is Status.UNBOUNDED for s in own for status in s.statuses)
    least = min(float(s.largest[:, -1].min()) for s in own)
    return [
        ClaimVerdict(
            f"{name}: every network grows without limit, with the slopes that its horizon gives",
            proved == len(slopes) and float(steepest.min()) > 1e-3 and error < 1e-6,
            f"{proved} of {len(slopes)} proved unbounded; steeper side between {float(steepest.min()):.3g} and "
            f"{float(steepest.max()):.3g}; slopes at 10⁸ agree to {error:.1e}; max |f(±{radii[-1]:g})| ≥ {least:.3g}",
        )
    ]


def _bounded(name: str, own: Sequence[_ToyNetworks]) -> list[ClaimVerdict]:
    bounds, attained, margin = (
        torch.cat([getattr(s, k) for s in own]) for k in ("bounds", "attained", "margin")
    )
    proved = sum(status is Status.BOUNDED for s in own for status in s.statuses)
    # A certificate is wide, and as true, where the time for it ran out.
    tight = (attained[:, 1] - attained[:, 0]) / (bounds[:, 1] - bounds[:, 0])
    moved = max(float((s.far - s.limits).abs().max()) for s in own)
    return [
        ClaimVerdict(
            f"{name}: every network stays within its certificate, however far",
            proved == len(bounds) and bool(torch.isfinite(bounds).all()) and float(margin.min()) >= 0.0,
            f"{proved} of {len(bounds)} proved bounded; |f| ≤ {float(bounds.abs().max()):.3g} certified for the "
            f"largest; of each certified range {float(tight.min()):.1%} or more is attained, and more than 99% in "
            f"{int((tight > 0.99).sum())} networks; at ±10⁸ within {moved:.1e} of the horizon's limit",
        )
    ]


def _alike(samples: Sequence[_ToyNetworks]) -> list[ClaimVerdict]:
    """GELU and SiLU differ from ReLU by a bounded amount, so weights alone decide the slopes."""
    own = [s for s in samples if s.relu_slopes is not None]
    if not own:
        return []
    slopes, relu = (torch.cat([getattr(s, k) for s in own]) for k in ("horizon_slopes", "relu_slopes"))
    error = float(((slopes - relu).abs().amax(1) / slopes.abs().amax(1)).max())
    return [
        ClaimVerdict(
            "GELU and SiLU behave like ReLU: with ReLU in their place the trained weights give the same slopes",
            error < 1e-12,
            f"relative difference at most {error:.1e} over {len(slopes)} networks",
        )
    ]


# ------------------------------------------------------------------ what is shown


def _figure(
    samples: Sequence[_ToyNetworks],
    data: Mapping[str, Dataset],
    grid: Tensor,
    radii: Sequence[float],
    seeds: int,
) -> Figure:
    names = list(dict.fromkeys(s.name for s in samples))
    panels = [_window(toy, [s for s in samples if s.toy == toy], names, data[toy], grid) for toy in data]
    panels += [_growth(toy, [s for s in samples if s.toy == toy], names, radii) for toy in data]
    caption = (
        f"Above: mean over {seeds} networks with its 95% t-interval, ReLU; black: a third of the points; "
        "dotted: the function. Below: the largest |f(±r)| of all networks of a kind."
    )
    return Figure("Trained on [−5, 5] and followed outside", tuple(panels), caption, columns=len(data))


def _window(
    toy: str, own: Sequence[_ToyNetworks], names: Sequence[str], data: Dataset, grid: Tensor
) -> Panel:
    x = digits(grid[:, 0])
    series = []
    for s in own:
        if s.activation != "relu":
            continue
        # With fewer than three networks an interval says nothing.
        mean, half = mean_interval(s.window) if len(s.window) > 2 else (s.window.mean(0), None)
        low, high = ((), ()) if half is None else (digits(mean - half), digits(mean + half))
        series.append(Series(s.name, x, digits(mean), low, high, color=names.index(s.name)))
    order = np.argsort(np.concatenate([data.id.x[:, 0], data.ood.x[:, 0]]))
    curve = [
        np.concatenate([getattr(data.id, k).ravel(), getattr(data.ood, k).ravel()])[order][::5] for k in "xy"
    ]
    series.append(Series("", digits(curve[0]), digits(curve[1]), style="dotted", color=7))
    # A third of the points: all of them would hide the curves.
    series.append(
        Series("", digits(data.train.x[::3, 0]), digits(data.train.y[::3]), style="points", color=6)
    )
    top = 12.0 if toy == "sinusoid" else 1.15 * float(np.abs(data.ood.y).max())
    bottom = -0.3 * top if float(data.ood.y.min()) >= 0 else -top
    return Panel(toy, "x", "f(x)", tuple(series), y_range=(bottom, top))


def _growth(toy: str, own: Sequence[_ToyNetworks], names: Sequence[str], radii: Sequence[float]) -> Panel:
    """A color for each norm, a style of line for each activation."""
    styles: dict[str, Literal["line", "dashed", "dotted"]] = {"gelu": "dashed", "silu": "dotted"}
    series = [
        Series(
            s.name,
            digits(radii),
            digits(s.largest.amax(0)),
            style=styles.get(s.activation, "line"),
            color=names.index(s.name) if s.activation == "relu" else 0 if s.bounds is None else 1,
        )
        for s in own
    ]
    return Panel(toy, "r", "max |f(±r)|", tuple(series), x_scale="log", y_scale="log")


def _numbers(s: _ToyNetworks) -> dict[str, Any]:
    kept = ("r2", "outside", "largest", "slopes", "horizon_slopes", "limits", "bounds", "attained")
    found = {k: getattr(s, k) for k in kept}
    return {
        "statuses": [str(status) for status in s.statuses],
        **{k: None if v is None else v.tolist() for k, v in found.items()},
    }


def _table(samples: Sequence[_ToyNetworks], radii: Sequence[float]) -> Table:
    rows = []
    for s in samples:
        certified = "none" if s.bounds is None else float(f"{float(s.bounds.abs().max()):.4g}")
        far = digits(s.largest.amax(0))
        rows.append((s.toy, s.name, *digits((float(s.r2.min()), float(s.outside.mean()))), *far, certified))
    columns = (
        "toy",
        "network",
        "R² inside, worst",
        "error beyond, to ±25",
        *(f"max |f(±{r:g})|" for r in radii),
    )
    return Table((*columns, "certified |f| ≤, largest"), tuple(rows))


EXPERIMENT = Experiment(
    name="p1.fig1",
    description=(
        "Networks trained on 1-D toys explode outside their data without LayerNorm, with any of ReLU, GELU and SiLU, "
        "and with BatchNorm too; with LayerNorm after the first, the second or every hidden layer they stay bounded."
    ),
    settings={
        "toys": ["sinusoid", "linear", "quadratic"],
        "variants": {
            "standard": ["relu", None, "none"],
            "LN first": ["relu", "layer", "first"],
            "LN second": ["relu", "layer", "second"],
            "LN every": ["relu", "layer", "every"],
            "BatchNorm": ["relu", "batch", "every"],
            "GELU": ["gelu", None, "none"],
            "GELU, LN first": ["gelu", "layer", "first"],
            "SiLU": ["silu", None, "none"],
            "SiLU, LN first": ["silu", "layer", "first"],
        },
        "width": 128, "depth": 2, "weight_var": 2.0, "seeds": 5, "epochs": 3000, "lr": 1e-3,
        "radii": [5.0, 25.0, 50.0, 500.0, 5e4],
        "half_width": 25.0, "points": 201, "certify_steps": 300,
    },
    quick={
        "toys": ["sinusoid"], "seeds": 1, "epochs": 400, "points": 41, "certify_steps": 100,
        "variants": {
            "standard": ["relu", None, "none"], "LN first": ["relu", "layer", "first"],
            "LN every": ["relu", "layer", "every"], "BatchNorm": ["relu", "batch", "every"],
            "GELU": ["gelu", None, "none"],
        },
    },
    paper_size={
        "toys": ["sinusoid", "linear", "quadratic"], "width": 128, "depth": 2, "weight_var": 2.0, "seeds": 5,
        "epochs": 3000, "lr": 1e-3,
    },
    run=run,
    resumable=True,
    data=("sinusoid", "linear", "quadratic"),
)  # fmt: skip
