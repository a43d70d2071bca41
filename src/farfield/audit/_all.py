"""Many checkpoints audited in parallel, one row each; a broken one never stops the rest."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib.machinery
import os
import re
import signal
import sys
import threading
import uuid
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeAlias

from farfield._provenance import provenance
from farfield._text import clean
from farfield.audit._children import Children, Limits, children
from farfield.audit._confine import available_memory
from farfield.audit._registry import ModelEntry, Registry
from farfield.audit._sandbox import trouble
from farfield.audit._table import AuditRow, AuditTable, RowWriter
from farfield.engine import Checkpoint, Engine, Progress, fingerprint, hold_folder, local, parse_memory
from farfield.engine import engine as engine_named
from farfield.errors import InvalidValueError

__all__ = ["audit_all", "choose_engine", "interruptible", "worker_limits"]

_LEAST = 10**9
"""Bytes that a model may take at least, unless the caller says otherwise."""
_FORMAT = 1
"""Of a finished row; another one computes all rows again."""
_Item: TypeAlias = tuple[int, ModelEntry, str | None]


@dataclass(frozen=True, slots=True)
class _Job:
    """An entry with what its file and its builder's code hold: what a row depends on, besides the settings."""

    entry: ModelEntry
    sha256: str
    size: int
    code: str | None


@dataclass(frozen=True, slots=True)
class _Ask:
    """The task that reads and audits one entry, in a worker process of the process that it runs in."""

    run: str
    root: str
    search: tuple[str, ...]
    certify: float | None
    time_limit: float
    limits: Limits
    certificates: str | None
    details: str | None
    store: Checkpoint | None

    def __call__(self, item: _Item) -> dict[str, Any]:
        """The fields of a row; ``reused`` if it had been finished before."""
        _, entry, code = item
        if not _encodable(entry):
            message = "The name or a setting is not valid Unicode."
            return {"stage": "read", "error": "UnicodeError", "message": message}
        limit = self.time_limit + 2 * (self.certify or 0.0)
        file = str(Path(self.root, entry.path))
        read = self._ask({"read": file}, limit)
        if "sha256" not in read:
            return read
        job = _Job(entry, read["sha256"], read["bytes"], code)
        if self.store is not None:
            if (kept := self.store.load(job)) is not None and not kept.get("error"):
                return {**read, **kept, "reused": True}
            self.store.remove(job)  # an error is not finished: what it was due to may have been mended
        stem = _stem(job)
        details = None if self.details is None else f"{self.details}/{stem}.json"
        request = {
            **asdict(entry),
            "file": file,
            "search": self.search,
            "certify": self.certify,
            "certificate": None if self.certificates is None else f"{self.certificates}/{stem}",
            "details": details,
        }
        # What it took to read counts, and what it takes to start a process does not.
        spent = read.pop("seconds")
        row = self._ask(request, limit - spent)
        row["seconds"] = row.get("seconds", 0.0) + spent
        if row.get("error") == "TimeLimit":
            row["message"] = f"Ended after {limit:g} s, the limit for one model."
        if details is not None and row.get("verdict"):
            row["details"] = f"{stem}.json"
        if self.store is not None:
            self.store.save(job, row)
        return {**read, **row}

    def _ask(self, request: dict[str, Any], limit: float) -> dict[str, Any]:
        """An answer; once more if the system killed the process, as it does when the machine's memory runs out."""
        workers = children(self.run, self.limits)
        row = workers.ask(request, limit)
        if row.get("error") == "WorkerDied" and "SIGKILL" in row["message"]:
            row = workers.ask(request, limit - row["seconds"])
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
    memory_limit: int | str | None = None,
    sandbox: bool = False,
    details: bool = False,
    fresh: bool = False,
    progress: Progress | None = None,
) -> AuditTable:
    """Audit many checkpoints, and certify those that are bounded if asked to.

    Every file is read and every model audited in a worker process with one thread, which serves one model after
    another. A file that can't be read or is none (a pipe, a device), weights that do not fit, a model that raises,
    exceeds a limit or takes its process with it becomes a row with the error; the others go on. At the time limit the
    process ends with all that it started. Rows are written as models end, in any order, and sorted in the end; a
    registry of a million rows takes no more memory than one of a thousand.

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
    memory_limit
        Memory for one model, such as ``"4GB"``, beside that of a bare worker process. By default what the machine or
        its control group has, divided by the models at once.
    sandbox
        On Linux: worker processes have no network and can write to ``out`` alone. Refused where the system does not
        permit it.
    details
        Write every audit as a whole to ``out/details``, as JSON.
    fresh
        Compute every row again.
    progress
        Called with (done, total).

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
        raise InvalidValueError(
            "Certificates and details are written to files: name a folder for them with out=."
        )
    entries: Collection[ModelEntry]
    if isinstance(registry, (str, os.PathLike)):
        entries = Registry(Path(registry), inputs, builder, None if out is None else Path(out))
        root = Path(registry) if Path(registry).is_dir() else Path(registry).parent
    else:
        entries, root = tuple(registry), Path.cwd()
    where, at_once = choose_engine(engine, workers, len(entries))
    place = None if out is None else Path(out).absolute()
    if place is not None:
        place.mkdir(parents=True, exist_ok=True)
    settings = {"certify": certify, "details": details}
    described = provenance({**settings, "time_limit": time_limit, "registry": _said(registry)})
    store = None if place is None else _store(place, settings, described, fresh)
    task = _Ask(
        run=uuid.uuid4().hex,
        root=str(root.absolute()),
        search=(str(Path.cwd()), *filter(None, sys.path)),
        certify=certify,
        time_limit=time_limit,
        limits=worker_limits(memory_limit, at_once, sandbox, place),
        certificates=_folder(place, "certificates", certify is not None),
        details=_folder(place, "details", details),
        store=store,
    )
    reused, rows = 0, {}
    with contextlib.ExitStack() as stack:
        writer = None
        if place is not None:
            stack.enter_context(hold_folder(place))  # before anything in it is written anew
            writer = stack.enter_context(contextlib.closing(RowWriter(place / "audits.jsonl")))
        stack.enter_context(interruptible(children(task.run, task.limits)))
        for (number, entry, _), row in where.map(task, _Items(entries), progress=progress, ordered=False):
            reused += bool(row.pop("reused", False))
            made = _row(entry, row)
            if writer is None:
                rows[number] = made
            else:
                writer.add(number, made)
        found = tuple(rows[k] for k in sorted(rows)) if writer is None else writer.finish()
        table = AuditTable(found, reused, described)
        if place is not None:
            table.write(place)
    return table


@dataclass(frozen=True)
class _Items:
    """(number, entry, digest of its builder's code), made as they are taken: there may be very many."""

    entries: Collection[ModelEntry]

    def __len__(self) -> int:
        return len(self.entries)

    def __iter__(self) -> Iterator[_Item]:
        code = functools.lru_cache(1000)(_source_hash)
        for number, entry in enumerate(self.entries):
            yield number, entry, code(entry.builder) if entry.builder else None


def worker_limits(memory: int | str | None, at_once: int, sandbox: bool, place: Path | None) -> Limits:
    if sandbox and (reason := trouble()) is not None:
        raise InvalidValueError(
            f"There is no sandbox on this system: {reason}. Run it in a container instead."
        )
    if memory is not None:
        size: int | None = parse_memory(memory)
    else:
        whole = available_memory()
        size = None if whole is None else max(_LEAST, whole // at_once)
    return Limits(size, sandbox, () if place is None else (str(place),))


def choose_engine(name: str | Engine, workers: int | None, models: int) -> tuple[Engine, int]:
    """The engine, and how many models are worked on at once on one machine."""
    if workers is not None and workers < 1:
        raise InvalidValueError(f"At least one worker is needed; got workers={workers}.")
    processors = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if name not in ("auto", "local"):
        return engine_named(name), processors
    count = max(1, min(workers or processors, models))
    return local(count), count


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


def _row(entry: ModelEntry, fields: dict[str, Any]) -> AuditRow:
    """The row, with its names and messages as they may be shown."""
    path, inputs, builder, arguments = clean([entry.path, entry.inputs, entry.builder, entry.arguments])
    return AuditRow(
        path, inputs="; ".join(inputs) or None, builder=builder, arguments=arguments, **clean(fields)
    )


@contextlib.contextmanager
def interruptible(workers: Children) -> Iterator[None]:
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
