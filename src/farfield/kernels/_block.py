"""A tile of a kernel from the angles between inputs alone, a block at a time that a core's cache holds.

The time of an entry is that of the passes over it: a product, an arcsine, a look for pairs that are nearly parallel,
and one pass for every degree of the polynomial, in two buffers that stay in the cache. The last pass writes the
result where it belongs. Compiled, all but the product are one pass.
"""

from __future__ import annotations

import functools
import importlib.util
import math
import warnings
from dataclasses import dataclass
from types import ModuleType

import torch
from torch import Tensor

from farfield.engine import Tile
from farfield.kernels._inputs import separation
from farfield.kernels._table import Interpolant, horner_, position

__all__ = ["TableTile"]

_BUFFER = 320 * 1024
"""Bytes of each of the two buffers: together they stay in a core's cache of 1 MiB, and the two microseconds of a call
are little beside its pass."""

_CLEAR = math.pi / 2 - 4e-3
"""Up to this arcsine the product of rounded unit vectors fixes the angle to 1e-13."""

_OBTUSE = math.asin(math.sqrt(0.99))
"""Up to this half angle sin(θ/2), rounded to float32, fixes θ to float32's last digits."""


@functools.cache
def compiled_code() -> ModuleType | None:
    """What numba compiles; None where it is not installed, does not import or is switched off."""
    if importlib.util.find_spec("numba") is None:
        return None
    try:
        from farfield.kernels import _compiled
    # A release of numba and one of numpy that do not go together say so in ways of their own.
    except Exception as error:
        warnings.warn(
            f"numba is installed but can't be used, so kernels are computed without it: {error}", stacklevel=2
        )
        return None
    return None if _compiled.SWITCHED_OFF else _compiled


@dataclass(frozen=True)
class TableTile:
    """Task: one tile from the angles between the inputs alone, at a cost that does not depend on depth.

    In float32 the product of unit vectors is still taken in float64, which costs a tenth: θ is then right to
    float32's last digit even for points 1e-7 apart.
    """

    table: Interpolant
    dtype: torch.dtype
    unit1: Tensor
    unit2: Tensor
    scale1: Tensor | None = None
    scale2: Tensor | None = None
    compiled: bool = False
    """Whether by code that numba compiles, where it is installed; which gives the same to rounding."""

    def __call__(self, tile: Tile) -> Tensor:
        """The tile's entries."""
        out = torch.empty(tile.shape, dtype=self.dtype, device=self.unit1.device)
        self.write(tile, out)
        return out

    def write(self, tile: Tile, out: Tensor) -> None:
        """The tile's entries, into a tensor of its shape."""
        first, last = tile.rows
        columns = self.unit2[tile.column_slice]
        most = max(1, _BUFFER // (self.dtype.itemsize * len(columns)))
        height = -(-(last - first) // -(-(last - first) // most))  # blocks of equal height
        block: _Block | _AtOnce
        block = _Wide(self.table, columns) if self.dtype == torch.float64 else _Narrow(self.table, columns)
        code = compiled_code() if self.compiled and block.terms else None
        if code is not None:
            block = _AtOnce(block, code)
        rows = block.extended(self.unit1[first:last])
        for start in range(first, last, height):
            stop = min(start + height, last)
            place = out[start - first : stop - first]
            block.write(rows[start - first : stop - first], place)
            if self.scale1 is not None and self.scale2 is not None:
                place.mul_(self.scale1[start:stop, None]).mul_(self.scale2[tile.column_slice])


class _Block:
    """Rows against the columns of a tile; its buffers are used again for the next rows."""

    dtype: torch.dtype
    scale: float
    """x(θ) over the variable of Horner's rule, at strength ∞."""

    def __init__(self, table: Interpolant, columns: Tensor) -> None:
        self.table = table
        self.columns = columns
        self.transposed = columns.mT.contiguous()
        self.linear = table.strength == math.inf
        like = columns.new_empty(0, dtype=self.dtype)
        self.terms = table.horner(0, self.scale if self.linear else 1.0, like) if table.powers else ()
        self.buffers: tuple[Tensor, Tensor] | None = None

    def write(self, rows: Tensor, out: Tensor) -> None:
        """The entries of these rows into ``out``."""
        if self.buffers is None or self.buffers[0].shape != out.shape:
            self.buffers = tuple(
                torch.empty_like(out, memory_format=torch.contiguous_format) for _ in range(2)
            )  # type: ignore[assignment]
        assert self.buffers is not None
        angle, partial = self.buffers
        self.angles(rows, angle)
        if self.terms:
            horner_(self.terms, angle, partial, out)
        else:
            self.table.evaluate_(angle if not self.linear else angle.mul_(self.scale), 0, out)

    def extended(self, rows: Tensor) -> Tensor:
        """The rows as the product takes them."""
        return rows

    def angles(self, rows: Tensor, out: Tensor) -> None:
        """The variable of Horner's rule for every pair."""
        raise NotImplementedError


class _Wide(_Block):
    """In float64: w = π/2 − θ, the arcsine of the product, or its map."""

    dtype = torch.float64
    scale = -2.0 / math.pi

    def angles(self, rows: Tensor, out: Tensor) -> None:
        torch.mm(rows, self.transposed, out=out)
        torch.asin(out, out=out)
        low, high = torch.aminmax(out)
        # NaN too: a product of unit vectors may exceed 1 by rounding.
        if not (float(low) > -_CLEAR and float(high) < _CLEAR):
            near = torch.nonzero(~(out.abs() < _CLEAR), as_tuple=True)
            out[near] = math.pi / 2 - separation(rows, self.columns, *near)
        if not self.linear:
            a = self.table.strength
            torch.sub(out.new_tensor(math.pi * (0.5 + a)), out, out=out).reciprocal_()
            torch.add(out.new_tensor(1 + 2 * a), out, alpha=-2 * a * (1 + a) * math.pi, out=out)


class _Narrow(_Block):
    """In float32: w = θ/2 − π/4 from sin²(θ/2), which a product in float64 gives, or its map."""

    dtype = torch.float32
    scale = 4.0 / math.pi

    def __init__(self, table: Interpolant, columns: Tensor) -> None:
        super().__init__(table, columns)
        # sin² = 1/2 − u·v/2 as one product: a column more. Rounding could make it negative; 1e-15 more, which moves
        # no angle by a float32's last digit, spares a pass.
        more = columns.new_full((len(columns), 1), 0.5 + 1e-15)
        self.transposed = torch.cat([-0.5 * columns, more], 1).mT.contiguous()
        self.squares: Tensor | None = None

    def extended(self, rows: Tensor) -> Tensor:
        return torch.cat([rows, rows.new_ones(len(rows), 1)], 1)

    def angles(self, rows: Tensor, out: Tensor) -> None:
        squares = self.half_sines(rows, out)
        if not self.linear:
            # Deep networks are steep near θ = 0: there the map in float32 would cost a digit of the result.
            a = self.table.strength
            squares.clamp_(0.0, 1.0).sqrt_().asin_().add_(math.pi / 2 * a).reciprocal_()
            out.copy_(squares.mul_(-a * (1 + a) * math.pi).add_(1 + 2 * a))
            return
        out.copy_(squares).sqrt_().asin_()
        # NaN too.
        if not float(out.amax()) < _OBTUSE:
            out.copy_(squares.clamp_(0.0, 1.0).sqrt_().asin_())
        out.sub_(math.pi / 4)

    def write(self, rows: Tensor, out: Tensor) -> None:
        """As above; a series that Horner's rule can't sum is summed in float64, where Clenshaw's loses no digit."""
        if self.terms:
            super().write(rows, out)
            return
        half = self.half_sines(rows, out).clamp_(0.0, 1.0).sqrt_().asin_()
        x = position(half.mul_(2.0), self.table.strength)
        out.copy_(self.table.evaluate_(x, 0, half))

    def half_sines(self, rows: Tensor, out: Tensor) -> Tensor:
        """sin²(θ/2) in float64, to rounding: it may be a little below 0 or above 1."""
        if self.squares is None or self.squares.shape != out.shape:
            self.squares = torch.empty(out.shape, dtype=torch.float64, device=out.device)
        return torch.mm(rows, self.transposed, out=self.squares)


class _AtOnce:
    """A block's angles and polynomial in one pass of compiled code."""

    def __init__(self, block: _Block, code: ModuleType) -> None:
        self.code = code
        self.block = block
        self.terms = code.padded(torch.stack(block.terms).numpy())
        self.extended = block.extended
        self.spare: Tensor | None = None

    def write(self, rows: Tensor, out: Tensor) -> None:
        """The entries of these rows into ``out``."""
        # What the product gives stays in the cache; the result is written once.
        spare, block = self._spare(out), self.block
        place = out if out.is_contiguous() else spare
        flat = place.view(-1).numpy()
        if not block.linear:
            block.angles(rows, spare)
            self.code.polynomial(spare.view(-1).numpy(), flat, self.terms)
        elif isinstance(block, _Narrow):
            self.code.narrow(block.half_sines(rows, place).view(-1).numpy(), flat, self.terms)
        else:
            torch.mm(rows, block.transposed, out=spare)
            if self.code.wide(spare.view(-1).numpy(), flat, self.terms, math.sin(_CLEAR)):
                near = torch.nonzero(place.isnan(), as_tuple=True)
                angle = math.pi / 2 - separation(rows, block.columns, *near)
                place[near] = horner_(block.terms, angle, torch.empty_like(angle), torch.empty_like(angle))
        if place is not out:
            out.copy_(place)

    def _spare(self, out: Tensor) -> Tensor:
        if self.spare is None or self.spare.shape != out.shape:
            self.spare = torch.empty_like(out, memory_format=torch.contiguous_format)
        return self.spare
