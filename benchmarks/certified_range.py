"""How far can a network be held inside a proved range, and what does it cost?

    python -m benchmarks.certified_range [--seeds 3] [--epochs 30] [--out docs/reproductions/certify]

Protein data as P1 splits it (training rows have F1 < 20,000). Two hidden layers of 128 ReLU units with LayerNorm
first or before every activation, trained three ways: as it is, with ``OutputRangePenalty``, with ``RangeHead``. The
range asked for has the center of the training targets and 1.5 times their width. Proved for every input in ℝ⁹: by the
quadratic dual for the first two (unrounded here), by interval propagation for the head.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from benchmarks._protein import Split, load
from farfield._provenance import provenance
from farfield._typing import JSON
from farfield.certify import OutputRangePenalty, certify
from farfield.nn import MLP

WIDTH, DEPTH, BATCH, RATE, TRAIN_SHARE, STRETCH = 128, 2, 256, 3e-3, 0.9, 1.5
Way = Literal["unconstrained", "penalty", "head"]
WAYS: tuple[Way, ...] = ("unconstrained", "penalty", "head")
PENALTY: dict[str, dict[str, Any]] = {
    "every": {"weight": 0.1, "every": 2, "steps": 1},
    "first": {"weight": 0.02, "every": 3, "steps": 2},
}
MARGIN = 0.002
"""Share of the range by which the penalty aims inside it."""
TOLERANCE = 0.01
"""What R² may lose."""
DESCRIPTION = "How far can a network be held inside a proved range, and what does it cost?"


@dataclass(frozen=True)
class Row:
    """One trained network; ranges in ångströms of RMSD."""

    norm: str
    way: Way
    seed: int
    r2: float
    proved_low: float
    proved_high: float
    attained_low: float
    attained_high: float
    inside: bool
    training_seconds: float
    proof: str


def wanted_range(split: Split) -> tuple[float, float]:
    """The training targets' range, widened about its center."""
    low, high = float(split.train_y.min()), float(split.train_y.max())
    half = STRETCH * (high - low) / 2
    return (low + high) / 2 - half, (low + high) / 2 + half


def train(
    split: Split, norm: Literal["first", "every"], way: Way, seed: int, epochs: int
) -> tuple[MLP, float]:
    """(network, seconds)."""
    generator = torch.Generator().manual_seed(1000 + seed)
    low, high = wanted_range(split)
    net = MLP(
        9, 1, width=WIDTH, depth=DEPTH, norm="layer", placement=norm, norm_affine=True, bias_var=0.01,
        certified_range=(low, high) if way == "head" else None, generator=generator,
    )  # fmt: skip
    begin = time.monotonic()
    inset = MARGIN * (high - low)
    penalty = None
    if way == "penalty":
        penalty = OutputRangePenalty(net, split.test_x[:1], (low + inset, high - inset), **PENALTY[norm])
    optimizer = torch.optim.Adam(net.parameters(), RATE)
    rows = len(split.train_x)
    batches = rows // BATCH
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs * batches)
    for epoch in range(epochs):
        order = torch.randperm(rows, generator=generator)
        for k in range(batches):
            pick = order[k * BATCH : (k + 1) * BATCH]
            loss = (net(split.train_x[pick]) - split.train_y[pick]).square().mean()
            if penalty is not None:
                loss = loss + penalty()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
        print(f"\r{norm:5} {way:13} epoch {epoch + 1}/{epochs}", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    return net, time.monotonic() - begin


def prove(net: MLP, way: Way, seconds: float) -> tuple[float, float, str]:
    """The certified range for every input."""
    budget = 1.0 if way == "head" else seconds
    certificate = certify(net, torch.zeros(1, 9, dtype=torch.float64), time_budget=budget)
    return float(certificate.lower), float(certificate.upper), certificate.method


def attained(net: MLP, split: Split) -> tuple[float, float]:
    """Smallest and largest output seen: data, data scaled up to 10⁶, and a hundred thousand random points."""
    generator = torch.Generator().manual_seed(0)
    random = torch.randn(100_000, 9, generator=generator, dtype=torch.float64)
    scales = 10 ** (9 * torch.rand(100_000, 1, generator=generator, dtype=torch.float64) - 3)
    points = [split.test_x.double() * s for s in (1.0, 1e2, 1e6)]
    with torch.no_grad():
        values = net(torch.cat([*points, random * scales, split.train_x.double()]))
    return float(values.min()), float(values.max())


def experiment(norm: Literal["first", "every"], way: Way, seed: int, epochs: int, seconds: float) -> Row:
    split = load(seed)
    net, spent = train(split, norm, way, seed, epochs)
    net.eval().double()
    with torch.no_grad():
        error = (net(split.test_x.double()) - split.test_y).square().mean()
    r2 = 1.0 - float(error / split.test_y.double().var(correction=0))
    low, high, proof = prove(net, way, seconds)
    wanted = wanted_range(split)
    ends = [split.center + split.scale * v for v in (low, high, *attained(net, split))]
    spare = 1e-8 * (
        wanted[1] - wanted[0]
    )  # published bounds are wider than proved ones by 2e-9 of themselves
    inside = wanted[0] - spare <= low and high <= wanted[1] + spare
    return Row(norm, way, seed, r2, ends[0], ends[1], ends[2], ends[3], inside, spent, proof)


def verdicts(norm: str, rows: list[Row]) -> list[dict[str, JSON]]:
    made: list[dict[str, JSON]] = []
    plain = [r.r2 for r in rows if r.way == "unconstrained"]
    for way in ("penalty", "head"):
        mine = [r for r in rows if r.way == way]
        if not mine or not plain:
            continue
        loss = float(np.mean(plain) - np.mean([r.r2 for r in mine]))
        made.append(
            {
                "claim": f"LN {norm}, {way}: proved range inside {STRETCH} times the targets', R² within {TOLERANCE}",
                "holds": all(r.inside for r in mine) and loss <= TOLERANCE,
                "measured": f"inside in {sum(r.inside for r in mine)} of {len(mine)} runs, "
                f"mean R² lower by {loss:.4f}",
            }
        )
    return made


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--seconds", type=float, default=10.0, help="search for the proof, per side")
    parser.add_argument("--norms", nargs="+", choices=("every", "first"), default=["every", "first"])
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS))
    parser.add_argument("--out", type=Path, default=None, help="folder for the results as JSON")
    given = parser.parse_args()
    torch.set_num_threads(1)
    split = load(0)
    wanted = [split.center + split.scale * v for v in wanted_range(split)]
    for norm in given.norms:
        settings: dict[str, JSON] = {
            "data": "protein", "rows": len(split.train_x), "norm": norm, "width": WIDTH, "depth": DEPTH,
            "activation": "relu", "norm_affine": True, "epochs": given.epochs, "batch": BATCH, "rate": RATE,
            "seeds": given.seeds, "penalty": dict(PENALTY[norm]), "margin": MARGIN,
            "seconds": given.seconds,
            "stretch": STRETCH, "wanted_range": list(wanted), "threads": 1,
        }  # fmt: skip
        made = provenance(settings, seed=0)
        rows = []
        for way in given.ways:
            for seed in range(given.seeds):
                row = experiment(norm, way, seed, given.epochs, given.seconds)
                rows.append(row)
                print(json.dumps(asdict(row)), flush=True)
        judged = verdicts(norm, rows)
        for verdict in judged:
            print(f"{'yes' if verdict['holds'] else 'no':3} {verdict['claim']}: {verdict['measured']}")
        if given.out is not None:
            result = {
                "name": f"certify.certified_range_{norm}",
                "description": DESCRIPTION,
                "verdicts": judged,
                "table": {"columns": list(asdict(rows[0])), "rows": [list(asdict(r).values()) for r in rows]},
                "provenance": made,
            }
            given.out.mkdir(parents=True, exist_ok=True)
            text = json.dumps(result, indent=1, ensure_ascii=False) + "\n"
            (given.out / f"certified_range_{norm}.json").write_text(text)


if __name__ == "__main__":
    main()
