"""Datasets by name: found, checked by hash, cached, split as the papers split.

Holds: the catalogue, where files are found or fetched, the readers, the splits.
May import: errors, _typing, numpy; pooch and Pillow where a file needs them. Never: trains, scales or plots.
"""

from __future__ import annotations

from farfield.data._catalogue import Entry, dataset_names, info
from farfield.data._files import fetch, is_here
from farfield.data._load import load
from farfield.data._split import Dataset, Part, far_field_split

__all__ = ["Dataset", "Entry", "Part", "dataset_names", "far_field_split", "fetch", "info", "is_here", "load"]
