"""The protein table as P1 splits it, from a copy on this machine."""

from __future__ import annotations

import hashlib
import io
import lzma
import os
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

__all__ = ["Split", "load"]

CHECKOUT = Path(__file__).resolve().parent.parent
FILE = Path("protein", "CASP.csv.xz")
SHA256 = "4277cfcb4e91a181746cbc654f001b57951c9e6a80f4f795fdb5c807e0848f40"
NEAR, TRAIN_SHARE = 20_000, 0.9


@dataclass(frozen=True)
class Split:
    """Standardised rows, the far ones beyond the training range; ``centre`` and ``scale`` bring back ångströms."""

    train_x: Tensor
    train_y: Tensor
    test_x: Tensor
    test_y: Tensor
    far_x: Tensor
    far_y: Tensor
    centre: float
    scale: float


def find() -> Path:
    """The table, under FARFIELD_DATA or in shared/data beside the checkout."""
    folders = [Path(os.environ["FARFIELD_DATA"])] if "FARFIELD_DATA" in os.environ else []
    folders.append(CHECKOUT.parent / "shared" / "data")
    for folder in folders:
        if (folder / FILE).is_file():
            return folder / FILE
    sys.exit(
        f"The protein table is needed: set FARFIELD_DATA to a folder with {FILE} (UCI, Physicochemical Properties "
        "of Protein Tertiary Structure, CASP.csv compressed with xz)."
    )


def load(seed: int) -> Split:
    """Train on a random 90% of the rows with F1 < 20,000, test on the rest of those; far rows have F1 ≥ 20,000."""
    raw = lzma.decompress(find().read_bytes())
    if hashlib.sha256(raw).hexdigest() != SHA256:
        sys.exit(f"{FILE} is not the original UCI table: its sha256 differs.")
    table = torch.from_numpy(np.loadtxt(io.BytesIO(raw), delimiter=",", skiprows=1))
    y, x = table[:, 0], table[:, 1:]
    near = torch.nonzero(x[:, 0] < NEAR)[:, 0]
    order = near[torch.randperm(len(near), generator=torch.Generator().manual_seed(seed))]
    count = round(TRAIN_SHARE * len(near))
    train, test = order[:count], order[count:]
    far = torch.nonzero(x[:, 0] >= NEAR)[:, 0]
    x = (x - x[train].mean(0)) / x[train].std(0)
    centre, scale = float(y[train].mean()), float(y[train].std())
    y = ((y - centre) / scale)[:, None]
    parts = [t[rows].float() for rows in (train, test, far) for t in (x, y)]
    return Split(*parts, centre, scale)
