"""Many checkpoints audited in parallel, one row each; a broken one never stops the rest."""

from __future__ import annotations

import contextlib
import hashlib
import importlib.machinery
import os
import re
import signal
import sys
import threading
import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from farfield._provenance import provenance
from farfield.audit._children import Children, children
from farfield.audit._registry import ModelEntry, read_registry
from farfield.audit._table import AuditRow, AuditTable
from farfield.engine import Checkpoint, Engine, Progress, fingerprint, local
from farfield.engine import engine as engine_named
from farfield.errors import InvalidValueError

__all__ = ["audit_all"]

_FORMAT = 1
"""Of a finished row; another one computes all rows again."""


@dataclass(frozen=True, slots=True)
class _Job:
    """An entry with what its file and its builder's code hold: what a row depends on, besides the settings."""

    entry: ModelEntry
    sha256: str
    size: int
    code: str | None


@dataclass(frozen=True, slots=True)
class _Unreadable:
    entry: ModelEntry
    error: str
    message: str


@dataclass(frozen=True, slots=True)
class _Read:
    """The task that reads files: (size, sha256) of a path, or (type, message) of what went wrong."""

    root: str

    def __call__(self, path: str) -> tuple[int | str, str]:
        digest, size = hashlib.sha256(), 0
        try:
            with Path(self.root, path).open("rb") as file:
                while block := file.read(1 << 20):
                    digest.update(block)
                    size += len(block)
        except (OSError, ValueError) as error:  # ValueError: a null byte in the name
            return type(error).__name__, getattr(error, "strerror", None) or str(error)
        return size, digest.hexdigest()


@dataclass(frozen=True, slots=True)
class _Ask:
    """The task that audits one job, in a worker process of the process that it runs in."""

    run: str
    root: str
    search: tuple[str, ...]
    certify: float | None
    time_limit: float
    certificates: str | None
    details: str | None

    def __call__(self, job: _Job) -> dict[str, Any]:
        stem = _stem(job)
        details = None if self.details is None else f"{self.details}/{stem}.json"
        request = {
            **asdict(job.entry),
            "file": str(Path(self.root, job.entry.path)),
            "search": self.search,
            "certify": self.certify,
            "certificate": None if self.certificates is None else f"{self.certificates}/{stem}",
            "details": details,
        }
        row = children(self.run).ask(request, self.time_limit + 2 * (self.certify or 0.0))
        if details is not None and row.get("verdict"):
            row["details"] = f"{stem}.json"
        return row


def audit_all(
    registry: str | os.PathLike[str] | Iterable[ModelEntry],
    *,
    out: str | os.PathLike[str] | None = None,
    inputs: Sequence[str] = (),
    builder: str | None = None,
    certify: float | None = None,
    time_limit: float = 300.0,
    engine: str | Engine = "auto",
    workers: int | None = None,
    details: bool = False,
    fresh: bool = False,
    progress: Progress | None = None,
) -> AuditTable:
    """Audit many checkpoints, and certify those that are bounded if asked to.

    Every model is loaded and audited in a worker process with one thread, which serves one model after another. A
    file that can't be read, weights that do not fit, a model that raises, exceeds the time limit or takes its process
    with it becomes a row with the error; the others go on.

    Nothing in a file is run: weights are read as data, and a ``.pt2`` file is opened without unpickling anything in
    it (``SECURITY.md`` says what is promised). A builder is code and is run, so a registry that names builders is to
    be trusted as a script is. A worker process is there for crashes and limits, it is no sandbox.

    Parameters
    ----------
    registry
        A folder, a table (:func:`read_registry`), or entries, whose paths are taken from the working directory.
    out
        A folder for the table, and for finished rows: a run that was stopped goes on where it was, and a later one
        computes only what is new. A row is finished if it has no error; it is found again by the file's SHA-256, its
        path, inputs and builder, the source code of the builder's package, the settings and the versions of farfield
        and torch. None keeps nothing.
    inputs, builder
        For entries without their own.
    certify
        Seconds of search for bounds, for every bounded model. Certificates go to ``out/certificates``.
    time_limit
        Seconds that loading and auditing one model may take; with ``certify`` twice its seconds more.
    engine, workers
        Where the work runs, and for the local engine how many models at once: by default, one per processor.
    details
        Write every audit as a whole to ``out/details``, as JSON.
    fresh
        Compute every row again.
    progress
        Called with (done, total), first while files are read, then for the audits.

    Returns
    -------
    AuditTable
        ``.rows``, ``.counts``, ``.errors``, ``.write(folder)``; written to ``out`` already if that is given.

    Raises
    ------
    InvalidValueError
        If the registry or an option is wrong. A wrong entry is a row.

    Examples
    --------
    >>> import tempfile, torch
    >>> from torch import nn
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = Path(folder, "broken.pt2").write_bytes(b"")
    ...     table = audit_all(folder, workers=1)
    >>> table.counts, table.rows[0].error
    ({'BOUNDED': 0, 'UNBOUNDED': 0, 'UNKNOWN': 0, 'ERROR': 1}, 'CheckpointError')
    """
    if not time_limit > 0 or (certify is not None and not certify > 0):
        raise InvalidValueError(
            f"Time limits are positive numbers of seconds; got time_limit={time_limit}, certify={certify}."
        )
    if out is None and (details or certify is not None):
        raise InvalidValueError("Certificates and details are files: give out, a folder to put them in.")
    if isinstance(registry, (str, os.PathLike)):
        entries = read_registry(registry, inputs=inputs, builder=builder, leave_out=out)
        root = Path(registry) if Path(registry).is_dir() else Path(registry).parent
    else:
        entries, root = tuple(registry), Path.cwd()
    where = _engine(engine, workers, len(entries))
    place = None if out is None else Path(out).absolute()
    settings = {"certify": certify, "details": details}
    task = _Ask(
        run=uuid.uuid4().hex,
        root=str(root.absolute()),
        search=(str(Path.cwd()), *filter(None, sys.path)),
        certify=certify,
        time_limit=time_limit,
        certificates=_folder(place, "certificates", certify is not None),
        details=_folder(place, "details", details),
    )
    described = provenance({**settings, "time_limit": time_limit, "registry": _said(registry)})
    store = None if place is None else _store(place, settings, described, fresh)
    found = _jobs(where, entries, task.root, progress)
    jobs = tuple(dict.fromkeys(job for job in found if isinstance(job, _Job)))
    rows: dict[_Job, dict[str, Any]] = {}
    if store is not None:
        rows = {job: row for job in jobs if (row := store.load(job)) is not None and not row.get("error")}
    reused = len(rows)
    todo = [job for job in jobs if job not in rows]
    for job in todo:  # an error is not finished: what it was due to may have been mended
        if store is not None:
            store.remove(job)
    with _interruptible(children(task.run)):
        for job, row in where.map(task, todo, checkpoint=store, progress=progress):
            rows[job] = row
    table = AuditTable(tuple(_row(item, rows) for item in found), reused, described)
    if place is not None:
        table.write(place)
    return table


def _engine(name: str | Engine, workers: int | None, models: int) -> Engine:
    if workers is not None and workers < 1:
        raise InvalidValueError(f"There is at least one worker, got workers={workers}.")
    if name not in ("auto", "local"):
        return engine_named(name)
    processors = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return local(max(1, min(workers or processors, models)))


def _folder(place: Path | None, name: str, wanted: bool) -> str | None:
    if place is None or not wanted:
        return None
    (place / name).mkdir(parents=True, exist_ok=True)
    return str(place / name)


def _store(place: Path, settings: dict[str, Any], described: dict[str, Any], fresh: bool) -> Checkpoint:
    """Finished rows of these settings and versions; those of others lie beside it."""
    digest = fingerprint("audit_all", _FORMAT, settings, described["versions"], described["commit"])
    store = Checkpoint(place / "finished" / digest[:16], digest)
    if fresh:
        store.clear()
    return store


def _jobs(
    where: Engine, entries: Sequence[ModelEntry], root: str, progress: Progress | None
) -> list[_Job | _Unreadable]:
    """Entries with the hashes of their files and of their builders' code; or why there is none."""
    paths = tuple(dict.fromkeys(e.path for e in entries if _encodable(e)))
    read = dict(where.map(_Read(root), paths, progress=progress))
    code = {name: _source_hash(name) for name in {e.builder for e in entries} if name is not None}
    found: list[_Job | _Unreadable] = []
    for entry in entries:
        if entry.path not in read:
            plain = ModelEntry(
                *(_plain(v) for v in (entry.path, entry.inputs, entry.builder, entry.arguments))
            )
            found.append(_Unreadable(plain, "UnicodeError", "The name or a setting is not valid Unicode."))
            continue
        size, text = read[entry.path]
        if isinstance(size, str):
            found.append(_Unreadable(entry, size, f"{text}: {entry.path!r}"))
        else:
            found.append(_Job(entry, text, size, code[entry.builder] if entry.builder else None))
    return found


def _encodable(entry: ModelEntry) -> bool:
    return bool(_plain(asdict(entry)) == asdict(entry))


def _plain(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, tuple):
        return tuple(_plain(v) for v in value)
    return {k: _plain(v) for k, v in value.items()} if isinstance(value, dict) else value


def _source_hash(builder: str) -> str | None:
    """Of every Python file of the builder's package, found without importing it; None where there is none."""
    top = builder.partition(":")[0].partition(".")[0]
    try:
        spec = importlib.machinery.PathFinder.find_spec(top, [str(Path.cwd()), *sys.path])
    except (ImportError, ValueError, UnicodeError):
        return None
    if spec is None:
        return None
    files = [Path(spec.origin)] if spec.origin and Path(spec.origin).is_file() else []
    for folder in spec.submodule_search_locations or ():
        files += sorted(Path(folder).rglob("*.py"))
    digest = hashlib.sha256()
    for file in dict.fromkeys(files):
        with contextlib.suppress(OSError):
            digest.update(hashlib.sha256(file.read_bytes()).digest())
    return digest.hexdigest()


def _stem(job: _Job) -> str:
    """A file's name for what belongs to a job: readable, harmless, its own."""
    words = re.sub(r"[^A-Za-z0-9_.-]+", "-", job.entry.path).strip("-.") or "model"
    return f"{words[-60:]}-{fingerprint(job)[:12]}"


def _said(registry: Any) -> str | None:
    return _plain(os.fspath(registry)) if isinstance(registry, (str, os.PathLike)) else None


def _row(item: _Job | _Unreadable, rows: dict[_Job, dict[str, Any]]) -> AuditRow:
    entry = item.entry
    row = AuditRow(
        entry.path, inputs="; ".join(entry.inputs) or None, builder=entry.builder, arguments=entry.arguments
    )
    if isinstance(item, _Unreadable):
        return replace(row, stage="read", error=item.error, message=item.message)
    return replace(row, sha256=item.sha256, bytes=item.size, **rows[item])


@contextlib.contextmanager
def _interruptible(workers: Children) -> Iterator[None]:
    """End the workers when the block ends; at once when it is interrupted, since an engine waits for its tasks."""

    def interrupt(*_: Any) -> None:
        workers.close()
        raise KeyboardInterrupt

    usual = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    mine = usual and threading.current_thread() is threading.main_thread()
    if mine:
        signal.signal(signal.SIGINT, interrupt)
    try:
        yield
    finally:
        if mine:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        workers.close()
