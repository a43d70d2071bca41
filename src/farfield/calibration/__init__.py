"""Rows that show what is usual: in batches, streamed, and what one pass over them keeps.

Holds: ``Batches`` (data in any of the forms people have, as calls of a model) and statistics of a fixed size.
May import: errors.
Never: holds the rows, looks at labels.
"""

from __future__ import annotations

from farfield.calibration._batches import (
    Batches,
    Call,
    argument_names,
    both_names,
    fixed_rows,
    floating,
    map_call,
    map_leaves,
    output_leaves,
    output_tensors,
    rows_of,
    run,
)
from farfield.calibration._statistics import (
    FeatureStatistics,
    UpperQuantile,
    cap_axes,
    feature_axes,
    flat_rows,
)

__all__ = [
    "Batches",
    "Call",
    "FeatureStatistics",
    "UpperQuantile",
    "argument_names",
    "both_names",
    "cap_axes",
    "feature_axes",
    "fixed_rows",
    "flat_rows",
    "floating",
    "map_call",
    "map_leaves",
    "output_leaves",
    "output_tensors",
    "rows_of",
    "run",
]
