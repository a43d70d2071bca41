"""How tight are certificates, and beside what?

    python -m benchmarks.certificates [--groups dim1,dim2,dim3,protein,wide,deep] [--networks 20] [--seconds 60]

Every network is certified for all of ℝⁿ; tightness is (upper − lower) over the range a gradient search attains, 1 at
best. Beside it, on the same networks: the product of spectral norms behind the last norm, interval propagation, and
(where the package ``bound-propagation`` is installed) a library's IBP and CROWN over the box that holds the norm's
image, since it knows no norms. Times are seconds of one run on this machine: compare within it only.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from farfield._provenance import provenance
from farfield.certify import certify
from farfield.certify.intervals import propagate
from farfield.graph import capture

EPOCHS = 5


def network(dim: int, width: int, depth: int, placement: str, seed: int) -> nn.Sequential:
    """Linear (LayerNorm) ReLU, ``depth`` times, and a Linear."""
    torch.manual_seed(seed)
    layers: list[nn.Module] = []
    for i in range(depth):
        layers.append(nn.Linear(dim if i == 0 else width, width))
        if placement == "every" or (placement == "first") == (i == 0):
            layers.append(nn.LayerNorm(width))
        layers.append(nn.ReLU())
    return nn.Sequential(*layers, nn.Linear(width, 1))


def toy(dim: int, seed: int) -> nn.Module:
    """Two hidden layers of 64, trained on sin(2 Σx) over [−2, 2]ⁿ."""
    model = network(dim, 64, 2, ("first", "every", "second")[seed % 3], seed).double()
    x = 4 * torch.rand(200, dim, dtype=torch.float64) - 2
    fit(model, x, torch.sin(2 * x.sum(-1, keepdim=True)), steps=300, batch=200)
    return model.eval()


def protein(width: int, depth: int, placements: tuple[str, ...]) -> Callable[[int], nn.Module]:
    """Trained on the protein table, standardized."""
    from benchmarks._protein import load

    def make(seed: int) -> nn.Module:
        split = load(seed)
        model = network(9, width, depth, placements[seed % len(placements)], seed)
        fit(
            model,
            split.train_x,
            split.train_y,
            steps=EPOCHS * len(split.train_x) // 256,
            batch=256,
            rate=1e-3,
        )
        return model.double().eval()

    return make


def fit(model: nn.Module, x: Tensor, y: Tensor, *, steps: int, batch: int, rate: float = 3e-3) -> None:
    """Adam on the squared error."""
    optimizer = torch.optim.Adam(model.parameters(), rate)
    for _ in range(steps):
        rows = torch.randperm(len(x))[:batch] if batch < len(x) else slice(None)
        optimizer.zero_grad()
        ((model(x[rows]) - y[rows]) ** 2).mean().backward()
        optimizer.step()


GROUPS: dict[str, tuple[int, Callable[[], Callable[[int], nn.Module]]]] = {
    "dim1": (1, lambda: lambda s: toy(1, s)),
    "dim2": (2, lambda: lambda s: toy(2, s)),
    "dim3": (3, lambda: lambda s: toy(3, s)),
    "protein": (9, lambda: protein(128, 2, ("first",))),
    "protein every": (9, lambda: protein(128, 2, ("every",))),
    "protein second": (9, lambda: protein(128, 2, ("second",))),
    "wide": (9, lambda: protein(512, 2, ("first",))),
    "deep": (9, lambda: protein(128, 4, ("first",))),
}


@torch.no_grad()
def spectral(model: nn.Module) -> float:
    """Width of the interval from ‖norm‖ ≤ √d times the spectral norms behind the last norm."""
    layers = list(model.children())
    last = max(i for i, layer in enumerate(layers) if isinstance(layer, nn.LayerNorm))
    norm = layers[last]
    reach = math.sqrt(norm.normalized_shape[0]) * float(norm.weight.abs().max()) + float(norm.bias.norm())
    for layer in layers[last + 1 :]:
        if isinstance(layer, nn.Linear):
            reach = float(torch.linalg.matrix_norm(layer.weight, 2)) * reach + float(layer.bias.norm())
    return 2 * reach


def library(model: nn.Module) -> dict[str, float]:
    """Widths from ``bound-propagation`` over the box of the last norm's image."""
    try:
        from bound_propagation import BoundModelFactory, HyperRectangle
    except ImportError:
        return {}
    layers = list(model.children())
    last = max(i for i, layer in enumerate(layers) if isinstance(layer, nn.LayerNorm))
    norm = layers[last]
    size = norm.normalized_shape[0]
    affine = nn.Linear(size, size).double()
    with torch.no_grad():
        affine.weight.copy_(torch.diag(norm.weight))
        affine.bias.copy_(norm.bias)
    tail = BoundModelFactory().build(nn.Sequential(affine, *layers[last + 1 :]))
    edge = math.sqrt(size - 1.0) * torch.ones(1, size, dtype=torch.float64)
    with torch.no_grad():
        box = HyperRectangle(-edge, edge)
        interval, crown = tail.ibp(box), tail.crown(box).concretize()
    return {
        "library IBP": float((interval.upper - interval.lower).sum()),
        "library CROWN": float((crown.upper - crown.lower).sum()),
    }


def measure(model: nn.Module, dim: int, seconds: float) -> dict[str, Any]:
    """One network."""
    example = torch.zeros(1, dim, dtype=torch.float64)
    begun = time.monotonic()
    certificate = certify(model, example, time_budget=seconds)
    spent = time.monotonic() - begun
    range_ = float(certificate.attained_upper - certificate.attained_lower)
    program = capture(model, example, dynamic_batch=False)
    claim = propagate(program)[program.outputs[0]]
    beside = {"spectral": spectral(model), "interval": float(claim.hi - claim.lo), **library(model)}
    return {
        "tightness": float(certificate.tightness),
        "method": certificate.method,
        "seconds": spent,
        **{name: width / range_ for name, width in beside.items()},
    }


def rows(groups: list[str], networks: int, seconds: float) -> Iterator[dict[str, Any]]:
    """A row per group."""
    for group in groups:
        dim, maker = GROUPS[group]
        make, found = maker(), []
        for seed in range(networks):
            found.append(measure(make(seed), dim, seconds))
            print(f"{group} {seed}: {found[-1]}", file=sys.stderr, flush=True)
        names = [n for n in found[0] if n != "method"]
        yield {
            "group": group,
            "networks": networks,
            "time_budget": seconds,
            **{n: statistics.median(f[n] for f in found) for n in names},
            "worst": max(f["tightness"] for f in found),
            "methods": sorted({f["method"] for f in found}),
        }


def main() -> None:
    """Print the table, and store it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--groups", default=",".join(GROUPS))
    parser.add_argument("--networks", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--out", type=Path)
    words = parser.parse_args()
    table = []
    for row in rows(words.groups.split(","), words.networks, words.seconds):
        print(json.dumps(row), flush=True)
        table.append(row)
    if words.out is not None:
        settings = {
            "groups": words.groups,
            "networks": words.networks,
            "seconds": words.seconds,
            "epochs": EPOCHS,
        }
        words.out.write_text(json.dumps({"rows": table, "provenance": provenance(settings)}, indent=2) + "\n")


if __name__ == "__main__":
    main()
