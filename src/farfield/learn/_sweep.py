"""Estimators × datasets × seeds as tasks of an engine, and what they found as one tidy table."""

from __future__ import annotations

import dataclasses
import math
import os
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from farfield import data
from farfield._intervals import mean_interval
from farfield._provenance import provenance
from farfield._typing import JSON
from farfield.data import Dataset
from farfield.data._records import save_records
from farfield.engine import Checkpoint, Engine, Progress, fingerprint
from farfield.engine import engine as resolve
from farfield.errors import InvalidValueError
from farfield.learn._sklearn import BaseEstimator, clone

__all__ = ["Sweep", "SweepRun", "sweep"]

Array = NDArray[np.float64]
DataSource = Dataset | Callable[[int], Dataset]
_KINDS: dict[str, type] = {
    "dataset": str, "model": str, "seed": int, "rows": int, "near": float, "far": float, "near_r2": float,
    "far_r2": float, "worst": float, "worst_blown_up": float, "fit_cpu_seconds": float, "error": str,
}  # fmt: skip
_TRIES = 3
"""Of a run that fails for a reason that may pass: a file that can't be read just now, memory that is taken."""
RunKey = tuple[str, str, int, str]
"""Dataset, model, seed, and a digest of what else the run depends on."""


@dataclass(frozen=True)
class SweepRun:
    """One estimator fitted to one dataset with one seed. Numbers are NaN where there is nothing to measure.

    Parameters
    ----------
    dataset, model, seed
        Which.
    rows
        To fit on.
    near, far
        Root mean squared errors on the held-out rows of the same region and on those from elsewhere, in standard
        deviations of the training targets.
    near_r2, far_r2
        1 − Σ(y − f)²/Σ(y − ȳ)², ȳ the mean of those very rows.
    worst
        Largest distance of a prediction from the training targets' mean, on all held-out rows, in the same unit.
    worst_blown_up
        The same on these rows moved away from the training mean, a thousand times as far.
    fit_cpu_seconds
        Processor time of the fit: of this machine, and no part of the result otherwise.
    error
        Why there are no numbers, or None.
    """

    dataset: str
    model: str
    seed: int
    rows: int = 0
    near: float = math.nan
    far: float = math.nan
    near_r2: float = math.nan
    far_r2: float = math.nan
    worst: float = math.nan
    worst_blown_up: float = math.nan
    fit_cpu_seconds: float = math.nan
    error: str | None = None


@dataclass(frozen=True)
class Sweep:
    """All runs of a sweep, in the order datasets, seeds, models."""

    runs: tuple[SweepRun, ...]
    origin: dict[str, JSON]
    """Settings, versions and commit."""

    @property
    def failed(self) -> tuple[SweepRun, ...]:
        """Runs that ended with an error."""
        return tuple(run for run in self.runs if run.error is not None)

    def summary(self) -> list[dict[str, Any]]:
        """One line for every dataset and model: [mean, half of its 95% t-interval] over seeds, and the worst."""
        lines = []
        for name, model in dict.fromkeys((run.dataset, run.model) for run in self.runs):
            found = [r for r in self.runs if (r.dataset, r.model) == (name, model) and r.error is None]
            line: dict[str, Any] = {"table": name, "model": model, "seeds": len(found)}
            if found:
                for key in ("near", "far"):
                    values = torch.tensor([getattr(run, key) for run in found], dtype=torch.float64)
                    line[key] = [float(v) for v in mean_interval(values)]
                line["worst"] = max(run.worst for run in found)
                line["worst_blown_up"] = max(run.worst_blown_up for run in found)
                line["fit_cpu_seconds"] = float(np.mean([run.fit_cpu_seconds for run in found]))
            lines.append(line)
        return lines

    def to_dict(self) -> dict[str, JSON]:
        """Plain data: summary, runs, provenance. A number that is not finite becomes None."""
        numbers = {"summary": self.summary(), "runs": [asdict(run) for run in self.runs]}
        return {"name": "learn.sweep", "numbers": _plain(numbers), "provenance": self.origin}

    def columns(self) -> dict[str, list[Any]]:
        """The runs as columns of equal length, for a data frame."""
        return {f.name: [getattr(run, f.name) for run in self.runs] for f in dataclasses.fields(SweepRun)}

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write JSON, or to a ``.parquet`` file one row a run and the rest as metadata (extra ``data``).

        Whole or not at all.
        """
        return save_records(path, [asdict(run) for run in self.runs], _KINDS, self.origin, self.to_dict())


def sweep(
    models: Mapping[str, BaseEstimator],
    datasets: Sequence[str] | Mapping[str, DataSource],
    *,
    seeds: Sequence[int] = range(5),
    blown_up: float = 1000.0,
    engine: str | Engine = "auto",
    checkpoint: str | os.PathLike[str] | None = None,
    progress: Progress | None = None,
) -> Sweep:
    """Fit every estimator to every dataset with every seed, and measure it near the data and far from it.

    Every run is a task of its own: it may run anywhere, and its result depends on its names and seed alone. One that
    fails is reported in its row and stops nothing; one that fails with an ``OSError`` or a ``MemoryError`` is tried
    three times.

    Parameters
    ----------
    models
        Regressors with scikit-learn's interface, by name. Each is cloned; wherever it has a parameter
        ``random_state``, itself or in a part of it, that is set to the seed.
    datasets
        Names of the catalogue (:func:`farfield.data.load` splits them by the seed), or your own by name: a
        :class:`~farfield.data.Dataset`, or a function of the seed that gives one, at the top of a module so that it
        can be sent to another process.
    seeds
        Seeds of splits and estimators.
    blown_up
        How many times farther from the training mean the held-out rows are moved for ``worst_blown_up``.
    engine
        Where it runs: see :func:`farfield.engine.engine`.
    checkpoint
        A folder for finished runs, failed ones among them: started again, also with more models, datasets or seeds,
        only the others are computed, and those that failed for want of a file or of memory. Parameters
        of estimators then need a content that other processes see too (numbers, texts, estimators).
    progress
        Told of every run.

    Returns
    -------
    Sweep
        The runs; errors are in standard deviations of the training targets.

    Examples
    --------
    >>> from sklearn.linear_model import Ridge
    >>> x = np.linspace(0, 1, 50)[:, None]
    >>> line = Dataset("line", *data.far_field_split(x, 3 * x[:, 0], far=x[:, 0] > 0.8), ("x",), ("y",), "", "", "")
    >>> found = sweep({"ridge": Ridge(alpha=1e-9)}, {"line": line}, seeds=[0, 1])
    >>> [round(run.far, 6) for run in found.runs], found.failed
    ([0.0, 0.0], ())
    """
    named: dict[str, DataSource] = {}
    sources = dict(datasets) if isinstance(datasets, Mapping) else named | {n: _Named(n) for n in datasets}
    seeds = list(dict.fromkeys(int(seed) for seed in seeds))  # twice the same is no evidence of its own
    if not models or not sources or not seeds:
        raise InvalidValueError(
            "A sweep has at least one model, one dataset and one seed; "
            f"got {len(models)}, {len(sources)} and {len(seeds)}."
        )
    task = _Fit(dict(models), sources, float(blown_up))
    store, digests = None, {}
    if checkpoint is not None:
        # In the items, not in the folder's own: the next sweep may have more models and datasets, or others.
        store = Checkpoint(checkpoint, fingerprint("sweep"))
        digests = {
            (name, model): fingerprint(float(blown_up), _contents(source), _described(estimator))
            for name, source in sources.items()
            for model, estimator in models.items()
        }
    items: list[RunKey] = [
        (name, model, seed, digests.get((name, model), ""))
        for name in sources
        for seed in seeds
        for model in models
    ]
    if store is not None:
        for item in items:  # what failed for a passing reason may go well now
            if (store.load(item) or {}).get("passing"):
                store.remove(item)
    results = resolve(engine).map(task, items, checkpoint=store, progress=progress)
    found = tuple(
        SweepRun(*key[:3], **{k: v for k, v in fields.items() if k != "passing"}) for key, fields in results
    )
    settings: dict[str, JSON] = {
        "models": {name: repr(model) for name, model in models.items()},
        "datasets": list(sources),
        "seeds": list(seeds),
        "blown_up": float(blown_up),
    }
    return Sweep(found, provenance(settings))


@dataclass(frozen=True)
class _Named:
    """A dataset of the catalogue."""

    name: str

    def __call__(self, seed: int) -> Dataset:
        return data.load(self.name, seed=seed)


@dataclass(frozen=True)
class _Fit:
    """The task: of (dataset, model, seed) the fields of a run, which a checkpoint can hold."""

    models: dict[str, BaseEstimator]
    sources: dict[str, DataSource]
    blown_up: float

    def __call__(self, key: RunKey) -> dict[str, Any]:
        name, model, seed, _ = key
        for left in reversed(range(_TRIES)):
            try:
                source = self.sources[name]
                split = source if isinstance(source, Dataset) else source(seed)
                return _measure(_seeded(self.models[model], seed), split, self.blown_up)
            except Exception as error:  # one that fails is a row, and the rest go on
                passing = isinstance(error, (OSError, MemoryError))
                if not (passing and left):
                    return {
                        "error": f"{type(error).__name__}: {error}",
                        **({"passing": True} if passing else {}),
                    }
        raise AssertionError("the last try returns")  # pragma: no cover


def _measure(estimator: Any, split: Dataset, blown_up: float) -> dict[str, Any]:
    parts = (split.train, split.id, split.ood)
    x, y = ([_rows(v) for v in values] for values in ([p.x for p in parts], [p.y for p in parts]))
    middle, unit = y[0].mean(0), y[0].std(0)
    unit = np.where(unit > 0, unit, 1.0)
    started = time.process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of thousands of fits nobody reads them; what matters is measured
        estimator.fit(x[0], y[0][:, 0] if y[0].shape[1] == 1 else y[0])
    spent = time.process_time() - started

    def scaled(rows: Array) -> Array:
        if not len(rows):
            return np.empty((0, y[0].shape[1]))
        found: Array = (_rows(estimator.predict(rows)) - middle) / unit
        return found

    near, far = scaled(x[1]), scaled(x[2])
    center = x[0].mean(0)
    away = scaled(center + blown_up * (np.concatenate(x[1:]) - center))
    true_near, true_far = ((values - middle) / unit for values in y[1:])
    return {
        "rows": len(x[0]),
        "near": _error(near, true_near),
        "far": _error(far, true_far),
        "near_r2": _r_squared(near, true_near),
        "far_r2": _r_squared(far, true_far),
        "worst": _largest(np.concatenate([near, far])),
        "worst_blown_up": _largest(away),
        "fit_cpu_seconds": spent,
    }


def _rows(values: Any) -> Array:
    given = np.asarray(values, dtype=np.float64)
    return given.reshape(len(given), math.prod(given.shape[1:]))


def _error(found: Array, true: Array) -> float:
    return float(np.sqrt(np.mean((found - true) ** 2))) if len(true) else math.nan


def _r_squared(found: Array, true: Array) -> float:
    spread = float(((true - true.mean(0)) ** 2).sum()) if len(true) else 0.0
    return 1.0 - float(((found - true) ** 2).sum()) / spread if spread > 0 else math.nan


def _largest(values: Array) -> float:
    return float(np.abs(values).max()) if values.size else math.nan


def _seeded(model: BaseEstimator, seed: int) -> BaseEstimator:
    fresh = clone(model)
    names = [k for k in fresh.get_params(deep=True) if k == "random_state" or k.endswith("__random_state")]
    fresh.set_params(**dict.fromkeys(names, seed))
    return fresh


def _described(value: Any) -> Any:
    """What a checkpoint depends on: an estimator by its class and parameters."""
    if isinstance(value, BaseEstimator):
        kind = f"{type(value).__module__}.{type(value).__qualname__}"
        return kind, {k: _described(v) for k, v in value.get_params(deep=False).items()}
    if isinstance(value, (list, tuple)):
        return [_described(v) for v in value]
    return value


def _contents(source: DataSource) -> Any:
    if isinstance(source, Dataset):
        return [(part.x, part.y) for part in (source.train, source.id, source.ood)]
    return source


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _plain(v) for k, v in value.items()}
    if isinstance(value, list):
        return [_plain(v) for v in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
