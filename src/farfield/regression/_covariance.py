"""What a kernel is here, and the products with it that never hold the whole matrix."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol, TypeAlias, runtime_checkable

import torch
from torch import Tensor

from farfield import engine as engines
from farfield.errors import InvalidValueError
from farfield.kernels import KernelFunction, KernelKind, NetworkKernel

__all__ = [
    "Covariance",
    "MatrixTile",
    "Work",
    "cross",
    "identity",
    "kept_product",
    "multiply",
    "resolve",
    "symmetric_product",
]

_SIDE = 2048
"""Largest side of a recomputed tile: the kernel's own tiles are smaller, its preparation per call is amortised."""
_BYTES = 48
"""Bytes that a tile takes for one entry: its result and temporaries."""


@runtime_checkable
class Covariance(Protocol):
    """A symmetric positive semi-definite function of two inputs.

    :class:`farfield.kernels.KernelFunction` is one; so is any object with these three methods.
    """

    def __call__(self, x1: Tensor, x2: Tensor | None = None, /) -> Tensor:
        """The matrix k(x₁, x₂), shape (n, m) for inputs (n, d) and (m, d); ``x2`` defaults to ``x1``."""
        ...

    def diagonal(self, x: Tensor) -> Tensor:
        """k(x, x) for every input, shape (n,)."""
        ...

    def sup_diagonal(self) -> float:
        """The supremum of k(x, x) over all inputs, ∞ if there is none."""
        ...


@dataclass(frozen=True)
class Work:
    """Where tiles run and how much memory they may take."""

    engine: engines.Engine
    memory: int

    def side(self) -> int:
        """The side of square tiles."""
        return min(
            _SIDE,
            engines.tile_height(
                memory=self.memory, bytes_per_entry=_BYTES, workers=self.engine.sharing, cache=None
            ),
        )

    def height(self, columns: int) -> int:
        """The height of tiles that span whole rows."""
        return min(
            _SIDE,
            engines.tile_height(
                max(columns, 1),
                memory=self.memory,
                bytes_per_entry=_BYTES,
                workers=self.engine.sharing,
                cache=None,
            ),
        )


def resolve(
    kernel: NetworkKernel | Covariance, kind: KernelKind
) -> tuple[Covariance, NetworkKernel | None, KernelKind]:
    """The kernel as a function of inputs, the network it belongs to if there is one, and which kernel of it."""
    if isinstance(kernel, NetworkKernel):
        return kernel.function(kind), kernel, kind
    if isinstance(kernel, KernelFunction):
        return kernel, kernel.network, kernel.kind
    if isinstance(kernel, Covariance):
        return kernel, None, kind
    raise InvalidValueError(
        "A kernel is a farfield.kernels.NetworkKernel or has __call__(x1, x2=None), diagonal(x) and sup_diagonal(); "
        f"got {type(kernel).__qualname__}."
    )


def checked(kernel: Covariance, x1: Tensor, x2: Tensor | None = None, out: Tensor | None = None) -> Tensor:
    """The kernel's matrix, refused where it has not one entry a pair; in the memory of ``out``, if that fits."""
    shape = (len(x1), len(x1 if x2 is None else x2))
    if out is not None and isinstance(kernel, KernelFunction) and len(out) >= len(x1):
        value = kernel(x1, x2, out=out[: len(x1)])
    else:
        value = kernel(x1, x2)
    if value.shape != shape:
        raise InvalidValueError(
            f"A kernel gives a matrix with an entry for every pair, {shape} here; got {tuple(value.shape)}."
        )
    return value


def identity(kernel: Covariance, points: Tensor) -> Tensor:
    """A kernel by its values: it may hold functions, which have no content to compare."""
    with torch.no_grad():
        return checked(kernel, points[:16])


# ------------------------------------------------------------------ the whole matrix


@dataclass(frozen=True)
class MatrixTile:
    """A tile of K(x, x)."""

    kernel: Covariance
    x: Tensor

    def __call__(self, tile: engines.Tile) -> Tensor:
        if tile.on_diagonal:
            return checked(self.kernel, self.x[tile.row_slice])
        return checked(self.kernel, self.x[tile.row_slice], self.x[tile.column_slice])


# ------------------------------------------------------------------ products with tiles that are dropped


_Part: TypeAlias = tuple[int, int, int]
"""First row of a strip, and the columns from … to of a part of it, at most _LONGEST tiles."""
_LONGEST = 32
"""Tiles in a part: a strip of a large matrix is the work of many, and the first would keep all others waiting."""


def _parts(n: int, side: int) -> list[_Part]:
    """The upper triangle, in strips and parts of strips.

    >>> _parts(5, 2)
    [(0, 0, 5), (2, 2, 5), (4, 4, 5)]
    """
    long = _LONGEST * side
    return [
        (start, left, min(left + long, n)) for start in range(0, n, side) for left in range(start, n, long)
    ]


@dataclass(frozen=True)
class _Strip:
    """A part of a strip of rows of a symmetric matrix: its tiles on and above the diagonal, each used twice."""

    kernel: Covariance
    x: Tensor
    vectors: Tensor
    side: int

    def __call__(self, part: _Part) -> Tensor:
        return _strip_product(_strip_tiles(self.kernel, self.x, part, self.side), part, self.vectors)


@dataclass(frozen=True)
class _KeepStrip:
    """The tiles of a part of a strip, computed once."""

    kernel: Covariance
    x: Tensor
    side: int

    def __call__(self, part: _Part) -> Callable[[Tensor], Tensor]:
        with torch.no_grad():
            return _KeptStrip(tuple(_strip_tiles(self.kernel, self.x, part, self.side)), part)


@dataclass(frozen=True)
class _KeptStrip:
    tiles: tuple[Tensor, ...]
    part: _Part

    def __call__(self, vectors: Tensor) -> Tensor:
        return _strip_product(self.tiles, self.part, vectors)


def _strip_tiles(kernel: Covariance, x: Tensor, part: _Part, side: int) -> Iterator[Tensor]:
    """From left to right; one on the diagonal comes first."""
    start, first, last = part
    rows = x[start : start + side]
    for left in range(first, last, side):
        yield checked(kernel, rows) if left == start else checked(kernel, rows, x[left : left + side])


def _strip_product(tiles: Iterable[Tensor], part: _Part, v: Tensor) -> Tensor:
    """What a part of a strip and its mirror image add to a product."""
    start, left, _ = part
    total = torch.zeros_like(v)
    for tile in tiles:
        stop, right = start + tile.shape[0], left + tile.shape[1]
        if left == start:
            total[start:stop] = tile @ v[start:stop]
        else:
            total[start:stop].addmm_(tile, v[left:right])
            total[left:right].addmm_(tile.mT, v[start:stop])
        left = right
    return total


def _add(left: Tensor, right: Tensor) -> Tensor:
    return left.add_(right)


def symmetric_product(kernel: Covariance, x: Tensor, vectors: Tensor, work: Work) -> Tensor:
    """K(x, x) V for V of shape (n, k): upper tiles only, computed and dropped.

    Cost: n²/2 kernel entries and 2n²k operations; memory a tile, and log₂ of the number of strips times n·k.
    """
    side = _strip_side(x, work)
    return work.engine.reduce(_Strip(kernel, x, vectors, side), _parts(len(x), side), _add)


@contextlib.contextmanager
def kept_product(kernel: Covariance, x: Tensor, work: Work) -> Iterator[Callable[[Tensor], Tensor]]:
    """V ↦ K(x, x) V with tiles that are computed once and stay with their workers, the same bits as recomputed.

    Memory: 4n² bytes over all workers.
    """
    side = _strip_side(x, work)
    with work.engine.resident(_KeepStrip(kernel, x, side), _parts(len(x), side)) as strips:
        yield lambda vectors: strips.reduce(vectors, _add)


def _strip_side(x: Tensor, work: Work) -> int:
    return min(work.side(), max(64, math.ceil(len(x) / 2)))


@dataclass(frozen=True)
class _Rows:
    """k(queries, x) W for some rows of the queries."""

    kernel: Covariance
    queries: Tensor
    x: Tensor
    weights: Tensor
    height: int

    def __call__(self, start: int) -> Tensor:
        return checked(self.kernel, self.queries[start : start + self.height], self.x) @ self.weights


def multiply(kernel: Covariance, queries: Tensor, x: Tensor, weights: Tensor, work: Work) -> Tensor:
    """k(queries, x) W for W of shape (n, k), a few rows at a time."""
    if len(queries) == 0:
        return weights.new_zeros(0, weights.shape[1])
    height = work.height(len(x))
    task = _Rows(kernel, queries, x, weights, height)
    # A gradient does not come back from another process.
    tracked = torch.is_grad_enabled() and queries.requires_grad
    engine = engines.local() if tracked else work.engine
    return torch.cat([part for _, part in engine.map(task, range(0, len(queries), height))])


def cross(queries: Tensor, n: int, work: Work, part: Callable[[Tensor], Tensor], *, width: int = 4) -> Tensor:
    """``part`` of a few queries at a time, so few that ``width`` columns of length n for each fit the budget."""
    if len(queries) == 0:
        return part(queries)
    rows = max(1, min(1024, work.memory // (8 * width * max(n, 1))))
    return torch.cat([part(chunk) for chunk in queries.split(rows)])
