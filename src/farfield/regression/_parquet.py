"""Nyström from Parquet files in one pass, and predictions with their bounds back to Parquet."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from farfield import engine as engines
from farfield.data import Piece, Source, map_piece, parquet_pieces, read_piece
from farfield.errors import InvalidValueError
from farfield.regression import _bounds as bounds
from farfield.regression._covariance import Covariance, Work, identity, multiply
from farfield.regression._nystrom import Accumulate, Nystrom, NystromPosterior, Sums, add_sums
from farfield.regression._posterior import Posterior

__all__ = ["predict_parquet", "stream_parquet"]

_READ = 16
"""Chunks of features that are read at once."""


@dataclass(frozen=True)
class _AccumulatePiece:
    """The sums of a piece, which is read where this runs."""

    accumulate: Accumulate
    inputs: tuple[str, ...]
    targets: tuple[str, ...]
    single: bool

    def __call__(self, piece: Piece) -> Sums:
        sums: Sums | None = None
        d = len(self.inputs)
        for rows in read_piece(piece, (*self.inputs, *self.targets), rows=_READ * self.accumulate.chunk):
            values = torch.from_numpy(rows)
            y = values[:, d] if self.single else values[:, d:]
            sums = self.accumulate((values[:, :d], y), sums)
        assert sums is not None, "a piece has rows"
        return sums


def stream_parquet(
    model: Nystrom,
    source: Source,
    inputs: Sequence[str],
    targets: str | Sequence[str],
    *,
    engine: str | engines.Engine = "auto",
    rows: int = 65_536,
    checkpoint: engines.Checkpoint | str | os.PathLike[str] | None = None,
    progress: engines.Progress | None = None,
) -> Nystrom:
    """Take all rows of Parquet files into a Nyström model, in one pass; returns the model.

    Each worker reads the row groups it works on, so data never pass through the calling process; what comes back are
    sums of m² numbers for a piece. They are added in an order fixed by the files, whatever the engine.

    Parameters
    ----------
    model
        With its kernel and landmarks.
    source
        A file, a folder of ``*.parquet`` files, or a list of files, seen by every worker.
    inputs
        Names of the columns that are features, in the order of the landmarks'.
    targets
        The name of the target's column, or several names for several outputs.
    engine
        Where pieces are read and reduced.
    rows
        Row groups are taken together into pieces of at most so many rows; none is divided.
    checkpoint
        A folder for partial sums: a killed run goes on after the pieces they cover, and ends with the same bits.
    progress
        Told of every piece.
    """
    single = isinstance(targets, str)
    names = (targets,) if isinstance(targets, str) else tuple(targets)
    if len(inputs) != model.landmarks.shape[1] or not names:
        raise InvalidValueError(
            f"There is a column for each of the landmarks' {model.landmarks.shape[1]} features and at least one "
            f"target; got {len(inputs)} columns and {len(names)} targets."
        )
    pieces = parquet_pieces(source, (*inputs, *names), rows=rows)
    task = _AccumulatePiece(model._task(), tuple(inputs), names, single)
    model._tabulate()
    sums = task.accumulate
    kept = engines.Checkpoint.at(checkpoint, lambda: (
        "nystrom", identity(sums.kernel, sums.landmarks), sums.landmarks, sums.dtype, sums.chunk,
        task.inputs, names, single, pieces,
    ))  # fmt: skip
    total = engines.engine(engine).reduce(task, pieces, add_sums, checkpoint=kept, progress=progress)
    return model._take(total)


@dataclass(frozen=True)
class _Predict:
    """Mean and bound at some rows."""

    kernel: Covariance
    points: Tensor
    weights: Tensor
    energy: Tensor
    memory: int

    def __call__(self, rows: NDArray[np.float64]) -> dict[str, NDArray[Any]]:
        x = torch.from_numpy(rows)
        if not bool(torch.isfinite(x).all()):
            raise InvalidValueError("Inputs are finite; some of these are not. Drop or replace those.")
        with torch.no_grad():
            work = Work(engines.local(), self.memory)
            mean = multiply(self.kernel, x, self.points, self.weights, work).numpy()
            bound = bounds.at(self.kernel.diagonal(x), self.energy).numpy()
        columns = {"mean": mean, "bound": bound}
        return {
            column: np.ascontiguousarray(values[:, k])
            for name, values in columns.items()
            for k, column in enumerate(_columns(name, values.shape[1]))
        }


@dataclass(frozen=True)
class _PredictPiece:
    predict: _Predict
    inputs: tuple[str, ...]
    carry: tuple[str, ...]
    folder: str
    note: str

    def __call__(self, numbered: tuple[int, Piece]) -> str:
        number, piece = numbered
        path = Path(self.folder) / f"part-{number:06d}.parquet"
        note = engines.fingerprint(self.note, piece)
        map_piece(piece, self.inputs, self.predict, path, carry=self.carry, note=note, rows=4096)
        return str(path)


def predict_parquet(
    posterior: NystromPosterior | Posterior,
    source: Source,
    inputs: Sequence[str],
    out: str | os.PathLike[str],
    *,
    carry: Sequence[str] = (),
    engine: str | engines.Engine = "auto",
    rows: int = 65_536,
    memory: int | str = "256MB",
    progress: engines.Progress | None = None,
) -> tuple[Path, ...]:
    """Predictions for all rows of Parquet files, and a bound for each, as Parquet files in the order of the rows.

    The columns are ``mean``, Σ_j w_j k(x, z_j), and ``bound``, ‖f‖√k(x, x), which |mean| does not exceed; with
    several outputs ``mean_0``, ``mean_1``, …. A :class:`Posterior`'s own :meth:`~Posterior.output_bound` may be
    smaller: it solves a system for every row.

    Parameters
    ----------
    posterior
        A fit.
    source, inputs, rows
        As in :func:`stream_parquet`.
    out
        A folder, seen by every worker and outside the source: one file for each piece. Files that are there whole are
        not made again, so a run that was stopped goes on.
    carry
        Columns to copy, such as a key; none with the name of a new one.
    engine, progress
        Where pieces are read, predicted and written.
    memory
        Budget for the kernel's entries in a task.

    Returns
    -------
    tuple of Path
        The files.
    """
    weights = posterior.weights if posterior.weights.dim() == 2 else posterior.weights[:, None]
    points = posterior.landmarks if isinstance(posterior, NystromPosterior) else posterior.x
    if len(inputs) != points.shape[1]:
        raise InvalidValueError(
            f"There is a column for each of the fit's {points.shape[1]} features; got {len(inputs)}."
        )
    diagonal = posterior.kernel.diagonal(points).to(torch.float64)
    energy = bounds.energy_above(posterior.kernel, weights, posterior.product, diagonal)
    predict = _Predict(posterior.kernel, points, weights, energy, engines.parse_memory(memory))
    pieces = parquet_pieces(source, (*inputs, *carry), rows=rows)
    folder = Path(out).absolute()
    _check_out(folder, source, len(pieces), carry, weights.shape[1])
    folder.mkdir(parents=True, exist_ok=True)
    note = engines.fingerprint(
        "predict", identity(posterior.kernel, points), points, weights, energy, predict.memory,
        tuple(inputs), tuple(carry),
    )  # fmt: skip
    task = _PredictPiece(predict, tuple(inputs), tuple(carry), str(folder), note)
    done = engines.engine(engine).map(task, list(enumerate(pieces)), progress=progress)
    return tuple(Path(path) for _, path in done)


def _columns(name: str, outputs: int) -> list[str]:
    return [name] if outputs == 1 else [f"{name}_{k}" for k in range(outputs)]


def _check_out(folder: Path, source: Source, pieces: int, carry: Sequence[str], outputs: int) -> None:
    """Refuse what would mix predictions with something else."""
    clash = [name for name in (*_columns("mean", outputs), *_columns("bound", outputs)) if name in carry]
    if clash:
        raise InvalidValueError(
            f"Columns that are copied have other names than the new ones, and {clash[0]!r} is one of those. Rename "
            "it in the files, or leave it out of carry."
        )
    if isinstance(source, str | os.PathLike):
        place = Path(source).resolve()
        if place.is_dir() and folder.resolve().is_relative_to(place):
            raise InvalidValueError(
                f"Predictions in {folder} would be rows of {place} when the run goes on. Give a folder outside it."
            )
    wanted = {f"part-{number:06d}.parquet" for number in range(pieces)}
    other = next(
        (path.name for path in sorted(folder.glob("part-*.parquet")) if path.name not in wanted), None
    )
    if other is not None:
        raise InvalidValueError(
            f"{folder} holds {other}, and there are only {pieces} pieces now: it is left from other rows. Give "
            "another folder, or remove it."
        )
