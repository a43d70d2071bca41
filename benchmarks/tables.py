"""A network that stays bounded against what people use, on real tables, near the data and far from it.

    python -m benchmarks.tables [--quick] [--tables NAME …] [--seeds N] [--out FOLDER]

Every table is split by its leading feature: the top decile is held out as the far side, and a tenth of the rest at
random, another one for every seed. All models have their default settings; none is tuned to a table.

stable    StableMLPRegressor
plain     the same network, trained the same way, without a norm
mlp       scikit-learn's MLPRegressor on standardised inputs and targets
clipped   its predictions, cut to the range of the training targets
tanh      the plain network with a tanh head over the range of the training targets and a tenth more on either side
forest    scikit-learn's RandomForestRegressor
boosted   XGBoost
mean      the mean of the training targets: R² below its own says that a model is worse than no model

Root mean squared errors are in standard deviations of the training target. The last columns have the largest
|prediction − mean|, in the same unit, on the held-out rows and on rows blown up a thousandfold from their mean.
Finished (table, model, seed) are kept in the record and not computed again.
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.compose import TransformedTargetRegressor
from sklearn.dummy import DummyRegressor
from sklearn.ensemble import RandomForestRegressor
from sklearn.exceptions import ConvergenceWarning
from sklearn.neural_network import MLPRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from farfield import StableMLPRegressor, data
from farfield._provenance import provenance
from farfield.papers._intervals import mean_interval

TABLES = (
    "boston", "concrete", "energy", "kin8nm", "naval", "power", "wine_red", "yacht", "airfoil", "bike_hour",
    "california",
)  # fmt: skip
QUICK_TABLES = ("yacht", "boston")
BLOWN_UP = 1000.0
Array = NDArray[np.float64]


class Clipped(MLPRegressor):  # type: ignore[misc]
    """Predictions cut to the range of the targets it was fitted to."""

    def fit(self, X: Array, y: Array) -> Clipped:  # noqa: D102
        self.range_ = float(y.min()), float(y.max())
        super().fit(X, y)
        return self

    def predict(self, X: Array) -> Array:  # noqa: D102
        return np.clip(super().predict(X), *self.range_)


def scaled(network: Any) -> Any:
    return TransformedTargetRegressor(make_pipeline(StandardScaler(), network), transformer=StandardScaler())


def tanh_head(y: Array, seed: int) -> StableMLPRegressor:
    room = 0.125 * np.ptp(y)  # so that the targets are where the head is the identity
    return StableMLPRegressor(norm=None, certified_range=(y.min() - room, y.max() + room), random_state=seed)


def boosted(y: Array, seed: int) -> Any:
    from xgboost import XGBRegressor  # beside the others, here only

    return XGBRegressor(random_state=seed, n_jobs=1)


MODELS: dict[str, Callable[[Array, int], Any]] = {
    "stable": lambda y, seed: StableMLPRegressor(random_state=seed),
    "plain": lambda y, seed: StableMLPRegressor(norm=None, random_state=seed),
    "mlp": lambda y, seed: scaled(MLPRegressor(random_state=seed)),
    "clipped": lambda y, seed: scaled(Clipped(random_state=seed)),
    "tanh": tanh_head,
    "forest": lambda y, seed: RandomForestRegressor(random_state=seed, n_jobs=1),
    "boosted": boosted,
    "mean": lambda y, seed: DummyRegressor(),
}


def measure(table: str, model: str, seed: int) -> dict[str, Any]:
    split = data.load(table, seed=seed)
    train_y, near_y, far_y = (
        np.asarray(part.y, dtype=np.float64).reshape(len(part), -1)[:, 0]
        for part in (split.train, split.id, split.ood)
    )
    unit, middle = train_y.std(), train_y.mean()
    estimator = MODELS[model](train_y, seed)
    started = time.process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        estimator.fit(split.train.x, train_y)
    spent = time.process_time() - started
    centre = split.train.x.mean(0)
    blown = centre + BLOWN_UP * (np.concatenate([split.id.x, split.ood.x]) - centre)
    near, far, away = (estimator.predict(x) for x in (split.id.x, split.ood.x, blown))

    def error(predicted: Array, target: Array) -> float:
        return float(np.sqrt(np.mean((predicted - target) ** 2)) / unit)

    return {
        "table": table, "model": model, "seed": seed, "rows": len(train_y), "fit_cpu_seconds": spent,
        "near": error(near, near_y), "far": error(far, far_y),
        "worst": float(np.abs(np.concatenate([near, far]) - middle).max() / unit),
        "worst_blown_up": float(np.abs(away - middle).max() / unit),
    }  # fmt: skip


def summary(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """One line for every table and model: means and 95% intervals over seeds, largest of the worst."""
    lines = []
    for table in dict.fromkeys(row["table"] for row in rows):
        for model in MODELS:
            found = [row for row in rows if (row["table"], row["model"]) == (table, model)]
            if not found:
                continue
            near, far = (mean_interval(torch.tensor([row[key] for row in found])) for key in ("near", "far"))
            lines.append({
                "table": table, "model": model, "seeds": len(found),
                "near": [float(v) for v in near], "far": [float(v) for v in far],
                "worst": max(row["worst"] for row in found),
                "worst_blown_up": max(row["worst_blown_up"] for row in found),
                "fit_cpu_seconds": float(np.mean([row["fit_cpu_seconds"] for row in found])),
            })  # fmt: skip
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="two small tables, two seeds, nothing written")
    parser.add_argument("--tables", nargs="+", choices=TABLES)
    parser.add_argument("--models", nargs="+", choices=tuple(MODELS), default=list(MODELS))
    parser.add_argument("--seeds", type=int)
    parser.add_argument("--out", type=Path, default=Path("docs/reproductions/learn"))
    given = parser.parse_args()
    tables = given.tables or (QUICK_TABLES if given.quick else TABLES)
    seeds = given.seeds or (2 if given.quick else 5)
    path = given.out / "tables.json"
    rows: list[dict[str, Any]] = []
    if path.exists() and not given.quick:
        rows = json.loads(path.read_text(encoding="utf-8"))["numbers"]["runs"]
    done = {(row["table"], row["model"], row["seed"]) for row in rows}
    for table in tables:
        if not data.is_here(table):
            print(f"{table} is not here: farfield data fetch {table}")
            continue
        for seed in range(seeds):
            for model in given.models:
                if (table, model, seed) in done:
                    continue
                rows.append(measure(table, model, seed))
                print(json.dumps(rows[-1]), flush=True)
            if not given.quick:
                given.out.mkdir(parents=True, exist_ok=True)
                content = {"name": "learn.tables", "numbers": {"summary": summary(rows), "runs": rows},
                           "provenance": provenance({"blown_up": BLOWN_UP, "seeds": seeds}, seed=0)}  # fmt: skip
                part = path.with_suffix(".part")
                part.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
                part.replace(path)
    for line in summary(rows):
        (near, near_half), (far, far_half) = line["near"], line["far"]
        print(
            f"{line['table']:>10} {line['model']:>8}  near {near:6.3f} ± {near_half:5.3f}"
            f"  far {far:7.3f} ± {far_half:5.3f}  worst {line['worst']:8.2f}  blown up {line['worst_blown_up']:10.3g}"
        )


if __name__ == "__main__":
    main()
