"""The empirical tangent kernel: what it costs, against the other ways there are and the least there could be.

    python -m benchmarks.ntk [--quick] [--tasks mlp wide cnn transformer] [--jax-python PY] [--out FOLDER]

mlp          width 512, 4 hidden layers, n = 100, one thread: ours against the vmap(jacrev) contraction, nngeometry
             (if it can be imported), the archived JAX library (a Python that has it, given by --jax-python), and the
             bare Σ (AAᵀ + 1) ⊙ (BBᵀ) written out for this network. All in one run, on the same inputs.
wide         width 2048, 6 hidden layers, n = 500, under 4 GB, where the Jacobian would take 40.
cnn          a small convolutional network, n = 200, 10 outputs.
transformer  10 million parameters, n = 16 sequences.

CPU-seconds are the least of several rounds in which the methods take turns. Peak memory is that of a process of its
own, less what it held before the call. Without --quick a record is written, with versions and settings.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from farfield import ntk
from farfield._provenance import provenance

TASKS = ("mlp", "wide", "cnn", "transformer")
FULL: dict[str, Any] = {
    "mlp": {"width": 512, "depth": 4, "inputs": 100, "n": 100, "rounds": 9},
    "wide": {"width": 2048, "depth": 6, "inputs": 100, "n": 500, "memory": "4GB"},
    "cnn": {"channels": 32, "side": 32, "n": 200, "outputs": 10, "memory": "4GB"},
    "transformer": {"width": 384, "depth": 6, "vocabulary": 512, "length": 64, "n": 16, "memory": "4GB"},
}
QUICK: dict[str, Any] = {
    "mlp": {"width": 512, "depth": 4, "inputs": 100, "n": 100, "rounds": 3},
    "wide": {"width": 512, "depth": 4, "inputs": 100, "n": 200, "memory": "100MB"},
    "cnn": {"channels": 8, "side": 16, "n": 40, "outputs": 3, "memory": "200MB"},
    "transformer": {"width": 64, "depth": 2, "vocabulary": 128, "length": 32, "n": 8, "memory": "200MB"},
}
SEED = 0


# ------------------------------------------------------------------ models


def mlp(inputs: int, width: int, depth: int) -> nn.Sequential:
    layers: list[nn.Module] = [nn.Linear(inputs, width), nn.ReLU()]
    for _ in range(depth - 1):
        layers += [nn.Linear(width, width), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(width, 1)).eval()


def cnn(channels: int, side: int, outputs: int) -> nn.Sequential:
    c = channels
    return nn.Sequential(
        nn.Conv2d(3, c, 3, padding=1), nn.GroupNorm(4, c), nn.ReLU(),
        nn.Conv2d(c, 2 * c, 3, stride=2, padding=1), nn.GroupNorm(4, 2 * c), nn.ReLU(),
        nn.Conv2d(2 * c, 2 * c, 3, stride=2, padding=1), nn.ReLU(), nn.Flatten(),
        nn.Linear(2 * c * (side // 4) ** 2, outputs),
    ).eval()  # fmt: skip


class Block(nn.Module):
    """A causal transformer block, norms first."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attend, self.project = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """(n, t, d) → (n, t, d)."""
        n, t, d = x.shape
        parts = self.attend(self.before(x)).view(n, t, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(parts[0], parts[1], parts[2], is_causal=True)
        x = x + self.project(mixed.transpose(1, 2).reshape(n, t, d))
        return x + self.down(F.gelu(self.up(self.between(x))))


class Transformer(nn.Module):
    """Token and position embeddings, blocks, and a tied head that reads the last position."""

    def __init__(self, vocabulary: int, length: int, width: int, depth: int) -> None:
        super().__init__()
        self.words = nn.Embedding(vocabulary, width)
        self.places = nn.Parameter(0.02 * torch.randn(1, length, width))
        self.blocks = nn.Sequential(*(Block(width, max(1, width // 64)) for _ in range(depth)))
        self.last = nn.LayerNorm(width)

    def forward(self, tokens: Tensor) -> Tensor:
        """Tokens (n, t) → logits (n, vocabulary)."""
        h = self.last(self.blocks(self.words(tokens) + self.places))[:, -1]
        return F.linear(h, self.words.weight)


# ------------------------------------------------------------------ measuring


def turns(ways: dict[str, Callable[[], Any]], rounds: int) -> dict[str, dict[str, float]]:
    """The least CPU and wall seconds of each, after one call that is not counted."""
    for work in ways.values():
        work()
    best = {name: {"cpu": math.inf, "wall": math.inf} for name in ways}
    for _ in range(rounds):
        for name, work in ways.items():
            wall, cpu = time.perf_counter(), time.process_time()
            work()
            now = {"cpu": time.process_time() - cpu, "wall": time.perf_counter() - wall}
            best[name] = {kind: min(best[name][kind], now[kind]) for kind in now}
    return best


def restart_peak() -> None:
    """Forget the peak of memory so far; a process inherits that of the one that started it."""
    Path("/proc/self/clear_refs").write_text("5")


def memory(kind: str) -> int:
    """Bytes resident now (``VmRSS``) or at most since :func:`restart_peak` (``VmHWM``)."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(kind))


def difference(found: Tensor, truth: Tensor) -> float:
    return float((found.double() - truth.double()).abs().max() / truth.double().abs().max())


# ------------------------------------------------------------------ mlp: the ways there are


def tutorial(model: nn.Module, x: Tensor) -> Tensor:
    """Jacobians by vmap(jacrev), contracted."""
    values = {name: p.detach() for name, p in model.named_parameters()}

    def one(parameters: dict[str, Tensor], z: Tensor) -> Tensor:
        y: Tensor = torch.func.functional_call(model, parameters, (z.unsqueeze(0),))
        return y.squeeze(0)

    jacobian = torch.func.vmap(torch.func.jacrev(one), (None, 0))(values, x)
    parts = [j.flatten(2) for j in jacobian.values()]
    return torch.stack([torch.einsum("nkp,mkp->nm", j, j) for j in parts]).sum(0)


def bare(model: nn.Sequential, x: Tensor) -> Tensor:
    """Σ (AAᵀ + 1) ⊙ (BBᵀ) for a stack of Linear and ReLU, with nothing around it."""
    with torch.no_grad():
        linears = [layer for layer in model if isinstance(layer, nn.Linear)]
        inputs, masks = [x], []
        for layer in linears[:-1]:
            h = layer(inputs[-1])
            masks.append(h > 0)
            inputs.append(h.relu_())
        g = torch.ones(len(x), 1, dtype=x.dtype)
        total = torch.zeros(len(x), len(x), dtype=x.dtype)
        for k in range(len(linears) - 1, -1, -1):
            total += (inputs[k] @ inputs[k].T + 1) * (g @ g.T)
            if k:
                g = (g @ linears[k].weight) * masks[k - 1]
        return total


def nngeometry_way(model: nn.Module, x: Tensor) -> Callable[[], Tensor] | None:
    try:
        from nngeometry.gram import GramMatrix
    except ImportError:
        return None
    loader = torch.utils.data.DataLoader(
        torch.utils.data.TensorDataset(x, torch.zeros(len(x))), batch_size=len(x)
    )

    def way() -> Tensor:
        gram: Tensor = GramMatrix(model, loader, function=lambda *d: model(d[0])).data
        return gram.reshape(len(x), len(x))

    return way


JAX = """
import json, sys, time
import jax
import jax.numpy as jnp
import jax.interpreters.ad
import jax._src.source_info_util
# What its third method expects of an older JAX.
for name, value in (("source_info_util", jax._src.source_info_util), ("config", jax.config)):
    if not hasattr(jax.interpreters.ad, name):
        setattr(jax.interpreters.ad, name, value)
import neural_tangents as nt
from neural_tangents import stax
size = json.loads(sys.argv[1])
layers = []
for _ in range(size["depth"]):
    layers += [stax.Dense(size["width"]), stax.Relu()]
init, apply, _ = stax.serial(*layers, stax.Dense(1))
key = jax.random.PRNGKey(0)
x = jax.random.normal(key, (size["n"], size["inputs"]))
_, parameters = init(key, x.shape)
found = {"versions": {"jax": jax.__version__, "neural_tangents": nt.__version__}}
for way in (1, 2, 3):
    try:
        kernel = jax.jit(nt.empirical_ntk_fn(apply, trace_axes=(-1,), vmap_axes=0, implementation=way))
        kernel(x, None, parameters).block_until_ready()
        best = {"cpu": 1e9, "wall": 1e9}
        for _ in range(size["rounds"]):
            wall, cpu = time.perf_counter(), time.process_time()
            kernel(x, None, parameters).block_until_ready()
            best["cpu"] = min(best["cpu"], time.process_time() - cpu)
            best["wall"] = min(best["wall"], time.perf_counter() - wall)
        found[str(way)] = best
    except Exception as error:
        found[str(way)] = repr(error)[:200]
print(json.dumps(found))
"""


def jax_way(python: str | None, size: dict[str, Any]) -> dict[str, Any] | str:
    """Each of its methods, in its own process and on one thread; why not, if not."""
    if python is None:
        return "not asked for: give --jax-python"
    flags = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
    done = subprocess.run(
        [python, "-c", JAX, json.dumps(size)], capture_output=True, text=True, check=False,
        env={**os.environ, "XLA_FLAGS": flags, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    if done.returncode:
        return f"failed: {done.stderr.strip().splitlines()[-1]}"
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def run_mlp(size: dict[str, Any], jax_python: str | None) -> dict[str, Any]:
    torch.manual_seed(SEED)
    model = mlp(size["inputs"], size["width"], size["depth"])
    x = torch.randn(size["n"], size["inputs"])
    truth = bare(model.double(), x.double())
    model.float()
    ways: dict[str, Callable[[], Tensor]] = {
        "farfield": lambda: ntk.empirical_ntk(model, x),
        "bare": lambda: bare(model, x),
        "vmap(jacrev)": lambda: tutorial(model, x),
    }
    peer = nngeometry_way(model, x)
    if peer is not None:
        ways["nngeometry"] = peer
    errors = {name: difference(way(), truth) for name, way in ways.items()}
    best: dict[str, Any] = turns(ways, size["rounds"])
    ours = best["farfield"]["cpu"]
    ratios: dict[str, Any] = {name: best[name]["cpu"] / ours for name in ways if name != "farfield"}
    if peer is None:
        ratios["nngeometry"] = "not installed"
    found = jax_way(jax_python, size)
    if isinstance(found, dict):
        best["neural-tangents"] = found
        working = [way["cpu"] for way in found.values() if isinstance(way, dict) and "cpu" in way]
        ratios["neural-tangents, best method"] = (
            min(working) / ours if working else "none of its methods works"
        )
    else:
        ratios["neural-tangents, best method"] = found
    return {
        "seconds": best,
        "ratio of CPU-seconds to ours": ratios,
        "relative error, float32": errors,
        "limits": "one pass of the batch forward and back, and a Gram matrix of inputs and of gradients for every "
        "layer; bare does the same without finding out the structure",
        "method": ntk.choose_method(model, x).reason,
    }


# ------------------------------------------------------------------ the others: each in a process of its own


def subject(task: str, size: dict[str, Any]) -> tuple[nn.Module, Tensor, Any]:
    """A model, its inputs, and which outputs."""
    torch.manual_seed(SEED)
    if task == "wide":
        return (
            mlp(size["inputs"], size["width"], size["depth"]),
            torch.randn(size["n"], size["inputs"]),
            "trace",
        )
    if task == "cnn":
        model = cnn(size["channels"], size["side"], size["outputs"])
        return model, torch.randn(size["n"], 3, size["side"], size["side"]), "trace"
    network = Transformer(size["vocabulary"], size["length"], size["width"], size["depth"]).eval()
    return network, torch.randint(0, size["vocabulary"], (size["n"], size["length"])), 0


def measured(task: str, size: dict[str, Any]) -> dict[str, Any]:
    """One kernel, its time and its peak of memory, checked in a corner against products."""
    model, x, outputs = subject(task, size)
    choice = ntk.choose_method(model, x, outputs=outputs, memory=size["memory"])
    ntk.empirical_ntk(model, x[:2], outputs=outputs)  # what is loaded on first use
    restart_peak()
    before = memory("VmRSS")
    wall, cpu = time.perf_counter(), time.process_time()
    kernel = ntk.empirical_ntk(model, x, outputs=outputs, memory=size["memory"])
    seconds = {"cpu": time.process_time() - cpu, "wall": time.perf_counter() - wall}
    peak = memory("VmHWM")
    corner = ntk.empirical_ntk(model, x[:2], outputs=outputs, method="ntvp")
    with torch.no_grad():
        outs = 1 if outputs != "trace" else model(x[:1]).numel()
    with torch.enable_grad():
        wall, cpu = time.perf_counter(), time.process_time()
        for part in x.split(choice.batch):
            y = model(part).flatten(1)
            for k in range(outs):
                torch.autograd.grad(y[:, k].sum(), list(model.parameters()), retain_graph=k + 1 < outs)
        passes = time.process_time() - cpu
    parameters = sum(p.numel() for p in model.parameters())
    return {
        "parameters": parameters,
        "n": len(x),
        "outputs": outs,
        "method": choice.method,
        "reason": choice.reason,
        "side of a tile": choice.side,
        "seconds": seconds,
        "CPU-seconds of a plain forward and backward pass for each output": passes,
        "ratio to those passes": seconds["cpu"] / passes,
        "entries a CPU-second": kernel.numel() / seconds["cpu"],
        "budget": size["memory"],
        "peak GB above start": (peak - before) / 1e9,
        "peak GB in all": peak / 1e9,
        "GB the Jacobian would take": parameters
        * outs
        * len(x)
        * x.new_empty(0, dtype=torch.float32).itemsize
        / 1e9,
        "relative difference from products, in a corner": difference(kernel[:2, :2], corner),
        "limits": LIMITS[task],
    }


LIMITS = {
    "wide": "the passes through the model and the Gram matrices of every layer, both matrix products",
    "cnn": "gradients of the convolutions are formed, a chunk at a time, because a picture has more places than a "
    "filter has weights",
    "transformer": "Gram matrices over all pairs of positions, or forming the gradients, whichever takes fewer "
    "operations; the tied embedding as unit vectors",
}


def apart(task: str, size: dict[str, Any]) -> dict[str, Any]:
    words = [sys.executable, "-m", "benchmarks.ntk", "--measure", task, json.dumps(size)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{task} failed:\n{done.stderr[-2000:]}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--quick", action="store_true", help="small sizes, and no record unless --out says where"
    )
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=TASKS)
    parser.add_argument("--jax-python", help="a Python that has the archived JAX library")
    parser.add_argument(
        "--out", type=Path, help="folder of the record; docs/reproductions/ntk without --quick"
    )
    parser.add_argument("--measure", nargs=2, help=argparse.SUPPRESS)
    words = parser.parse_args()
    torch.set_num_threads(1)
    if words.measure:
        print(json.dumps(measured(words.measure[0], json.loads(words.measure[1]))))
        return
    sizes = QUICK if words.quick else FULL
    record: dict[str, Any] = {}
    for task in words.tasks:
        record[task] = run_mlp(sizes[task], words.jax_python) if task == "mlp" else apart(task, sizes[task])
        print(json.dumps({task: record[task]}, indent=1, ensure_ascii=False), flush=True)
    out = words.out or (None if words.quick else Path("docs/reproductions/ntk"))
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        origin = provenance({task: sizes[task] for task in words.tasks}, seed=SEED)
        text = json.dumps(
            {"quick": words.quick, **record, "provenance": origin}, indent=1, ensure_ascii=False
        )
        (out / "speed.json").write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
