"""Finished results in a folder: written whole or not at all, trusted only if every byte is what was written."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from farfield.engine._fingerprint import fingerprint as fingerprint_of
from farfield.errors import InvalidValueError

__all__ = ["Checkpoint"]

_MAGIC = b"farfield-result/1\n"
_MANIFEST = "checkpoint.json"


@dataclass(frozen=True, init=False)
class Checkpoint:
    """A folder of finished results, so that a run that was stopped goes on where it was.

    Give one to :meth:`Engine.map`, :meth:`Engine.reduce`, :meth:`Engine.fill` or :meth:`Engine.stream`: results that
    are in the folder are read, the others computed and written. One folder serves one operation, and one run at a
    time. A result is written beside its place and then moved there, so a killed process leaves none half written; a
    SHA-256 of every result is checked when it is read, and one that is damaged is computed again.

    Results are stored with ``torch.save`` and read with ``weights_only=True``: tensors without gradients, numbers,
    texts, None and tuples, lists and dicts of those.

    Parameters
    ----------
    folder
        Created if absent. Every worker must see it.
    fingerprint
        Everything the results depend on (the task's name, its operands, its settings), as one text from
        :func:`fingerprint`.

    Raises
    ------
    InvalidValueError
        If the folder belongs to another computation or holds other files.

    Examples
    --------
    >>> import tempfile
    >>> from farfield.engine import fingerprint
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     checkpoint = Checkpoint(folder, fingerprint("squares"))
    ...     checkpoint.save(3, torch.tensor(9))
    ...     checkpoint.load(3), checkpoint.load(4, "absent")
    (tensor(9), 'absent')
    """

    folder: Path
    fingerprint: str

    def __init__(self, folder: str | os.PathLike[str], fingerprint: str) -> None:
        # Absolute: a worker may run in another directory.
        object.__setattr__(self, "folder", Path(folder).absolute())
        object.__setattr__(self, "fingerprint", fingerprint)
        self._open()

    @staticmethod
    def at(
        where: Checkpoint | str | os.PathLike[str] | None, contents: Callable[[], Sequence[object]]
    ) -> Checkpoint | None:
        """A checkpoint as it is; for a folder, the one there whose fingerprint is that of ``contents()``.

        This is how functions that know all that their results depend on take a folder for ``checkpoint=``.
        """
        if where is None or isinstance(where, Checkpoint):
            return where
        return Checkpoint(where, fingerprint_of(*contents()))

    def load(self, item: object, default: object = None) -> Any:
        """The result stored for an item, or ``default`` if there is none or not one byte for byte as written."""
        try:
            content = self._path(item).read_bytes()
        except FileNotFoundError:
            return default
        size = len(_MAGIC) + hashlib.sha256().digest_size
        head, payload = content[:size], memoryview(content)[size:]
        if head != _MAGIC + self._checksum(item, payload):
            return default
        return torch.load(io.BytesIO(payload), weights_only=True)

    def save(self, item: object, result: object) -> None:
        """Store the result of an item, replacing an earlier one."""
        buffer = io.BytesIO()
        torch.save(_storable(result), buffer)
        with buffer.getbuffer() as payload:
            self._write(self._path(item), _MAGIC, self._checksum(item, payload), payload)

    def remove(self, item: object) -> None:
        """Forget the result of an item, if there is one."""
        self._path(item).unlink(missing_ok=True)

    def clear(self) -> None:
        """Forget every result; the folder and its fingerprint stay."""
        for path in self.folder.glob("*.result"):
            path.unlink(missing_ok=True)

    def _path(self, item: object) -> Path:
        return self.folder / f"{fingerprint_of(item)}.result"

    def _checksum(self, item: object, payload: memoryview) -> bytes:
        # Fingerprint and item belong to it: a file copied from elsewhere is not trusted.
        digest = hashlib.sha256(f"{self.fingerprint} {fingerprint_of(item)} ".encode())
        digest.update(payload)
        return digest.digest()

    def _open(self) -> None:
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except FileExistsError:
            raise InvalidValueError(
                f"A checkpoint is a folder, and {self.folder} is a file. Give another place."
            ) from None
        for left_by_a_killed_run in self.folder.glob("*.part"):
            left_by_a_killed_run.unlink(missing_ok=True)
        manifest = self.folder / _MANIFEST
        if not manifest.exists():
            others = next((path.name for path in self.folder.iterdir()), None)
            if others is not None:
                raise InvalidValueError(
                    f"A checkpoint has a folder of its own, and {self.folder} holds other files ({others!r}) and no "
                    f"{_MANIFEST}. Give an empty or a new folder."
                )
            self._write(manifest, json.dumps({"format": 1, "fingerprint": self.fingerprint}).encode())
            return
        try:
            found = json.loads(manifest.read_bytes())["fingerprint"]
        except (ValueError, KeyError, TypeError):
            found = None
        if found != self.fingerprint:
            theirs = "cannot be read" if found is None else f"is {str(found)[:16]}…"
            raise InvalidValueError(
                f"The results in {self.folder} belong to another computation: their fingerprint {theirs} and this "
                f"one's is {self.fingerprint[:16]}…: the task, its data or its settings differ. Give another folder, "
                "delete this one to start afresh, or go back to what it was made with."
            )

    def _write(self, path: Path, *pieces: bytes | memoryview) -> None:
        with self._part(path) as part, part.open("wb") as file:
            for piece in pieces:
                file.write(piece)

    @contextlib.contextmanager
    def _part(self, path: Path) -> Iterator[Path]:
        """A file beside the path to write to, moved there in one step once written."""
        part = path.with_name(f"{path.name}.{uuid.uuid4().hex}.part")
        try:
            yield part
            part.replace(path)
        except BaseException:
            part.unlink(missing_ok=True)
            raise


def _storable(value: Any) -> Any:
    """The value with compact tensors; raise for what ``weights_only`` would not read back."""
    if isinstance(value, Tensor) and type(value) is Tensor:
        if value.requires_grad:
            raise InvalidValueError(
                "A checkpoint stores numbers, and this result carries a gradient. Run the task under "
                "torch.no_grad(), return result.detach(), or run without a checkpoint."
            )
        # torch.save writes the whole storage of a view.
        own = value.layout != torch.strided or value.untyped_storage().nbytes() == value.nbytes
        return value if own else value.clone()
    if value is None or type(value) in (bool, int, float, str, bytes):
        return value
    if type(value) in (tuple, list):
        return type(value)(_storable(item) for item in value)
    if type(value) is dict:
        return {_storable(key): _storable(item) for key, item in value.items()}
    raise InvalidValueError(
        "A checkpoint stores tensors, numbers, texts, None and tuples, lists and dicts of those, because reading "
        f"anything else back would run code; got {type(value).__qualname__}. Return its parts, or run without a "
        "checkpoint."
    )
