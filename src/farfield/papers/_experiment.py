"""An experiment: settings, a run that returns plain data, and a verdict for every claim."""

from __future__ import annotations

import importlib.util
import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from farfield._provenance import provenance
from farfield._typing import JSON
from farfield.data import is_here
from farfield.engine import Progress, fingerprint
from farfield.report import Figure, Table, save_figure
from farfield.report._data import plain

__all__ = ["ClaimVerdict", "Experiment", "ExperimentResult", "Progress", "missing", "run_experiment"]


@dataclass(frozen=True)
class ClaimVerdict:
    """One claim, whether it holds here, and the measurement that says so.

    Parameters
    ----------
    claim
        The statement, with its numbers.
    holds
        What was found.
    measured
        The figures behind it.
    expected
        False for a statement that is wrong as printed: there "does not hold" is the right outcome.
    """

    claim: str
    holds: bool
    measured: str
    expected: bool = True

    @property
    def surprising(self) -> bool:
        """Whether the outcome differs from what theory says."""
        return self.holds != self.expected


@dataclass(frozen=True)
class ExperimentResult:
    """What a run found: figure, table, the numbers behind them, verdicts."""

    verdicts: tuple[ClaimVerdict, ...]
    numbers: dict[str, Any]
    figure: Figure | None = None
    table: Table | None = None


@dataclass(frozen=True)
class Experiment:
    """One figure or table of a paper.

    Parameters
    ----------
    name
        As on the command line, ``p2.fig3``.
    description
        What the paper shows there, in our words.
    settings
        The paper's sizes: keyword arguments of ``run``.
    quick
        Settings that differ in a quick run.
    run
        ``run(progress=..., seed=..., **settings) -> ExperimentResult``. Pure given the seed.
    resumable
        Whether ``run`` also takes ``scratch=``, a folder in which it keeps what it needs to go on after it was
        stopped. The folder is removed when the result is written.
    data
        Names of the datasets that it reads.
    packages
        Packages that it imports or reads weights from, beside those of farfield.
    """

    name: str
    description: str
    settings: dict[str, Any]
    run: Callable[..., ExperimentResult] = field(repr=False)
    quick: dict[str, Any] = field(default_factory=dict)
    resumable: bool = False
    data: tuple[str, ...] = ()
    packages: tuple[str, ...] = ()


def missing(experiment: Experiment) -> str | None:
    """What an experiment reads and is not here, with the way to get it; None if it can run."""
    for dataset in experiment.data:
        if not is_here(dataset):
            return f"needs the files of {dataset}: farfield data fetch {dataset}"
    for package in experiment.packages:
        if importlib.util.find_spec(package) is None:
            return f"needs the package {package}: pip install {package.replace('_', '-')}"
    return None


def run_experiment(
    experiment: Experiment,
    out: Path,
    *,
    quick: bool = False,
    seed: int = 0,
    force: bool = False,
    progress: Progress | None = None,
) -> dict[str, JSON]:
    """Run an experiment and write ``<out>/<paper>/<item>.json`` with its figure as .png and .svg beside it.

    A result already there with the same settings, seed and version is returned as it is, so an interrupted
    ``reproduce p2`` goes on where it stopped; ``force`` runs it again. A resumable experiment that is stopped in the
    middle leaves a folder ``<item>`` beside its result's place and goes on from there.

    Returns
    -------
    dict
        The JSON that was written: description, verdicts, numbers, table, figure data and provenance.
    """
    settings = {**experiment.settings, **(experiment.quick if quick else {})}
    paper, _, item = experiment.name.partition(".")
    target = out / paper / f"{item}.json"
    origin = provenance(plain(settings), seed=seed)
    if target.exists() and not force:
        stored: dict[str, JSON] = json.loads(target.read_text(encoding="utf-8"))
        if _same_origin(stored.get("provenance"), origin):
            return stored
    # Other settings, another folder: what an earlier run left must not be taken for this one's.
    scratch = target.with_suffix("") / fingerprint(plain(settings), seed)[:16]
    extra = {"scratch": scratch} if experiment.resumable else {}
    outcome = experiment.run(progress=progress or (lambda done, total: None), seed=seed, **settings, **extra)
    record: dict[str, JSON] = {
        "name": experiment.name,
        "description": experiment.description,
        "quick": quick,
        "verdicts": [{**plain(v), "surprising": v.surprising} for v in outcome.verdicts],
        "table": plain(outcome.table),
        "numbers": plain(outcome.numbers),
        "figure": plain(outcome.figure),
        "provenance": origin,
    }
    target.parent.mkdir(parents=True, exist_ok=True)
    if outcome.figure is not None:
        save_figure(outcome.figure, [target.with_suffix(".png"), target.with_suffix(".svg")])
    # The JSON is written last and whole: its presence says that the experiment is done.
    partial = target.with_suffix(".json.part")
    partial.write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    partial.replace(target)
    if experiment.resumable:
        shutil.rmtree(target.with_suffix(""), ignore_errors=True)
    return record


def _same_origin(stored: JSON, fresh: dict[str, JSON]) -> bool:
    return isinstance(stored, dict) and all(
        stored.get(k) == fresh[k] for k in ("settings", "seed", "versions")
    )
