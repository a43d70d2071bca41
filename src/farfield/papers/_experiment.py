"""An experiment: settings, a run that returns plain data, and a verdict for every claim."""

from __future__ import annotations

import importlib.util
import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from farfield._provenance import provenance
from farfield._typing import JSON
from farfield.data import is_here
from farfield.engine import Progress, fingerprint
from farfield.errors import MissingExtraError
from farfield.papers._sizes import PaperSize, sizes
from farfield.report import Figure, Table, save_figure
from farfield.report._data import figure_of, plain

__all__ = [
    "ClaimVerdict",
    "Claims",
    "Experiment",
    "ExperimentResult",
    "Progress",
    "missing",
    "result_folder",
    "run_experiment",
]


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


class Claims(list[ClaimVerdict]):
    """The verdicts of a run, in the order in which they are judged."""

    def add(self, claim: str, holds: bool, measured: str) -> None:
        """One more, which is expected to hold."""
        self.append(ClaimVerdict(claim, holds, measured))


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
        Keyword arguments of ``run``: the sizes of a full run.
    paper_size
        What the paper's text says of its sizes, by the name of the setting that it is compared with. None: the text
        does not say. A setting that it does not name has no entry. Every record keeps these beside its own sizes.
    quick
        Settings that differ in a quick run.
    run
        ``run(progress=..., seed=..., **settings) -> ExperimentResult``. Pure given the seed.
    resumable
        Whether ``run`` also takes ``scratch=``, a folder in which it keeps what it needs to go on after it was
        stopped. The folder is removed when the result is written.
    data
        Names of the datasets that it reads.
    claims
        More claims, judged from what is recorded: its numbers and its figure. A claim that is written later needs no
        new run; ``run_experiment`` adds it to a result that is there.
    packages
        Packages that it imports or reads weights from, beside those of farfield.
    """

    name: str
    description: str
    settings: dict[str, Any]
    run: Callable[..., ExperimentResult] = field(repr=False)
    quick: dict[str, Any] = field(default_factory=dict)
    paper_size: PaperSize = field(default_factory=dict)
    resumable: bool = False
    data: tuple[str, ...] = ()
    packages: tuple[str, ...] = ()
    claims: Callable[[Mapping[str, Any]], Sequence[ClaimVerdict]] = field(
        default=lambda record: (), repr=False
    )


def missing(experiment: Experiment) -> str | None:
    """What an experiment reads and is not here, with the way to get it; None if it can run."""
    for dataset in experiment.data:
        if not is_here(dataset):
            return f"needs the files of {dataset}: farfield data fetch {dataset}"
    for package in experiment.packages:
        if importlib.util.find_spec(package) is None:
            return f"needs the package {package}: pip install {package.replace('_', '-')}"
    return None


def result_folder(out: Path, *, quick: bool = False, seed: int = 0) -> Path:
    """Where results go: ``out`` for full runs with seed 0; quick runs and other seeds have folders of their own.

    Examples
    --------
    >>> str(result_folder(Path("out"), quick=True, seed=3))
    'out/quick/seed3'
    """
    folder = out / "quick" if quick else out
    return folder / f"seed{seed}" if seed else folder


def run_experiment(
    experiment: Experiment,
    out: Path,
    *,
    quick: bool = False,
    seed: int = 0,
    force: bool = False,
    progress: Progress | None = None,
    warn: Callable[[str], None] | None = None,
) -> dict[str, JSON]:
    """Run an experiment and write ``<out>/<paper>/<item>.json`` with its figure as .png and .svg beside it.

    A quick run goes to ``<out>/quick`` and a seed other than 0 to ``seed<k>`` below that, so that neither replaces a
    full result. The JSON is written before anything is drawn: without matplotlib a finished run is kept, and the
    same command draws it once matplotlib is installed.

    A result already there with the same settings, seed and version is returned as it is, so an interrupted
    ``reproduce p2`` goes on where it stopped; ``force`` runs it again. A resumable experiment that is stopped in the
    middle leaves a folder ``<item>`` beside its result's place and goes on from there.

    Parameters
    ----------
    warn
        Told what could not be done without losing the result: today, that a figure could not be drawn.

    Returns
    -------
    dict
        The JSON that was written: description, sizes, verdicts, numbers, table, figure data and provenance.
    """
    settings = {**experiment.settings, **(experiment.quick if quick else {})}
    paper, _, item = experiment.name.partition(".")
    target = result_folder(out, quick=quick, seed=seed) / paper / f"{item}.json"
    origin = provenance(plain(settings), seed=seed)
    measured = sizes(experiment.paper_size, plain(settings))
    if target.exists() and not force:
        stored: dict[str, JSON] = json.loads(target.read_text(encoding="utf-8"))
        # A record without sizes is older than the paper's own numbering: its name may mean another figure.
        if _same_origin(stored.get("provenance"), origin) and "paper_size" in stored:
            if _judge(experiment, stored):
                _write(stored, target)
            _draw(stored, target, warn, again=False)
            return stored
    # Other settings, another folder: what an earlier run left must not be taken for this one's.
    scratch = target.with_suffix("") / fingerprint(plain(settings), seed)[:16]
    extra = {"scratch": scratch} if experiment.resumable else {}
    outcome = experiment.run(progress=progress or (lambda done, total: None), seed=seed, **settings, **extra)
    record: dict[str, JSON] = {
        "name": experiment.name,
        "description": experiment.description,
        "quick": quick,
        "size": measured,
        "paper_size": plain(dict(experiment.paper_size)),
        "verdicts": [_verdict(v) for v in outcome.verdicts],
        "table": plain(outcome.table),
        "numbers": plain(outcome.numbers),
        "figure": plain(outcome.figure),
        "provenance": origin,
    }
    _judge(experiment, record)
    _write(record, target)
    if experiment.resumable:
        shutil.rmtree(target.with_suffix(""), ignore_errors=True)
    _draw(record, target, warn, again=True)
    return record


def _verdict(v: ClaimVerdict) -> dict[str, JSON]:
    return {**plain(v), "surprising": v.surprising}


def _judge(experiment: Experiment, record: dict[str, Any]) -> bool:
    """Put the verdicts that its own numbers give into a record, in place of older ones; whether that changed it."""
    fresh = {v.claim: _verdict(v) for v in experiment.claims(record)}
    before = record["verdicts"]
    record["verdicts"] = [fresh.pop(v["claim"], v) for v in before] + list(fresh.values())
    return bool(record["verdicts"] != before)


def _write(record: Mapping[str, JSON], target: Path) -> None:
    """Written whole: the presence of the JSON says that the experiment is done."""
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_suffix(".json.part")
    partial.write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    partial.replace(target)


def _draw(
    record: Mapping[str, Any], target: Path, warn: Callable[[str], None] | None, *, again: bool
) -> None:
    """Draw a record's figure beside it, if it has one and ``again`` or a picture is missing."""
    pictures = [target.with_suffix(".png"), target.with_suffix(".svg")]
    if record["figure"] is None or not (again or any(not p.exists() for p in pictures)):
        return
    try:
        save_figure(figure_of(record["figure"]), pictures)
    except MissingExtraError as error:
        for path in pictures:  # an older picture would show another run
            path.unlink(missing_ok=True)
        if warn is not None:
            warn(f"{record['name']}: the result is in {target}, but it is not drawn. {error}")


def _same_origin(stored: JSON, fresh: dict[str, JSON]) -> bool:
    return isinstance(stored, dict) and all(
        stored.get(k) == fresh[k] for k in ("settings", "seed", "versions")
    )
