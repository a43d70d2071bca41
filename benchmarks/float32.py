"""Certificates of what float32 computes, against float32: hostile inputs, several orders of summation.

    python -m benchmarks.float32 [--count 200] [--steps 12] [--out float32.jsonl]

Random networks (norms at the first layer, at every layer, a cap at the input, a range at the end; fifteen
activations) are certified with ``arithmetic="float32"``. Then they are run in float32 by torch, and layer by layer
with every sum in another order (forwards, backwards, at random, by size, in pairs, and in torch's own blocks), on
inputs of every size up to the stated magnitude, on inputs at which the first norm's deviation almost vanishes, and
on those that gradients found for the largest and least output. Zero slack. A network without a bound of its
rounding counts as refused and is replaced by the next one.
"""

from __future__ import annotations

import argparse
import copy
import json
import math
import random
import statistics
import sys
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

from benchmarks._rows import collect, read_rows
from certify.networks import ACTIVATIONS
from farfield import Budget
from farfield._provenance import provenance
from farfield.certify import CertificateError, UnboundedError, certify, verify_certificate
from farfield.certify.arithmetic import RoundingError
from farfield.nn import NormCap, RangeHead

ORDERS = ("torch", "forward", "backward", "random", "rising", "falling", "pairs")


def random_network(seed: int) -> tuple[nn.Sequential, int, str]:
    """(network in float32, inputs, what it is)."""
    rng = random.Random(seed)
    torch.manual_seed(seed)
    dim, width, depth = rng.choice([1, 2, 3, 5, 9]), rng.choice([8, 16, 32, 64]), rng.choice([1, 2, 2, 3])
    name = rng.choice(list(ACTIVATIONS))
    place = rng.choice(["first", "first", "first", "every", "cap"])
    norm = rng.choice(["layer", "layer", "plain", "rms"])
    layers: list[nn.Module] = [NormCap(rng.choice([1.0, 10.0]))] if place == "cap" else []
    for i in range(depth):
        layers.append(nn.Linear(dim if i == 0 else width, width))
        if place == "every" or (place == "first" and i == 0):
            layers.append(
                nn.RMSNorm(width, eps=1e-6)
                if norm == "rms"
                else nn.LayerNorm(width, elementwise_affine=norm == "layer")
            )
        layers.append(ACTIVATIONS[name]())
    layers.append(nn.Linear(width, 1))
    if rng.random() < 0.3:
        layers.append(RangeHead(-1.0, 2.0))
    net = nn.Sequential(*layers)
    shift = rng.choice([0.0, 0.0, 10.0])
    with torch.no_grad():
        for p in net.parameters():
            if p.ndim == 1:
                p.add_(0.3 * torch.randn_like(p))
        first = next(m for m in net if isinstance(m, nn.Linear))
        first.bias.add_(shift)
        first.weight.mul_(rng.choice([0.1, 1.0, 10.0]))
    return net.eval(), dim, f"dim {dim}, {depth}×{width}, {place} {norm} {name}, shift {shift:g}"


def hostile_inputs(net: nn.Sequential, dim: int, magnitude: float, seed: int) -> Tensor:
    """Sizes from 1e-8 to the magnitude, inputs where the first layer hardly varies, and extremes of the output."""
    source = torch.Generator().manual_seed(seed)
    sizes = 10.0 ** torch.linspace(-8, math.log10(magnitude), 40, dtype=torch.float64)
    rows = [s * (2 * torch.rand(10, dim, generator=source, dtype=torch.float64) - 1) for s in sizes]
    rows += [s * torch.sign(torch.randn(2, dim, generator=source, dtype=torch.float64)) for s in sizes]
    first = next(m for m in net if isinstance(m, nn.Linear))
    weight, bias = first.weight.detach().double(), first.bias.detach().double()
    centers = [
        torch.linalg.lstsq(weight - weight.mean(0), (bias.mean() - bias)[:, None]).solution[:, 0],
        torch.linalg.lstsq(weight, -bias[:, None]).solution[:, 0],
    ]
    for center in centers:
        rows += [
            center + size * torch.randn(12, dim, generator=source, dtype=torch.float64)
            for size in (0.0, 1e-9, 1e-7, 1e-5, 1e-3, 1e-1, 1.0)
        ]
        for direction in torch.linalg.svd(weight - weight.mean(0)).Vh[-2:]:
            rows += [sizes[:, None] * direction + center, center - sizes[:, None] * direction]
    points = torch.cat(rows).clamp(-magnitude, magnitude)
    return torch.cat(
        [points, *(climbed(net, points, sign).clamp(-magnitude, magnitude) for sign in (1.0, -1.0))]
    )


def climbed(net: nn.Sequential, points: Tensor, sign: float) -> Tensor:
    """Gradient ascent in float64 from the best forty, in size and direction."""
    real = copy.deepcopy(net).double()
    with torch.no_grad():
        values = sign * real(points)[:, 0]
    x = points[values.nan_to_num(-math.inf).topk(40).indices]
    kept = [x]
    for k in range(40):
        x = x.detach().requires_grad_(True)
        (slope,) = torch.autograd.grad((sign * real(x)).sum(), x)
        length = slope.norm(dim=1, keepdim=True).clamp_min(1e-300)
        x = x + 0.3 * 0.9**k * slope / length * x.norm(dim=1, keepdim=True).clamp_min(1e-3)
        if k % 10 == 9:
            kept.append(x.detach())
    return torch.cat(kept)


def total(terms: Tensor, order: str, source: torch.Generator) -> Tensor:
    """Σ over the last axis in float32, one rounding after another."""
    if order == "torch":
        return terms.sum(-1)
    if order == "pairs":
        while terms.shape[-1] > 1:
            if terms.shape[-1] % 2:
                terms = torch.cat([terms, torch.zeros_like(terms[..., :1])], -1)
            terms = terms[..., ::2] + terms[..., 1::2]
        return terms[..., 0]
    if order == "backward":
        terms = terms.flip(-1)
    elif order == "random":
        terms = terms[..., torch.randperm(terms.shape[-1], generator=source)]
    elif order in ("rising", "falling"):
        at = terms.abs().argsort(-1, descending=order == "falling")
        terms = terms.gather(-1, at)
    result = torch.zeros_like(terms[..., 0])
    for j in range(terms.shape[-1]):
        result = result + terms[..., j]
    return result


def computed(net: nn.Sequential, x: Tensor, order: str, source: torch.Generator) -> Tensor:
    """The network in float32 with the sums of its products in some order."""
    for module in net:
        if isinstance(module, nn.Linear):
            x = total(x[:, None, :] * module.weight, order, source) + module.bias
        else:
            x = module(x)
    return x


def examine(seed: int, steps: int) -> dict[str, Any]:
    """One network: certified, verified, run."""
    net, dim, what = random_network(seed)
    example = torch.zeros(1, dim)
    try:
        made = certify(net, example, time_budget=Budget(steps=steps), arithmetic="float32")
    except (RoundingError, UnboundedError) as error:
        return {"what": what, "refused": str(error)[:200], "faults": []}
    faults: list[str] = []
    try:
        verify_certificate(net, made)
    except CertificateError as error:
        faults.append(f"refused: {error}")
    magnitude, allowed = float(made.arithmetic["magnitude"]), float(made.arithmetic["error"][0])
    x = hostile_inputs(net, dim, magnitude, seed).float()
    with torch.no_grad():
        real = copy.deepcopy(net).double()(x.double())
    source = torch.Generator().manual_seed(seed)
    worst, leaks = 0.0, 0
    with torch.no_grad():
        for order in ("as it runs", *ORDERS):
            given = (net(x) if order == "as it runs" else computed(net, x, order, source)).double()
            bad = ~((given <= made.upper.reshape(-1)) & (given >= made.lower.reshape(-1)))
            off = (given - real).abs()
            leaks += int((bad | ~(off <= allowed)).sum())
            worst = max(worst, float(off.max()))
    if leaks:
        faults.append(f"leak: {leaks} values outside ({what})")
    return {
        "what": what, "magnitude": magnitude, "error": allowed, "met": worst, "inputs": len(x), "leaks": leaks,
        "faults": faults,
    }  # fmt: skip


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Counts, and how much of the bound was met."""
    made = [r for r in rows if "error" in r]
    errors = [float(r["error"]) for r in made]
    return {
        "networks": len(rows),
        "certificates": len(made),
        "refused, no bound of the rounding": len(rows) - len(made),
        "leaks": sum(bool(r["leaks"]) for r in made),
        "refused by the checker": sum(any(f.startswith("refused") for f in r["faults"]) for r in made),
        "orders of summation": len(ORDERS) + 1,
        "inputs of each": statistics.median(r["inputs"] for r in made) if made else 0,
        "median bound of the rounding": statistics.median(errors) if made else None,
        "median of the largest rounding met": statistics.median(r["met"] for r in made) if made else None,
        "largest share of a bound that was met": max((r["met"] / r["error"] for r in made), default=0.0),
    }


def main() -> None:
    """Run until there are enough certificates, and print the summary."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=200, help="certificates")
    parser.add_argument("--steps", type=int, default=12, help="of search for each certificate")
    parser.add_argument("--out", type=Path)
    words = parser.parse_args()
    torch.set_num_threads(1)
    rows, tried = read_rows(words.out), 0
    while (short := words.count - sum("error" in r for r in rows)) > 0 and tried < 3 * words.count:
        tried = max((r["key"] for r in rows), default=-1) + 1 + short
        seeds = range(tried) if words.out is not None else range(tried - short, tried)
        new = collect(seeds, lambda seed: examine(seed, words.steps), words.out)
        rows = new if words.out is not None else [*rows, *new]
    settings = {"count": words.count, "steps": words.steps}
    print(json.dumps({**summary(rows), "provenance": provenance(settings)}, indent=1, ensure_ascii=False))


if __name__ == "__main__":
    main()
