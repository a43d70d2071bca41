"""Every form in which rows reach a verb, from Python and from a shell."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch.utils.data import DataLoader, TensorDataset

from journeys.journey_sources import NAMES, ROWS, folder

FRAME = pd.DataFrame(ROWS.numpy(), columns=list(NAMES))
LABELS = ROWS[:, :1].round()


def _written(name: str, write: Callable[[Path], Any]) -> Path:
    path = folder() / name
    write(path)
    return path


DATA: dict[str, Callable[[], Any]] = {
    "tensor": lambda: ROWS,
    "array": lambda: ROWS.numpy(),
    "array of float64": lambda: ROWS.numpy().astype(np.float64),
    "DataFrame": lambda: FRAME,
    "DataLoader": lambda: DataLoader(TensorDataset(ROWS), batch_size=100),
    "DataLoader with labels": lambda: DataLoader(TensorDataset(ROWS, LABELS), batch_size=100),
    "columns": lambda: {name: ROWS[:, k] for k, name in enumerate(NAMES)},
    ".npy": lambda: _written("rows.npy", lambda path: np.save(path, ROWS.numpy())),
    ".npz": lambda: _written("rows.npz", lambda path: np.savez(path, ROWS.numpy())),
    ".csv": lambda: _written("rows.csv", lambda path: FRAME.to_csv(path, index=False)),
    ".parquet": lambda: _written("rows.parquet", lambda path: FRAME.to_parquet(path)),
    ".pt": lambda: _written("rows.pt", lambda path: torch.save(ROWS, path)),
}
"""Name → data. The files are what a command takes with ``--data``."""
FILES = tuple(name for name in DATA if name.startswith("."))


@functools.cache
def data(name: str) -> Any:
    return DATA[name]()
