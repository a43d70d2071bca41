"""Tiles cover a matrix once, in order; sizes respect the budget."""

import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from farfield.engine import Tile, parse_memory, tile_height, tiles
from farfield.errors import InvalidValueError

SIZES = st.integers(0, 23)
BLOCKS = st.integers(1, 9)


def times_covered(rows, columns, cover, symmetric=False):
    count = np.zeros((rows, columns), int)
    for tile in cover:
        assert count[tile.row_slice, tile.column_slice].shape == tile.shape
        count[tile.row_slice, tile.column_slice] += 1
        if symmetric and not tile.on_diagonal:
            count[tile.transposed.row_slice, tile.transposed.column_slice] += 1
    return count


@given(SIZES, SIZES, BLOCKS, BLOCKS)
def test_every_entry_is_covered_once(rows, columns, height, width):
    cover = tiles(rows, columns, height=height, width=width)
    assert (times_covered(rows, columns, cover) == 1).all()
    assert all(t.shape[0] <= height and t.shape[1] <= width for t in cover)
    assert list(cover) == sorted(cover, key=lambda t: (t.rows, t.columns))


@given(SIZES, BLOCKS)
def test_symmetric_cover_with_its_mirror_image(n, height):
    cover = tiles(n, height=height, symmetric=True)
    assert (times_covered(n, n, cover, symmetric=True) == 1).all()
    assert all(t.on_diagonal or t.rows[1] <= t.columns[0] for t in cover)
    assert list(cover) == sorted(cover, key=lambda t: (t.rows, t.columns))


def test_the_count_notices_a_missing_tile():
    assert (times_covered(5, 5, tiles(5, height=2)[1:]) == 0).any()
    assert (times_covered(5, 5, (*tiles(5, height=2), Tile((0, 1), (0, 1)))) == 2).any()


def test_tile_is_a_value():
    tile = Tile((0, 2), (3, 7))
    assert tile == Tile((0, 2), (3, 7)) and hash(tile) == hash(Tile((0, 2), (3, 7)))
    assert pickle.loads(pickle.dumps(tile)) == tile
    assert tile.transposed.transposed == tile != tile.transposed
    assert Tile((1, 2), (1, 2)).on_diagonal and not tile.on_diagonal
    with pytest.raises(AttributeError):
        tile.rows = (0, 1)


@pytest.mark.parametrize("rows", [(2, 2), (3, 2), (-1, 2)])
def test_no_empty_tile(rows):
    with pytest.raises(InvalidValueError, match="0 <= start < stop"):
        Tile(rows, (0, 1))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"rows": -1, "height": 2}, "at least 0 rows"),
        ({"rows": 4, "height": 0}, "a tile at least 1"),
        ({"rows": 4, "columns": 5, "height": 2, "symmetric": True}, "must be square"),
        ({"rows": 4, "height": 2, "width": 3, "symmetric": True}, "must be square"),
    ],
)
def test_tiles_refuses(arguments, message):
    with pytest.raises(InvalidValueError, match=message):
        tiles(**arguments)


# ------------------------------------------------------------------ memory


@pytest.mark.parametrize(
    ("size", "expected"),
    [
        ("4GB", 4 * 10**9),
        ("4 gb", 4 * 10**9),
        ("4G", 4 * 10**9),
        ("512MiB", 512 * 2**20),
        ("1.5KiB", 1536),
        (".5TiB", 2**39),
        ("7B", 7),
        ("7", 7),
        (123, 123),
    ],
)
def test_parse_memory(size, expected):
    assert parse_memory(size) == expected


@pytest.mark.parametrize("size", ["", "GB", "4XB", "-1GB", "4 iB", "1e9", "0", "0.1B", 0, -5, True, "nan"])
def test_parse_memory_refuses(size):
    with pytest.raises(InvalidValueError, match="Write '4GB' or '512MiB'"):
        parse_memory(size)


@given(
    st.none() | st.integers(1, 10**6),
    st.integers(10**3, 10**12),
    st.floats(1, 100),
    st.integers(1, 16),
    st.none() | st.integers(1, 10**8),
)
def test_tile_height_is_within_the_budget(columns, memory, bytes_per_entry, workers, cache):
    at_once = 1 if workers == 1 else 2 * workers

    def taken(height):
        return at_once * height * (height if columns is None else columns) * bytes_per_entry

    options = {"memory": memory, "bytes_per_entry": bytes_per_entry, "workers": workers, "cache": cache}
    if taken(1) > memory:
        with pytest.raises(InvalidValueError, match="Raise the budget"):
            tile_height(columns, **options)
        return
    height = tile_height(columns, **options)
    assert height >= 1 and taken(height) <= memory * (1 + 1e-12)
    if cache is None:
        assert taken(height + 8) > memory
    elif height > 1:
        assert taken(height) / at_once <= cache * (1 + 1e-12)


@pytest.mark.parametrize("wrong", [{"workers": 0}, {"bytes_per_entry": 0.0}, {"columns": 0}])
def test_tile_height_refuses(wrong):
    with pytest.raises(InvalidValueError, match="at least 1"):
        tile_height(**{"memory": "1GB", "bytes_per_entry": 8.0, **wrong})
