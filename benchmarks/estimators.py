"""The default estimators against scikit-learn's perceptrons: scores, fit time per network, bounds, coverage.

    python -m benchmarks.estimators [--quick] [--tables NAME …] [--rows N] [--folds K] [--out FOLDER]

Regression: scikit-learn's diabetes and the eleven tables of ``farfield.data`` (R²). Classification: scikit-learn's
breast cancer, wine and iris (accuracy). Every table is shuffled, cut to ``--rows`` rows and split into folds.

stable    StableMLPRegressor() or StableMLPClassifier(), five networks in one fit
mlp       MLPRegressor(early_stopping=True) or MLPClassifier(early_stopping=True) on standardized inputs and targets

A table passes if the mean score of *stable* is not below that of *mlp* by more than the standard deviation of the
*mlp* scores over the folds. Times are processor seconds of a fit, not the first in its process, divided by the number
of networks it trains. For regressors the record also has the width of the proved range over that of the training
targets, and the share of held-out targets within mean ± 1.645·std; for classifiers the ceiling, the largest
probability on held-out rows and the largest on the same rows moved a thousand times as far from the center of the
training rows.

Finished runs are kept by the record (estimators.runs.jsonl) and not computed again; delete that file to start over.
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.compose import TransformedTargetRegressor
from sklearn.datasets import load_breast_cancer, load_diabetes, load_iris, load_wine
from sklearn.exceptions import ConvergenceWarning
from sklearn.model_selection import KFold, StratifiedKFold
from sklearn.neural_network import MLPClassifier, MLPRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from benchmarks._records import save_record
from benchmarks.tables import TABLES
from farfield import StableMLPClassifier, StableMLPRegressor, data
from farfield._provenance import provenance

Array = NDArray[Any]
CLASSES = {"breast_cancer": load_breast_cancer, "wine": load_wine, "iris": load_iris}
QUICK = ("diabetes", "iris")
EVERY = ("diabetes", *TABLES, *CLASSES)
COVERED = 1.645
"""Standard deviations to either side that hold 90 % of a Gaussian."""


def rows_of(name: str, most: int) -> tuple[Array, Array]:
    """Inputs and targets, shuffled, at most so many; rows with missing values are left out."""
    if name == "diabetes":
        X, y = load_diabetes(return_X_y=True)
    elif name in CLASSES:
        X, y = CLASSES[name](return_X_y=True)
    else:
        found = data.load(name)
        parts = [found.train, found.id, found.ood]
        X = np.concatenate([np.asarray(part.x, dtype=np.float64) for part in parts])
        y = np.concatenate(
            [np.asarray(part.y, dtype=np.float64).reshape(len(part.x), -1)[:, 0] for part in parts]
        )
    whole = np.isfinite(X).all(1)
    X, y = X[whole], y[whole]
    order = np.random.default_rng(0).permutation(len(X))[:most]
    return X[order], y[order]


def model_of(kind: str, seed: int, classes: bool) -> tuple[Any, int]:
    """An estimator with its default settings, and how many networks its fit trains."""
    if kind == "stable":
        model = (StableMLPClassifier if classes else StableMLPRegressor)(random_state=seed)
        return model, model.n_members
    if classes:
        return make_pipeline(StandardScaler(), MLPClassifier(early_stopping=True, random_state=seed)), 1
    network = make_pipeline(StandardScaler(), MLPRegressor(early_stopping=True, random_state=seed))
    return TransformedTargetRegressor(network, transformer=StandardScaler()), 1


def runs(name: str, most: int, folds: int, done: set[tuple[Any, ...]]) -> Iterator[dict[str, Any]]:
    """Everything that is missing of one table."""
    classes = name in CLASSES
    wanted = [
        (kind, fold)
        for fold in range(folds)
        for kind in ("mlp", "stable")
        if (name, kind, fold, most, folds) not in done
    ]
    if not wanted:
        return
    X, y = rows_of(name, most)
    splitter = (StratifiedKFold if classes else KFold)(folds, shuffle=True, random_state=0)
    splits = list(splitter.split(X, y))
    for kind in ("mlp", "stable"):
        # What a first fit loads and builds for all later ones is not counted.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            model_of(kind, 0, classes)[0].fit(X[:60], y[:60])
    for kind, fold in wanted:
        train, test = splits[fold]
        model, networks = model_of(kind, fold, classes)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            begun = time.process_time()
            model.fit(X[train], y[train])
            seconds = (time.process_time() - begun) / networks
        run = {
            "table": name,
            "model": kind,
            "fold": fold,
            "rows": most,
            "folds": folds,
            "trained_on": len(train),
            "score": float(model.score(X[test], y[test])),
            "seconds_per_network": seconds,
        }
        if kind == "stable":
            run |= of_classes(model, X[test]) if classes else of_numbers(model, X[test], y[test])
        yield run


def of_numbers(model: StableMLPRegressor, X: Array, y: Array) -> dict[str, float]:
    mean, deviation = model.predict(X, return_std=True)
    return {
        "relative_width": model.far_field_report_.relative_width[0],
        "coverage": float((np.abs(y - mean) <= COVERED * deviation).mean()),
    }


def of_classes(model: StableMLPClassifier, X: Array) -> dict[str, float]:
    center = model.input_scaling_.offset
    return {
        "ceiling": model.ceiling_,
        "largest_near": float(model.predict_proba(X).max()),
        "largest_far": float(model.predict_proba(center + 1000.0 * (X - center)).max()),
    }


def summary(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """One line a table."""
    lines = []
    for name in dict.fromkeys(run["table"] for run in found):
        line: dict[str, Any] = {"table": name}
        for kind in ("stable", "mlp"):
            own = [run for run in found if run["table"] == name and run["model"] == kind]
            scores = [run["score"] for run in own]
            line |= {
                "trained_on": own[0]["trained_on"],
                kind: float(np.mean(scores)),
                f"{kind}_spread": float(np.std(scores, ddof=1)),
                f"{kind}_seconds": float(np.mean([run["seconds_per_network"] for run in own])),
            }
            for key in ("relative_width", "coverage", "ceiling", "largest_near", "largest_far"):
                if key in own[0]:
                    line[key] = float(np.mean([run[key] for run in own]))
        line["passes"] = line["stable"] >= line["mlp"] - line["mlp_spread"]
        line["times_slower"] = line["stable_seconds"] / line["mlp_seconds"]
        lines.append(line)
    return lines


def show(lines: list[dict[str, Any]]) -> None:
    print(f"{'table':>14} {'rows':>6}  {'stable':>15}  {'mlp':>15}  passes   s/network     mlp  ratio")
    for line in lines:
        stable, mlp = (f"{line[k]:6.3f} ± {line[k + '_spread']:5.3f}" for k in ("stable", "mlp"))
        print(
            f"{line['table']:>14} {line['trained_on']:>6}  {stable:>15}  {mlp:>15}  {line['passes']!s:>6} "
            f"{line['stable_seconds']:>11.2f} {line['mlp_seconds']:>7.2f} {line['times_slower']:>6.2f}"
        )
    print()
    for line in lines:
        if "coverage" in line:
            print(
                f"{line['table']:>14}  proved range {line['relative_width']:.3g} times that of the targets; "
                f"{line['coverage']:.1%} of held-out targets within ±{COVERED} std"
            )
        else:
            print(
                f"{line['table']:>14}  ceiling {line['ceiling']:.4f}; largest probability on held-out rows "
                f"{line['largest_near']:.4f}, a thousand times as far out {line['largest_far']:.4f}"
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="two small tables, two folds, nothing written")
    parser.add_argument("--tables", nargs="+", choices=EVERY)
    parser.add_argument("--rows", type=int, default=2000, help="rows of a table that are used, at most")
    parser.add_argument("--folds", type=int)
    parser.add_argument("--out", type=Path, default=Path("docs/reproductions/learn"))
    given = parser.parse_args()
    folds = given.folds or (2 if given.quick else 3)
    wanted = given.tables or (QUICK if given.quick else EVERY)
    kept = given.out / "estimators.runs.jsonl"
    found: list[dict[str, Any]] = []
    if not given.quick and kept.exists():
        found = [json.loads(line) for line in kept.read_text(encoding="utf-8").splitlines()]
    keys = ("table", "model", "fold", "rows", "folds")
    known = {tuple(run[key] for key in keys): run for run in found}  # two processes may have written the same
    found, done = list(known.values()), set(known)
    for name in wanted:
        if name in TABLES and not data.is_here(name):
            print(f"{name} is not here: farfield data fetch {name}")
            continue
        for run in runs(name, given.rows, folds, done):
            found.append(run)
            print(f"{run['table']} {run['model']} fold {run['fold']}: {run['score']:.3f}", flush=True)
            if not given.quick:
                given.out.mkdir(parents=True, exist_ok=True)
                with kept.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(run) + "\n")
    mine = [
        run for run in found if (run["rows"], run["folds"]) == (given.rows, folds) and run["table"] in wanted
    ]
    whole = [
        run
        for run in mine
        if sum(r["table"] == run["table"] and r["model"] == run["model"] for r in mine) == folds
    ]
    lines = summary(whole)
    show(lines)
    if not given.quick:
        settings = {"rows": given.rows, "folds": folds, "threads": torch.get_num_threads()}
        record = {"name": "learn.estimators", "summary": lines, "provenance": provenance(settings)}
        save_record(record, given.out / "estimators.json")


if __name__ == "__main__":
    main()
