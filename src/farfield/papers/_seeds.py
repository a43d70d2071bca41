"""Experiments × seeds as tasks of an engine: in how many of them a claim holds."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from farfield._provenance import provenance
from farfield._typing import JSON
from farfield.data._records import save_records
from farfield.engine import Engine, Progress
from farfield.engine import engine as resolve
from farfield.errors import InvalidValueError
from farfield.papers._experiment import Experiment, run_experiment
from farfield.papers._index import experiment

__all__ = ["ClaimRow", "SeedSweep", "run_seeds"]

_KINDS: dict[str, type] = {
    "experiment": str, "seed": int, "claim": str, "holds": bool, "expected": bool, "measured": str, "error": str,
}  # fmt: skip


@dataclass(frozen=True)
class ClaimRow:
    """One claim of one experiment with one seed; or the error that one ended with, and no claim."""

    experiment: str
    seed: int
    claim: str | None = None
    holds: bool | None = None
    expected: bool | None = None
    measured: str | None = None
    error: str | None = None

    @property
    def surprising(self) -> bool:
        """Whether it came out otherwise than theory says, or not at all."""
        return self.error is not None or self.holds != self.expected


@dataclass(frozen=True)
class SeedSweep:
    """All claims of a sweep, in the order experiments, seeds, claims."""

    rows: tuple[ClaimRow, ...]
    origin: dict[str, JSON]
    """Settings, versions and commit."""

    def summary(self) -> list[dict[str, Any]]:
        """For every claim, in how many of the seeds it holds.

        Claims are matched by their place in the experiment, as numbers in their words may depend on the seed. An
        experiment that failed is a line with its error, and no claim.
        """
        lines: dict[tuple[str, int], dict[str, Any]] = {}
        places: dict[tuple[str, int], int] = {}
        for row in self.rows:
            place = places.get((row.experiment, row.seed), 0)
            places[row.experiment, row.seed] = place + 1
            key = (row.experiment, -1 if row.error is not None else place)
            new = {
                "experiment": row.experiment,
                "claim": row.claim,
                "expected": row.expected,
                "error": row.error,
            }
            line = lines.setdefault(key, {**new, "holds": 0, "seeds": 0})
            line["seeds"] += 1
            line["holds"] += bool(row.holds)
        return list(lines.values())

    def to_dict(self) -> dict[str, JSON]:
        """Plain data: summary, rows, provenance."""
        rows: list[JSON] = [asdict(row) for row in self.rows]
        return {"name": "papers.seeds", "summary": self.summary(), "rows": rows, "provenance": self.origin}

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write JSON, or to a ``.parquet`` file one row a claim and the rest as metadata (extra ``data``)."""
        return save_records(path, [asdict(row) for row in self.rows], _KINDS, self.origin, self.to_dict())


def run_seeds(
    names: Sequence[str],
    out: str | os.PathLike[str],
    *,
    seeds: Sequence[int],
    quick: bool = False,
    force: bool = False,
    engine: str | Engine = "auto",
    progress: Progress | None = None,
) -> SeedSweep:
    """Run experiments with several seeds, each as a task, and gather what became of every claim.

    Results are written as :func:`run_experiment` writes them, every seed in a folder of its own
    (``<out>/seed<k>/<paper>/<item>.json``, seed 0 in ``<out>`` itself, quick runs below ``<out>/quick``), and
    finished ones are kept: stopped and started again, it goes on. One that fails is a row and stops nothing.

    Parameters
    ----------
    names
        Of experiments.
    out
        A folder, which all workers see.
    seeds
        Any integers.
    quick, force
        As in :func:`run_experiment`.
    engine
        Where it runs: see :func:`farfield.engine.engine`.
    progress
        Told of every experiment that is done.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     found = run_seeds(["p2.table2"], folder, seeds=[0, 1], quick=True)
    >>> {line["holds"] == line["seeds"] == 2 for line in found.summary() if line["expected"]}
    {True}
    """
    if not names or not seeds:
        raise InvalidValueError(
            f"A sweep has at least one experiment and one seed; got {len(names)} and {len(seeds)}."
        )
    seeds = list(dict.fromkeys(int(seed) for seed in seeds))  # one given twice is one
    chosen: list[Experiment] = [
        experiment(name) for name in dict.fromkeys(names)
    ]  # an unknown name fails before anything runs
    items = [(item.name, seed) for item in chosen for seed in seeds]
    # Absolute: a worker may run in another directory.
    task = _SeedRun(str(Path(out).absolute()), quick, force)
    rows: list[ClaimRow] = []
    for (name, seed), found in resolve(engine).map(task, items, progress=progress):
        rows += [ClaimRow(name, seed, **fields) for fields in found]
    settings: dict[str, JSON] = {"names": list(names), "seeds": list(seeds), "quick": quick}
    return SeedSweep(tuple(rows), provenance(settings))


@dataclass(frozen=True)
class _SeedRun:
    """The task: of (experiment, seed) the fields of its claims."""

    out: str
    quick: bool
    force: bool

    def __call__(self, key: tuple[str, int]) -> list[dict[str, Any]]:
        name, seed = key
        try:
            record: Any = run_experiment(
                experiment(name), Path(self.out), quick=self.quick, seed=seed, force=self.force
            )
        except Exception as error:  # one that fails is a row, and the rest go on
            return [{"error": f"{type(error).__name__}: {error}"}]
        wanted = ("claim", "holds", "expected", "measured")
        return [{field: verdict[field] for field in wanted} for verdict in record["verdicts"]]
