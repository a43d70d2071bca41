"""Many networks trained at once against a plain loop that trains them one after another.

    python -m benchmarks.training [--quick] [--threads N] [--out FOLDER]

large   10 seeds × {standard, LN first, LN second, LN every} of P1's protein network (9 → 128 → 128 → 1), 40,132 rows,
        whole batch, Adam: a short schedule.
batches the same networks in mini-batches of 256.
small   10 seeds of the same four variants on 100 points, as P1's toys.

The plain loop is what a user writes: a module, torch's Adam, zero_grad, backward, step; all on the same data, from
the same parameters, with as many threads. Ratios are of CPU time and of wall time, the least of several rounds that
take turns. The products alone (the matrix multiplications of forward and backward, nothing else) say what is left to
gain. Both ways must end at the same parameters: the largest difference is printed.
"""

from __future__ import annotations

import argparse
import copy
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from farfield._provenance import provenance
from farfield.learn import Training, train
from farfield.nn import MLP

FULL: dict[str, Any] = {
    "large": {"rows": 40_132, "inputs": 9, "seeds": 10, "epochs": 3, "batch": None, "rounds": 2},
    "batches": {"rows": 40_132, "inputs": 9, "seeds": 10, "epochs": 1, "batch": 256, "rounds": 2},
    "small": {"rows": 100, "inputs": 1, "seeds": 10, "epochs": 200, "batch": None, "rounds": 2},
}
QUICK: dict[str, Any] = {
    "large": {"rows": 4096, "inputs": 9, "seeds": 2, "epochs": 2, "batch": None, "rounds": 1},
    "batches": {"rows": 2048, "inputs": 9, "seeds": 2, "epochs": 1, "batch": 256, "rounds": 1},
    "small": {"rows": 100, "inputs": 1, "seeds": 2, "epochs": 20, "batch": None, "rounds": 1},
}
WIDTH, LR, SEED = 128, 1e-3, 0
PLACEMENTS = ("none", "first", "second", "every")


def networks(inputs: int, seeds: int) -> list[nn.Module]:
    return [
        MLP(inputs, 1, width=WIDTH, depth=2, norm="layer", placement=where, weight_var=2.0, bias_var=0.01,
            generator=torch.Generator().manual_seed(seed))
        for where in PLACEMENTS
        for seed in range(seeds)
    ]  # fmt: skip


def plain_loop(
    models: list[nn.Module], x: Tensor, y: Tensor, epochs: int, batch: int | None
) -> list[nn.Module]:
    """One after another, as one writes it."""
    trained = []
    for number, model in enumerate(models):
        net = copy.deepcopy(model)
        optimizer = torch.optim.Adam(net.parameters(), lr=LR)
        for epoch in range(epochs):
            order = None
            if batch is not None:
                order = torch.from_numpy(np.random.default_rng([number, epoch]).permutation(len(x)))
            for start in range(0, len(x), batch or len(x)):
                rows = slice(None) if order is None else order[start : start + (batch or 0)]
                optimizer.zero_grad()
                nn.functional.mse_loss(net(x[rows]), y[rows]).backward()
                optimizer.step()
        trained.append(net)
    return trained


def products(models: list[nn.Module], x: Tensor, epochs: int) -> None:
    """The matrix multiplications of the same training, and nothing else."""
    step = 4096
    hidden, back = torch.randn(step, WIDTH), torch.randn(step, WIDTH)
    for model in models:
        first, second, _ = (m.weight.detach() for m in model if isinstance(m, nn.Linear))
        for _ in range(epochs):
            for start in range(0, len(x), step):
                piece = x[start : start + step]
                h, g = hidden[: len(piece)], back[: len(piece)]
                torch.mm(piece, first.T, out=g)
                torch.mm(h, second.T, out=g)
                torch.mm(g, second, out=h)  # towards the inputs
                torch.mm(g.T, h)
                torch.mm(g.T, piece)
                h.mul_(1e-3)  # keeps the numbers from overflowing


def timed(work: Callable[[], Any]) -> tuple[Any, dict[str, float]]:
    wall, cpu = time.monotonic(), time.process_time()
    result = work()
    return result, {"wall": time.monotonic() - wall, "cpu": time.process_time() - cpu}


def largest_difference(first: list[nn.Module], second: tuple[nn.Module, ...]) -> float:
    return max(
        float((p - q).detach().abs().max())
        for a, b in zip(first, second, strict=True)
        for p, q in zip(a.parameters(), b.parameters(), strict=True)
    )


def measure(name: str, sizes: dict[str, Any]) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(SEED)
    x = torch.randn(sizes["rows"], sizes["inputs"], generator=generator)
    y = torch.sin(2 * x[:, :1]) + 0.1 * torch.randn(len(x), 1, generator=generator)
    models = networks(sizes["inputs"], sizes["seeds"])
    settings = {"epochs": sizes["epochs"], "batch_size": sizes["batch"], "lr": LR}
    ways: dict[str, Callable[[], Any]] = {
        "plain loop": lambda: plain_loop(models, x, y, sizes["epochs"], sizes["batch"]),
        "stacked": lambda: train(models, x, y, training=Training(**settings)),
        "stacked, bfloat16": lambda: train(models, x, y, training=Training(**settings, precision="bfloat16")),
        "stacked, precision by trial": lambda: train(
            models, x, y, training=Training(**settings, precision="auto")
        ),
        "products alone": lambda: products(models, x, sizes["epochs"]),
    }
    train(models, x[:64], y[:64], training=Training(epochs=1))  # what is loaded on first use
    best: dict[str, dict[str, float]] = {}
    results: dict[str, Any] = {}
    for _ in range(sizes["rounds"]):
        for way, work in ways.items():
            results[way], spent = timed(work)
            best[way] = {k: min(v, best.get(way, spent)[k]) for k, v in spent.items()}
    ours = best["stacked"]
    return {
        "task": name, "networks": len(models), **sizes, "seconds": best,
        "ratio of wall time, plain loop / stacked": best["plain loop"]["wall"] / ours["wall"],
        "ratio of CPU time, plain loop / stacked": best["plain loop"]["cpu"] / ours["cpu"],
        "ratio of CPU time, plain loop / stacked, bfloat16":
            best["plain loop"]["cpu"] / best["stacked, bfloat16"]["cpu"],
        "ratio of CPU time, plain loop / products alone":
            best["plain loop"]["cpu"] / best["products alone"]["cpu"],
        "largest difference of a parameter": largest_difference(results["plain loop"], results["stacked"].models),
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="small sizes, to see that it runs")
    parser.add_argument("--tasks", nargs="+", choices=tuple(FULL), default=list(FULL))
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--out", type=Path, default=Path("docs/reproductions/learn"))
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    sizes = QUICK if given.quick else FULL
    results = []
    for name in given.tasks:
        results.append(measure(name, sizes[name]))
        print(json.dumps(results[-1], indent=1), flush=True)
    if not given.quick:
        given.out.mkdir(parents=True, exist_ok=True)
        content = {"name": "learn.training", "numbers": results,
                   "provenance": provenance({"threads": given.threads, **sizes}, seed=SEED)}  # fmt: skip
        path = given.out / f"training_{given.threads}.json"
        path.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
