"""Parquet in and out: the one place where pyarrow enters."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Mapping, Sequence
from os import PathLike
from typing import Any

from farfield.errors import MissingExtraError

__all__ = ["can_write_parquet", "read_parquet", "write_parquet"]


def can_write_parquet() -> bool:
    """Whether pyarrow is installed."""
    return importlib.util.find_spec("pyarrow") is not None


def read_parquet(path: str | PathLike[str]) -> list[dict[str, Any]]:
    """The rows of a table."""
    try:
        import pyarrow.parquet as parquet
    except ImportError as error:
        raise MissingExtraError("Reading a Parquet registry", "pyarrow", "data") from error
    rows: list[dict[str, Any]] = parquet.ParquetFile(path).read().to_pylist()
    return rows


def write_parquet(
    path: str | PathLike[str],
    rows: Sequence[Mapping[str, Any]],
    kinds: Mapping[str, type],
    run: Mapping[str, Any],
) -> None:
    """Write rows with the columns and types given, whatever the rows hold; the run goes into the metadata."""
    import pyarrow as pa
    import pyarrow.parquet as parquet

    types = {str: pa.string(), int: pa.int64(), float: pa.float64()}
    schema = pa.schema(
        [(name, types[kind]) for name, kind in kinds.items()],
        metadata={"farfield": json.dumps(run, ensure_ascii=False)},
    )
    parquet.write_table(pa.Table.from_pylist([dict(row) for row in rows], schema=schema), path)
