"""Readers of image files: IDX, the CIFAR archives, and packed WebP."""

from __future__ import annotations

import gzip
import io
import itertools
import struct
import tarfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from farfield.errors import InvalidValueError, MissingExtraError

__all__ = ["PackedFaces", "read_cifar", "read_faces", "read_idx"]

Bytes = NDArray[np.uint8]


def read_idx(path: Path) -> Bytes:
    """A gzip-compressed IDX file of bytes."""
    raw = gzip.decompress(path.read_bytes())
    if raw[:3] != b"\x00\x00\x08":
        raise InvalidValueError(f"{path} is not an IDX file of unsigned bytes.")
    axes = raw[3]
    shape = struct.unpack(">" + "I" * axes, raw[4 : 4 + 4 * axes])
    return np.frombuffer(raw, np.uint8, offset=4 + 4 * axes).reshape(shape)


def read_cifar(path: Path) -> tuple[Bytes, Bytes]:
    """Images (60000, 32, 32, 3) and labels, training batches first; from the official archive or packed WebP."""
    if path.suffix == ".npz":
        with np.load(path) as packed:
            labels = np.asarray(packed["labels"], np.uint8)
            images = [i.reshape(-1, 32, 32, 3) for i in _decoded(packed["blob"], packed["offsets"])]
        return np.concatenate(images), labels
    names = [f"cifar-10-batches-bin/data_batch_{k}.bin" for k in range(1, 6)]
    with tarfile.open(path) as archive:
        parts = []
        for name in (*names, "cifar-10-batches-bin/test_batch.bin"):
            member = archive.extractfile(name)
            assert member is not None
            parts.append(np.frombuffer(member.read(), np.uint8).reshape(-1, 3073))
    rows = np.concatenate(parts)
    return rows[:, 1:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1), rows[:, 0]


@dataclass(frozen=True, eq=False)
class PackedFaces:
    """UTKFace as it is stored: labels at hand, images unpacked when they are asked for.

    Rows whose age or ethnicity label is missing are left out. All images together take a gigabyte.

    Parameters
    ----------
    age
        In years.
    ethnicity
        The label in the file name: 0 White, 1 Black, 2 Asian, 3 Indian, 4 Others.
    """

    age: NDArray[np.int64]
    ethnicity: NDArray[np.int64]
    _blob: Bytes
    _starts: NDArray[np.int64]
    _stops: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.age)

    def held_out(self, labels: Sequence[int] = (4,)) -> NDArray[np.bool_]:
        """Which rows have one of these ethnicity labels; P1 holds out Others, 4."""
        return np.isin(self.ethnicity, list(labels))

    def images(self, rows: NDArray[np.int64]) -> Bytes:
        """Images of these rows, (rows, 128, 128, 3)."""
        spans = zip(self._starts[rows], self._stops[rows], strict=True)
        out = np.empty((len(rows), 128, 128, 3), np.uint8)
        for image, (start, stop) in zip(out, spans, strict=True):
            image[:] = _decode(self._blob[start:stop])
        return out


def read_faces(path: Path) -> PackedFaces:
    """The packed faces of UTKFace."""
    with np.load(path) as packed:
        blob, offsets = packed["blob"], np.asarray(packed["offsets"], np.int64)
        age, race = (np.asarray(packed[k], np.int64) for k in ("age", "race"))
    known = (age >= 0) & (race >= 0)
    return PackedFaces(age[known], race[known], blob, offsets[:-1][known], offsets[1:][known])


def _decoded(blob: Bytes, offsets: NDArray[np.int64]) -> Any:
    for start, stop in itertools.pairwise(offsets):
        yield _decode(blob[start:stop])


def _decode(packed: Bytes) -> Bytes:
    try:
        from PIL import Image
    except ImportError as error:
        raise MissingExtraError("Reading packed images", "Pillow", "data") from error
    return np.asarray(Image.open(io.BytesIO(packed.tobytes())).convert("RGB"))
