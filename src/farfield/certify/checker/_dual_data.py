"""What a dual proof stores, read; and sums and lengths of values with error bounds."""

from __future__ import annotations

import base64
import math
import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from farfield.certify.checker._values import (
    TINY,
    Array,
    CertificateError,
    MidRad,
    U,
    gamma,
    round_up,
)

__all__ = ["lengths", "mapping", "mean", "numbers", "unpack", "whitened"]


def mean(value: MidRad, axis: int) -> MidRad:
    count = value.mid.shape[axis]
    loss = gamma(count + 4) * np.abs(value.mid).mean(axis, keepdims=True) + value.rad.mean(
        axis, keepdims=True
    )
    return MidRad(value.mid.mean(axis, keepdims=True), round_up(loss))


def lengths(rows: MidRad) -> Array:
    """‖row‖₂, rounded up."""
    return np.sqrt(round_up((rows.top**2).sum(1))) * (1 + 4 * U)


def whitened(gram: MidRad) -> MidRad | None:
    """W with {u : uᵀGu ≤ 1} inside W·(unit ball): W ≈ G^{-1/2}/√(1 − δ), ‖I − WᵀGW‖ ≤ δ; ``None`` if singular."""
    scale = np.exp2(-np.round(0.5 * np.log2(np.maximum(np.diagonal(gram.mid), TINY))))
    try:
        root = scale[:, None] * np.linalg.inv(np.linalg.cholesky(scale[:, None] * gram.mid * scale)).T
    except np.linalg.LinAlgError:
        return None
    miss = MidRad.exact(root.T.copy()) @ (gram @ MidRad.exact(root)) + -MidRad.exact(np.eye(len(root)))
    delta = float(round_up(miss.top.sum(1)).max())
    if not delta < 0.5:
        return None
    grown = root / math.sqrt(1.0 - delta)
    return MidRad(grown, 8 * U * np.abs(grown))


def mapping(value: Any, where: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise CertificateError(f"{where} of a dual proof is a table, not {type(value).__name__}.")
    return value


def unpack(text: Any, count: int, where: str, kind: str = "<f8") -> Array:
    """A stored array of known length, all of it finite; nothing longer is unpacked."""
    width = np.dtype(kind).itemsize
    try:
        raw = zlib.decompressobj().decompress(base64.b64decode(text), count * width + 1)
        values = np.frombuffer(raw, dtype=kind).astype(np.float64)
    except (ValueError, TypeError, zlib.error) as error:
        raise CertificateError(f"The array {where} can't be read: {error}.") from None
    if values.size != count or not np.isfinite(values).all():
        raise CertificateError(f"The array {where} needs {count} finite numbers.")
    return values


def numbers(values: Any, count: int, where: str) -> Array:
    made = np.array([float(v) for v in values])
    if made.size != count or not np.isfinite(made).all():
        raise CertificateError(f"{where} needs {count} finite numbers, it has {made.size}.")
    return made
