"""Tasks for the tests: picklable, of one item, and telling of every call."""

import os
import signal
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from farfield.engine import Tile


@dataclass(frozen=True)
class Product:
    """A tile of x xᵀ, made asymmetric by rounding: rows are scaled before, columns after."""

    x: Tensor

    def __call__(self, tile: Tile) -> Tensor:
        return (self.x[tile.row_slice] / 3) @ self.x[tile.column_slice].mT * 3


@dataclass
class Logged:
    """Another task whose items are noted in a list and, if there is one, in a file."""

    task: object
    calls: list = field(default_factory=list)
    file: Path | None = None

    def __call__(self, item):
        self.calls.append(item)
        if self.file is not None:
            with self.file.open("a") as file:
                print(item, file=file, flush=True)
        return self.task(item)


@dataclass
class FailsOn:
    """Another task, except on one item."""

    task: object
    item: object

    def __call__(self, item):
        if item == self.item:
            raise ZeroDivisionError("poisoned")
        return self.task(item)


@dataclass
class KilledOn:
    """Another task, except that on one item the process is gone."""

    task: object
    item: object

    def __call__(self, item):
        if item == self.item:
            os.kill(os.getpid(), signal.SIGKILL)
        return self.task(item)


def seeded_normal(seed: int) -> Tensor:
    """1000 float32 numbers whose sum depends on the order of summation."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(1000, generator=generator) * 10.0 ** (seed % 7)


def add(left: Tensor, right: Tensor) -> Tensor:
    return left + right


def add_in_place(left: Tensor, right: Tensor) -> Tensor:
    return left.add_(right)


def identical(a: Tensor, b: Tensor) -> bool:
    """The same shape, dtype and bits: 0.0 is not −0.0, and a NaN is itself."""
    return (
        a.shape == b.shape
        and a.dtype == b.dtype
        and torch.equal(a.contiguous().view(torch.uint8), b.contiguous().view(torch.uint8))
    )


def features(n: int, d: int = 3, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(n, d, generator=torch.Generator().manual_seed(seed), dtype=dtype)
