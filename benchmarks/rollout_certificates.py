"""Rollout certificates against simulation: does any state leave what was proved?

    python -m benchmarks.rollout_certificates [--count 500] [--steps 60] [--out rollouts.jsonl]

Random steps x⁺ = A·x + g(x, u): replaced, leaky, dense, delayed, moving, standardized, driven by a control. Each
one is certified, verified, and simulated from starts of every size up to 100, from the corners and faces of the
boxes that were proved, and, for drifts, from inputs that gradients found. Zero slack: an entry outside by one unit
in the last place is a leak. The summary is JSON on stdout; with ``--out`` every outcome is a line of that file, and
a second run goes on there.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

from benchmarks._rows import collect
from certify.networks import ACTIVATIONS
from farfield import Budget
from farfield._provenance import provenance
from farfield.certify import (
    CertificateError,
    RolloutCertificate,
    RolloutVerdict,
    certify_rollout,
    verify_rollout,
)

F64 = torch.float64
LONGEST = 3000
"""Steps that are simulated at most; a box that is only proved to be reached later is tested from inside."""
RADIUS = 100.0
STARTS = 96


class Step(nn.Module):
    """x⁺ = A·x + b + scale·net((x − mean)/scale, u), A given."""

    def __init__(
        self, matrix: Tensor, net: nn.Module, rng: random.Random, standardized: bool, controls: int
    ) -> None:
        super().__init__()
        size = len(matrix)
        self.net = net
        self.register_buffer("matrix", matrix)
        self.register_buffer(
            "mean", torch.randn(size, dtype=F64) if standardized else torch.zeros(size, dtype=F64)
        )
        self.register_buffer(
            "scale",
            torch.rand(size, dtype=F64) * rng.choice([0.3, 3.0]) + 0.1
            if standardized
            else torch.ones(size, dtype=F64),
        )
        self.gate = nn.Linear(controls, size).double() if controls else None
        if self.gate is not None:
            with torch.no_grad():
                self.gate.weight.mul_(rng.choice([1.0, 5.0]))

    def forward(self, x: Tensor, u: Tensor | None = None) -> Tensor:
        """The next state."""
        added = self.scale * self.net((x - self.mean) / self.scale)
        return x @ self.matrix.T + added + (0.0 if self.gate is None else self.gate(u))


class Delays(nn.Module):
    """The newest of three frames comes from all of them; the others move up."""

    def __init__(self, size: int, net: nn.Module) -> None:
        super().__init__()
        self.size, self.net = size, net

    def forward(self, x: Tensor) -> Tensor:
        """The next state."""
        return torch.cat([x[:, self.size :], self.net(x)], 1)


def bounded(rng: random.Random, inputs: int, outputs: int) -> tuple[nn.Module, str]:
    """A network with a norm at its first layer, and weights large enough to make its rollout move."""
    width, depth, name = rng.choice([6, 12, 24]), rng.choice([1, 1, 2]), rng.choice(list(ACTIVATIONS))
    layers: list[nn.Module] = []
    for i in range(depth):
        layers.append(nn.Linear(inputs if i == 0 else width, width))
        if i == 0 or rng.random() < 0.3:
            layers.append(nn.LayerNorm(width))
        layers.append(ACTIVATIONS[name]())
    net = nn.Sequential(*layers, nn.Linear(width, outputs)).double()
    with torch.no_grad():
        net[-1].weight.mul_(rng.choice([0.5, 1.0, 3.0, 10.0]))
    return net, f"{depth}×{width} {name}"


def random_step(seed: int) -> tuple[nn.Module, int, int, str]:
    """(step, entries of its state, of its controls, what it is)."""
    rng = random.Random(seed)
    torch.manual_seed(seed)
    kind = rng.choice(
        ["replaced", "leaky", "turned", "dense", "delays", "moving", "drift", "standardized", "driven"]
    )
    if kind == "delays":
        size = rng.choice([1, 2])
        net, what = bounded(rng, 3 * size, size)
        return Delays(size, net).eval(), 3 * size, 0, f"{kind} {what}"
    size = rng.choice([1, 2, 3, 4])
    eye = torch.eye(size, dtype=F64)
    if kind in ("replaced", "drift"):
        matrix = (0.0 if kind == "replaced" else 1.0) * eye
    elif kind in ("leaky", "turned", "standardized", "driven"):
        matrix = (-1 if kind == "turned" else 1) * rng.uniform(0.2, 0.97) * eye
    elif kind == "moving":
        half = torch.eye(max(1, size // 2), dtype=F64)
        size = 2 * len(half)
        matrix = torch.cat([torch.cat([0.9 * half, 0.1 * half], 1), torch.cat([0 * half, 0.8 * half], 1)])
    else:
        matrix = torch.randn(size, size, dtype=F64)
        matrix = matrix * rng.uniform(0.3, 0.97) / float(torch.linalg.eigvals(matrix).abs().max())
    net, what = bounded(rng, size, size)
    controls = 1 if kind == "driven" or (kind not in ("drift", "standardized") and rng.random() < 0.5) else 0
    return (
        Step(matrix, net, rng, kind in ("standardized", "drift"), controls).double().eval(),
        size,
        controls,
        f"{kind} {size}{' with a control' if controls else ''} {what}",
    )


def starts(size: int, found: RolloutCertificate, draw: torch.Generator) -> tuple[Tensor, Tensor]:
    """(any start up to RADIUS, starts in the attractor's box: inside, at corners, on faces)."""
    sign = torch.sign(torch.randn(STARTS // 2, size, generator=draw, dtype=F64))
    sizes = RADIUS * 10 ** (-6 * torch.rand(STARTS, 1, generator=draw, dtype=F64))
    anywhere = sizes * (2 * torch.rand(STARTS, size, generator=draw, dtype=F64) - 1)
    anywhere = torch.cat([anywhere, RADIUS * sign])
    if found.attractor_lower is None or found.attractor_upper is None:
        return anywhere, anywhere[:0]
    low, high = found.attractor_lower.reshape(-1), found.attractor_upper.reshape(-1)
    corners = torch.where(sign > 0, high, low)
    inside = low + (high - low) * torch.rand(STARTS, size, generator=draw, dtype=F64)
    faces = inside[: STARTS // 2].clone()
    at = torch.arange(len(faces))
    faces[at, at % size] = corners[at, at % size]
    return anywhere, torch.cat([inside, corners, faces])


@torch.no_grad()
def simulate(step: nn.Module, x: Tensor, steps: int, controls: int, draw: torch.Generator) -> Tensor:
    """(steps + 1, starts, size); controls are random, and for half of the starts one of the two ends."""
    path = [x]
    for _ in range(steps):
        if controls:
            u = 2 * torch.rand(len(x), controls, generator=draw, dtype=F64) - 1
            u[::2] = torch.sign(u[::2])
            x = step(x, u)
        else:
            x = step(x)
        path.append(x)
    return torch.stack(path)


def steepest(step: nn.Module, x: Tensor, entry: int, sign: float) -> Tensor:
    """Inputs from which an entry moves far in one step: gradient ascent over size and direction."""
    for k in range(40):
        x = x.detach().requires_grad_(True)
        moved = sign * (step(x) - x)[:, entry]
        (slope,) = torch.autograd.grad(moved.sum(), x)
        length = slope.norm(dim=1, keepdim=True).clamp_min(1e-300)
        x = x + 0.3 * 0.9**k * slope / length * x.norm(dim=1, keepdim=True).clamp_min(1.0)
    return x.detach()


def outside(rows: Tensor, low: Tensor | None, high: Tensor | None) -> int:
    """Entries that are not in a box."""
    assert low is not None
    assert high is not None
    rows = rows.reshape(-1, low.numel())
    return int((~((rows >= low.reshape(-1)) & (rows <= high.reshape(-1)))).sum())


def examine(seed: int, budget: int) -> dict[str, Any]:
    """One step: certified, verified, simulated."""
    step, size, controls, what = random_step(seed)
    example = torch.zeros(1, size, dtype=F64)
    given: dict[str, Any] = (
        {"controls": torch.zeros(1, controls, dtype=F64), "control_range": (-1.0, 1.0)} if controls else {}
    )
    found = certify_rollout(step, example, time_budget=Budget(steps=budget), **given)
    faults: list[str] = []
    try:
        verify_rollout(step, found, example, **given)
    except CertificateError as error:
        faults.append(f"refused: {error}")
    draw = torch.Generator().manual_seed(seed)
    anywhere, within = starts(size, found, draw)
    row: dict[str, Any] = {
        "what": what,
        "verdict": found.verdict.value,
        "rounds": len(found.rest),
        "faults": faults,
    }
    if found.verdict is RolloutVerdict.DRIFTS:
        assert found.drift is not None
        seen = [simulate(step, anywhere, 200, controls, draw).flatten(0, 1)]
        if not controls:
            seen += [steepest(step, anywhere, k, s) for k in range(size) for s in (1.0, -1.0)]
        states = torch.cat(seen)
        with torch.no_grad():
            moved = (step(states) - states).abs()
        # x⁺ − x is rounded where x is large: that much is the simulation's own.
        room = 4 * torch.finfo(F64).eps * states.abs() * (states.abs() > 1e3)
        leaks = int((moved > found.drift.reshape(-1) + room).sum())
        row["filled"] = float((moved.amax(0) / found.drift.reshape(-1)).max())
    elif found.verdict is RolloutVerdict.INVARIANT:
        late = found.steps_until(RADIUS)
        row["late"] = late
        leaks = outside(simulate(step, within, 300, controls, draw)[1:], found.lower, found.upper)
        if not bool(found.linear.any()):
            leaks += outside(simulate(step, anywhere, 200, controls, draw)[1:], found.lower, found.upper)
        if late <= LONGEST:
            path = simulate(step, anywhere, late + 200, controls, draw)[late:]
            leaks += outside(path, found.attractor_lower, found.attractor_upper)
            row["tested"] = "attractor and stay"
            assert found.attractor_lower is not None
            assert found.attractor_upper is not None
            rows = path.reshape(-1, size)
            width = (found.attractor_upper - found.attractor_lower).reshape(-1)
            row["filled"] = float(((rows.amax(0) - rows.amin(0)) / width).max())
        else:
            row["tested"] = "stay"
    else:
        leaks = 0
    if leaks:
        faults.append(f"leak: {leaks} entries outside ({what})")
    return {**row, "leaks": leaks, "seconds": found.seconds}


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Counts."""
    proved = [r for r in rows if r["verdict"] in ("INVARIANT", "DRIFTS")]
    filled = [r["filled"] for r in proved if "filled" in r]
    return {
        "steps": len(rows),
        "certificates": len(proved),
        "verdicts": dict(Counter(r["verdict"] for r in rows)),
        "leaks": sum(bool(r["leaks"]) for r in rows),
        "refused by the checker": sum(any(f.startswith("refused") for f in r["faults"]) for r in rows),
        "attractors reached by simulation": sum(r.get("tested") == "attractor and stay" for r in rows),
        "largest share of a bound that was met": max(filled, default=0.0),
        "median share of a bound that was met": statistics.median(filled or [0.0]),
    }


def main() -> None:
    """Run, and print the summary."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=500)
    parser.add_argument("--steps", type=int, default=60, help="of search for each certificate")
    parser.add_argument("--out", type=Path)
    words = parser.parse_args()
    torch.set_num_threads(1)
    rows = collect(range(words.count), lambda seed: examine(seed, words.steps), words.out)
    settings = {"count": words.count, "steps": words.steps}
    print(json.dumps({**summary(rows), "provenance": provenance(settings)}, indent=1, ensure_ascii=False))


if __name__ == "__main__":
    main()
