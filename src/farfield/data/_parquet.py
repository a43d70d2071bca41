"""Tables in Parquet files, read a piece at a time and written whole."""

from __future__ import annotations

import hashlib
import os
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from farfield.data._arrow import arrow
from farfield.errors import InvalidValueError, UnknownNameError

__all__ = ["Piece", "Source", "map_piece", "parquet_pieces", "read_piece"]

Source: TypeAlias = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]
"""A file, a folder of ``*.parquet`` files, taken in the order of their names, or a list of files."""


@dataclass(frozen=True)
class Piece:
    """Some consecutive row groups of a Parquet file; made by :func:`parquet_pieces`.

    Attributes
    ----------
    path
        Of the file.
    groups
        (start, stop) of its row groups, counted from zero, stop excluded.
    rows
        How many they hold.
    digest
        SHA-256 of the file's size, its time of change and its footer. The footer alone, with the places, sizes and
        ranges of all columns, does not tell a table from one whose rows are in another order.
    """

    path: str
    groups: tuple[int, int]
    rows: int
    digest: str


def parquet_pieces(source: Source, columns: Iterable[str], *, rows: int = 65_536) -> tuple[Piece, ...]:
    """The row groups of Parquet files, small ones taken together, as pieces of work in the order of the rows.

    Reads the footers alone. A row group is never divided, so files with few large ones give few pieces.

    Parameters
    ----------
    source
        A file, a folder or a list of files.
    columns
        That every file must have.
    rows
        Row groups are taken together up to so many rows.

    Raises
    ------
    UnknownNameError
        If a file lacks a column.
    """
    wanted, pieces = tuple(columns), []
    for path in _files(source):
        footer = arrow()[1].read_metadata(path)
        names = footer.schema.to_arrow_schema().names
        for name in wanted:
            if name not in names:
                raise UnknownNameError(f"column in {path}", name, names)
        digest = _digest(path)
        start = held = 0
        for group in range(footer.num_row_groups):
            size = footer.row_group(group).num_rows
            if held and held + size > rows:
                pieces.append(Piece(str(path), (start, group), held, digest))
                start, held = group, 0
            held += size
        if held:
            pieces.append(Piece(str(path), (start, footer.num_row_groups), held, digest))
    if not pieces:
        raise InvalidValueError(f"There are no rows in {source!s}. Check what is passed.")
    return tuple(pieces)


def read_piece(piece: Piece, columns: Sequence[str], *, rows: int = 65_536) -> Iterator[NDArray[np.float64]]:
    """The columns of a piece as arrays (n, columns) in float64, n ≤ ``rows`` at a time; NaN where there is none."""
    for batch in _batches(piece, columns, rows):
        yield _numbers(batch, columns, piece)


def map_piece(
    piece: Piece,
    columns: Sequence[str],
    function: Callable[[NDArray[np.float64]], Mapping[str, NDArray[Any]]],
    out: str | os.PathLike[str],
    *,
    carry: Sequence[str] = (),
    note: str = "",
    rows: int = 65_536,
) -> bool:
    """Write a function of a piece's rows to a Parquet file, which is there whole or not at all.

    Parameters
    ----------
    piece, columns, rows
        As in :func:`read_piece`.
    function
        Of an array (n, columns); gives new columns of length n.
    out
        The file. If it is there with the same ``note``, and every byte is what was written, nothing is done. Its
        SHA-256 lies beside it in a hidden file.
    carry
        Columns that are copied as they are, before the new ones.
    note
        Text kept in the file: what its content depends on.

    Returns
    -------
    bool
        Whether it was written now.
    """
    pyarrow, parquet = arrow()
    target = Path(out)
    beside = target.with_name(f".{target.name}.sha256")
    if target.exists():
        try:
            kept = (parquet.read_metadata(target).metadata or {}).get(b"farfield")
        except (OSError, ValueError):  # damaged: made anew
            kept = note.encode()
        if kept != note.encode():
            raise InvalidValueError(
                f"{target} is there already and was made from other rows or by another fit. Give another folder, or "
                "remove it."
            )
        # A footer says what was to be written; only the digest says that it still is.
        if beside.exists() and beside.read_text(encoding="utf-8").strip() == _file_digest(target):
            return False
    part = target.with_name(f".{target.name}.{uuid.uuid4().hex}.part")
    writer = None
    try:
        for batch in _batches(piece, [*dict.fromkeys([*columns, *carry])], rows):
            new = function(_numbers(batch, columns, piece))
            arrays = {name: batch.column(name) for name in carry}
            arrays |= {name: pyarrow.array(values) for name, values in new.items()}
            table = pyarrow.table(arrays).replace_schema_metadata({"farfield": note})
            if writer is None:
                writer = parquet.ParquetWriter(part, table.schema)
            writer.write_table(table)
        if writer is not None:
            writer.close()
            digest = _file_digest(part)
            part.replace(target)
            beside.write_text(digest + "\n", encoding="utf-8")
    except BaseException:
        if writer is not None:
            writer.close()
        part.unlink(missing_ok=True)
        raise
    return True


# ------------------------------------------------------------------ how


def _file_digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _files(source: Source) -> list[Path]:
    if not isinstance(source, str | os.PathLike):
        return [Path(path).absolute() for path in source]
    place = Path(source).absolute()
    if not place.is_dir():
        return [place]
    found = sorted(path for path in place.rglob("*.parquet") if not path.name.startswith((".", "_")))
    if not found:
        raise InvalidValueError(f"There is no *.parquet file in {place}. Check what is passed.")
    return found


def _digest(path: Path) -> str:
    """Of size, time and footer; the last bytes of a file are the footer's length and four letters."""
    with path.open("rb") as file:
        found = os.fstat(file.fileno())
        size = file.seek(-8, os.SEEK_END) + 8
        length = int.from_bytes(file.read(4), "little")
        file.seek(max(0, size - 8 - length))
        return hashlib.sha256(f"{found.st_size} {found.st_mtime_ns} ".encode() + file.read()).hexdigest()


def _batches(piece: Piece, columns: Sequence[str], rows: int) -> Iterator[Any]:
    if _digest(Path(piece.path)) != piece.digest:
        raise InvalidValueError(
            f"{piece.path} has changed since the run began. Run again with files that stay as they are."
        )
    with arrow()[1].ParquetFile(piece.path) as file:
        yield from file.iter_batches(
            batch_size=rows, row_groups=list(range(*piece.groups)), columns=list(columns), use_threads=False
        )


def _numbers(batch: Any, columns: Sequence[str], piece: Piece) -> NDArray[np.float64]:
    values = np.empty((batch.num_rows, len(columns)))
    for place, name in enumerate(columns):
        column = batch.column(name)
        if not _is_number(column.type):
            raise InvalidValueError(
                f"Column {name!r} of {piece.path} holds {column.type}, and numbers are needed. Leave it out, or "
                "write it as numbers."
            )
        values[:, place] = column.to_numpy(zero_copy_only=False)
    return values


def _is_number(kind: Any) -> bool:
    """Not what numpy would take for one too: a text of digits, a date."""
    types = arrow()[0].types
    kind = kind.value_type if types.is_dictionary(kind) else kind
    tests = (types.is_integer, types.is_floating, types.is_boolean, types.is_decimal, types.is_null)
    return any(test(kind) for test in tests)
