"""Kernel regression on real data at full size: what it costs, how well it predicts, and what bounds it.

    python -m benchmarks.kernel_regression [--quick] [--tasks exact pcg nystrom stream] [--out FOLDER]

Protein data as P1 splits it. NTK of two hidden ReLU layers, σ_b² = 0.01, LayerNorm first, at every layer, or nowhere.

exact    a fit at n = 40,132: R² near and far, bound and maximum, memory; and one at 16,000 against a bare Cholesky
         of the same matrix, in place.
pcg      conjugate gradients against Cholesky, predictions on the test rows.
nystrom  error against the number of landmarks, with the exact predictions of the first task.
stream   synthetic rows in one pass, against bare matrix products.

Every measurement runs in a process of its own, so that its peak of memory is its own.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks._protein import Split, load
from farfield import engine, kernels, regression
from farfield._provenance import provenance
from farfield.report import Figure, Panel, Series, save_figure
from farfield.report._data import plain

TASKS = ("exact", "pcg", "nystrom", "stream")
NORMS = ("first", "every", "none")
DEPTH, BIAS_VAR = 2, 0.01
NOISES = (0.01, 0.03, 0.1, 0.3, 1.0)
RADII = (1e1, 1e2, 1e3, 1e4, 1e6, 1e8)
FULL: dict[str, Any] = {
    "rows": None, "bare_rows": 16_000, "noise_rows": 4000, "pcg_rows": 10_000,
    "landmarks": [100, 200, 500, 1000, 2000],
    "stream_rows": 10_000_000, "stream_landmarks": 1000, "directions": 300,
}  # fmt: skip
QUICK: dict[str, Any] = {
    "rows": 2000, "bare_rows": 1000, "noise_rows": 500, "pcg_rows": 1000, "landmarks": [50, 100, 200],
    "stream_rows": 100_000, "stream_landmarks": 200, "directions": 50,
}  # fmt: skip
SEED = 0


def kernel(norm: str) -> kernels.NetworkKernel:
    return kernels.mlp(depth=DEPTH, layer_norm=None if norm == "none" else norm, bias_var=BIAS_VAR)  # type: ignore[arg-type]


def peak() -> float:
    """GiB that this process has held at most."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def timed(work: Callable[[], Any]) -> tuple[Any, dict[str, float]]:
    wall, cpu = time.monotonic(), time.process_time()
    result = work()
    return result, {"wall": time.monotonic() - wall, "cpu": time.process_time() - cpu}


def r2(predicted: Tensor, target: Tensor) -> float:
    target = target[:, 0].double()
    return 1.0 - float((predicted - target).square().mean() / target.var(correction=0))


def progress(what: str) -> engine.Progress:
    """A line on stderr."""

    def tell(done: int, total: int) -> None:
        if done == total or done % max(1, total // 50) == 0:
            print(
                f"\r{what} {done}/{total}   ", end="\n" if done == total else "", file=sys.stderr, flush=True
            )

    return tell


def train_rows(split: Split, count: int | None) -> tuple[Tensor, Tensor]:
    return split.train_x[:count].double(), split.train_y[:count, 0].double()


def best_noise(split: Split, norm: str, count: int) -> tuple[float, list[tuple[float, float]]]:
    """The noise with the best R² on as many other training rows, from fits to a few."""
    x, y = train_rows(split, None)
    scores = []
    for noise in NOISES:
        f = regression.fit(kernel(norm), x[:count], y[:count], noise=noise)
        held_out = slice(count, 2 * count)
        scores.append((noise, r2(f.mean(x[held_out]), y[held_out, None])))
    return max(scores, key=lambda pair: pair[1])[0], scores


def far_inputs(split: Split, directions: int) -> Tensor:
    """Random directions and test rows, out to ‖x‖ = 1e8."""
    generator = torch.Generator().manual_seed(SEED)
    u = torch.randn(directions, split.test_x.shape[1], generator=generator, dtype=torch.float64)
    u = torch.cat([u, split.test_x[:directions].double()])
    u = u / u.norm(dim=1, keepdim=True)
    return torch.cat([radius * u for radius in RADII])


# ------------------------------------------------------------------ the tasks, each in a process of its own


def exact(sizes: dict[str, Any], norm: str, folder: Path) -> dict[str, Any]:
    split = load(SEED)
    x, y = train_rows(split, sizes["rows"])
    n = len(x)
    noise, scores = best_noise(split, norm, sizes["noise_rows"])
    start = peak()

    def fitted(rows: int) -> regression.Posterior:
        return regression.fit(
            kernel(norm), x[:rows], y[:rows], noise=noise, solver="cholesky", progress=progress(f"{norm} fit")
        )

    rows = min(n, sizes["bare_rows"])
    matrix = kernel(norm).ntk(x[:rows])
    matrix.diagonal().add_(noise)
    info = torch.empty((), dtype=torch.int32)
    # What a task returns holds the matrix: let go of it.
    bare = timed(lambda: torch.linalg.cholesky_ex(matrix.mT, out=(matrix.mT, info)))[1]
    if int(info):
        sys.exit("The bare Cholesky failed.")
    del matrix
    small = timed(lambda: fitted(rows))[1]

    f, ours = timed(lambda: fitted(n))
    fit_peak = peak()
    predictions, predict_time = timed(lambda: (f.mean(split.test_x.double()), f.mean(split.far_x.double())))
    far = far_inputs(split, sizes["directions"])
    values = f.mean(far).abs().reshape(len(RADII), -1).amax(1)
    smallest = f.smallest_eigenvalue()
    bounds = {name: float(f.output_bound(name=name)) for name in ("rkhs", "eigenvalue", "crude")}
    np.save(folder / f"{norm}.npy", predictions[0].numpy())
    observed = max(float(values.max()), *(float(p.abs().max()) for p in predictions))
    slope = float(f.slope(far[: 2 * sizes["directions"]] / RADII[0]).abs().max())
    return {
        "norm": norm, "n": n, "noise": noise, "noise_scores": scores, "residual": f.residual, "jitter": f.jitter,
        "r2_near": r2(predictions[0], split.test_y), "r2_far": r2(predictions[1], split.far_y),
        "bounds": bounds, "observed": observed, "largest_target": float(y.abs().max()),
        "observed_at_radius": dict(zip(map(str, RADII), values.tolist(), strict=True)), "largest_slope": slope,
        "smallest_eigenvalue": smallest.value, "smallest_eigenvalue_error": smallest.error,
        "bare_rows": rows, "bare_cholesky_seconds": bare, "bare_fit_seconds": small, "fit_seconds": ours,
        "ratio_wall": small["wall"] / bare["wall"], "ratio_cpu": small["cpu"] / bare["cpu"],
        "predict_seconds": predict_time, "predicted_rows": len(split.test_x) + len(split.far_x),
        "matrix_gib": 8 * n * n / 2**30, "start_gib": start, "peak_gib": fit_peak,
    }  # fmt: skip


def pcg(sizes: dict[str, Any], norm: str, folder: Path) -> dict[str, Any]:
    split = load(SEED)
    x, y = train_rows(split, sizes["pcg_rows"])
    noise, _ = best_noise(split, norm, sizes["noise_rows"])
    direct, direct_time = timed(lambda: regression.fit(kernel(norm), x, y, noise=noise, solver="cholesky"))
    reference = direct.mean(split.test_x.double())
    del direct
    steps: list[int] = []
    tell = progress(f"{norm} pcg")

    def count(done: int, total: int) -> None:
        steps.append(done)
        tell(done, total)

    f, spent = timed(
        lambda: regression.fit(
            kernel(norm), x, y, noise=noise, solver="pcg", tolerance=1e-8, memory="2GB", progress=count
        )
    )
    difference = (f.mean(split.test_x.double()) - reference).abs().max() / reference.abs().max()
    return {
        "norm": norm, "n": len(x), "noise": noise, "residual": f.residual,
        "iterations": steps[-2] if len(steps) > 1 else 0, "relative_difference": float(difference),
        "cholesky_seconds": direct_time, "pcg_seconds": spent,
    }  # fmt: skip


def nystrom(sizes: dict[str, Any], norm: str, folder: Path) -> dict[str, Any]:
    split = load(SEED)
    x, y = train_rows(split, sizes["rows"])
    noise, _ = best_noise(split, norm, sizes["noise_rows"])
    saved = folder / f"{norm}.npy"
    reference = torch.from_numpy(np.load(saved)) if saved.exists() else None
    most, generator = max(sizes["landmarks"]), torch.Generator().manual_seed(SEED)
    function = kernel(norm).function("ntk")
    chosen = {
        how: regression.landmarks(function, x, most, method=how, generator=generator)
        for how in ("greedy", "uniform")
    }
    rows = []
    for how, count in ((how, count) for how in chosen for count in sizes["landmarks"]):
        model = regression.Nystrom(function, chosen[how][:count])
        f, spent = timed(lambda model=model: model.partial_fit(x, y).solve(noise))
        predicted = f.mean(split.test_x.double())
        error = None if reference is None else float((predicted - reference).norm() / reference.norm())
        row = {
            "landmarks": count, "method": how, "rank": f.rank, "seconds": spent, "relative_error": error,
            "r2_near": r2(predicted, split.test_y), "r2_far": r2(f.mean(split.far_x.double()), split.far_y),
            "bound": float(f.output_bound()),
        }  # fmt: skip
        rows.append(row)
        print(f"{norm} {count} {how} landmarks", file=sys.stderr)
    return {"norm": norm, "n": len(x), "noise": noise, "rows": rows}


def stream(sizes: dict[str, Any], norm: str, folder: Path) -> dict[str, Any]:
    total, count, batch, d = sizes["stream_rows"], sizes["stream_landmarks"], 50_000, 9
    generator = torch.Generator().manual_seed(SEED)
    weights = torch.randn(d, generator=generator, dtype=torch.float64)
    weights = 2 * weights / weights.norm()
    function = kernel(norm).function("ntk")

    def batches() -> Iterator[tuple[Tensor, Tensor]]:
        for start in range(0, total, batch):
            x = torch.randn(min(batch, total - start), d, generator=generator, dtype=torch.float64)
            yield (
                x,
                torch.sin(x @ weights) + 0.1 * torch.randn(len(x), generator=generator, dtype=torch.float64),
            )

    sample, _ = next(batches())
    z = regression.landmarks(function, sample[:10_000], count, method="uniform", generator=generator)
    model = regression.Nystrom(function, z)
    features, gram = (
        torch.randn(4096, count, dtype=torch.float64),
        torch.zeros(count, count, dtype=torch.float64),
    )

    def product() -> None:
        gram.addmm_(features.mT, features)

    def kernel_alone() -> None:
        function(sample[:4096], z)

    product(), kernel_alone()
    repeats = 20
    bare = [timed(lambda: [product() for _ in range(repeats)])[1]]
    start = peak()
    tell = progress(f"{norm} stream")
    seen = 0

    def feed() -> None:
        nonlocal seen
        for x, y in batches():
            model.partial_fit(x, y)
            seen += len(x)
            tell(seen, total)

    _, spent = timed(feed)
    f, solving = timed(lambda: model.solve(0.01))
    bare.append(timed(lambda: [product() for _ in range(repeats)])[1])
    chunks = total / 4096
    gemm = {key: sum(b[key] for b in bare) / (2 * repeats) * chunks for key in ("wall", "cpu")}
    _, entry = timed(lambda: [kernel_alone() for _ in range(repeats)])
    test, _ = next(batches())
    return {
        "norm": norm, "n": total, "landmarks": len(z), "count": f.count, "seconds": spent, "solve_seconds": solving,
        "bare_product_seconds": gemm, "ratio_wall": spent["wall"] / gemm["wall"],
        "ratio_cpu": spent["cpu"] / gemm["cpu"],
        "ratio_cpu_to_own_operations": spent["cpu"] / (gemm["cpu"] * 9 / 16),
        "kernel_cpu_seconds": entry["cpu"] / repeats * chunks,
        "r2": 1 - float((f.mean(test) - torch.sin(test @ weights)).square().mean() / torch.sin(test @ weights).var()),
        "bound": float(f.output_bound()), "start_gib": start, "peak_gib": peak(),
    }  # fmt: skip


# ------------------------------------------------------------------ the parent


def run(task: str, norm: str, quick: bool, folder: Path, threads: int) -> dict[str, Any]:
    command = [sys.executable, "-m", "benchmarks.kernel_regression", "--child", task, norm, str(folder)]
    command += ["--threads", str(threads)] + (["--quick"] if quick else [])
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        sys.exit(f"{task} {norm} failed with code {done.returncode}.")
    result: dict[str, Any] = json.loads(done.stdout)
    print(json.dumps(result), flush=True)
    return result


def verdicts(results: dict[str, list[dict[str, Any]]]) -> list[dict[str, Any]]:
    made = []
    for r in results.get("exact", []):
        made += [
            (f"{r['norm']}: n = {r['n']:,} below 20 GiB, residual at most 1e-6",
             r["peak_gib"] < 20 and r["residual"] <= 1e-6, f"{r['peak_gib']:.2f} GiB, {r['residual']:.1e}"),
            (f"{r['norm']}: fit at most 1.3 times a bare Cholesky, n = {r['bare_rows']:,}", r["ratio_cpu"] <= 1.3,
             f"{r['ratio_cpu']:.3f} times"),
            (f"{r['norm']}: no output above the bound out to ‖x‖ = 1e8", r["observed"] <= r["bounds"]["rkhs"],
             f"{r['observed']:.4g} ≤ {r['bounds']['rkhs']:.4g}"),
        ]  # fmt: skip
    made += [
        (f"{r['norm']}: conjugate gradients and Cholesky agree to 1e-5", r["relative_difference"] <= 1e-5,
         f"{r['relative_difference']:.1e} after {r['iterations']} iterations, n = {r['n']}")
        for r in results.get("pcg", [])
    ]  # fmt: skip
    made += [
        (f"{r['n']:,} rows in one pass below 2 GiB and 1.5 times bare products",
         r["peak_gib"] < 2 and r["ratio_cpu"] <= 1.5,
         f"{r['peak_gib']:.2f} GiB, {r['ratio_cpu']:.2f} times")
        for r in results.get("stream", [])
    ]  # fmt: skip
    return [{"claim": claim, "holds": bool(holds), "measured": measured} for claim, holds, measured in made]


def plot(results: list[dict[str, Any]], path: Path) -> None:
    """Error against the exact predictor, by number of landmarks."""
    lines = tuple(
        Series(
            f"LN {r['norm']}, {how}",
            tuple(float(row["landmarks"]) for row in r["rows"] if row["method"] == how),
            tuple(row["relative_error"] for row in r["rows"] if row["method"] == how),
            style="line" if how == "greedy" else "dashed",
            color=k,
        )
        for k, r in enumerate(results)
        for how in ("greedy", "uniform")
        if all(row["relative_error"] is not None for row in r["rows"])
    )
    if lines:
        panel = Panel("", "landmarks", "relative error against the exact predictor", lines, "log", "log")
        figure = Figure("Nyström on the protein data", (panel,))
        save_figure(figure, [path.with_suffix(suffix) for suffix in (".png", ".svg")])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="small sizes, to see that it runs")
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=list(TASKS))
    parser.add_argument("--norms", nargs="+", choices=NORMS, default=list(NORMS))
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--out", type=Path, default=Path("docs/reproductions/kernels"))
    parser.add_argument("--child", nargs=3, help=argparse.SUPPRESS)
    given = parser.parse_args()
    sizes = QUICK if given.quick else FULL
    if given.child is not None:
        torch.set_num_threads(given.threads)
        task, norm, folder = given.child
        print(
            json.dumps(
                {"exact": exact, "pcg": pcg, "nystrom": nystrom, "stream": stream}[task](
                    sizes, norm, Path(folder)
                )
            )
        )
        return
    results: dict[str, list[dict[str, Any]]] = {}
    made = provenance(
        {"data": "protein", "depth": DEPTH, "activation": "relu", "bias_var": BIAS_VAR, "kind": "ntk",
         "threads": given.threads, "quick": given.quick, **sizes},
        seed=SEED,
    )  # fmt: skip
    given.out.mkdir(parents=True, exist_ok=True)
    name = "regression_quick" if given.quick else "regression"
    with tempfile.TemporaryDirectory() as folder:
        for task in given.tasks:
            for norm in given.norms if task != "stream" else ["first"]:
                results.setdefault(task, []).append(run(task, norm, given.quick, Path(folder), given.threads))
            judged = verdicts(results)
            content = {
                "name": f"kernels.{name}",
                "description": "Kernel regression on real data at full size: cost, R² near and far, bounds.",
                "verdicts": judged,
                "numbers": results,
                "provenance": made,
            }
            text = json.dumps(plain(content), indent=1, ensure_ascii=False)
            (given.out / f"{name}.json").write_text(text + "\n")
    for verdict in judged:
        print(f"{'yes' if verdict['holds'] else 'no':3} {verdict['claim']}: {verdict['measured']}")
    plot(results.get("nystrom", []), given.out / name)


if __name__ == "__main__":
    main()
