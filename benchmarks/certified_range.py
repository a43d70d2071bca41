"""How far can a network be held inside a proved range, and what does it cost?

    python -m benchmarks.certified_range [--seeds 3] [--epochs 30] [--out docs/reproductions/certify]

Protein data as P1 splits it (training rows have F1 < 20,000). Two hidden layers of 128 ReLU units with LayerNorm
first or before every activation, trained three ways: as it is, with ``OutputRangePenalty``, with ``RangeHead``. The
range asked for has the centre of the training targets and 1.5 times their width. Proved for every input in ℝ⁹: by the
quadratic dual for the first two (unrounded here), by interval propagation for the head.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import lzma
import os
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from farfield._provenance import provenance
from farfield._typing import JSON
from farfield.certify._descent import optimise
from farfield.certify._dual import objective
from farfield.certify._network import build_network
from farfield.certify._penalty import OutputRangePenalty, Search
from farfield.certify._problem import build_problem
from farfield.certify.intervals import Interval, propagate
from farfield.graph import capture
from farfield.nn import MLP

CHECKOUT = Path(__file__).resolve().parent.parent
FILE = Path("protein", "CASP.csv.xz")
SHA256 = "4277cfcb4e91a181746cbc654f001b57951c9e6a80f4f795fdb5c807e0848f40"
WIDTH, DEPTH, BATCH, RATE, TRAIN_SHARE, STRETCH = 128, 2, 256, 3e-3, 0.9, 1.5
Way = Literal["unconstrained", "penalty", "head"]
WAYS: tuple[Way, ...] = ("unconstrained", "penalty", "head")
PENALTY: dict[str, dict[str, Any]] = {
    "every": {"weight": 0.1, "every": 2, "steps": 1},
    "first": {"weight": 0.02, "every": 3, "steps": 2},
}
MARGIN = 0.002
"""Share of the range by which the penalty aims inside it."""
PROOF_STEPS = 800
TOLERANCE = 0.01
"""What R² may lose."""
DESCRIPTION = "How far can a network be held inside a proved range, and what does it cost?"


@dataclass(frozen=True)
class Split:
    """Standardised rows; ``centre`` and ``scale`` bring a target back to ångströms."""

    train_x: Tensor
    train_y: Tensor
    test_x: Tensor
    test_y: Tensor
    centre: float
    scale: float

    def wanted(self) -> tuple[float, float]:
        """The training targets' range, widened about its centre."""
        low, high = float(self.train_y.min()), float(self.train_y.max())
        half = STRETCH * (high - low) / 2
        return (low + high) / 2 - half, (low + high) / 2 + half


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


def find() -> Path:
    """The data file, or a sentence on where to put it."""
    places = [CHECKOUT / "data", CHECKOUT.parent / "shared" / "data"]
    if "FARFIELD_DATA" in os.environ:
        places.insert(0, Path(os.environ["FARFIELD_DATA"]))
    for place in places:
        if (place / FILE).exists():
            return place / FILE
    sys.exit(
        f"This benchmark needs the UCI protein table as {FILE}. Set FARFIELD_DATA to the folder that holds it (the "
        "CSV of 'Physicochemical Properties of Protein Tertiary Structure', archive.ics.uci.edu, compressed with xz)."
    )


def load(seed: int) -> Split:
    raw = lzma.decompress(find().read_bytes())
    if hashlib.sha256(raw).hexdigest() != SHA256:
        sys.exit(f"{FILE} is not the original UCI table: its sha256 differs.")
    table = torch.from_numpy(np.loadtxt(io.BytesIO(raw), delimiter=",", skiprows=1))
    y, x = table[:, 0], table[:, 1:]
    near = torch.nonzero(x[:, 0] < 20_000)[:, 0]
    order = near[torch.randperm(len(near), generator=torch.Generator().manual_seed(seed))]
    count = round(TRAIN_SHARE * len(near))
    train, test = order[:count], order[count:]
    x = (x - x[train].mean(0)) / x[train].std(0)
    centre, scale = float(y[train].mean()), float(y[train].std())
    y = ((y - centre) / scale)[:, None]
    return Split(x[train].float(), y[train].float(), x[test].float(), y[test].float(), centre, scale)


def train(
    split: Split, norm: Literal["first", "every"], way: Way, seed: int, epochs: int
) -> tuple[MLP, float]:
    """(network, seconds)."""
    generator = torch.Generator().manual_seed(1000 + seed)
    low, high = split.wanted()
    net = MLP(
        9, 1, width=WIDTH, depth=DEPTH, norm="layer", placement=norm, norm_affine=True, bias_var=0.01,
        certified_range=(low, high) if way == "head" else None, generator=generator,
    )  # fmt: skip
    begin = time.monotonic()
    inset = MARGIN * (high - low)
    penalty = None
    if way == "penalty":
        penalty = OutputRangePenalty(net, split.test_x[:1], (low + inset, high - inset), **PENALTY[norm])
    optimiser = torch.optim.Adam(net.parameters(), RATE)
    rows = len(split.train_x)
    batches = rows // BATCH
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, epochs * batches)
    for epoch in range(epochs):
        order = torch.randperm(rows, generator=generator)
        for k in range(batches):
            pick = order[k * BATCH : (k + 1) * BATCH]
            loss = (net(split.train_x[pick]) - split.train_y[pick]).square().mean()
            if penalty is not None:
                loss = loss + penalty()
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            schedule.step()
        print(f"\r{norm:5} {way:13} epoch {epoch + 1}/{epochs}", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    return net, time.monotonic() - begin


def prove(net: MLP, way: Way, seconds: float) -> tuple[float, float, str]:
    program = capture(net, torch.zeros(1, 9, dtype=torch.float64), dynamic_batch=False)
    intervals = propagate(program)
    if way == "head":
        output = intervals["output"]
        assert isinstance(output, Interval)
        return float(output.lo.min()), float(output.hi.max()), "intervals"
    problem = build_problem(build_network(program, "output", intervals))
    ends = []
    for sign in (-1.0, 1.0):
        # A counted number of steps first: what is proved then depends little on how fast or busy the machine is.
        goal = objective(problem, 0, sign)
        search = Search.begin(problem, goal, 0.02)
        search.follow(problem, goal, PROOF_STEPS)
        start = {name: value * search.scale for name, value in search.multipliers.items()}
        ends.append(sign * optimise(problem, 0, sign, seconds=seconds, start=start)[1])
    return ends[0], ends[1], "quadratic dual, unrounded"


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
    wanted = split.wanted()
    ends = [split.centre + split.scale * v for v in (low, high, *attained(net, split))]
    inside = wanted[0] <= low and high <= wanted[1]
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
    wanted = [split.centre + split.scale * v for v in split.wanted()]
    for norm in given.norms:
        settings: dict[str, JSON] = {
            "data": "protein", "rows": len(split.train_x), "norm": norm, "width": WIDTH, "depth": DEPTH,
            "activation": "relu", "norm_affine": True, "epochs": given.epochs, "batch": BATCH, "rate": RATE,
            "seeds": given.seeds, "penalty": dict(PENALTY[norm]), "margin": MARGIN,
            "proof_steps": PROOF_STEPS, "seconds_per_side": given.seconds,
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
