"""Memory budgets, and the tile sizes that respect them."""

from __future__ import annotations

import math
import re

import numpy as np
import torch
from torch import Tensor

from farfield.errors import InvalidValueError

__all__ = ["empty_matrix", "parse_memory", "pending_limit", "tile_height"]

_SIZE = re.compile(r"\s*(\d+(?:\.\d*)?|\.\d+)\s*([kmgt]?)(i?)b?\s*", re.IGNORECASE)
_POWER = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}


def parse_memory(size: int | str) -> int:
    """Bytes from a number of bytes or a text such as ``"4GB"`` (powers of 1000) or ``"512MiB"`` (of 1024).

    Examples
    --------
    >>> parse_memory("4GB"), parse_memory("512MiB"), parse_memory("1.5 kB"), parse_memory(4096)
    (4000000000, 536870912, 1500, 4096)
    """
    if isinstance(size, str):
        found = _SIZE.fullmatch(size)
        if found is not None and (found[2] or not found[3]):
            number = int(float(found[1]) * (1024 if found[3] else 1000) ** _POWER[found[2].lower()])
        else:
            number = 0
    else:
        number = 0 if isinstance(size, bool) else size
    if number < 1:
        raise InvalidValueError(
            "A memory size is a positive number of bytes or a number with a unit, B, kB, MB, GB, TB (powers of 1000) "
            f"or KiB, MiB, GiB, TiB (powers of 1024); got {size!r}. Write '4GB' or '512MiB'."
        )
    return number


def pending_limit(workers: int) -> int:
    """How many results may be under way or waiting at once: one, or two for each of several workers."""
    return 1 if workers == 1 else 2 * workers


def tile_height(
    columns: int | None = None,
    *,
    memory: int | str,
    bytes_per_entry: float,
    workers: int = 1,
    cache: int | str | None = "2MiB",
) -> int:
    """The height of tiles whose temporaries fit a memory budget, and a processor's cache where that is possible.

    With h the height and w = ``columns`` (or w = h for square tiles), h is the largest number for which

        tiles at once × h × w × bytes_per_entry ≤ memory,   h × w × bytes_per_entry ≤ cache,

    rounded down to a multiple of 8 once it exceeds 8. One worker has one tile at once, several have two each. The
    budget is a limit; the cache is a wish, which a single long row may exceed.

    Parameters
    ----------
    columns
        Width of a tile that spans whole rows; square tiles if left out.
    memory
        What all tiles together may take at any time, as :func:`parse_memory` reads it. What the tasks share, and the
        matrix that the tiles fill, is not counted.
    bytes_per_entry
        Bytes of the result and of all temporaries that live together, per entry of a tile.
    workers
        As in :func:`local`.
    cache
        Bytes of temporaries that stay in a core's cache; None for no such wish.

    Examples
    --------
    >>> tile_height(memory="1GB", bytes_per_entry=24)
    288
    >>> tile_height(1_000_000, memory="1GB", bytes_per_entry=24, cache=None)
    40
    """
    if workers < 1 or not 0 < bytes_per_entry < math.inf or (columns is not None and columns < 1):
        raise InvalidValueError(
            "workers and columns are at least 1 and bytes_per_entry is positive and finite; got "
            f"workers={workers}, columns={columns}, bytes_per_entry={bytes_per_entry}."
        )
    at_once = pending_limit(workers)
    entries = int(parse_memory(memory) / at_once / bytes_per_entry)
    if entries < (columns or 1):
        raise InvalidValueError(
            f"{at_once} tile(s) at once of a single row of {columns or 1} entries at {bytes_per_entry:g} bytes take "
            f"{math.ceil(at_once * (columns or 1) * bytes_per_entry)} bytes, and the budget is {memory!r}. Raise the "
            "budget, use fewer workers or narrower tiles."
        )
    if cache is not None:
        entries = max(min(entries, int(parse_memory(cache) / bytes_per_entry)), columns or 1)
    height = math.isqrt(entries) if columns is None else entries // columns
    return height if height < 8 else height - height % 8


_NUMPY = {torch.float64: np.float64, torch.float32: np.float32}


def empty_matrix(rows: int, columns: int, *, dtype: torch.dtype, device: torch.device) -> Tensor:
    """An uninitialized matrix to fill; on a CPU in huge pages, which a large one is filled three times faster in.

    It is numpy that asks the system for them; elsewhere, and for other dtypes, this is ``torch.empty``.

    Examples
    --------
    >>> empty_matrix(2, 3, dtype=torch.float32, device=torch.device("cpu")).shape
    torch.Size([2, 3])
    """
    if device.type == "cpu" and dtype in _NUMPY:
        return torch.from_numpy(np.empty((rows, columns), _NUMPY[dtype]))
    return torch.empty(rows, columns, dtype=dtype, device=device)
