"""Kernel regression from Parquet files on a Ray cluster: one pass to fit, one to predict.

    python fit.py ROWS OUT [--landmarks M]

ROWS is a folder of Parquet files whose column ``y`` is the target and whose other columns are features. OUT gets
``fit.json``, predictions with their bounds as Parquet files, and the partial sums from which a stopped job goes on:
submit it again. Both folders are on a disk that every machine sees. Without a cluster it runs here.
"""

import argparse
import json
from pathlib import Path

import pyarrow.parquet as pq
import torch

from farfield import engine, kernels, regression

parser = argparse.ArgumentParser()
parser.add_argument("rows", type=Path)
parser.add_argument("out", type=Path)
parser.add_argument("--landmarks", type=int, default=2000)
given = parser.parse_args()

files = sorted(given.rows.glob("*.parquet"))
if not files:
    parser.error(f"there are no Parquet files in {given.rows}")
columns = [name for name in pq.read_schema(files[0]).names if name != "y"]
first = pq.ParquetFile(files[0]).read_row_group(0, columns=columns)
sample = torch.stack([torch.tensor(first.column(name).to_numpy()) for name in columns], dim=1).double()

kernel = kernels.mlp(depth=2, layer_norm="first", bias_var=0.1).function("ntk")
generator = torch.Generator().manual_seed(0)
landmarks = regression.landmarks(kernel, sample, given.landmarks, method="uniform", generator=generator)

with engine.ray() as cluster, engine.bar("rows") as bar:
    model = regression.Nystrom(kernel, landmarks)
    regression.stream_parquet(
        model, files, columns, "y", engine=cluster, checkpoint=given.out / "sums", progress=bar
    )
    fit = model.solve(noise=1e-2)
    parts = regression.predict_parquet(fit, files, columns, given.out / "predictions", engine=cluster)

bound = float(fit.output_bound())
summary = {
    "rows": fit.count,
    "training_error": float(fit.training_error),
    "bound": bound,
    "files": len(parts),
}
(given.out / "fit.json").write_text(json.dumps(summary, indent=1) + "\n", encoding="utf-8")
print(f"{fit.count:,} rows; no input, however far, is predicted beyond ±{bound:.4g}")
