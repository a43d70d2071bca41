"""How tight are certificates over regions of a trained network's inputs?

    python -m benchmarks.regions [--quick] [--places NAME …] [--seeds N] [--seconds S] [--out FILE] [--cpu-clock]

Networks of nine inputs, two layers of 128, trained on the protein table as in ``benchmarks.everyday``; boxes and
ellipsoids of so many standard deviations around the mean of the data, or around a row. Tightness is the proved width
over the attained one, 1 at best. Finished rows are kept in FILE.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn

from benchmarks._rows import collect
from benchmarks.certificates import EPOCHS, fit
from benchmarks.everyday import SHAPES, network, rows_of
from farfield import _budget, certify, verify_certificate
from farfield._provenance import provenance
from farfield.certify import around

PLACES = ("first", "every", "second", "plain")
REGIONS = (
    ("box", "mean", 5.0), ("ellipsoid", "mean", 2.0), ("box", "mean", 2.0), ("box", "mean", 0.5),
    ("box", "mean", 0.1), ("box", "row", 1.0), ("box", "row", 0.1), ("ellipsoid", "row", 0.1),
    ("box", "row", 0.01), ("ellipsoid", "row", 0.01), ("box", "row", 0.001),
)  # fmt: skip
"""(shape, around what, standard deviations)."""


def trained(place: str, seed: int) -> tuple[nn.Module, torch.Tensor]:
    """A network of the protein table, and the rows it was trained on."""
    x, y = rows_of("protein", seed)
    widths = SHAPES["2×128"]
    model: nn.Module = network(x.shape[1], widths, "first" if place == "plain" else place, seed)
    if place == "plain":
        model = nn.Sequential(*(layer for layer in model if not isinstance(layer, nn.LayerNorm)))
    fit(model, x, y, steps=max(300, EPOCHS * len(x) // 256), batch=256, rate=1e-3)
    return model.double().eval(), x.double()


def measure(
    place: str, shape: str, center: str, deviations: float, seconds: float, seed: int
) -> dict[str, Any]:
    """One network over one region: certified, verified."""
    model, x = trained(place, seed)
    domain = around(x, deviations, shape=shape)
    if center == "row":
        row, mean = x[17 + seed], x.mean(0)
        names = ("center",) if shape == "ellipsoid" else ("lower", "upper")
        domain |= {
            name: (torch.tensor(domain[name], dtype=torch.float64) - mean + row).tolist() for name in names
        }
    begun = time.process_time()
    made = certify(model, torch.zeros(1, x.shape[1], dtype=torch.float64), domain=domain, time_budget=seconds)
    spent = time.process_time() - begun
    verify_certificate(model, made)
    return {
        "tightness": float(made.tightness), "method": made.method, "lower": float(made.lower),
        "upper": float(made.upper), "attained": [float(made.attained_lower), float(made.attained_upper)],
        "cpu": spent,
    }  # fmt: skip


def summary(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Medians by kind of network and region."""
    groups: dict[tuple[Any, ...], list[float]] = {}
    for row in rows:
        groups.setdefault(tuple(row["key"][:-1]), []).append(row["tightness"])
    names = ("norm", "shape", "around", "deviations", "seconds")
    return [
        {
            **dict(zip(names, key, strict=True)),
            "networks": len(found),
            "tightness": statistics.median(found),
            "worst": max(found),
        }
        for key, found in groups.items()
    ]


def main() -> None:
    """Print the table; with ``--out`` keep its rows."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="norm first, two regions, 2 seconds")
    parser.add_argument("--places", nargs="+", default=PLACES, choices=PLACES)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument(
        "--cpu-clock", action="store_true", help="seconds of the process instead of wall time"
    )
    parser.add_argument("--out", type=Path)
    words = parser.parse_args()
    regions = REGIONS
    if words.quick:
        words.places, words.seconds, words.seeds, regions = ["first"], 2.0, 1, REGIONS[5:7]
    torch.set_num_threads(1)
    if words.cpu_clock:
        _budget.time = SimpleNamespace(monotonic=time.process_time)  # type: ignore[assignment]
    keys = [
        (place, *region, words.seconds, seed)
        for seed in range(words.seeds)
        for place in words.places
        for region in regions
    ]
    rows = collect(keys, lambda k: measure(*k), words.out)
    record = {"rows": summary(rows), "provenance": provenance({k: str(v) for k, v in vars(words).items()})}
    print(json.dumps(record, indent=1, ensure_ascii=False))


if __name__ == "__main__":
    main()
