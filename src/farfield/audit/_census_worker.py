"""What workers do in a census: keys of a piece of the registry, one architecture's verdict, rows of a piece.

Each is called by name in a worker process (:mod:`farfield.audit._worker`) and answers with a few numbers; rows go
from file to file and never through the caller.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from farfield._regular_file import UnsafeFileError, read_regular
from farfield._weights import CheckpointError
from farfield.audit import _structural
from farfield.audit._structure import parse_config, parse_header, read_header, structure_of
from farfield.audit._worker import message_of
from farfield.data._arrow import arrow
from farfield.errors import FarfieldError, InvalidValueError

__all__ = ["COLUMNS", "decide", "join_rows", "list_keys"]

COLUMNS = ("path", "config", "header", "builder", "arguments", "inputs")
"""Of a registry; all but the first may be missing."""
_CONFIG_SIZE = 16_000_000
_BATCH = 1000
Tell = Callable[[dict[str, Any]], None]


def list_keys(piece: Mapping[str, Any], root: str, out: str, spot: int, *, tell: Tell) -> dict[str, Any]:
    """Write the key of every row of a piece; answer with the keys that are in it.

    Returns
    -------
    dict
        ``keys``: key → [place of its first row, how many]; ``drawn``: places of rows that are to be computed for
        themselves, about one in ``spot``; ``rows``, ``errors``.
    """
    tell({"stage": "read"})
    begun = time.process_time()
    columns: dict[str, list[Any]] = {
        name: [] for name in ("path", "architecture", "key", "parameters", "error", "message")
    }
    first: dict[str, int] = {}
    counts: Counter[str] = Counter()
    drawn: list[int] = []
    for place, row in enumerate(read_rows(piece)):
        fields: dict[str, Any] = dict.fromkeys(columns)
        fields["path"] = row["path"]
        try:
            found = _structure(row, root)
        except (FarfieldError, OSError) as error:
            fields |= {"error": type(error).__name__, "message": message_of(error)}
        else:
            fields |= {"architecture": found.name, "key": found.key, "parameters": found.parameters}
            first.setdefault(found.key, place)
            counts[found.key] += 1
            if spot and first[found.key] != place and _lot(row["path"], found.key) % spot == 0:
                drawn.append(place)
        for name, values in columns.items():
            values.append(fields[name])
    pyarrow, _ = arrow()
    kinds = {"parameters": pyarrow.int64()}
    table = pyarrow.table(
        {n: pyarrow.array(v, type=kinds.get(n, pyarrow.string())) for n, v in columns.items()}
    )
    _write(table, Path(out))
    return {
        "rows": table.num_rows,
        "errors": table.num_rows - sum(counts.values()),
        "keys": {key: [place, counts[key]] for key, place in first.items()},
        "drawn": [[place, columns["key"][place]] for place in drawn],
        "processor_seconds": time.process_time() - begun,
    }


def decide(piece: Mapping[str, Any], place: int, root: str, *, tell: Tell) -> dict[str, Any]:
    """The verdict on the architecture of one row."""
    tell({"stage": "load"})
    begun = time.process_time()
    row = next(row for number, row in enumerate(read_rows(piece)) if number == place)
    config, header = _texts(row, root)
    about = {"architecture": _structure(row, root).name, "example": row["path"]}
    answer = _structural.answer(
        config, header, row["builder"], row["arguments"], _inputs(row["inputs"]), tell=tell
    )
    return {**about, **answer, "processor_seconds": time.process_time() - begun}


def join_rows(keys: str, verdicts: str, out: str, *, tell: Tell) -> dict[str, Any]:
    """Write the rows of a piece, each with the verdict of its architecture; answer with their counts."""
    tell({"stage": "read"})
    begun = time.process_time()
    pyarrow, parquet = arrow()
    rows = parquet.read_table(keys, use_threads=False)
    known, order = _known(verdicts)
    places = pyarrow.array([order.get(key) for key in rows.column("key").to_pylist()], type=pyarrow.int64())
    found = known.take(places)
    own = rows.column("error")
    arrays = {
        "path": rows.column("path"),
        "architecture": rows.column("architecture").dictionary_encode(),
        "key": rows.column("key").dictionary_encode(),
        "parameters": rows.column("parameters"),
        "verdict": found.column("verdict").dictionary_encode(),
        "reason": found.column("reason").dictionary_encode(),
        "error": pyarrow.compute.coalesce(own, found.column("error")),
        "message": pyarrow.compute.coalesce(rows.column("message"), found.column("message")),
    }
    table = pyarrow.table(arrays)
    _write(table, Path(out))
    counts = Counter(value or "ERROR" for value in found.column("verdict").to_pylist())
    return {"rows": table.num_rows, "counts": dict(counts), "processor_seconds": time.process_time() - begun}


def read_rows(piece: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """The rows of a piece with all columns, None where the registry has none; some in memory at a time."""
    with arrow()[1].ParquetFile(piece["path"]) as file:
        there = [name for name in COLUMNS if name in file.schema_arrow.names]
        nothing = dict.fromkeys(COLUMNS)
        groups = list(range(*piece["groups"]))
        for batch in file.iter_batches(
            batch_size=_BATCH, row_groups=groups, columns=there, use_threads=False
        ):
            values = [batch.column(name).to_pylist() for name in there]
            for row in zip(*values, strict=True):
                yield nothing | dict(zip(there, row, strict=True))


def _structure(row: Mapping[str, Any], root: str) -> Any:
    config, header = _texts(row, root)
    shapes = None if header is None else parse_header(header)
    builder = row["builder"] or None
    if builder is not None:
        return structure_of(
            parse_config(row["arguments"] or config or "{}"), shapes, builder, _inputs(row["inputs"])
        )
    if config is None:
        raise InvalidValueError(
            "There is no config.json beside the file, none in the registry, and no builder."
        )
    return structure_of(parse_config(config), shapes)


def _texts(row: Mapping[str, Any], root: str) -> tuple[str | None, str | None]:
    """Configuration and header: from the registry, or from the files that its path names."""
    config, header = row["config"] or None, row["header"] or None
    if config is not None or header is not None or row["builder"]:
        return config, header
    if not row["path"]:
        raise InvalidValueError("The row names no file and holds no configuration.")
    file = Path(root, row["path"])
    folder = file if file.is_dir() else file.parent
    file = folder / "model.safetensors" if file.is_dir() else file
    try:
        beside = folder / "config.json"
        config = read_regular(beside, _CONFIG_SIZE).decode("utf-8", "replace") if beside.exists() else None
    except UnsafeFileError as error:
        raise CheckpointError(str(error)) from error
    return config, read_header(file) if file.suffix == ".safetensors" else None


def _inputs(value: Any) -> tuple[str, ...]:
    parts = value.split(";") if isinstance(value, str) else value or ()
    return tuple(str(part).strip() for part in parts if str(part).strip())


def _lot(path: Any, key: str) -> int:
    return int.from_bytes(
        hashlib.blake2b(f"{key} {path}".encode("utf-8", "backslashreplace"), digest_size=8).digest(), "big"
    )


@functools.lru_cache(maxsize=1)
def _known(verdicts: str) -> tuple[Any, dict[str, int]]:
    """The verdicts as a table, and key → place in it. The file's name has its content's digest in it."""
    pyarrow, _ = arrow()
    rows = [json.loads(line) for line in Path(verdicts).read_text(encoding="utf-8").splitlines()]
    names: Sequence[str] = ("verdict", "reason", "error", "message")
    table = pyarrow.table({n: pyarrow.array([r.get(n) for r in rows], type=pyarrow.string()) for n in names})
    return table, {row["key"]: number for number, row in enumerate(rows)}


def _write(table: Any, target: Path) -> None:
    part = target.with_name(f".{target.name}.{os.getpid()}.{uuid.uuid4().hex}.part")
    try:
        arrow()[1].write_table(table, part, compression="zstd")
        part.replace(target)
    finally:
        part.unlink(missing_ok=True)
