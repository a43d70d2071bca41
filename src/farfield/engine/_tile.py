"""Rectangular blocks of a matrix, and covers of a matrix by them."""

from __future__ import annotations

from dataclasses import dataclass

from farfield.errors import InvalidValueError

__all__ = ["Tile", "tiles"]


@dataclass(frozen=True, slots=True)
class Tile:
    """A block of a matrix: rows a ≤ i < b and columns c ≤ j < d, never empty.

    Parameters
    ----------
    rows, columns
        (start, stop), counted from zero, stop excluded.

    Examples
    --------
    >>> tile = Tile((0, 2), (4, 7))
    >>> tile.shape, tile.transposed, tile.on_diagonal
    ((2, 3), Tile(rows=(4, 7), columns=(0, 2)), False)
    """

    rows: tuple[int, int]
    columns: tuple[int, int]

    def __post_init__(self) -> None:
        for axis, (start, stop) in (("rows", self.rows), ("columns", self.columns)):
            if not 0 <= start < stop:
                raise InvalidValueError(
                    f"A tile's {axis} are (start, stop) with 0 <= start < stop; got ({start}, {stop})."
                )

    @property
    def shape(self) -> tuple[int, int]:
        """Numbers of rows and columns."""
        return self.rows[1] - self.rows[0], self.columns[1] - self.columns[0]

    @property
    def on_diagonal(self) -> bool:
        """Whether rows and columns are the same."""
        return self.rows == self.columns

    @property
    def row_slice(self) -> slice:
        """The rows, to index with."""
        return slice(*self.rows)

    @property
    def column_slice(self) -> slice:
        """The columns, to index with."""
        return slice(*self.columns)

    @property
    def transposed(self) -> Tile:
        """Its mirror image in the diagonal."""
        return Tile(self.columns, self.rows)


def tiles(
    rows: int,
    columns: int | None = None,
    *,
    height: int,
    width: int | None = None,
    symmetric: bool = False,
) -> tuple[Tile, ...]:
    """Cover a matrix by tiles that do not overlap, in row-major order.

    Parameters
    ----------
    rows, columns
        Shape of the matrix; ``columns`` defaults to ``rows``. A matrix without entries has no tiles.
    height, width
        Shape of a tile, ``width`` defaulting to ``height``; the last ones are smaller where it does not divide.
    symmetric
        Only the tiles on and above the diagonal of a square matrix, for :meth:`Engine.fill` to mirror.

    Examples
    --------
    >>> [tile.shape for tile in tiles(3, 5, height=2, width=4)]
    [(2, 4), (2, 1), (1, 4), (1, 1)]
    >>> len(tiles(100, height=10)), len(tiles(100, height=10, symmetric=True))
    (100, 55)
    """
    columns = rows if columns is None else columns
    width = height if width is None else width
    if min(rows, columns) < 0 or min(height, width) < 1:
        raise InvalidValueError(
            f"A matrix has at least 0 rows and columns and a tile at least 1 of each; got a {rows}×{columns} matrix "
            f"and {height}×{width} tiles."
        )
    if symmetric and (rows != columns or height != width):
        raise InvalidValueError(
            "symmetric=True mirrors tiles in the diagonal: matrix and tiles must be square; got a "
            f"{rows}×{columns} matrix and {height}×{width} tiles. Leave columns and width out."
        )
    return tuple(
        Tile((i, min(i + height, rows)), (j, min(j + width, columns)))
        for i in range(0, rows, height)
        for j in range(i if symmetric else 0, columns, width)
    )
