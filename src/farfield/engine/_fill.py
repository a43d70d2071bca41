"""Tiles written into a matrix, and mirrored."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from farfield.engine._tile import Tile
from farfield.errors import InvalidValueError

__all__ = ["TileWriter", "WriteTask", "as_matrix", "check_tiles", "write_tile"]


class TileWriter(Protocol):
    """A task that can also write a tile where it belongs, which spares a copy."""

    def __call__(self, tile: Tile, /) -> Tensor:
        """The tile."""
        ...

    def write(self, tile: Tile, out: Tensor, /) -> None:
        """The tile into a tensor of its shape, dtype and device."""
        ...


@dataclass(frozen=True)
class WriteTask:
    """A writer's tile into its place in a matrix of this process, and into its mirror image."""

    writer: TileWriter
    matrix: Tensor
    symmetric: bool

    def __call__(self, tile: Tile) -> None:
        place = self.matrix[tile.row_slice, tile.column_slice]
        self.writer.write(tile, place)
        if self.symmetric and tile.on_diagonal:
            below = torch.ones(tile.shape, dtype=torch.bool, device=place.device).tril(-1)
            place.copy_(torch.where(below, place.mT, place))
        elif self.symmetric:
            self.matrix[tile.column_slice, tile.row_slice] = place.mT


def as_matrix(out: Tensor | NDArray[Any]) -> Tensor:
    """What is to be filled as a tensor over the same memory."""
    if isinstance(out, np.ndarray):
        if not out.flags.writeable:
            raise InvalidValueError("out is written to, and this array is read-only. Open it with mode='r+'.")
        out = torch.from_numpy(out)
    if out.dim() < 2:
        raise InvalidValueError(f"out has shape (..., rows, columns); got shape {tuple(out.shape)}.")
    return out


def check_tiles(matrix: Tensor, tiles: Iterable[Tile], symmetric: bool) -> None:
    """Raise unless every tile lies inside the matrix and, to be mirrored, on or wholly above the diagonal."""
    rows, columns = matrix.shape[-2:]
    if symmetric and rows != columns:
        raise InvalidValueError(f"symmetric=True fills a square matrix; out has shape {tuple(matrix.shape)}.")
    for tile in tiles:
        if tile.rows[1] > rows or tile.columns[1] > columns:
            raise InvalidValueError(
                f"Every tile lies inside the matrix; out has shape {tuple(matrix.shape)} and there is {tile}. Make "
                "the tiles from its shape: tiles(rows, columns, height=…)."
            )
        if symmetric and not tile.on_diagonal and tile.rows[1] > tile.columns[0]:
            raise InvalidValueError(
                f"To be mirrored, a tile lies on the diagonal or wholly above it; there is {tile}. Make the tiles "
                "with tiles(n, height=…, symmetric=True)."
            )


def write_tile(matrix: Tensor, tile: Tile, result: Tensor, symmetric: bool) -> None:
    """Copy a tile's result into its place, and into its mirror image."""
    expected = (*matrix.shape[:-2], *tile.shape)
    if not isinstance(result, Tensor) or result.shape != expected or result.dtype != matrix.dtype:
        got = (
            f"{result.dtype} {tuple(result.shape)}"
            if isinstance(result, Tensor)
            else type(result).__qualname__
        )
        raise InvalidValueError(
            f"The task gives a {matrix.dtype} tensor of shape {expected} for {tile}; got {got}. Neither is cast: "
            "make out and the task agree."
        )
    if symmetric and tile.on_diagonal:
        upper = torch.ones(tile.shape, dtype=torch.bool, device=result.device).triu()
        result = torch.where(upper, result, result.mT)
    matrix[..., tile.row_slice, tile.column_slice] = result
    if symmetric and not tile.on_diagonal:
        matrix[..., tile.column_slice, tile.row_slice] = result.mT
