"""Tables in Parquet for the tests."""

import numpy as np


def columns(d):
    return [f"x{j}" for j in range(d)]


def write(folder, x, y, *, files=1, group=1000, **extra):
    """Rows x, y and their number, over some files with row groups of a size."""
    import pyarrow as pa
    from pyarrow import parquet

    folder.mkdir()
    y = y if y.dim() == 2 else y[:, None]
    table = {f"x{j}": x[:, j].numpy() for j in range(x.shape[1])}
    table |= {f"y{j}": y[:, j].numpy() for j in range(y.shape[1])}
    table = pa.table({**table, "row": np.arange(len(x)), **extra})
    for number, part in enumerate(np.array_split(np.arange(len(x)), files)):
        piece = table.slice(part[0], len(part))
        parquet.write_table(piece, folder / f"{number}.parquet", row_group_size=group)
    return folder
