"""How tight are certificates of everyday networks, trained on real tables?

    python -m benchmarks.everyday [--quick] [--tables NAME …] [--seeds N] [--seconds 10 60] [--out FILE] [--cpu-clock]

Networks of Linear, (LayerNorm,) ReLU with the norm at the first, the second, every or the last hidden layer,
trained for five epochs on the standardized table; tightness is the proved width over the attained one, 1 at best.
``--cpu-clock`` counts the seconds of a budget in the process's own time: what a free core gives, on a machine that
is not free. Wall time over the budget is recorded beside it (time to capture the model included). ``--estimators``
adds a default StableMLPRegressor for every table: proved width over the range of its targets. Finished rows are
kept in FILE.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections import defaultdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks._protein import load as load_protein
from benchmarks._rows import collect
from benchmarks.certificates import EPOCHS, fit
from benchmarks.estimators import rows_of as table_rows
from benchmarks.tables import TABLES
from farfield import Budget, StableMLPRegressor, _budget, certify, verify_certificate
from farfield._provenance import provenance

SHAPES = {"2×128": (128, 128), "2×512": (512, 512), "4×128": (128,) * 4, "6×64": (64,) * 6}
PLACES = ("first", "second", "every", "last")
NETWORKS = ("protein", "boston", "naval")
"""9, 13 and 16 inputs; other tables by name."""


def network(inputs: int, widths: tuple[int, ...], place: str, seed: int) -> nn.Sequential:
    """Linear (LayerNorm) ReLU for every width, and a Linear."""
    torch.manual_seed(seed)
    at = {"first": {0}, "second": {1}, "last": {len(widths) - 1}, "every": set(range(len(widths)))}[place]
    layers: list[nn.Module] = []
    for i, width in enumerate(widths):
        layers += [nn.Linear(inputs if i == 0 else widths[i - 1], width)]
        layers += [nn.LayerNorm(width), nn.ReLU()] if i in at else [nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(widths[-1], 1))


def rows_of(table: str, seed: int) -> tuple[Tensor, Tensor]:
    """Standardized inputs and targets."""
    if table == "protein":
        split = load_protein(seed)
        return split.train_x, split.train_y
    x, y = (torch.from_numpy(part).float() for part in table_rows(table, 10**6))
    y = y.reshape(-1, 1)
    return (x - x.mean(0)) / x.std(0).clamp_min(1e-6), (y - y.mean()) / y.std()


def measure(table: str, place: str, shape: str, seconds: float, seed: int) -> dict[str, Any]:
    """One network: trained, certified, verified."""
    x, y = rows_of(table, seed)
    model = network(x.shape[1], SHAPES[shape], place, seed)
    fit(model, x, y, steps=max(300, EPOCHS * len(x) // 256), batch=256, rate=1e-3)
    model = model.double().eval()
    begun = time.monotonic(), time.process_time()
    made = certify(model, torch.zeros(1, x.shape[1], dtype=torch.float64), time_budget=seconds)
    spent = time.monotonic() - begun[0], time.process_time() - begun[1]
    checked = time.process_time()
    verify_certificate(model, made)
    return {
        "inputs": x.shape[1], "tightness": float(made.tightness), "method": made.method,
        "lower": float(made.lower), "upper": float(made.upper), "wall": spent[0], "cpu": spent[1],
        "verified in": time.process_time() - checked,
    }  # fmt: skip


def estimator(table: str) -> dict[str, Any]:
    """A default estimator: what is proved of it over what its targets span."""
    x, y = table_rows(table, 2000)
    module = StableMLPRegressor(max_epochs=5, random_state=0).fit(x, y).module_
    made = certify(module, torch.zeros(1, x.shape[1], dtype=torch.float64), time_budget=Budget(steps=2))
    low, high = float(made.lower.min()), float(made.upper.max())
    verify_certificate(module, made)
    return {"lower": low, "upper": high, "share": (high - low) / float(np.ptp(y))}


def summary(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Medians by kind of network and budget."""
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        if row["key"][0] == "network":
            _, table, place, shape, seconds, _ = row["key"]
            groups[table, row["inputs"], place, shape, seconds].append(row)
    return [
        {
            **dict(zip(("table", "inputs", "norm", "network", "seconds"), key, strict=True)),
            "networks": len(found),
            "tightness": statistics.median(r["tightness"] for r in found),
            "worst": max(r["tightness"] for r in found),
            "cpu over budget": max(r["cpu"] for r in found) / float(key[-1]),
        }
        for key, found in groups.items()
    ]


def main() -> None:
    """Print the table; with ``--out`` keep its rows."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--quick", action="store_true", help="protein, norm first, 2×128 and 4×128, 2 seconds"
    )
    parser.add_argument("--tables", nargs="+", default=NETWORKS)
    parser.add_argument("--places", nargs="+", default=PLACES)
    parser.add_argument("--shapes", nargs="+", default=tuple(SHAPES))
    parser.add_argument("--seconds", nargs="+", type=float, default=(10.0, 60.0))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument(
        "--estimators", action="store_true", help="default estimators of eleven tables as well"
    )
    parser.add_argument(
        "--cpu-clock", action="store_true", help="seconds of the process instead of wall time"
    )
    parser.add_argument("--out", type=Path)
    words = parser.parse_args()
    if words.quick:
        words.tables, words.places, words.shapes = ["protein"], ["first"], ["2×128", "4×128"]
        words.seconds, words.seeds = [2.0], 1
    torch.set_num_threads(1)
    if words.cpu_clock:
        _budget.time = SimpleNamespace(monotonic=time.process_time)  # type: ignore[assignment]
    keys: list[tuple[Any, ...]] = [
        ("network", table, place, shape, seconds, seed)
        for seed in range(words.seeds)
        for seconds in words.seconds
        for table in words.tables
        for shape in words.shapes
        for place in words.places
        if (place, shape[0]) != ("last", "2")  # the second is the last there
    ]
    keys += [("estimator", table) for table in TABLES if words.estimators]
    rows = collect(keys, lambda k: measure(*k[1:]) if k[0] == "network" else estimator(*k[1:]), words.out)
    record = {
        "rows": summary(rows),
        "estimators": {r["key"][1]: r["share"] for r in rows if r["key"][0] == "estimator"},
        "provenance": provenance({k: str(v) for k, v in vars(words).items()}),
    }
    print(json.dumps(record, indent=1, ensure_ascii=False))


if __name__ == "__main__":
    main()
