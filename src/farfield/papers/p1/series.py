"""A decoder learns to continue a + b·i and is asked for more: longer series, and larger ones.

The paper gives two layers, four heads, dimension 64, training on i ≤ 30 and testing to 100, and says that an LN after
the embedding stabilizes the network. It does not say how a number becomes a token, what norms the blocks have, the
ranges of a and b, or what the errors are. Chosen here: a number is embedded by a linear layer
(:mod:`farfield.papers.p1._decoder`), a is uniform in [−1, 1] and b in [−0.1, 0.1], and the network predicts every
number from those before it. At i = 1 nothing tells b, so errors are counted from i = 2.

Whether the LN after the embedding decides boundedness depends on the blocks. With norms inside the branches alone
("pre", and none behind the last block) or without norms the skip carries the embedding to the readout, and only an LN
after the embedding cuts it. With norms on the stream ("post", torch's default), or one behind the last block, the
network is bounded without it. The first three are trained.

Fixed sines and cosines tell the place. Places beyond i = 30 are as new to the networks as the values there, and no LN
after the embedding changes that.

Run: ``farfield reproduce p1.series``
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from farfield.certify import Certificate, UnboundedError, certify
from farfield.graph import capture
from farfield.growth import GrowthReport, Status, analyze, horizon
from farfield.learn import Training, predict_all, train
from farfield.papers._curves import digits
from farfield.papers._experiment import Claims, ClaimVerdict, Experiment, ExperimentResult, Progress
from farfield.papers.p1._decoder import Decoder
from farfield.report import Figure, Panel, Series, Table

_FAR = 1e12
"""Factor at which a network is compared with its horizon: the smallest values of a series, too, are large there."""


def series(count: int, length: int, *, seed: int) -> Tensor:
    """s_i = a + b·i for i < length, a uniform in [−1, 1] and b in [−0.1, 0.1]; shape (count, length, 1)."""
    generator = torch.Generator().manual_seed(seed)
    a, b = 2 * torch.rand(2, count, 1, generator=generator) - 1
    values: Tensor = a + 0.1 * b * torch.arange(length)
    return values[..., None]


@dataclass(frozen=True)
class _SeriesNetworks:
    """The trained networks of one kind; the first axis runs over them."""

    name: str
    blocks: str
    embedding_norm: bool
    r2: Tensor
    """On new series, i from 2 to the last seen."""
    errors: Tensor
    """Root mean square error of the next value at every i ≥ 1, true values before it."""
    own_errors: Tensor
    """The same, the network's own predictions before it from the last i seen onwards."""
    example: Tensor
    """One series continued by itself."""
    largest: Tensor
    """max |f| when series are multiplied by each of the factors."""
    moved: float
    """Difference from the horizon far away: of slopes relative to the largest, of limits absolute."""
    slope: Tensor
    """The horizon's largest |slope| over the series."""
    undecided: float
    """Share of the horizon's values that it could not decide."""
    reports: tuple[GrowthReport, ...]
    bounds: Tensor | None
    """Certified max |f|; None for networks without a certificate."""

    @property
    def statuses(self) -> tuple[Status, ...]:
        return tuple(r.status for r in self.reports)


def run(
    *,
    progress: Progress,
    seed: int,
    scratch: Path,
    variants: Mapping[str, Sequence[Any]],
    dim: int,
    heads: int,
    depth: int,
    hidden: int,
    seeds: int,
    train_series: int,
    test_series: int,
    seen: int,
    last: int,
    epochs: int,
    batch_size: int,
    lr: float,
    factors: Sequence[float],
    time_budget: float,
) -> ExperimentResult:
    """Train ``seeds`` decoders of every kind together, then continue, enlarge, prove."""
    shape = {"dim": dim, "heads": heads, "depth": depth, "hidden": hidden, "places": last + 1}
    models = [
        Decoder(norms=norms, embedding_norm=embedding_norm, seed=1000 * seed + s, **shape)
        for norms, embedding_norm in variants.values()
        for s in range(seeds)
    ]
    known = series(train_series, seen + 1, seed=2 * seed)
    # A tenth of the progress for what follows training.
    total = 10 * epochs
    done = train(
        models,
        known[:, :-1],
        known[:, 1:],
        training=Training(epochs=epochs, batch_size=batch_size, lr=lr, schedule="cosine"),
        checkpoint=scratch,
        progress=lambda now, _: progress(9 * now, total),
    )
    fresh = series(test_series, last + 1, seed=2 * seed + 1).double()
    samples = []
    for k, (name, (norms, embedding_norm)) in enumerate(variants.items()):
        own = [copy.deepcopy(m).double() for m in done.models[k * seeds : (k + 1) * seeds]]
        samples.append(_follow(name, norms, embedding_norm, own, fresh, seen, factors, time_budget))
        progress(9 * epochs + epochs * (k + 1) // len(variants), total)
    verdicts = [_learned(samples), *map(_far_field, samples), *_stabilized(samples, seen, last)]
    numbers = {"factors": list(factors), **{s.name: _numbers(s) for s in samples}}
    figure = _figure(samples, fresh, seen, factors)
    return ExperimentResult(tuple(verdicts), numbers, figure, _table(samples, seen, factors))


def _follow(
    name: str,
    norms: str,
    embedding_norm: bool,
    models: Sequence[nn.Module],
    fresh: Tensor,
    seen: int,
    factors: Sequence[float],
    time_budget: float,
) -> _SeriesNetworks:
    """Everything that is measured about the networks of one kind, in float64."""
    near = fresh[:, : seen + 1]
    inputs, truth = near[:, :-1], near[:, 2:]
    predicted = predict_all(models, fresh[:, :-1])
    misses = (predicted - fresh[:, 1:])[..., 0]
    r2 = 1 - misses[:, :, 1:seen].square().mean((1, 2)) / truth.var(correction=0)
    own = continued(models, fresh, seen)
    few = inputs[:8]
    reports, horizons = [], []
    for model in models:
        program = capture(model, (few,))
        reports.append(analyze(program, (few,)))
        horizons.append(horizon(program, few))
    far, twice = predict_all(models, _FAR * few), predict_all(models, 2 * _FAR * few)
    slopes, limits = torch.stack([h.slope for h in horizons]), torch.stack([h.value for h in horizons])
    steepest = slopes.abs().amax((1, 2, 3))
    if norms == "post" or embedding_norm:
        moved = (far - limits).abs()
    else:
        moved = ((twice - far) / _FAR - slopes).abs() / steepest[:, None, None, None]
    return _SeriesNetworks(
        name=name,
        blocks=norms,
        embedding_norm=embedding_norm,
        r2=r2,
        errors=misses.square().mean(1).sqrt(),
        own_errors=(own - fresh[:, 1:])[..., 0].square().mean(1).sqrt(),
        example=own[:, 0, :, 0],
        largest=torch.stack([predict_all(models, c * inputs).abs().amax((1, 2, 3)) for c in factors], 1),
        moved=float(moved.nan_to_num(0.0).max()),
        slope=steepest,
        undecided=float(torch.stack([h.degenerate for h in horizons]).double().mean()),
        reports=tuple(reports),
        bounds=_certified(models, few[:1], time_budget) if norms == "post" or embedding_norm else None,
    )


def continued(models: Sequence[nn.Module], truth: Tensor, seen: int) -> Tensor:
    """Predictions for i = 1, 2, …, (models, rows, length − 1, 1): beyond ``seen`` from the networks' own values."""
    length = truth.shape[1]
    made = []
    for model in models:
        values = truth[:, : seen + 1]
        with torch.no_grad():
            for _ in range(seen + 1, length):
                values = torch.cat([values, model(values)[:, -1:]], 1)
            first = model(truth[:, :seen])
        made.append(torch.cat([first, values[:, seen + 1 :]], 1))
    return torch.stack(made)


def _certified(models: Sequence[nn.Module], example: Tensor, time_budget: float) -> Tensor:
    found: list[Certificate | None] = []
    for model in models:
        try:
            found.append(certify(model, example, time_budget=time_budget))
        except UnboundedError:
            found.append(None)
    largest = [
        math.inf if c is None else max(float(c.upper.abs().max()), float(c.lower.abs().max())) for c in found
    ]
    return torch.tensor(largest, dtype=torch.float64)


# ------------------------------------------------------------------ claims


def _learned(samples: Sequence[_SeriesNetworks]) -> ClaimVerdict:
    worst = min(samples, key=lambda s: float(s.r2.min()))
    return ClaimVerdict(
        "every network has learned the series it was shown: R² ≥ 0.95 on new ones of that length",
        float(worst.r2.min()) >= 0.95,
        f"worst {float(worst.r2.min()):.4f} ({worst.name}); best {max(float(s.r2.max()) for s in samples):.4f}",
    )


def _far_field(s: _SeriesNetworks) -> ClaimVerdict:
    count = len(s.statuses)
    undecided = f"; the horizon left {s.undecided:.1%} undecided" if s.undecided else ""
    if s.bounds is None:
        proved = sum(status is Status.UNBOUNDED for status in s.statuses)
        return ClaimVerdict(
            f"{s.name}: every network is unbounded, and grows with the series as its horizon says",
            proved == count and float(s.slope.min()) > 1e-3 and s.moved < 1e-6,
            f"{proved} of {count} proved unbounded; slopes along the test series up to {float(s.slope.max()):.3g}, "
            f"measured at 10¹² to {s.moved:.1e}; max |f| at the largest factor {float(s.largest[:, -1].max()):.3g}"
            + undecided,
        )
    proved = sum(status is Status.BOUNDED for status in s.statuses)
    cuts = sorted({str(r.verdict().cut) for r in s.reports})
    return ClaimVerdict(
        f"{s.name}: every network is bounded, and stays within its certificate however large the series",
        proved == count and bool((s.largest.amax(1) <= s.bounds).all()) and s.moved < 1e-6,
        f"{proved} of {count} proved bounded, cut by {', '.join(cuts)}; max |f| {float(s.largest.max()):.3g}, "
        f"certified {float(s.bounds.min()):.3g} to {float(s.bounds.max()):.3g}; at 10¹² within {s.moved:.1e} of the "
        f"horizon" + undecided,
    )


def _stabilized(samples: Sequence[_SeriesNetworks], seen: int, last: int) -> list[ClaimVerdict]:
    """The paper's claim, read as: errors beyond what was seen are smaller, from true values and from predictions."""
    claims = Claims()
    for plain in (s for s in samples if not s.embedding_norm):
        normed = next((s for s in samples if s.embedding_norm and s.blocks == plain.blocks), None)
        if normed is None:
            continue
        for words, name in (
            ("from true values", "errors"),
            ("from its own predictions", "own_errors"),
        ):
            without, with_norm = (getattr(s, name)[:, seen:].square().mean(1).sqrt() for s in (plain, normed))
            claims.add(
                f"{plain.name}: continued to i = {last} {words}, the error is smaller with an LN after the "
                "embedding",
                float(with_norm.mean()) < float(without.mean()),
                f"root mean square error beyond i = {seen}: with {_spread(with_norm)}, "
                f"without {_spread(without)}",
            )
    return claims


def _spread(values: Tensor) -> str:
    return f"{float(values.mean()):.3g} ({float(values.min()):.3g} to {float(values.max()):.3g})"


# ------------------------------------------------------------------ what is shown


def _figure(samples: Sequence[_SeriesNetworks], fresh: Tensor, seen: int, factors: Sequence[float]) -> Figure:
    i = tuple(float(k) for k in range(1, fresh.shape[1]))
    colors = {name: k for k, name in enumerate(dict.fromkeys(s.blocks for s in samples))}

    def lines(name: str, x: Sequence[float], start: int = 0) -> list[Series]:
        made = []
        for s in samples:
            values = getattr(s, name)[:, start:]
            low, high = digits(values.amin(0)), digits(values.amax(0))
            made.append(
                Series(
                    s.name,
                    tuple(x[start:]),
                    digits(values.mean(0)),
                    low,
                    high,
                    style="dashed" if s.embedding_norm else "line",
                    color=colors[s.blocks],
                )
            )
        return made

    truth = Series("a + b·i", i, digits(fresh[0, 1:, 0]), style="dotted", color=6)
    # What explodes may leave the picture: the others are to be seen.
    window = float(f"{2.5 * float(fresh[0].abs().max()):.2g}")
    panels = (
        Panel(
            "one series continued", "i", "prediction", (*lines("example", i), truth), y_range=(-window, window)
        ),
        Panel("from its own predictions", "i", "error", tuple(lines("own_errors", i, 1)), y_scale="log"),
        Panel("from true values", "i", "error", tuple(lines("errors", i, 1)), y_scale="log"),
        Panel(
            "series multiplied", "factor", "max |f|", tuple(lines("largest", tuple(factors))), x_scale="log",
            y_scale="log",
        ),
    )  # fmt: skip
    caption = (
        f"Decoders trained on i ≤ {seen}; mean over networks with the smallest and the largest. Dashed: with an LN "
        "after the embedding. Errors are root mean squares over new series."
    )
    return Figure("A decoder continues a + b·i", panels, caption, columns=2)


def _numbers(s: _SeriesNetworks) -> dict[str, Any]:
    return {
        "r2": s.r2.tolist(),
        "errors": s.errors.tolist(),
        "own_errors": s.own_errors.tolist(),
        "largest": s.largest.tolist(),
        "statuses": [str(status) for status in s.statuses],
        "certified": None if s.bounds is None else s.bounds.tolist(),
    }


def _table(samples: Sequence[_SeriesNetworks], seen: int, factors: Sequence[float]) -> Table:
    rows = []
    for s in samples:
        inside = s.errors[:, 1:seen].square().mean().sqrt()
        beyond, alone = (e[:, seen:].square().mean().sqrt() for e in (s.errors, s.own_errors))
        last = "none" if s.bounds is None else float(f"{float(s.bounds.max()):.4g}")
        status = ", ".join(sorted({str(x) for x in s.statuses}))
        rows.append(
            (
                s.name,
                status,
                *digits(torch.stack([inside, beyond, alone])),
                *digits(s.largest.amax(0)),
                last,
            )
        )
    columns = ("network", "proved", "error inside", "beyond, true values", "beyond, its own")
    return Table((*columns, *(f"max |f|, × {c:g}" for c in factors), "certified |f| ≤, largest"), tuple(rows))


EXPERIMENT = Experiment(
    name="p1.series",
    description=(
        "A two-layer decoder with four heads of dimension 64 in all, trained to continue a + b·i for i ≤ 30 and "
        "tested to i = 100: an LN after the embedding stabilizes it."
    ),
    settings={
        "variants": {
            "no norms": ["none", False],
            "no norms, LN after the embedding": ["none", True],
            "pre-LN": ["pre", False],
            "pre-LN, LN after the embedding": ["pre", True],
            "post-LN": ["post", False],
        },
        "dim": 64, "heads": 4, "depth": 2, "hidden": 128, "seeds": 3, "train_series": 256, "test_series": 32,
        "seen": 30, "last": 100, "epochs": 60, "batch_size": 32, "lr": 1e-3,
        "factors": [1.0, 3.0, 10.0, 100.0, 1e4, 1e6], "time_budget": 1.0,
    },
    quick={
        "variants": {"pre-LN": ["pre", False], "pre-LN, LN after the embedding": ["pre", True]},
        "dim": 16, "hidden": 32, "seeds": 1, "train_series": 128, "test_series": 4, "seen": 8, "last": 16,
        "epochs": 40, "lr": 3e-3, "time_budget": 0.2,
    },
    paper_size={"depth": 2, "heads": 4, "dim": 64, "seen": 30, "last": 100, "seeds": None},
    run=run,
    resumable=True,
)  # fmt: skip
