"""What does a kernel matrix of a deep network cost, and beside what?

    python -m benchmarks.kernels [--quick] [--jax-python PATH] [--out docs/reproductions/kernels]

One run, the same inputs and threads: the NTK of L × [Dense – LayerNorm – ReLU] and a readout, on n rows of 9
features. Beside ours: the same layer by layer, one ``torch.arccos`` over a matrix of that size, a fused tile by
``torch.compile``, and (with the interpreter of an environment that has jax==0.5.3 and neural-tangents) the archived
JAX library, whose kernels are first compared with ours. CPU-seconds of the process that did the work, smallest of
several runs: compare within one run. Peak memory needs Linux.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks._jax_kernels import reset, resident
from farfield._provenance import provenance
from farfield.engine import tiles
from farfield.kernels import Activate, Dense, Interpolant, Layer, LayerNorm, NetworkKernel

FEATURES, WEIGHT_VAR, BIAS_VAR = 9, 2.0, 0.01
DTYPES = {"float32": torch.float32, "float64": torch.float64}
SIDE = 256


def network(depth: int) -> list[list[Any]]:
    """The network as plain data, for both libraries; activations without a factor."""
    dense = ["dense", WEIGHT_VAR, BIAS_VAR]
    return [dense, ["layer_norm"], ["relu"]] * depth + [dense]


def checks() -> dict[str, list[list[Any]]]:
    """Networks on which the two libraries are compared, and all of which the archived one supports."""
    found = {f"depth {depth}, LN before every ReLU": network(depth) for depth in (1, 3, 10)}
    for unit in (["relu"], ["erf"], ["abs"], ["leaky_relu", 0.1]):
        for where in ((), (0,), (1,)):
            layers: list[list[Any]] = []
            for k in range(3):
                layers += [["dense", WEIGHT_VAR, 0.1], *([["layer_norm"]] if k in where else []), unit]
            place = {(): "no LN", (0,): "LN first", (1,): "LN second"}[where]
            found[f"{unit[0]}, {place}"] = [*layers, ["dense", 1.0, 0.1]]
    return found


def kernel(described: list[list[Any]], *, compress: bool = True) -> NetworkKernel:
    """Ours."""
    layers: list[Layer] = []
    for name, *arguments in described:
        if name == "dense":
            layers.append(Dense(*arguments))
        elif name == "layer_norm":
            layers.append(LayerNorm())
        elif name == "leaky_relu":
            layers.append(Activate(torch.nn.LeakyReLU(*arguments), 1.0))
        else:
            layers.append(Activate(name, 1.0))
    return NetworkKernel(tuple(layers), compress)


def rows(n: int, dtype: torch.dtype) -> Tensor:
    """The inputs."""
    return torch.randn(n, FEATURES, generator=torch.Generator().manual_seed(0), dtype=torch.float64).to(dtype)


def cost(run: Callable[[], object], repeats: int) -> dict[str, float]:
    """CPU-seconds of this process: smallest and median."""
    seconds = []
    for _ in range(repeats):
        start = time.process_time()
        run()
        seconds.append(time.process_time() - start)
    return {"min": min(seconds), "median": statistics.median(seconds)}


# ------------------------------------------------------------------ a fused tile


def fused_tile(table: Interpolant, dtype: torch.dtype) -> Callable[[Tensor, Tensor], Tensor]:
    """One tile from unit vectors, as the library computes it, for a compiler to fuse."""
    powers = np.zeros(table.degree + 1)
    for k, c in enumerate(table.coefficients[0].tolist()):
        unit = np.zeros(k + 1)
        unit[k] = c
        powers[: k + 1] += np.polynomial.chebyshev.cheb2poly(unit)
    terms, a = powers.tolist(), table.strength

    def tile(u: Tensor, v: Tensor) -> Tensor:
        sine2 = 0.5 - 0.5 * (u @ v.mT)
        share = torch.asin(sine2.clamp(0, 1).to(dtype).sqrt()) * (2.0 / math.pi)  # θ/π
        x = 2.0 * share - 1.0 if a == math.inf else 2.0 * (1.0 + a) * share / (share + a) - 1.0
        value = torch.full_like(x, terms[-1])
        for c in terms[-2::-1]:
            value = value * x + c
        return value

    return tile


def compiled(k: NetworkKernel, x: Tensor, repeats: int) -> dict[str, float] | str:
    """The upper triangle of tiles through a compiled tile: seconds to compile, then CPU-seconds a matrix."""
    unit = k._rows(x).unit
    cover = tiles(len(x), height=SIDE, symmetric=True)
    out = torch.from_numpy(np.empty((len(x), len(x)), np.float32 if x.dtype == torch.float32 else np.float64))
    try:
        tile = torch.compile(fused_tile(k.table("ntk", x.dtype), x.dtype), dynamic=False)
        start = time.monotonic()
        tile(unit[:SIDE], unit[:SIDE])
        compile_seconds = time.monotonic() - start
    except Exception as error:  # no C++ compiler, or a version without one
        return f"{type(error).__name__}: {str(error).splitlines()[0][:120]}"

    def run() -> None:
        for t in cover:
            result = tile(unit[t.row_slice], unit[t.column_slice])
            out[t.row_slice, t.column_slice] = result
            if not t.on_diagonal:
                out[t.column_slice, t.row_slice] = result.mT.contiguous()

    run()
    return {"compile_seconds": compile_seconds, **cost(run, repeats)}


# ------------------------------------------------------------------ other processes


def peak_memory(n: int, dtype: str, depth: int) -> dict[str, float]:
    """Most memory a fresh process took beyond what it had after a small matrix, and that over the result's size."""
    arguments = [sys.executable, "-m", "benchmarks.kernels", "--peak", str(n), dtype, str(depth)]
    done = subprocess.run(arguments, capture_output=True, text=True, check=True)
    used = int(done.stdout)
    return {"bytes": used, "of_result": used / (n * n * torch.finfo(DTYPES[dtype]).bits // 8)}


def _peak(n: int, dtype: str, depth: int) -> None:
    k = kernel(network(depth))
    k.ntk(rows(600, DTYPES[dtype]))
    x = rows(n, DTYPES[dtype])
    reset()
    before = resident("VmRSS")
    result = k.ntk(x)
    used = resident("VmHWM") - before
    assert result.shape == (n, n)
    print(used)


def peer(interpreter: str, jobs: dict[str, Any], threads: int) -> dict[str, Any]:
    """What the archived library answers."""
    single = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1" if threads == 1 else ""
    environment = {
        **os.environ, "OMP_NUM_THREADS": str(threads), "XLA_FLAGS": single, "PYTHONPATH": "", "JAX_PLATFORMS": "cpu",
    }  # fmt: skip
    script = Path(__file__).parent / "_jax_kernels.py"
    done = subprocess.run(
        [interpreter, str(script)], input=json.dumps(jobs), capture_output=True, text=True, env=environment
    )
    if done.returncode:
        raise SystemExit(f"The JAX interpreter failed:\n{done.stderr[-2000:]}")
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def agreement(answers: list[dict[str, Any]], x: Tensor) -> dict[str, float]:
    """Largest difference of either kernel, relative to √(k(x, x) k(y, y)), network by network."""
    worst = {}
    for (name, layers), answer in zip(checks().items(), answers, strict=True):
        k = kernel(layers)
        errors = []
        for kind in ("nngp", "ntk"):
            theirs = torch.tensor(answer[kind], dtype=torch.float64)
            size = torch.sqrt(torch.outer(theirs.diagonal(), theirs.diagonal()))
            errors.append(float(((k.function(kind)(x) - theirs).abs() / size).max()))
        worst[name] = max(errors)
    return worst


# ------------------------------------------------------------------ the run


def measure(dtype: str, n: int, repeats: int) -> dict[str, Any]:
    """Everything of ours in one dtype."""
    x = rows(n, DTYPES[dtype])
    out: dict[str, Any] = {}
    for depth in (3, 10, 50):
        k = kernel(network(depth))
        start = time.process_time()
        table = k.table("ntk", DTYPES[dtype])
        out[f"table, depth {depth}"] = {
            "cpu_seconds": time.process_time() - start, "degree": table.degree, "error": table.error,
        }  # fmt: skip
        k.ntk(x)
        out[f"ours, depth {depth}"] = cost(lambda k=k: k.ntk(x), repeats)
    plain = kernel(network(10), compress=False)
    out["layer by layer, depth 10"] = cost(lambda: plain.ntk(x), max(2, repeats // 3))
    cosines = torch.nn.functional.normalize(x) @ torch.nn.functional.normalize(x).mT
    cosines.clamp_(-1, 1)
    torch.arccos(cosines)
    out["one arccos"] = cost(lambda: torch.arccos(cosines), repeats)
    out["compiled tile, depth 10"] = compiled(kernel(network(10)), x, repeats)
    return out


def ratios(found: dict[str, Any]) -> dict[str, float]:
    """What the figures amount to."""
    ours = found["ours, depth 10"]["min"]
    table = {
        "layer by layer / ours": found["layer by layer, depth 10"]["min"] / ours,
        "ours / one arccos": ours / found["one arccos"]["min"],
        "depth 50 / depth 3": found["ours, depth 50"]["min"] / found["ours, depth 3"]["min"],
        "peak memory / result": found["peak memory"]["of_result"],
    }
    if isinstance(found["compiled tile, depth 10"], dict):
        table["ours / compiled tile"] = ours / found["compiled tile, depth 10"]["min"]
    if "archived JAX library" in found:
        table["archived JAX library / ours"] = min(found["archived JAX library"]["cpu_seconds"]) / ours
        table["its peak memory / ours"] = (
            found["archived JAX library"]["bytes"] / found["peak memory"]["bytes"]
        )
    return table


def main() -> None:
    """Parse, run, print, write."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="1,500 rows, two runs each")
    parser.add_argument("--jax-python", help="interpreter with jax==0.5.3 and neural-tangents")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("docs/reproductions/kernels"))
    parser.add_argument("--peak", nargs=3, metavar=("N", "DTYPE", "DEPTH"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    if options.peak:
        n, dtype, depth = options.peak
        _peak(int(n), dtype, int(depth))
        return
    n, repeats = (1500, 2) if options.quick else (5000, 7)
    results: dict[str, Any] = {}
    small = rows(12, torch.float64)
    for dtype in DTYPES:
        results[dtype] = measure(dtype, n, repeats)
        results[dtype]["peak memory"] = peak_memory(n, dtype, 10)
    agreed: dict[str, float] = {}
    if options.jax_python:
        timing = {"layers": network(10), "n": n, "d": FEATURES, "repeats": 2 if options.quick else 3}
        answer = peer(
            options.jax_python,
            {"networks": list(checks().values()), "inputs": small.tolist()},
            options.threads,
        )
        agreed = agreement(answer["values"], small)
        for dtype in DTYPES:
            timed = peer(
                options.jax_python, {"timings": [{**timing, "dtype": dtype}], "inputs": []}, options.threads
            )
            results[dtype]["archived JAX library"] = {**timed["timings"][0], "versions": timed["versions"]}
    tables = {dtype: ratios(found) for dtype, found in results.items()}
    for name, error in agreed.items():
        print(f"{name:32} both kernels agree to {error:.1e}")
    if agreed and max(agreed.values()) > 1e-6:
        raise SystemExit(
            "The kernels of the two libraries differ: the timings would compare different things."
        )
    print(
        f"\nNTK, depth 10, n = {n}, {FEATURES} features, {options.threads} thread(s); ratios of CPU-seconds\n"
    )
    print(f"{'':32}" + "".join(f"{dtype:>12}" for dtype in tables))
    for name in {name: None for table in tables.values() for name in table}:
        cells = (f"{table[name]:12.2f}" if name in table else f"{'–':>12}" for table in tables.values())
        print(f"{name:32}" + "".join(cells))
    options.out.mkdir(parents=True, exist_ok=True)
    settings = {
        "n": n, "features": FEATURES, "weight_var": WEIGHT_VAR, "bias_var": BIAS_VAR, "threads": options.threads,
        "repeats": repeats,
    }  # fmt: skip
    report = {
        "ratios": tables,
        "agreement": agreed,
        "measured": results,
        "provenance": provenance(settings, seed=0),
    }
    (options.out / "speed.json").write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
