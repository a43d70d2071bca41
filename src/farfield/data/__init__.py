"""Datasets by name: found, checked by hash, cached, split as the papers split.

Holds: the catalogue, where files are found or fetched, the readers, the splits.
May import: errors, _typing, numpy; pooch and Pillow where a file needs them. Never: trains, scales or plots.
"""

from __future__ import annotations

from farfield.data._catalogue import Entry, dataset_names, info, weight_names
from farfield.data._files import fetch, is_here, weights_file
from farfield.data._images import PackedFaces
from farfield.data._load import load, packed_faces
from farfield.data._split import Dataset, Part, far_field_split

__all__ = [
    "Dataset",
    "Entry",
    "PackedFaces",
    "Part",
    "dataset_names",
    "far_field_split",
    "fetch",
    "info",
    "is_here",
    "load",
    "packed_faces",
    "weight_names",
    "weights_file",
]
