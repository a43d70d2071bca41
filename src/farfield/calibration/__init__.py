"""Rows that show what is usual: in batches, streamed, and what one pass over them keeps.

Holds: ``Batches`` (data in any of the forms people have, as calls of a model), the names of their columns, and
statistics of a fixed size.
May import: data, errors, _regular_file.
Never: holds the rows, looks at labels.
"""

from __future__ import annotations

from farfield.calibration._batches import (
    Batches,
    Call,
    argument_names,
    both_names,
    device_of,
    fixed_rows,
    floating,
    holds_columns,
    map_call,
    map_leaves,
    output_leaves,
    output_tensors,
    real_type,
    rows_of,
    run,
)
from farfield.calibration._files import read_rows
from farfield.calibration._statistics import (
    FeatureStatistics,
    UpperQuantile,
    cap_axes,
    feature_axes,
    flat_rows,
)
from farfield.calibration._tables import Columns, NamedRows, entry_name, tensor_of

__all__ = [
    "Batches",
    "Call",
    "Columns",
    "FeatureStatistics",
    "NamedRows",
    "UpperQuantile",
    "argument_names",
    "both_names",
    "cap_axes",
    "device_of",
    "entry_name",
    "feature_axes",
    "fixed_rows",
    "flat_rows",
    "floating",
    "holds_columns",
    "map_call",
    "map_leaves",
    "output_leaves",
    "output_tensors",
    "read_rows",
    "real_type",
    "rows_of",
    "run",
    "tensor_of",
]
