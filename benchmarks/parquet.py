"""Kernel regression from Parquet files in one pass: throughput, memory, and the same work as bare matrix products.

    python -m benchmarks.parquet [--quick] [--engine ray|local] [--rows N ...] [--data FOLDER] [--out FOLDER]

Synthetic rows of nine features in files of a million, row groups of 50,000. Nyström with an NTK of two hidden layers,
LayerNorm first, in float64. For each number of rows: rows a second, the peak of memory of this process and all that
it started (shared memory counted once), and the time over that of bare products ΦᵀΦ of the same shapes in torch, with
as many threads as the engine has workers. Those are measured before and after each run, since the machine may change.
The files are kept, and a run that was stopped goes on, if --data names a folder.

The engine of many processes opens sockets, here on 127.0.0.1 alone: run it where that is permitted, or in a network
namespace with nothing else (``unshare -n``, then ``ip link set lo up``).
"""

from __future__ import annotations

import argparse
import contextlib
import os
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks._records import save_record
from farfield import engine, kernels, regression
from farfield._provenance import provenance
from farfield.report import Figure, Panel, Series, save_figure

FULL: dict[str, Any] = {"rows": [100_000, 1_000_000, 10_000_000], "landmarks": 2000}
QUICK: dict[str, Any] = {"rows": [20_000, 100_000], "landmarks": 200}
D, FILE, GROUP, CHUNK, WORKERS = 9, 1_000_000, 50_000, 4096, 2
COLUMNS = [f"x{i}" for i in range(D)]
TARGETS = {"ratio": 1.6, "gib": 3.0}
SEED = 0


def kernel() -> kernels.KernelFunction:
    return kernels.mlp(depth=2, layer_norm="first", bias_var=0.01).function("ntk")


def direction() -> np.ndarray[Any, np.dtype[np.float64]]:
    weights = np.random.default_rng(SEED).normal(size=D)
    return 2 * weights / np.linalg.norm(weights)


def write_rows(folder: Path, rows: int) -> list[Path]:
    """Files with the rows, those of a smaller number first; what is there is kept."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    folder.mkdir(parents=True, exist_ok=True)
    files = []
    for start in range(0, rows, FILE):
        length = min(FILE, rows - start)
        path = folder / f"rows-{start // FILE:04d}-{length}.parquet"
        files.append(path)
        if path.exists():
            continue
        random = np.random.default_rng([SEED, start // FILE])
        x = random.normal(size=(length, D))
        y = np.sin(x @ direction()) + 0.1 * random.normal(size=length)
        table = pa.table({name: x[:, i] for i, name in enumerate(COLUMNS)} | {"y": y})
        part = path.with_suffix(".part")
        pq.write_table(table, part, row_group_size=GROUP, compression="none")
        part.rename(path)
    return files


class Memory:
    """The peak of this process and its descendants, looked at twice a second."""

    def __enter__(self) -> Memory:
        self.peak, self._over = 0.0, threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._over.wait(0.5):
            self.peak = max(self.peak, sum(map(self._proportional, self._family())) / 2**30)

    @staticmethod
    def _family() -> list[str]:
        children: dict[str, list[str]] = {}
        for entry in os.listdir("/proc"):
            if entry.isdigit():
                with contextlib.suppress(OSError, IndexError):
                    parent = Path("/proc", entry, "stat").read_text().rsplit(")", 1)[1].split()[1]
                    children.setdefault(parent, []).append(entry)
        family, seen = [str(os.getpid())], 0
        while seen < len(family):
            family += children.get(family[seen], [])
            seen += 1
        return family

    @staticmethod
    def _proportional(process: str) -> int:
        """Bytes, those shared with others divided among them."""
        with contextlib.suppress(OSError):
            for line in Path("/proc", process, "smaps_rollup").read_text().splitlines():
                if line.startswith("Pss:"):
                    return int(line.split()[1]) * 1024
        return 0


def bare_rows_per_second(landmarks: int, seconds: float) -> float:
    """Of ΦᵀΦ in chunks of 4096 rows, with torch's threads."""
    features = torch.randn(CHUNK, landmarks, dtype=torch.float64)
    gram = torch.zeros(landmarks, landmarks, dtype=torch.float64)
    gram.addmm_(features.mT, features)
    start, done = time.perf_counter(), 0
    while (spent := time.perf_counter() - start) < seconds:
        gram.addmm_(features.mT, features)
        done += 1
    return CHUNK * done / spent


def measure(where: engine.Engine, rows: int, landmarks: int, data: Path, seconds: float) -> dict[str, Any]:
    files = write_rows(data, rows)
    generator = torch.Generator().manual_seed(SEED)
    z = torch.randn(landmarks, D, generator=generator, dtype=torch.float64)
    model = regression.Nystrom(kernel(), z)
    sums = data / f"sums-{landmarks}-{rows}"
    resumed = sums.exists()
    before = bare_rows_per_second(landmarks, seconds)

    def progress(done: int, total: int) -> None:
        print(f"\r{rows:,} rows: piece {done} of {total}", end="", flush=True)

    with Memory() as memory:
        start = time.perf_counter()
        regression.stream_parquet(
            model, files, COLUMNS, "y", engine=where, rows=GROUP, checkpoint=sums, progress=progress
        )
        spent = time.perf_counter() - start
        f = model.solve(noise=1e-2)
    after = bare_rows_per_second(landmarks, seconds)
    x = torch.randn(10_000, D, generator=generator, dtype=torch.float64)
    truth = torch.sin(x @ torch.from_numpy(direction()))
    bare = (before + after) / 2
    row = {
        "rows": rows, "seconds": spent, "rows_per_second": rows / spent, "bare_rows_per_second": [before, after],
        "ratio": bare * spent / rows, "gib": memory.peak, "count": f.count, "resumed": resumed,
        "r2": 1 - float((f.mean(x) - truth).square().mean() / truth.var()), "bound": float(f.output_bound()),
        "weights": engine.fingerprint(f.weights),
    }  # fmt: skip
    print(
        f"\r{rows:>11,} rows: {row['rows_per_second']:,.0f} a second, {row['ratio']:.2f} × bare products "
        f"(target {TARGETS['ratio']}), {memory.peak:.2f} GiB (target {TARGETS['gib']}), R² {row['r2']:.4f}"
    )
    return row


def plot(results: list[dict[str, Any]], path: Path) -> None:
    counts = tuple(float(row["rows"]) for row in results)
    ours = tuple(row["rows_per_second"] for row in results)
    bare = tuple(float(np.mean(row["bare_rows_per_second"])) for row in results)
    panel = Panel(
        "One pass over Parquet files", "rows", "rows a second",
        (Series("from Parquet", counts, ours), Series("bare products", counts, bare, style="dashed", color=1)),
        x_scale="log", y_range=(0.0, 1.3 * max(*ours, *bare)),
    )  # fmt: skip
    save_figure(Figure("", (panel,)), [path.with_suffix(".png"), path.with_suffix(".svg")])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--quick", action="store_true", help="small sizes: whether it runs, not what it costs"
    )
    parser.add_argument("--engine", choices=("ray", "local"), default="ray")
    parser.add_argument("--rows", type=int, nargs="+")
    parser.add_argument(
        "--data", type=Path, help="a folder for the files and partial sums; temporary unless given"
    )
    parser.add_argument("--out", type=Path, default=Path("docs/reproductions/engine"))
    options = parser.parse_args()
    sizes = dict(QUICK if options.quick else FULL)
    if options.rows:
        sizes["rows"] = options.rows
    torch.set_num_threads(WORKERS)
    with contextlib.ExitStack() as stack:
        data = options.data or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        where: engine.Engine = engine.local()
        if options.engine == "ray":
            where = stack.enter_context(engine.ray("local", workers=WORKERS, store="500MB"))
            list(where.map(_wake, range(2 * WORKERS)))
        seconds = 1.0 if options.quick else 10.0
        results = [measure(where, rows, sizes["landmarks"], data, seconds) for rows in sizes["rows"]]
    if not options.quick:
        name = "parquet" if options.engine == "ray" else "parquet_local"
        record = {"results": results, "provenance": provenance(sizes, seed=SEED)}
        path = options.out / f"{name}.json"
        save_record(record, path)
        plot(results, options.out / name)
        print(f"wrote {path}")


def _wake(number: int) -> int:
    """A worker that has computed a kernel has imported all it needs."""
    kernel()(torch.randn(64, D, dtype=torch.float64))
    return number


if __name__ == "__main__":
    main()
