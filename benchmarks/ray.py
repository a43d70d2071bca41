"""What Ray costs on one machine: the same work in bare torch and on workers, in one run.

    python -m benchmarks.ray [--quick] [--tasks product solve weak] [--n N] [--out FOLDER]

product  K(x)v with an NTK of two hidden layers, LayerNorm first, d = 9, tiles recomputed: two workers with one thread
         each against a bare loop over the same tiles with two threads of torch. Beside it, for those without Ray,
         engine.local(2, threads=1), and so in solve.
solve    conjugate gradients to 1e-6 on the same matrix: tiles recomputed on the workers, and kept by them, against
         engine="local" with two threads.
weak     tiles of one size, so many for each worker: the time with one worker over the time with two, in turn.

Ray opens sockets, here on 127.0.0.1 alone: run it where that is permitted, or in a network namespace with nothing
else (``unshare -n``, then ``ip link set lo up``). Workers are started, and have imported torch, before the clock is.
Seconds are of the wall, the least of several rounds in which the candidates take turns: run it on an idle machine.
Ratios above one mean that Ray is slower. Without --quick a record is written, with versions and settings.
"""

from __future__ import annotations

import argparse
import multiprocessing
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks._records import save_record, say
from farfield import engine, kernels, regression
from farfield._provenance import provenance
from farfield.regression._covariance import Work, symmetric_product

TASKS = ("product", "solve", "weak")
FULL: dict[str, Any] = {
    "n": 20_000,
    "rank": 1000,
    "rounds": 3,
    "weak_tiles": 24,
    "weak_rounds": 2,
    "side": 2048,
}
QUICK: dict[str, Any] = {"n": 1000, "rank": 100, "rounds": 2, "weak_tiles": 4, "weak_rounds": 1, "side": 512}
D, DEPTH, BIAS_VAR, NOISE, TOLERANCE = 9, 2, 0.1, 1e-2, 1e-6
WORKERS = 2
SPLIT = engine.local(WORKERS, threads=1)
TARGETS = {"product": 1.2, "solve": 1.25, "weak": 0.9}
SEED = 0


def inputs(n: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(SEED)
    x = torch.randn(n, D, generator=generator, dtype=torch.float64)
    return x, torch.sin(x[:, 0]) + 0.1 * torch.randn(n, generator=generator, dtype=torch.float64)


def kernel() -> kernels.KernelFunction:
    return kernels.mlp(depth=DEPTH, layer_norm="first", bias_var=BIAS_VAR).function("ntk")


def least(candidates: dict[str, Callable[[], Any]], rounds: int) -> dict[str, float]:
    """Seconds of each, the least of some rounds in which they take turns."""
    best = dict.fromkeys(candidates, float("inf"))
    for number in range(rounds):
        for name, run in candidates.items():
            say(f"  round {number + 1} of {rounds} {name}")
            start = time.perf_counter()
            run()
            best[name] = min(best[name], time.perf_counter() - start)
    return best


def awake(where: engine.Engine) -> None:
    """Every worker has imported torch and met the kernel."""
    symmetric_product(kernel(), inputs(600)[0], torch.ones(600, 1, dtype=torch.float64), Work(where, 10**6))


def bare_product(k: kernels.KernelFunction, x: Tensor, v: Tensor, side: int) -> Tensor:
    """The symmetric product in nothing but torch and the kernel."""
    total = torch.zeros_like(v)
    for i in range(0, len(x), side):
        rows = slice(i, i + side)
        total[rows] += k(x[rows]) @ v[rows]
        for j in range(i + side, len(x), side):
            columns = slice(j, j + side)
            tile = k(x[rows], x[columns])
            total[rows] += tile @ v[columns]
            total[columns] += tile.mT @ v[rows]
    return total


def product(cluster: engine.Engine, sizes: dict[str, Any]) -> dict[str, Any]:
    x, y = inputs(sizes["n"])
    k, v = kernel(), y[:, None]
    there, here, split = (Work(where, 10**9) for where in (cluster, engine.local(), SPLIT))
    seconds = least(
        {
            "bare": lambda: bare_product(k, x, v, there.side()),
            "local": lambda: symmetric_product(k, x, v, here),
            "local, 2 × 1": lambda: symmetric_product(k, x, v, split),
            "ray": lambda: symmetric_product(k, x, v, there),
        },
        sizes["rounds"],
    )
    return {"seconds": seconds, "ratio": seconds["ray"] / seconds["bare"]}


def solve(cluster: engine.Engine, sizes: dict[str, Any]) -> dict[str, Any]:
    x, y = inputs(sizes["n"])
    found: dict[str, regression.Posterior] = {}

    def run(name: str, where: str | engine.Engine, keep: bool) -> Callable[[], None]:
        def fit() -> None:
            found[name] = regression.fit(
                kernel(), x, y, noise=NOISE, solver="pcg", rank=sizes["rank"], tolerance=TOLERANCE, engine=where,
                keep_tiles=keep,
            )  # fmt: skip

        return fit

    candidates = {
        "local": run("local", "local", False),
        "local, 2 × 1": run("local, 2 × 1", SPLIT, False),
        "ray": run("ray", cluster, False),
        "local, kept": run("local, kept", "local", True),
        "ray, kept": run("ray, kept", cluster, True),
    }
    seconds = least(candidates, 1 if sizes["n"] > 10_000 else sizes["rounds"])
    return {
        "seconds": seconds,
        "residuals": {name: f.residual for name, f in found.items()},
        "ratio": seconds["ray"] / seconds["local"],
        "ratio_kept": seconds["ray, kept"] / seconds["local, kept"],
    }


class SquareTile:
    """One tile of a fixed size, whichever."""

    def __init__(self, x: Tensor) -> None:
        self.kernel, self.x = kernel(), x

    def __call__(self, number: int) -> Tensor:
        """Sums of its columns: little to send back."""
        return self.kernel(self.x + number, self.x).sum(0)


def _tiles(sizes: dict[str, Any]) -> float:
    """A worker's share of tiles without an engine; seconds."""
    torch.set_num_threads(1)
    task = SquareTile(inputs(sizes["side"])[0])
    task(0)
    start = time.perf_counter()
    for number in range(sizes["weak_tiles"]):
        task(number)
    return time.perf_counter() - start


def weak(sizes: dict[str, Any]) -> dict[str, Any]:
    """One and two workers in turn, since a machine's speed drifts by more than what is measured; and the same in bare
    processes, which is what the machine itself loses to two cores at work.
    """
    best = dict.fromkeys(("ray 1", f"ray {WORKERS}", "bare 1", f"bare {WORKERS}"), float("inf"))
    task = SquareTile(inputs(sizes["side"])[0])
    for number in range(sizes["weak_rounds"]):
        for workers in (1, WORKERS):
            say(f"weak, round {number + 1} of {sizes['weak_rounds']}, {workers} worker(s) …")
            with engine.ray("local", workers=workers) as cluster:
                awake(cluster)

                def run(cluster: engine.Engine = cluster, workers: int = workers) -> None:
                    list(cluster.map(task, range(workers * sizes["weak_tiles"])))

                run()
                best[f"ray {workers}"] = min(
                    best[f"ray {workers}"], *least({"": run}, sizes["rounds"]).values()
                )
            with multiprocessing.get_context("spawn").Pool(workers) as pool:
                for _ in range(1 + sizes["rounds"]):
                    slowest = max(pool.map(_tiles, [sizes] * workers, chunksize=1))
                    best[f"bare {workers}"] = min(best[f"bare {workers}"], slowest)
    shares = {who: best[f"{who} 1"] / best[f"{who} {WORKERS}"] for who in ("ray", "bare")}
    return {"seconds": best, "ratio": shares["ray"], "ratio_bare": shares["bare"]}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--quick", action="store_true", help="small sizes: whether it runs, not what it costs"
    )
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=list(TASKS))
    parser.add_argument("--n", type=int, help="rows of product and solve")
    parser.add_argument("--out", type=Path, default=Path("docs/reproductions/engine"))
    options = parser.parse_args()
    sizes = dict(QUICK if options.quick else FULL)
    if options.n is not None:
        sizes["n"] = options.n
    torch.set_num_threads(WORKERS)
    results: dict[str, Any] = {}
    if {"product", "solve"} & set(options.tasks):
        with engine.ray("local", workers=WORKERS) as cluster:
            awake(cluster)
            for name, task in (("product", product), ("solve", solve)):
                if name in options.tasks:
                    say(f"{name}, {sizes['n']:,} rows …")
                    results[name] = task(cluster, sizes)
    if "weak" in options.tasks:
        results["weak"] = weak(sizes)
    for name, result in results.items():
        times = ", ".join(f"{who} {value:.3g} s" for who, value in result["seconds"].items())
        print(f"{name:8} ratio {result['ratio']:.3f} (target {TARGETS[name]}): {times}")
    if not options.quick:
        record = {"results": results, "provenance": provenance(sizes, seed=SEED)}
        path = options.out / "ray.json"
        save_record(record, path)
        print(f"wrote {path}")


if __name__ == "__main__":
    main()
