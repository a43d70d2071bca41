"""The library beside the bare engine: kernel entries, fits, streams, stacks of networks and tangent kernels.

    python -m benchmarks.limits [--quick] [--runs N] [--out FOLDER]

Every row is a ratio measured in one run: CPU seconds of a piece of work over those of what it can't do without (an
arccosine, the products, a Cholesky factorization, a plain loop), the least of several rounds. The machine's own
limits come first. With several runs the spread of every ratio is printed, and a row that misses its goal says so.
Before that the cost as the number of rows grows, at three sizes each, with its exponent. Progress goes to stderr.
"""

from __future__ import annotations

import argparse
import copy
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks._records import save_record, say
from farfield import empirical_ntk, kernels, regression
from farfield._provenance import provenance
from farfield.learn import Training, train
from farfield.nn import MLP

FULL: dict[str, Any] = {
    "entries": 8192, "landmarks": 1000, "stream": 200_000, "fit": 16_000, "networks": 16, "rows": 40_132, "epochs": 3,
    "many": 40, "small_epochs": 200, "rounds": 4, "inputs": 100, "width": 512,
}  # fmt: skip
QUICK: dict[str, Any] = {
    "entries": 1024, "landmarks": 500, "stream": 16_384, "fit": 1500, "networks": 4, "rows": 4096, "epochs": 1,
    "many": 4, "small_epochs": 10, "rounds": 2, "inputs": 50, "width": 128,
}  # fmt: skip


@dataclass(frozen=True)
class Row:
    """One line of the table.

    Parameters
    ----------
    work, beside
        What was measured, and what its time is compared with.
    ratio
        Of their times; how many times as fast, where ``faster``.
    goal
        The ratio that is wanted.
    faster
        Whether more is better.
    note
        The times themselves.
    """

    work: str
    beside: str
    ratio: float
    goal: float
    faster: bool = False
    note: str = ""

    @property
    def reached(self) -> bool:
        """Whether the ratio is what is wanted."""
        return self.ratio >= self.goal if self.faster else self.ratio <= self.goal


def least(work: Callable[[], Any], rounds: int) -> float:
    """CPU seconds, the least of several rounds after one that is not counted."""
    work()
    best = math.inf
    for _ in range(rounds):
        start = time.process_time()
        work()
        best = min(best, time.process_time() - start)
    return best


def ntk() -> kernels.KernelFunction:
    return kernels.mlp(depth=2, layer_norm="first", bias_var=0.01).function("ntk")


def machine(sizes: dict[str, Any]) -> dict[str, float]:
    """The machine's own limits: nanoseconds of an arccosine and of a copy, billions of operations of a product."""
    rounds = sizes["rounds"]
    found: dict[str, float] = {"threads": float(torch.get_num_threads())}
    for name, dtype in (("float64", torch.float64), ("float32", torch.float32)):
        x = torch.rand(4_000_000, dtype=dtype) * 1.8 - 0.9
        out, side = torch.empty_like(x), 1024
        square = torch.randn(side, side, dtype=dtype)
        into = torch.empty_like(square)
        found[f"arccos ns {name}"] = least(lambda x=x, out=out: torch.arccos(x, out=out), rounds) / 4e-3
        found[f"copy ns {name}"] = least(lambda x=x, out=out: out.copy_(x), rounds) / 4e-3
        seconds = least(lambda a=square, out=into: torch.mm(a, a, out=out), rounds)
        found[f"product Gflop/s {name}"] = 2 * side**3 / seconds / 1e9
    return found


def entries(sizes: dict[str, Any]) -> list[Row]:
    rows = []
    function, n, m = ntk(), sizes["entries"], sizes["landmarks"]
    for name, dtype, goal in (("float64", torch.float64, 9 / 2.0), ("float32", torch.float32, 4.5 / 0.8)):
        x, z = torch.randn(n, 9, dtype=dtype), torch.randn(m, 9, dtype=dtype)
        cosines, out = torch.rand(n, m, dtype=dtype) * 1.8 - 0.9, torch.empty(n, m, dtype=dtype)
        ours = least(lambda x=x, z=z: function(x, z), sizes["rounds"])
        bare = least(lambda c=cosines, out=out: torch.arccos(c, out=out), sizes["rounds"])
        note = f"{ours / n / m * 1e9:.1f} ns beside {bare / n / m * 1e9:.2f} ns"
        rows.append(Row(f"one NTK entry, {name}", "one arccosine", ours / bare, goal, note=note))
    return rows


def streamed(sizes: dict[str, Any]) -> list[Row]:
    function, n, m = ntk(), sizes["stream"], sizes["landmarks"]
    x, z = torch.randn(n, 9, dtype=torch.float64), torch.randn(m, 9, dtype=torch.float64)
    y = torch.sin(x[:, 0])
    features, gram = torch.randn(4096, m, dtype=torch.float64), torch.zeros(m, m, dtype=torch.float64)
    bare = least(lambda: gram.addmm_(features.mT, features), 3 * sizes["rounds"]) * n / 4096
    ours = least(lambda: regression.Nystrom(function, z).partial_fit(x, y), 2)
    note = f"{n} rows: {ours:.2f} s beside {bare:.2f} s"
    return [Row(f"streamed fit, {m} landmarks", "bare ΦᵀΦ", ours / bare, 1.1, note=note)]


def exact(sizes: dict[str, Any]) -> list[Row]:
    function, n = ntk(), sizes["fit"]
    x = torch.randn(n, 9, dtype=torch.float64)
    y = torch.sin(x[:, 0])
    matrix = function(x)
    matrix.diagonal().add_(0.1)
    info = torch.empty((), dtype=torch.int32)
    start = time.process_time()
    torch.linalg.cholesky_ex(matrix.mT, out=(matrix.mT, info))
    bare = time.process_time() - start
    del matrix
    start = time.process_time()
    regression.fit(function, x, y, noise=0.1, solver="cholesky")
    ours = time.process_time() - start
    note = f"{ours:.2f} s beside {bare:.2f} s"
    return [Row(f"exact fit, n = {n}", "bare Cholesky in place", ours / bare, 1.1, note=note)]


def bound(sizes: dict[str, Any]) -> list[Row]:
    rows = []
    for features in (1, 2, 8):
        x = torch.randn(min(300, sizes["fit"]), features, dtype=torch.float64)
        f = regression.fit(ntk(), x, torch.sin(2 * x[:, 0]) + x.sum(1), noise=0.01)
        far = torch.randn(20_000, features, dtype=torch.float64)
        far *= 10 ** (8 * torch.rand(len(far), 1, dtype=torch.float64) - 2)
        met, tight = float(f.mean(far).abs().max()), float(f.output_bound(name="tight"))
        goal = 1.02 if features <= 3 else 10.0
        note = f"{tight:.3g} beside {met:.3g}; without cells or constant {float(f.output_bound()):.3g}"
        rows.append(Row(f"bound, {features} feature(s)", "largest output met", tight / met, goal, note=note))
    return rows


def _loop(models: list[nn.Module], x: Tensor, y: Tensor, epochs: int, batch: int | None) -> None:
    for model in models:
        net = copy.deepcopy(model)
        optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
        for _ in range(epochs):
            for rows, targets in zip(x.split(batch or len(x)), y.split(batch or len(x)), strict=True):
                optimizer.zero_grad()
                nn.functional.mse_loss(net(rows), targets).backward()
                optimizer.step()


def stacks(sizes: dict[str, Any]) -> list[Row]:
    rows = []
    cases = (
        ("first", sizes["networks"], sizes["rows"], sizes["epochs"], None, 1.8),
        ("none", sizes["many"], sizes["rows"], sizes["epochs"], None, 2.0),
        ("none", sizes["many"], sizes["rows"], 1, 256, 4.0),
        ("none", sizes["many"], 100, sizes["small_epochs"], None, 7.0),
    )
    for placement, count, n, epochs, batch, goal in cases:
        x = torch.randn(n, 9)
        y = torch.sin(2 * x[:, :1])
        models: list[nn.Module] = [
            MLP(9, 1, width=128, depth=2, norm="layer", placement=placement, bias_var=0.01, dtype=torch.float32,
                generator=torch.Generator().manual_seed(seed))
            for seed in range(count)
        ]  # fmt: skip
        training = Training(epochs=epochs, batch_size=batch, lr=1e-3)
        loop = least(lambda m=models, x=x, y=y, e=epochs, b=batch: _loop(m, x, y, e, b), 1)
        ours = least(lambda m=models, x=x, y=y, t=training: train(m, x, y, training=t), 1)
        what = f"{count} networks, {placement}, {n} rows, {'whole batch' if batch is None else f'batches of {batch}'}"
        rows.append(Row(what, "plain loop", loop / ours, goal, True, f"{ours:.2f} s beside {loop:.2f} s"))
    return rows


def tangent(sizes: dict[str, Any]) -> list[Row]:
    width, n, rounds = sizes["width"], sizes["inputs"], 10 * sizes["rounds"]
    units: list[nn.Module] = [nn.Linear(n, width)]
    for _ in range(2):
        units += [nn.ReLU(), nn.Linear(width, width)]
    model = nn.Sequential(*units, nn.ReLU(), nn.Linear(width, 1)).eval()
    x = torch.randn(n, n)
    layers = [m for m in model if isinstance(m, nn.Linear)]

    def bare() -> Tensor:
        with torch.no_grad():
            inputs, h = [], x
            for k, layer in enumerate(layers):
                inputs.append(h)
                h = layer(h)
                h = h.relu() if k < 3 else h
            back, total = torch.ones(n, 1), torch.zeros(n, n)
            for k in range(3, -1, -1):
                total += (inputs[k] @ inputs[k].mT + 1) * (back @ back.mT)
                back = (back @ layers[k].weight) * (inputs[k] > 0)
        return total

    found, before = [], torch.get_num_threads()
    for threads in (1, 2):
        torch.set_num_threads(threads)
        ours, formula = least(lambda: empirical_ntk(model, x), rounds), least(bare, rounds)
        note = f"{1e3 * ours:.2f} ms beside {1e3 * formula:.2f} ms"
        found.append(
            Row(f"tangent kernel, {threads} thread(s)", "bare formula", ours / formula, 1.2, note=note)
        )
    torch.set_num_threads(before)
    return found


def growth(sizes: dict[str, Any]) -> dict[str, Any]:
    """Seconds at three sizes and the exponent of n, for entries, fits and streams."""
    function, m = ntk(), sizes["landmarks"]
    z = torch.randn(m, 9, dtype=torch.float64)

    def matrix(n: int) -> None:
        function(torch.randn(n, 9, dtype=torch.float64))

    def fit(n: int) -> None:
        x = torch.randn(n, 9, dtype=torch.float64)
        regression.fit(function, x, torch.sin(x[:, 0]), noise=0.1, solver="cholesky")

    def stream(n: int) -> None:
        x = torch.randn(n, 9, dtype=torch.float64)
        regression.Nystrom(function, z).partial_fit(x, torch.sin(x[:, 0]))

    found = {}
    for name, work, largest in (
        ("symmetric matrix", matrix, sizes["fit"] // 2),
        ("exact fit", fit, sizes["fit"] // 2),
        ("streamed fit", stream, sizes["stream"]),
    ):
        counts = [largest // 4, largest // 2, largest]
        seconds = [least(lambda n=n, work=work: work(n), 1) for n in counts]
        exponent = math.log(seconds[-1] / seconds[0]) / math.log(counts[-1] / counts[0])
        found[name] = {"rows": counts, "seconds": seconds, "exponent": exponent}
        say(f"  {name}: {', '.join(f'{s:.2f}' for s in seconds)} s at {counts} rows, exponent {exponent:.2f}")
    return found


PARTS: dict[str, Callable[[dict[str, Any]], list[Row]]] = {
    "entries": entries, "stream": streamed, "exact": exact, "bound": bound, "stacks": stacks, "tangent": tangent,
}  # fmt: skip


def table(runs: list[list[Row]]) -> str:
    """Work, what it is beside, the median ratio with its spread, and the goal."""
    lines = ["| work | beside | measured | spread | goal | |", "|---|---|---|---|---|---|"]
    for several in zip(*runs, strict=True):
        ratios = sorted(row.ratio for row in several)
        row = several[0]
        middle = ratios[len(ratios) // 2]
        sign = "≥" if row.faster else "≤"
        reached = Row(row.work, row.beside, middle, row.goal, row.faster).reached
        lines.append(
            f"| {row.work} | {row.beside} | {middle:.2f} | {ratios[0]:.2f}–{ratios[-1]:.2f} | "
            f"{sign} {row.goal:.3g} | {'' if reached else 'not reached here: '}{row.note} |"
        )
    return "\n".join(lines)


def own_limits(limits: dict[str, float]) -> str:
    """The machine's own limits, in words."""
    kinds = "; ".join(
        f"in {kind} an arccosine {limits[f'arccos ns {kind}']:.2f} ns, a copied number "
        f"{limits[f'copy ns {kind}']:.2f} ns, "
        f"products {limits[f'product Gflop/s {kind}']:.0f} Gflop/s"
        for kind in ("float64", "float32")
    )
    threads = f"{limits['threads']:.0f} threads"
    return f"The machine's own limits in the same process, in processor time, {threads}: {kinds}."


def growing(found: dict[str, Any]) -> str:
    """Seconds of a processor at three sizes with the exponent, and what the stream's says of 10⁹ rows."""
    lines = ["| work | rows: seconds of a processor | exponent of n |", "|---|---|---|"]
    for name, line in found.items():
        pairs = zip(line["rows"], line["seconds"], strict=True)
        lines.append(
            f"| {name} | {'; '.join(f'{n:,}: {s:.2f}' for n, s in pairs)} | {line['exponent']:.2f} |"
        )
    line = found["streamed fit"]
    billion = line["seconds"][-1] * (1e9 / line["rows"][-1]) ** max(1.0, line["exponent"])
    hours = f"{billion / 3600:.0f} hours of a processor"
    lines += ["", f"Extrapolated with its exponent (1 if less), a stream of 10⁹ rows takes {hours}."]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--quick", action="store_true", help="small sizes, one run: under a minute, ratios mean little"
    )
    parser.add_argument(
        "--runs", type=int, default=None, help="how often everything is measured (3; quick: 1)"
    )
    parser.add_argument("--parts", nargs="+", choices=sorted(PARTS), default=list(PARTS))
    parser.add_argument("--out", type=Path, default=None, help="folder for limits.json and limits.md")
    given = parser.parse_args()
    sizes = QUICK if given.quick else FULL
    count = given.runs or (1 if given.quick else 3)
    torch.manual_seed(0)
    limits = machine(sizes)
    print("  ".join(f"{name} {value:.3g}" for name, value in limits.items()), flush=True)
    say("cost as rows grow")
    exponents = growth(sizes)
    runs: list[list[Row]] = []
    for number in range(count):
        rows: list[Row] = []
        for name in given.parts:
            start = time.monotonic()
            rows += PARTS[name](sizes)
            say(f"run {number + 1} of {count}, {name}: {time.monotonic() - start:.0f} s")
        runs.append(rows)
        if given.out is not None:  # after every run: what was measured is there if the next is stopped
            record = {
                "provenance": provenance({"sizes": sizes, "runs": len(runs)}), "machine": limits, "growth": exponents,
                "rows": [[vars(row) | {"reached": row.reached} for row in rows] for rows in runs],
            }  # fmt: skip
            save_record(record, given.out / "limits.json")
            text = f"{table(runs)}\n\n{own_limits(limits)}\n\n{growing(exponents)}\n"
            (given.out / "limits.md").write_text(text, encoding="utf-8")
    print(table(runs))
    print(growing(exponents))


if __name__ == "__main__":
    main()
