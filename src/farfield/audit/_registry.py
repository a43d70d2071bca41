"""Which checkpoints there are: a folder, or a table with one row each."""

from __future__ import annotations

import csv
import json
import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from farfield.data._records import iterate_records
from farfield.errors import FarfieldError, InvalidValueError

__all__ = ["SUFFIXES", "ModelEntry", "Registry", "read_registry"]

SUFFIXES = (".pt2", ".onnx", ".safetensors", ".pt", ".pth", ".ckpt", ".bin")
"""Files that a folder is searched for: a program, or weights that need a builder."""
_TABLES = (".parquet", ".csv", ".jsonl", ".ndjson")
_COLUMNS = ("path", "inputs", "dtype", "builder", "arguments")


@dataclass(frozen=True, slots=True)
class ModelEntry:
    """One checkpoint, and what it takes to run it.

    Nothing is checked here: an entry that is wrong becomes a row that says so, and the others go on.

    Parameters
    ----------
    path
        Of the file. Taken from the folder of the registry, unless absolute.
    inputs
        Shapes, batch first, as on the command line: ``1x8``, ``1x16:int64``. A ``.pt2`` or ``.onnx`` file knows
        its own.
    builder
        ``pkg.mod:callable`` that makes the module whose weights the file holds; code that is run. None for
        ``.pt2`` and ``.onnx``.
    arguments
        Keyword arguments of the builder, as a JSON object in a text.
    """

    path: str
    inputs: tuple[str, ...] = ()
    builder: str | None = None
    arguments: str | None = None


def read_registry(
    registry: str | os.PathLike[str],
    *,
    inputs: Sequence[str] = (),
    builder: str | None = None,
    leave_out: str | os.PathLike[str] | None = None,
) -> tuple[ModelEntry, ...]:
    r"""The checkpoints of a folder, in order of their names, or of a table, in its order.

    A folder is searched with all its subfolders, hidden ones left out, for files that end in one of ``.pt2``,
    ``.onnx``, ``.safetensors``, ``.pt``, ``.pth``, ``.ckpt``, ``.bin``. A table is Parquet, CSV or JSON lines with
    the column *path* and, where wanted, *inputs* (a text with semicolons between inputs, or a list), *dtype* (of
    inputs that name none), *builder* and *arguments* (a JSON object). Other columns are left alone.

    Parameters
    ----------
    registry
        The folder or the table.
    inputs, builder
        For entries that have none of their own.
    leave_out
        A folder that is not searched: where the results go.

    Raises
    ------
    InvalidValueError
        If there is no such registry, it can't be read, or it names no checkpoint.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = Path(folder, "models.csv").write_text("path,inputs,dtype\na.pt2,1x8;1x2,float64\n")
    ...     read_registry(Path(folder, "models.csv"))
    (ModelEntry(path='a.pt2', inputs=('1x8:float64', '1x2:float64'), builder=None, arguments=None),)
    """
    return tuple(
        Registry(Path(registry), tuple(inputs), builder, None if leave_out is None else Path(leave_out))
    )


class Registry(Collection[ModelEntry]):
    """The checkpoints of :func:`read_registry`, read anew whenever they are gone through: none is kept in memory.

    Made only after one pass over all of it, so that what is wrong with a row shows before any work is done.
    """

    def __init__(
        self,
        place: Path,
        inputs: Sequence[str] = (),
        builder: str | None = None,
        leave_out: Path | None = None,
    ) -> None:
        self._place, self._inputs, self._builder = place, tuple(inputs), builder
        self._leave_out = leave_out
        self._count = sum(1 for _ in self)
        if not self._count:
            nothing = f"The registry {str(place)!r} has no rows."
            if place.is_dir():
                nothing = (
                    f"The folder {str(place)!r} holds no checkpoint: no file ends in {', '.join(SUFFIXES)}."
                )
            raise InvalidValueError(nothing)

    def __len__(self) -> int:
        return self._count

    def __contains__(self, entry: object) -> bool:
        return any(other == entry for other in self)

    def __iter__(self) -> Iterator[ModelEntry]:
        found: Iterable[ModelEntry]
        if self._place.is_dir():
            found = (ModelEntry(path) for path in _files(self._place, self._leave_out))
        else:
            found = (_entry(row, self._place, k) for k, row in enumerate(_rows(self._place), start=1))
        for e in found:
            builder = e.builder or (None if e.path.endswith((".pt2", ".onnx")) else self._builder)
            yield ModelEntry(e.path, e.inputs or self._inputs, builder, e.arguments)


def _files(folder: Path, leave_out: str | os.PathLike[str] | None) -> Iterable[str]:
    skipped = None if leave_out is None else Path(leave_out).resolve()
    for place, folders, names in os.walk(folder):
        folders[:] = sorted(
            f for f in folders if not f.startswith(".") and (Path(place) / f).resolve() != skipped
        )
        # A directory named as a checkpoint is one row, which says so, and is searched none the less.
        for name in sorted([*names, *folders]):
            if name.endswith(SUFFIXES) and not name.startswith("."):
                yield Path(place, name).relative_to(folder).as_posix()


def _rows(table: Path) -> Iterator[Any]:
    """The rows of a table, one after the other."""
    if table.suffix not in _TABLES:
        raise InvalidValueError(
            f"A registry is a folder or a table that ends in {', '.join(_TABLES)}; got {str(table)!r}. For a single "
            "model there is farfield audit."
        )
    if not table.is_file():
        raise InvalidValueError(f"There is no registry {str(table)!r}.")
    try:
        if table.suffix == ".parquet":
            yield from iterate_records(table)
            return
        with table.open(encoding="utf-8-sig", newline="") as lines:
            if table.suffix == ".csv":
                yield from map(dict, csv.DictReader(lines))
            else:
                yield from (json.loads(line) for line in lines if line.strip())
    except FarfieldError:
        raise
    except (OSError, ValueError, RecursionError, csv.Error) as error:
        first = str(error).partition("\n")[0]
        raise InvalidValueError(f"The registry {str(table)!r} can't be read: {first}.") from error


def _entry(row: Any, table: Path, number: int) -> ModelEntry:
    if not isinstance(row, Mapping) or "path" not in row:
        names = f"the columns {', '.join(map(str, row))}" if isinstance(row, Mapping) else type(row).__name__
        raise InvalidValueError(
            f"A registry has the column 'path', and if wanted {', '.join(_COLUMNS[1:])}; row {number} of "
            f"{str(table)!r} has {names}."
        )
    dtype = row.get("dtype")
    inputs = tuple(
        spec if ":" in spec or not dtype else f"{spec}:{dtype}" for spec in _specs(row.get("inputs"))
    )
    arguments = row.get("arguments")
    if isinstance(arguments, Mapping):
        arguments = json.dumps(arguments, sort_keys=True)
    return ModelEntry(
        "" if row["path"] is None else str(row["path"]),
        inputs,
        str(row["builder"]) if row.get("builder") else None,
        str(arguments) if arguments else None,
    )


def _specs(value: Any) -> list[str]:
    if value is None:
        return []
    parts = (
        value.split(";") if isinstance(value, str) else value if isinstance(value, (list, tuple)) else [value]
    )
    return [str(part).strip() for part in parts if str(part).strip()]
