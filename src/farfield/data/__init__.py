"""Datasets by name: found, checked by hash, cached, split as the papers split.

Holds: the catalogue, where files are found or fetched, the readers, the splits, tables in Parquet.
May import: errors; pooch, Pillow and pyarrow where a file needs them.
Never: trains, scales or plots.
"""

from __future__ import annotations

from farfield.data._catalogue import Entry, dataset_names, info, weight_names
from farfield.data._files import fetch, is_here, weights_file
from farfield.data._images import PackedFaces
from farfield.data._load import load, packed_faces
from farfield.data._parquet import Piece, Source, map_piece, parquet_pieces, read_piece
from farfield.data._split import Dataset, Part, far_field_split

__all__ = [
    "Dataset",
    "Entry",
    "PackedFaces",
    "Part",
    "Piece",
    "Source",
    "dataset_names",
    "far_field_split",
    "fetch",
    "info",
    "is_here",
    "load",
    "map_piece",
    "packed_faces",
    "parquet_pieces",
    "read_piece",
    "weight_names",
    "weights_file",
]
