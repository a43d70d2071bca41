"""A cost model of what a cluster does, from constants measured here; held against runs here, then extrapolated.

    python -m benchmarks.costs [--quick] [--out FOLDER]

Constants: seconds a kernel entry and a floating-point operation take on one core while the other is as busy, a row to
be read from Parquet, a task to be submitted, a byte to come back from a worker and to be added. Each is measured by
itself. Then whole runs on two workers are timed and predicted from the constants, nothing being fitted to them; and
the same formulas give the time on 64 and 1,000 cores, with what takes longest beside the arithmetic. What can't be
measured on one machine is assumed, and said: 16 cores and 10 Gbit/s for each machine.

Ray opens sockets, here on 127.0.0.1 alone: run it where that is permitted, or in a network namespace with nothing
else (``unshare -n``, then ``ip link set lo up``). Writes ``costs.json`` and, for the documentation, ``costs.md``.
"""

from __future__ import annotations

import argparse
import math
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from benchmarks._records import save_record
from benchmarks.parquet import COLUMNS, GROUP, D, write_rows
from farfield import engine, kernels, ntk, regression
from farfield._provenance import provenance
from farfield.regression._covariance import Work, symmetric_product

FULL: dict[str, Any] = {"n": 20_000, "rows": 400_000, "landmarks": 2000, "inputs": 1024, "seconds": 3.0}
QUICK: dict[str, Any] = {"n": 2000, "rows": 100_000, "landmarks": 200, "inputs": 128, "seconds": 0.3}
WORKERS, STRIP, PART, RANK, PIECE = 2, 2048, 32, 1000, 65_536
CORES_PER_MACHINE, NETWORK = 16, 1.25e9
ITERATIONS = 50


@dataclass(frozen=True)
class Constants:
    """Seconds, on one core of this machine."""

    entry: float
    """A kernel entry k(x, z), NTK of two layers with LayerNorm first, float64."""
    flop: float
    """An operation of a large matrix product, float64."""
    row: float
    """A row of nine features and a target, read from Parquet."""
    tangent: float
    """An entry of the empirical NTK of a network with three hidden layers of 256, by layers."""
    task: float
    """To submit a task and take a small result, of the calling process's time."""
    byte_back: float
    """A byte of a result, from a worker's memory through the object store to the calling process."""
    byte_added: float
    """A byte of a sum that is added to another."""
    byte_read: float
    """A byte that a matrix-vector product reads from main memory."""


@dataclass(frozen=True)
class Cost:
    """Seconds of a workload by what takes them. Workers and caller are busy at the same time; the rest waits."""

    arithmetic: float
    longest: float
    """One task, which nothing divides."""
    workers: dict[str, float]
    caller: dict[str, float]
    alone: dict[str, float]

    @property
    def seconds(self) -> float:
        """Whoever is busy longest, then what nothing overlaps."""
        working = self.arithmetic + sum(self.workers.values())
        return max(working, self.longest, sum(self.caller.values())) + sum(self.alone.values())

    @property
    def efficiency(self) -> float:
        """The share of all cores' time that is arithmetic."""
        return self.arithmetic / self.seconds

    @property
    def next(self) -> str:
        """What takes longest beside the arithmetic."""
        waiting = {"the longest task": self.longest} if self.longest > self.arithmetic else {}
        others = self.workers | self.caller | self.alone | waiting
        return max(others, key=lambda name: others[name])

    def times(self, count: int) -> Cost:
        """So often, one after the other."""
        parts = ({k: count * v for k, v in some.items()} for some in (self.workers, self.caller, self.alone))
        return Cost(count * self.arithmetic, count * self.longest, *parts)


def machines(cores: int) -> int:
    return math.ceil(cores / CORES_PER_MACHINE)


def reduction(c: Constants, cores: int, tasks: int, size: float) -> tuple[dict[str, float], dict[str, float]]:
    """What results of so many bytes cost workers and caller, besides being computed."""
    joined = tasks >= 128
    arrivals = min(tasks, 128)
    between = 0.0 if machines(cores) == 1 else size * tasks / (NETWORK * machines(cores))
    workers = {
        "adding in the workers": size * tasks * (c.byte_added + c.byte_back) / cores,
        "sums between machines": between,
    }
    caller = {
        "submitting tasks": c.task * tasks * (2 if joined else 1),
        "sums to the caller": size * arrivals * (c.byte_back + c.byte_added),
    }
    return (workers if joined else {}), caller


def product_cost(c: Constants, cores: int, n: int, preconditioned: bool = False) -> Cost:
    """One product with a matrix whose tiles are recomputed."""
    tasks = sum(math.ceil((n - start) / (STRIP * PART)) for start in range(0, n, STRIP))
    workers, caller = reduction(c, cores, tasks, 8.0 * n)
    alone = {"inputs to the machines": 8 * n * (D + 1) / NETWORK * math.log2(max(1, machines(cores)))}
    if preconditioned:
        alone["the preconditioner"] = 2 * 8 * n * RANK * c.byte_read
    entry = c.entry + 2 * 8 * c.byte_read  # every tile is multiplied from both sides
    return Cost(n * n / 2 * entry / cores, STRIP * min(n, STRIP * PART) * entry, workers, caller, alone)


def nystrom_cost(c: Constants, cores: int, rows: int, m: int, piece: int = PIECE) -> Cost:
    """One pass over Parquet files."""
    workers, caller = reduction(c, cores, math.ceil(rows / piece), 8.0 * m * m)
    per_row = c.row + m * c.entry + 9 / 8 * m * m * c.flop
    alone = {"the solution": 20 * m**3 * c.flop}
    return Cost(rows * per_row / cores, min(rows, piece) * per_row, workers, caller, alone)


def ntk_cost(c: Constants, cores: int, inputs: int, tile: int) -> Cost:
    """A matrix of tangent kernels, each tile written by the caller."""
    tasks = math.ceil(inputs / tile) * (math.ceil(inputs / tile) + 1) // 2
    size = 8 * inputs * inputs / 2
    caller = {
        "submitting tasks": c.task * tasks,
        "tiles to the caller": size * (c.byte_back + 2 * c.byte_added),
    }
    return Cost(inputs * inputs / 2 * c.tangent / cores, tile * tile * c.tangent, {}, caller, {})


def runs_cost(c: Constants, cores: int, runs: int, seconds: float) -> Cost:
    """Runs of a sweep, or audits, of so many seconds each."""
    return Cost(runs * seconds / cores, seconds, {}, {"submitting tasks": runs * c.task}, {})


# ------------------------------------------------------------------ measured


def each(work: Callable[[], Any], seconds: float) -> float:
    """Seconds a call takes, over some time, after one that is not counted."""
    work()
    start, count = time.perf_counter(), 0
    while (spent := time.perf_counter() - start) < seconds:
        work()
        count += 1
    return spent / count


def kernel() -> kernels.KernelFunction:
    return kernels.mlp(depth=2, layer_norm="first", bias_var=0.1).function("ntk")


def network() -> nn.Module:
    torch.manual_seed(0)
    layers: list[nn.Module] = [nn.Linear(D, 256), nn.LayerNorm(256), nn.ReLU()]
    for _ in range(2):
        layers += [nn.Linear(256, 256), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(256, 1)).double().eval()


class Big:
    """A result of many bytes for a small item."""

    def __init__(self, numbers: int) -> None:
        self.numbers = numbers

    def __call__(self, item: int) -> torch.Tensor:
        """The item, over and over."""
        return torch.full((self.numbers,), float(item), dtype=torch.float64)


class Wait:
    """A task that lasts."""

    def __call__(self, seconds: float) -> float:
        """How long it was to last."""
        end = time.perf_counter() + seconds
        while time.perf_counter() < end:
            pass
        return seconds


def small(item: int) -> int:
    return item


def constants_here(folder: Path, sizes: dict[str, Any]) -> dict[str, float]:
    """Constants of one thread, in this process."""
    seconds, m = sizes["seconds"], sizes["landmarks"]
    x = torch.randn(STRIP, D, dtype=torch.float64)
    k, features = kernel(), torch.randn(4096, m, dtype=torch.float64)
    gram = torch.zeros(m, m, dtype=torch.float64)
    files = write_rows(folder, GROUP)
    from farfield.data import parquet_pieces, read_piece

    def read() -> None:
        for piece in parquet_pieces(files, (*COLUMNS, "y"), rows=GROUP):
            for _ in read_piece(piece, (*COLUMNS, "y"), rows=GROUP):
                pass

    big, other = torch.ones(8_000_000, dtype=torch.float64), torch.ones(8_000_000, dtype=torch.float64)
    tall, vector = torch.ones(40_000, RANK, dtype=torch.float64), torch.ones(RANK, 1, dtype=torch.float64)
    model, inputs = network(), torch.randn(256, D, dtype=torch.float64)
    return {
        "entry": each(lambda: k(x, x + 1), seconds) / STRIP**2,
        "flop": each(lambda: gram.addmm_(features.mT, features), seconds) / (2 * 4096 * m * m),
        "row": each(read, seconds) / GROUP,
        "tangent": each(lambda: ntk.empirical_ntk(model, inputs, inputs + 1), seconds) / 256**2,
        "byte_added": each(lambda: big.add_(other), seconds) / (8 * 8_000_000),
        "byte_read": each(lambda: tall @ vector, seconds) / (8 * 40_000 * RANK),
    }


class InWorker:
    """:func:`constants_here`, in a worker."""

    def __init__(self, folder: Path, sizes: dict[str, Any]) -> None:
        self.folder, self.sizes = folder, sizes

    def __call__(self, number: int) -> dict[str, float]:
        """The constants that this worker finds."""
        return constants_here(self.folder / str(number), self.sizes)


def busy(cluster: engine.Engine, folder: Path, sizes: dict[str, Any]) -> dict[str, float]:
    """Means of all workers, measured at the same time: cores share caches, memory and what heat allows."""
    found = list(cluster.run(InWorker(folder, sizes), range(WORKERS)))
    return {name: sum(one[name] for one in found) / len(found) for name in found[0]}


def there(cluster: engine.Engine, sizes: dict[str, Any]) -> dict[str, float]:
    """Constants of the engine."""
    count = 200 if sizes["seconds"] < 1 else 2000
    size = 4_000_000

    def submit(items: int) -> None:
        for _ in cluster.run(small, range(items)):
            pass

    def fetch() -> None:
        for _ in cluster.run(Big(size), range(8)):
            pass

    submit(count)
    begun = time.process_time()
    submit(count)
    task = (time.process_time() - begun) / count
    # Making the result, and handing it over, take turns on two workers: what is left is the caller's.
    return {"task": task, "byte_back": (each(fetch, sizes["seconds"]) / 8 - task) / (8 * size)}


def validate(
    c: Constants, cluster: engine.Engine, folder: Path, sizes: dict[str, Any]
) -> list[dict[str, Any]]:
    """Whole runs on two workers, and what the model says of them."""
    found: list[dict[str, Any]] = []

    def hold(name: str, cost: Cost, run: Callable[[], Any]) -> None:
        run()
        start = time.perf_counter()
        run()
        spent = time.perf_counter() - start
        found.append({"run": name, "measured": spent, "predicted": cost.seconds})
        print(f"{name}: {spent:.2f} s, predicted {cost.seconds:.2f} s", flush=True)

    for n in (sizes["n"] // 2, sizes["n"]):
        x = torch.randn(n, D, dtype=torch.float64)
        v = torch.ones(n, 1, dtype=torch.float64)
        hold(
            f"kernel product, {n:,} rows",
            product_cost(c, WORKERS, n),
            lambda x=x, v=v: symmetric_product(kernel(), x, v, Work(cluster, 10**9)),  # type: ignore[misc]
        )
    m = sizes["landmarks"]
    for rows in (sizes["rows"] // 4, sizes["rows"]):
        files = write_rows(folder, rows)
        z = torch.randn(m, D, dtype=torch.float64)

        def fit(files: list[Path] = files, z: torch.Tensor = z) -> None:
            model = regression.Nystrom(kernel(), z)
            regression.stream_parquet(model, files, COLUMNS, "y", engine=cluster, rows=GROUP)
            model.solve(noise=1e-2)

        hold(f"Nyström, {rows:,} rows, m = {m:,}", nystrom_cost(c, WORKERS, rows, m, GROUP), fit)
    inputs = torch.randn(sizes["inputs"], D, dtype=torch.float64)
    hold(
        f"empirical NTK, {sizes['inputs']:,} inputs",
        ntk_cost(c, WORKERS, sizes["inputs"], 224),
        lambda: ntk.empirical_ntk(network(), inputs, engine=cluster, memory="32MB"),
    )
    hold(
        "100 runs of 0.1 s",
        runs_cost(c, WORKERS, 100, 0.1),
        lambda: list(cluster.run(Wait(), [0.1] * 100)),
    )
    return found


# ------------------------------------------------------------------ extrapolated


def extrapolated(c: Constants) -> list[dict[str, Any]]:
    cases: list[tuple[str, Callable[[int], Cost]]] = [
        (
            "conjugate gradients, 50 steps, 10⁵ rows",
            lambda p: product_cost(c, p, 10**5, True).times(ITERATIONS),
        ),
        (
            "conjugate gradients, 50 steps, 10⁶ rows",
            lambda p: product_cost(c, p, 10**6, True).times(ITERATIONS),
        ),
        ("Nyström, m = 2,000, 10⁷ rows", lambda p: nystrom_cost(c, p, 10**7, 2000)),
        ("Nyström, m = 2,000, 10⁹ rows", lambda p: nystrom_cost(c, p, 10**9, 2000)),
        ("empirical NTK, 10⁵ inputs", lambda p: ntk_cost(c, p, 10**5, 1024)),
        ("10⁴ runs of a minute", lambda p: runs_cost(c, p, 10**4, 60.0)),
        ("10⁶ audits of 0.3 s", lambda p: runs_cost(c, p, 10**6, 0.3)),
    ]
    rows = []
    for name, cost in cases:
        for cores in (2, 64, 1000):
            found = cost(cores)
            rows.append(
                {
                    "work": name, "cores": cores, "seconds": found.seconds, "efficiency": found.efficiency,
                    "next": found.next, "parts": asdict(found),
                }
            )  # fmt: skip
    return rows


def spoken(seconds: float) -> str:
    for unit, length in (("d", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * length:
            return (
                f"{seconds / length:.2g} {unit}"
                if seconds < 10 * length
                else f"{seconds / length:.0f} {unit}"
            )
    return f"{seconds:.2g} s" if seconds < 10 else f"{seconds:.0f} s"


def markdown(c: Constants, held: list[dict[str, Any]], rows: list[dict[str, Any]]) -> str:
    """Tables for the documentation."""
    lines = ["| one core, the other as busy | |", "|---|---|"]
    lines += [
        f"| a kernel entry, NTK of two layers | {c.entry * 1e9:.0f} ns |",
        f"| matrix products, float64 | {1e-9 / c.flop:.0f} Gflop/s |",
        f"| a row from Parquet, ten columns | {c.row * 1e9:.0f} ns |",
        f"| an entry of the empirical NTK, MLP 3 × 256 | {c.tangent * 1e9:.0f} ns |",
        f"| a task, in the calling process | {c.task * 1e3:.2g} ms |",
        f"| a result, to the calling process | {1e-9 / c.byte_back:.2g} GB/s |",
        f"| two results added | {1e-9 / c.byte_added:.2g} GB/s |",
        "",
        "| run, on two workers | measured | predicted |",
        "|---|---:|---:|",
    ]
    lines += [f"| {h['run']} | {spoken(h['measured'])} | {spoken(h['predicted'])} |" for h in held]
    lines += [
        "",
        "| work | 2 cores | 64 | 1,000 | efficiency | then limited by |",
        "|---|---:|---:|---:|---:|---|",
    ]
    for two, some, many in zip(rows[::3], rows[1::3], rows[2::3], strict=True):
        times = " | ".join(spoken(row["seconds"]) for row in (two, some, many))
        lines.append(f"| {two['work']} | {times} | {many['efficiency']:.0%} | {many['next']} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--quick", action="store_true", help="small sizes: whether it runs, not what it costs"
    )
    parser.add_argument("--out", type=Path, default=Path("docs/reproductions/engine"))
    options = parser.parse_args()
    sizes = QUICK if options.quick else FULL
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        with engine.ray("local", workers=WORKERS) as cluster:
            c = Constants(**busy(cluster, folder, sizes), **there(cluster, sizes))
            held = validate(c, cluster, folder / "rows", sizes)
    rows = extrapolated(c)
    text = markdown(c, held, rows)
    print(text)
    if not options.quick:
        record = {
            "constants": asdict(c), "held": held, "extrapolated": rows,
            "assumed": {"cores_per_machine": CORES_PER_MACHINE, "network_bytes_per_second": NETWORK},
            "provenance": provenance(sizes),
        }  # fmt: skip
        path = options.out / "costs.json"
        save_record(record, path)
        path.with_suffix(".md").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
