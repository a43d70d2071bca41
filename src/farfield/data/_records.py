"""Small tables of records in Parquet: one row each, named columns, where they came from in the metadata."""

from __future__ import annotations

import importlib.util
import itertools
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

from farfield.data._arrow import arrow

__all__ = ["can_write_records", "iterate_records", "read_records", "save_records", "write_records"]

_BATCH = 1024
"""Rows that are in memory at once."""


def can_write_records() -> bool:
    """Whether pyarrow is installed."""
    return importlib.util.find_spec("pyarrow") is not None


def read_records(path: str | PathLike[str]) -> list[dict[str, Any]]:
    """The rows of a table."""
    rows: list[dict[str, Any]] = arrow()[1].ParquetFile(path).read().to_pylist()
    return rows


def iterate_records(path: str | PathLike[str]) -> Iterator[dict[str, Any]]:
    """The rows of a table, some of them in memory at a time."""
    with arrow()[1].ParquetFile(path) as file:
        for batch in file.iter_batches(batch_size=_BATCH):
            yield from batch.to_pylist()


def write_records(
    path: str | PathLike[str],
    rows: Iterable[Mapping[str, Any]],
    kinds: Mapping[str, type],
    origin: Mapping[str, Any],
) -> None:
    """Write rows with the columns and types given, some at a time; ``origin`` goes into the metadata."""
    pyarrow, parquet = arrow()
    types = {
        str: pyarrow.string(),
        int: pyarrow.int64(),
        float: pyarrow.float64(),
        bool: pyarrow.bool_(),
    }
    schema = pyarrow.schema(
        [(name, types[kind]) for name, kind in kinds.items()],
        metadata={"farfield": json.dumps(origin, ensure_ascii=False)},
    )
    source = iter(rows)
    with parquet.ParquetWriter(path, schema) as file:
        while batch := [dict(row) for row in itertools.islice(source, _BATCH)]:
            file.write_table(pyarrow.Table.from_pylist(batch, schema=schema))


def save_records(
    path: str | PathLike[str],
    rows: Sequence[Mapping[str, Any]],
    kinds: Mapping[str, type],
    origin: Mapping[str, Any],
    document: Mapping[str, Any],
) -> Path:
    """Write rows to a ``.parquet`` file, or to another file the document that holds them as JSON; all or nothing."""
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(target.name + ".part")
    if target.suffix == ".parquet":
        write_records(part, rows, kinds, origin)
    else:
        text = json.dumps(document, indent=1, ensure_ascii=False, allow_nan=False)
        part.write_text(text + "\n", encoding="utf-8")
    part.replace(target)
    return target
