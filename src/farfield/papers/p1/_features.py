"""What a frozen network makes of images, batch by batch, kept so that a run that was stopped goes on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from farfield.data import PackedFaces
from farfield.engine import Checkpoint, fingerprint
from farfield.papers.p1._backbones import Backbone

__all__ = ["BATCH", "CHUNK", "features"]

BATCH = 64
"""Images through the network at once: 12 MB of them, and a tenth of a gigabyte between its layers."""
CHUNK = 512
"""Rows stored in one file."""


def features(
    source: Backbone,
    faces: PackedFaces,
    rows: NDArray[np.int64],
    folder: Path,
    *,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Tensor:
    """Features of these rows' images, shape (rows, features), float32.

    Memory holds one batch of images and the features; every chunk of rows is written to ``folder`` once, and read
    from there ever after.
    """
    store = Checkpoint(folder, fingerprint("features", source.name, source.size, rows))
    network = None
    found = torch.empty(len(rows), source.features)
    for start in range(0, len(rows), CHUNK):
        piece = rows[start : start + CHUNK]
        values = store.load(start)
        if values is None:
            network = source.network() if network is None else network
            with torch.inference_mode():
                batches = [
                    network(source.prepare(faces.images(piece[k : k + BATCH])))
                    for k in range(0, len(piece), BATCH)
                ]
            values = torch.cat(batches).clone()
            store.save(start, values)
        found[start : start + len(piece)] = values
        progress(start + len(piece), len(rows))
    return found
