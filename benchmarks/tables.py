"""A network that stays bounded against what people use, on real tables, near the data and far from it.

    python -m benchmarks.tables [--quick] [--tables NAME …] [--seeds N] [--out FOLDER]

Every table is split by its leading feature: the top decile is held out as the far side, and a tenth of the rest at
random, another one for every seed. All models have their default settings; none is tuned to a table.

stable    StableMLPRegressor
plain     the same network, trained the same way, with neither norm nor range
mlp       scikit-learn's MLPRegressor on standardized inputs and targets
clipped   its predictions, cut to the range of the training targets
tanh      the plain network with a tanh head over the range of the training targets and a tenth more on either side
forest    scikit-learn's RandomForestRegressor
boosted   XGBoost
mean      the mean of the training targets: R² below its own says that a model is worse than no model

Root mean squared errors are in standard deviations of the training target. The last columns have the largest
|prediction − mean|, in the same unit, on the held-out rows and on rows blown up a thousandfold from their mean.
Finished (table, model, seed) are kept in a folder beside the record and not computed again.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.compose import TransformedTargetRegressor
from sklearn.dummy import DummyRegressor
from sklearn.ensemble import RandomForestRegressor
from sklearn.neural_network import MLPRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from farfield import StableMLPRegressor, data
from farfield.engine import bar
from farfield.learn import sweep

TABLES = (
    "boston", "concrete", "energy", "kin8nm", "naval", "power", "wine_red", "yacht", "airfoil", "bike_hour",
    "california",
)  # fmt: skip
QUICK_TABLES = ("yacht", "boston")
Array = NDArray[np.float64]


class Clipped(MLPRegressor):  # type: ignore[misc]
    """Predictions cut to the range of the targets it was fitted to."""

    def fit(self, X: Array, y: Array) -> Clipped:  # noqa: D102
        self.range_ = float(y.min()), float(y.max())
        super().fit(X, y)
        return self

    def predict(self, X: Array) -> Array:  # noqa: D102
        return np.clip(super().predict(X), *self.range_)


class TanhHead(StableMLPRegressor):
    """No norm, and a head over the range of the targets, with room so that it is the identity there."""

    def fit(self, X: Array, y: Array, sample_weight: Array | None = None) -> TanhHead:  # noqa: D102
        room = 0.125 * np.ptp(y)
        self.set_params(norm=None, certified_range=(float(y.min() - room), float(y.max() + room)))
        super().fit(X, y, sample_weight)
        return self


def scaled(network: Any) -> Any:
    return TransformedTargetRegressor(make_pipeline(StandardScaler(), network), transformer=StandardScaler())


def models() -> dict[str, Any]:
    from xgboost import XGBRegressor  # beside the others, here only

    return {
        "stable": StableMLPRegressor(),
        "plain": StableMLPRegressor(norm=None, output_range=None),
        "mlp": scaled(MLPRegressor()),
        "clipped": scaled(Clipped()),
        "tanh": TanhHead(),
        "forest": RandomForestRegressor(n_jobs=1),
        "boosted": XGBRegressor(n_jobs=1),
        "mean": DummyRegressor(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="two small tables, two seeds, nothing written")
    parser.add_argument("--tables", nargs="+", choices=TABLES)
    parser.add_argument("--models", nargs="+", choices=tuple(models()), default=list(models()))
    parser.add_argument("--seeds", type=int)
    parser.add_argument("--engine", default="auto", help="where it runs: local, or ray")
    parser.add_argument("--out", type=Path, default=Path("docs/reproductions/learn"))
    given = parser.parse_args()
    wanted = given.tables or (QUICK_TABLES if given.quick else TABLES)
    tables = [table for table in wanted if data.is_here(table)]
    for table in sorted(set(wanted) - set(tables)):
        print(f"{table} is not here: farfield data fetch {table}")
    with bar("fits") as progress:
        found = sweep(
            {name: model for name, model in models().items() if name in given.models}, tables,
            seeds=range(given.seeds or (2 if given.quick else 5)), engine=given.engine, progress=progress,
            checkpoint=None if given.quick else given.out / "tables.runs",
        )  # fmt: skip
    if not given.quick:
        found.save(given.out / "tables.json")
    for run in found.failed:
        print(json.dumps([run.dataset, run.model, run.seed, run.error]))
    for line in found.summary():
        (near, near_half), (far, far_half) = line["near"], line["far"]
        print(
            f"{line['table']:>10} {line['model']:>8}  near {near:6.3f} ± {near_half:5.3f}"
            f"  far {far:7.3f} ± {far_half:5.3f}  worst {line['worst']:8.2f}  blown up {line['worst_blown_up']:10.3g}"
        )


if __name__ == "__main__":
    main()
