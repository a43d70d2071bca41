"""Readers of image files: IDX, the CIFAR archives, and packed WebP."""

from __future__ import annotations

import gzip
import io
import itertools
import struct
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from farfield.errors import InvalidValueError, MissingExtraError

__all__ = ["read_cifar", "read_faces", "read_idx"]

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


def read_faces(path: Path) -> tuple[Bytes, NDArray[np.int64], NDArray[np.int64]]:
    """Images (n, 128, 128, 3), ages and ethnicity labels; −1 where a label is missing."""
    with np.load(path) as packed:
        images = np.stack(list(_decoded(packed["blob"], packed["offsets"])))
        age, race = (np.asarray(packed[k], np.int64) for k in ("age", "race"))
    return images, age, race


def _decoded(blob: Bytes, offsets: NDArray[np.int64]) -> Any:
    try:
        from PIL import Image
    except ImportError as error:
        raise MissingExtraError("Reading packed images", "Pillow", "data") from error
    for start, stop in itertools.pairwise(offsets):
        yield np.asarray(Image.open(io.BytesIO(blob[start:stop].tobytes())).convert("RGB"))
